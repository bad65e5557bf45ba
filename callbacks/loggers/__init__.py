"""Loggers: each turns the same rows into a file, an event file or lines on a terminal."""
