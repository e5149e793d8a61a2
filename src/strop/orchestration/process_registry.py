"""The registry of a run's processes, and the Python stacks of each of them on demand.

    driver   write_processes(run, [RegisteredWorker.of("driver", os.getpid()), …])
    worker   register_dump(run / "stacks" / "generator-0.txt")      # once, when it starts
    watchdog dump_stacks(run, read_processes(run))                  # SIGUSR1 to each, and waits for what they write

A worker answers SIGUSR1 inside its signal handler, written in C (`faulthandler`): also where it hangs in a lock, in C
code, or with the interpreter's lock held.
"""

from __future__ import annotations

import contextlib
import faulthandler
import json
import os
import signal
import socket
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TextIO

from strop.base.files import write_json, writing
from strop.base.types import InputError, StropError
from strop_verify.child_process import process_state, start_ticks

PROCESSES = "processes.json"
STACKS = "stacks"
DUMP_SIGNAL = signal.SIGUSR1
ANSWER_SECONDS = 2.0
_LOOK_SECONDS = 0.05
_files: list[TextIO] = []  # faulthandler writes to bare descriptors: they stay open as long as the process lives


@dataclass(frozen=True)
class RegisteredWorker:
    """A process of a run.

    Attributes:
        role: `driver`, `generator-0`, `trainer-1` …: unique in a run, and the name of its file under `stacks/`.
        pid: process id on `host`.
        started: when it began, in the kernel's clock ticks since boot: another process that was given the same id
            later differs in it. 0 where the host cannot say.
        host: the machine's name; signals reach only processes of this one.
    """

    role: str
    pid: int
    started: int
    host: str

    @classmethod
    def of(cls, role: str, pid: int) -> RegisteredWorker:
        """The entry of a live process of this machine."""
        return cls(role, pid, start_ticks(pid) or 0, socket.gethostname())

    @property
    def here(self) -> bool:
        """Whether it runs on this machine, as far as its name shows."""
        return self.host == socket.gethostname()

    @property
    def alive(self) -> bool:
        """Whether this very process still runs here; a zombie does not."""
        return self.here and start_ticks(self.pid) == self.started


# ---------------------------------------------------------------------- the registry


def write_processes(run: Path, workers: Sequence[RegisteredWorker]) -> Path:
    """Write RUN/processes.json with all processes; the driver calls it whenever one starts or ends."""
    roles = [worker.role for worker in workers]
    if len(set(roles)) < len(roles):
        raise ValueError(f"two processes have the same role: {roles}")
    target = run / PROCESSES
    write_json(target, [asdict(worker) for worker in workers])
    return target


def read_processes(run: Path) -> tuple[RegisteredWorker, ...]:
    """The processes of RUN/processes.json, dead ones too; none where it was never written.

    Raises:
        InputError: the file is broken.
    """
    target = run / PROCESSES
    try:
        return tuple(RegisteredWorker(**row) for row in json.loads(target.read_text(encoding="utf-8")))
    except FileNotFoundError:
        return ()
    except (ValueError, RecursionError, TypeError) as error:
        raise InputError(f"{target} is not a list of processes: {error}; remove it") from error


class ProcessRegistry:
    """The living workers of a run, and its driver; in RUN/processes.json once `folder` is set. Threads may share it."""

    def __init__(self) -> None:
        self.folder: Path | None = None
        self._living: list[RegisteredWorker] = []
        self._lock = threading.Lock()

    def add(self, worker: RegisteredWorker) -> None:
        """A worker has started."""
        with self._lock:
            self._living.append(worker)
            self._write()

    def remove(self, worker: RegisteredWorker) -> None:
        """A worker has ended."""
        with self._lock:
            self._living.remove(worker)
            self._write()

    def _write(self) -> None:
        if self.folder is None:
            return
        # A full disk must not end the run: what is trained matters more than who is listed.
        with contextlib.suppress(StropError):
            write_processes(self.folder, [RegisteredWorker.of("driver", os.getpid()), *self._living])


def stacks_path(run: Path, role: str) -> Path:
    """Where a process's stacks are written."""
    return run / STACKS / f"{role}.txt"


# ---------------------------------------------------------------------- stacks


def register_dump(path: Path) -> None:
    """Make this process append the Python stacks of all its threads to `path` on SIGUSR1, and go on.

    Call it in every worker when it starts, with `stacks_path(run, role)`. The file is made at once, for a process that
    hangs may find the disk full.

    Raises:
        StropError: the file cannot be written.
    """
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        file = path.open("a", encoding="utf-8")
    _files.append(file)
    faulthandler.register(DUMP_SIGNAL, file=file, all_threads=True, chain=False)


def dump_stacks(run: Path, workers: Sequence[RegisteredWorker], seconds: float = ANSWER_SECONDS) -> None:
    """Have processes, this one too, append their stacks to their files.

    The file of a process that does not answer within `seconds` says so: one that is stopped, dead or on another
    machine, or waits for the disk. A process without `register_dump`, which the signal would end, is not signalled.
    """
    silent: list[RegisteredWorker] = []
    asked: dict[RegisteredWorker, int] = {}  # with the size of the file before
    for worker in workers:
        path = stacks_path(run, worker.role)
        if worker.alive and worker.pid == os.getpid():
            with _appending(path) as file:
                faulthandler.dump_traceback(file=file, all_threads=True)
        elif worker.alive and _catches(worker.pid):
            asked[worker] = _size(path)
            os.kill(worker.pid, DUMP_SIGNAL)
        else:
            silent.append(worker)

    def waiting() -> list[RegisteredWorker]:
        return [worker for worker, before in asked.items() if _size(stacks_path(run, worker.role)) == before]

    deadline = time.monotonic() + seconds
    while waiting() and time.monotonic() < deadline:
        time.sleep(_LOOK_SECONDS)
    time.sleep(_LOOK_SECONDS if asked else 0.0)  # a dump is written at once: what has begun is whole by then
    for worker in [*silent, *waiting()]:
        state = f"state {process_state(worker.pid)}" if worker.here else f"on {worker.host}"
        with _appending(stacks_path(run, worker.role)) as file:
            file.write(f"no stacks: the process did not answer ({state})\n")


@contextlib.contextmanager
def _appending(path: Path) -> Iterator[TextIO]:
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a", encoding="utf-8") as file:
            yield file


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def _catches(pid: int) -> bool:
    """Whether a process has a handler for the signal, which would end it otherwise."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except (FileNotFoundError, ProcessLookupError):
        return False
    caught = next((line.split()[1] for line in lines if line.startswith("SigCgt:")), "0")
    return bool(int(caught, 16) >> (DUMP_SIGNAL - 1) & 1)
