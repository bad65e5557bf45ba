"""The speed ratios of the design, each measured beside the fastest plain code that does the same: ``make bench``."""
