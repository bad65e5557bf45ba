"""A process that has loaded what is dear to import and forks a run of pytest a request: a second instead of ten.

A script by itself, which loads nothing of what is under test. It runs in the folder whose tests are asked for, and
takes requests from stdin and answers to stdout, one line of JSON each: see `Warm` in `running`.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
from typing import Any


def load() -> None:
    """Import what the tests will want; the first optimizer loads half of torch."""
    import hypothesis.strategies  # noqa: F401
    import safetensors.torch  # noqa: F401
    import structlog  # noqa: F401
    import tensorboardX.proto.event_pb2  # noqa: F401
    import torch
    import torch.utils.data
    from tensorboard.backend.event_processing import event_accumulator  # noqa: F401

    torch.optim.Adam([torch.nn.Parameter(torch.zeros(1))])


def run(seconds: int, printed: str, arguments: list[str]) -> int:
    """The exit code of pytest in a child process; minus SIGALRM if it took longer than that."""
    child = os.fork()
    if child == 0:
        code: Any = 3
        try:
            os.setsid()
            signal.alarm(seconds)
            with open(os.devnull) as nothing, open(printed, "wb") as file:  # noqa: PTH123  # for their descriptors
                os.dup2(nothing.fileno(), 0)
                os.dup2(file.fileno(), 1)
                os.dup2(file.fileno(), 2)
            import pytest

            code = pytest.main(arguments)
            sys.stdout.flush()
        finally:
            os._exit(int(code))
    try:
        _, status = os.waitpid(child, 0)
    finally:  # an interrupt too leaves nothing running
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child, signal.SIGKILL)
    return os.waitstatus_to_exitcode(status)


def main() -> None:
    """Answer requests until stdin is closed."""
    sys.dont_write_bytecode = True  # a cached file is told from a newer one by its second, which is too coarse
    load()
    for line in sys.stdin:
        print(json.dumps(run(**json.loads(line))), flush=True)


if __name__ == "__main__":
    main()
