"""Child processes that are killed for real; each is forked from a process that has torch and `killed_runs` loaded."""

from __future__ import annotations

import multiprocessing
import os
import sys
from collections.abc import Callable
from multiprocessing import forkserver
from typing import Any

import pytest

FORKS = multiprocessing.get_context("forkserver")
FORKS.set_forkserver_preload(["killed_runs"])


def start(function: Callable[..., Any], *arguments: Any) -> Any:
    """Start a function of `killed_runs` in a process of its own."""
    with pytest.MonkeyPatch.context() as patch:  # before 3.12 the server does not look where this process looks
        patch.setenv("PYTHONPATH", os.pathsep.join(sys.path))
        forkserver.ensure_running()
    child = FORKS.Process(target=function, args=arguments)
    child.start()
    return child


def run(function: Callable[..., Any], *arguments: Any) -> int:
    """Its exit code."""
    child = start(function, *arguments)
    child.join(60)
    assert child.exitcode is not None, f"{function.__name__} did not end"
    return child.exitcode


def told(function: Callable[..., Any], *arguments: Any) -> Any:
    """What it sends through the pipe that it is given as its last argument."""
    here, there = FORKS.Pipe()
    assert run(function, *arguments, there) == 0
    assert here.poll(0)
    return here.recv()
