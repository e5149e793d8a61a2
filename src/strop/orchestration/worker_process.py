"""A spawned worker's side: the program that a launcher of processes starts, and the line to its controller.

    python -m strop.orchestration.worker_process DESCRIPTOR PARENT

It dies with its controller, however that ends; a Ctrl-C is not for it. SIGUSR1 makes it write the stacks of its threads
into `stacks/ROLE.txt` of the run's folder.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import importlib.util
import os
import pickle
import select
import signal
import socket
import sys
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from strop.base import pieces, progress
from strop.base.types import StropError
from strop.engines.protocol import EngineLost
from strop.orchestration.connection import ControllerGone, WorkerSpec
from strop.orchestration.messages import Failed, Heartbeat
from strop.orchestration.process_registry import register_dump, stacks_path
from strop.verifiers.wire import HEADER

HEARTBEAT_SECONDS = 1.0
LOOPBACK = "127.0.0.1"
_PR_SET_PDEATHSIG = 1
_CHUNK = 1 << 18
_THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")


@dataclass(frozen=True)
class Setup:
    """The first frame: what to run. `modules` are those of the user's own that may name pieces, with their files."""

    spec: WorkerSpec
    path: tuple[str, ...]
    modules: Sequence[tuple[str, str]] = ()
    folder: Path | None = None


def setup_of(spec: WorkerSpec, folder: Path | None) -> Setup:
    """The first frame. It names those of the user's modules that the settings need: imports take time."""
    body = written(spec)
    modules = [(name, file) for name, file in pieces.modules_allowed() if name.encode() in body]
    return Setup(spec, tuple(sys.path), modules, folder)


def written(message: object) -> bytes:
    """A message as it crosses: what pickle makes of it. Both ends are ours and of one user, and nobody else's."""
    return pickle.dumps(message, protocol=pickle.HIGHEST_PROTOCOL)


class SocketLine:
    """A `Line` over a stream socket. A heartbeat thread may send besides."""

    address = LOOPBACK

    def __init__(self, end: socket.socket) -> None:
        self._socket = end
        self._sending = threading.Lock()
        self._in = bytearray()
        self._unread: list[Any] = []
        self._came_round = time.monotonic()

    def send(self, message: object) -> None:
        """Send a message; waits while the controller does not read."""
        body = written(message)
        try:
            with self._sending:
                self._socket.sendall(HEADER.pack(len(body), 0) + body)
        except OSError as error:
            raise ControllerGone from error

    def receive(self, seconds: float) -> list[Any]:
        """The messages that are in; waits up to `seconds` for the first."""
        self.progress()
        deadline = time.monotonic() + seconds
        found, self._unread = self._unread, []
        while True:
            left = 0.0 if found else max(deadline - time.monotonic(), 0.0)
            if not select.select([self._socket], [], [], left)[0]:
                self.progress()
                return found
            self._read()
            found += self._whole_frames()

    def first(self) -> Any:
        """The first message, however long it takes; what came with it is received later."""
        found: list[Any] = []
        while not found:
            found = self.receive(HEARTBEAT_SECONDS)
        self._unread = found[1:]
        return found[0]

    def progress(self) -> None:
        """The work goes on."""
        self._came_round = time.monotonic()

    def beat(self) -> None:
        """Send a heartbeat."""
        self.send(Heartbeat(standing_since(self._came_round)))

    def _read(self) -> None:
        try:
            chunk = self._socket.recv(_CHUNK)
        except OSError as error:
            raise ControllerGone from error
        if not chunk:
            raise ControllerGone
        self._in += chunk

    def _whole_frames(self) -> list[Any]:
        found: list[Any] = []
        while len(self._in) >= HEADER.size:
            length, _ = HEADER.unpack_from(self._in)
            if len(self._in) < HEADER.size + length:
                break
            found.append(pickle.loads(self._in[HEADER.size : HEADER.size + length]))
            del self._in[: HEADER.size + length]
        return found


def standing_since(came_round: float) -> float:
    """For how many seconds a worker's work has stood still, whose loop came round at that time.

    What this process has made since (`progress.made`, such as a micro-batch of a long update) counts as well.
    """
    return min(time.monotonic() - came_round, progress.CURRENT.age)


def die_with_parent(parent: int) -> None:
    """Be killed by the kernel when the thread that started this process ends; at once where it has ended already."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


def thread_environment(spec: WorkerSpec) -> dict[str, str]:
    """The variables for as many threads as a worker should have, none of which takes a core while it waits."""
    return dict.fromkeys(_THREADS, str(spec.threads)) | {"OMP_WAIT_POLICY": "PASSIVE"}


def find_entry(name: str) -> Callable[[Any, Any], None]:
    """The function that `module:function` names."""
    module, _, function = name.partition(":")
    found = vars(importlib.import_module(module))[function]
    assert callable(found)
    return found


def last_words(error: BaseException) -> Failed:
    """What a worker says of the exception that ends it: a `StropError` would come again, anything else may not.

    Nor may an `EngineLost`: another server may serve.
    """
    said = str(error) if isinstance(error, StropError) else f"{type(error).__name__}: {error}"
    comes_again = isinstance(error, StropError) and not isinstance(error, EngineLost)
    return Failed(said, comes_again, "".join(traceback.format_exception(error)))


def prepare(setup: Setup) -> None:
    """Make this process what the controller's is: its import path, the user's own modules, a place for stacks."""
    sys.path[:] = setup.path
    for name, file in setup.modules:
        pieces.allow_module(name) if importlib.util.find_spec(name) is not None else pieces.load_module(Path(file))
    if setup.folder is not None:
        register_dump(stacks_path(setup.folder, setup.spec.role))


def _beat_for_ever(line: SocketLine, parent: int) -> None:
    with contextlib.suppress(ControllerGone):
        while os.getppid() == parent:
            line.beat()
            time.sleep(HEARTBEAT_SECONDS)
    os._exit(1)  # whatever the main thread does: nobody wants its results


def main() -> None:
    """Run one worker to its end."""
    descriptor, parent = int(sys.argv[1]), int(sys.argv[2])
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    die_with_parent(parent)
    line = SocketLine(socket.socket(fileno=descriptor))
    status = 0
    try:
        setup = line.first()
        threading.Thread(target=_beat_for_ever, args=(line, parent), daemon=True, name="heartbeat").start()
        prepare(setup)
        find_entry(setup.spec.entry)(line, setup.spec.settings)
    except ControllerGone:
        pass  # the normal end
    except Exception as error:  # whatever it is, the controller must hear of it
        status = 1
        traceback.print_exc()
        with contextlib.suppress(ControllerGone):
            line.send(last_words(error))
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)  # no thread of a library may keep a worker that is done


if __name__ == "__main__":
    main()
