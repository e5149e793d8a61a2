"""What a program may use, and how it ended."""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum

MIB = 1 << 20
GIB = 1 << 30


class Outcome(StrEnum):
    """How a run or its tests ended: a run `ended` by itself, tests `pass` or are `wrong`, and the rest holds for both.

    The program causes all but `ended`, `pass` and `sandbox_error`; the last one is a failure of the sandbox.
    """

    ENDED = "ended"
    PASS = "pass"
    WRONG = "wrong"
    TIMEOUT = "timeout"
    MEMORY = "memory"
    RUNTIME_ERROR = "runtime_error"
    SYNTAX_ERROR = "syntax_error"
    KILLED = "killed"
    SANDBOX_ERROR = "sandbox_error"


@dataclass(frozen=True)
class Limits:
    """Limits of one sandbox process.

    Attributes:
        memory: bytes of the whole process tree in the sandbox.
        output: bytes written to standard output and standard error together.
        processes: processes and threads alive at once.
        open_files: descriptors a process.
        files: bytes in /tmp, and again in /dev/shm; no file is longer.
        stack: bytes of the main thread's stack.
    """

    memory: int = GIB
    output: int = 16 * MIB
    processes: int = 64
    open_files: int = 256
    files: int = 64 * MIB
    stack: int = GIB

    def wire(self, seconds: float) -> dict[str, int]:
        """The limits as the guest sets them, for a run of at most `seconds`."""
        return {
            # Reserved is not used: a thread's stack, an arena. What is used is watched apart.
            "address_space": 2 * self.memory + 2 * GIB,
            "cpu_seconds": math.ceil(seconds) * 2 + 2,
            "file_bytes": self.files,
            "open_files": self.open_files,
            "processes": self.processes,
            "stack_bytes": self.stack,
            "tmp_bytes": self.files,
            "tmp_files": 4096,
        }


@dataclass(frozen=True)
class Ending:
    """How a run ended, why in a few words, and its wall seconds."""

    outcome: Outcome
    detail: str = ""
    seconds: float = 0.0


@dataclass(frozen=True)
class ProgramRun:
    """One program run to its end: how it ended and what it wrote."""

    ending: Ending
    stdout: bytes = b""
    stderr: bytes = b""


class SandboxFailure(Exception):
    """The sandbox itself failed, which the program did not cause: never a reward."""
