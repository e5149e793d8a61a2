"""Workers forked from the test instead of started anew: the same program and sockets, without seconds of imports."""

from __future__ import annotations

import os
import subprocess
import sys
import traceback
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import IO, Any

import pytest
import torch
from tests.forks import Fork

from strop.orchestration import worker_process as worker


class Forked(Fork):
    """What the launcher uses of `subprocess.Popen`."""

    def __init__(
        self, starts: Any, command: Sequence[str], *, stdout: IO[bytes], env: Mapping[str, str], **_ignored: Any
    ) -> None:
        super().__init__(os.fork())
        if self.pid == 0:
            try:
                os.dup2(stdout.fileno(), 1)
                os.dup2(stdout.fileno(), 2)
                os.setsid()
                os.environ.update(env)
                subprocess.Popen = starts  # type: ignore[misc]  # what the worker starts is started as ever
                torch.set_num_threads(1)
                sys.argv = list(command[2:])
                worker.main()
            except BaseException:  # nothing of the test may go on in the child
                traceback.print_exc()
            os._exit(1)


@contextmanager
def forking() -> Iterator[None]:
    """Launchers fork their workers inside; whatever else is started, such as a verifier, is started as ever."""
    starts: Any = subprocess.Popen

    def started(command: Sequence[str], **options: Any) -> Any:
        if command[1:3] == ["-m", "strop.orchestration.worker_process"]:
            return Forked(starts, command, **options)
        return starts(command, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("strop.orchestration.processes.subprocess.Popen", started)
        yield
