import os

import pytest
from hypothesis import HealthCheck, settings

from eventloop import Bus

# `make storm` sets HYPOTHESIS_PROFILE=random; everywhere else a test that passed today passes tomorrow.
settings.register_profile("derandomized", derandomize=True, deadline=None, max_examples=60)
settings.register_profile(
    "random", deadline=None, max_examples=2000, print_blob=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "derandomized"))


@pytest.fixture
def bus(clock):
    """In place of the strict one of the plugin: most tests here are about what isolation does."""
    return Bus(clock=clock)


@pytest.fixture
def strict_bus():
    return Bus(failure="raise")
