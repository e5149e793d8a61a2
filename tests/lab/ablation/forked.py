"""Runs of an ablation forked from the test: the same program on the same pipes, without seconds of imports."""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import IO, Any

import pytest
import torch
from tests.forks import Fork

from strop.lab.ablation import run_process


class Forked(Fork):
    """What `RunProcess` uses of `subprocess.Popen`."""

    def __init__(
        self, command: Sequence[str], *, stderr: IO[bytes], env: Mapping[str, str], **_ignored: Any
    ) -> None:
        assert command[1:] == ["-m", "strop.lab.ablation.run_process"]
        (given, give), (take, taken) = os.pipe(), os.pipe()
        super().__init__(os.fork())
        if self.pid == 0:
            code = 1
            try:
                os.setsid()
                for place, end in enumerate((given, taken, stderr.fileno())):
                    os.dup2(end, place)
                for end in (given, give, take, taken):
                    os.close(end)
                sys.stdin, sys.stdout, sys.stderr = os.fdopen(0), os.fdopen(1, "w"), os.fdopen(2, "w")
                os.environ.update(env)
                torch.set_num_threads(1)
                code = run_process.main()
                sys.stdout.flush()
                sys.stderr.flush()
            except BaseException:  # nothing of the test may go on in the child
                traceback.print_exc()
            os._exit(code)
        os.close(given)
        os.close(taken)
        self.stdin, self.stdout = os.fdopen(give, "wb"), os.fdopen(take, "rb")


@contextmanager
def forking() -> Iterator[None]:
    """An ablation forks its runs inside."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("strop.lab.ablation.local_runner.subprocess.Popen", Forked)
        yield
