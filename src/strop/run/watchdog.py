"""The driver's watch: a heartbeat in RUN/status.json every second, and an end to a run that makes no progress.

    with Watch(run, watchdog_seconds=1800, view=view) as watch:
        ...  # watch.view stands in for the view; parts call progress.made(…)

A separate thread does both, so that they go on when the main thread hangs. When nothing was made for
`watchdog_seconds`:

1. every process writes its stacks under RUN/stacks (`dump_stacks`);
2. `NoProgress` is raised in the main thread, by a signal: it comes out of a sleep, a lock or a read as any error does;
3. the run's workers are killed, so that the main thread does not wait for them;
4. where the main thread is not out within `GRACE_SECONDS`, its children are killed and the process ends by `os._exit`.

Should the interpreter's own lock never be released, this thread cannot run either: a timer of `faulthandler`, in C,
then writes the stacks to standard error and ends the process after twice the time.
"""

from __future__ import annotations

import contextlib
import faulthandler
import os
import signal
import threading
import time
from collections import deque
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any, NamedTuple, Self

from strop.base.files import write_json
from strop.base.imports import command
from strop.base.progress import CURRENT, Progress
from strop.base.text import duration
from strop.base.types import StropError
from strop.base.view import Values, View
from strop.orchestration.process_registry import STACKS, RegisteredWorker, dump_stacks, read_processes
from strop_verify.sandbox.process import descendants

STATUS = "status.json"
FORMAT = 1
BEAT_SECONDS = 1.0
GRACE_SECONDS = 20.0
NOTES = 20
INTERRUPTED = 130
RAISE_SIGNAL = signal.SIGUSR2


class NoProgress(StropError):
    """The watchdog ended the run; it can be resumed. The exit code is EX_TEMPFAIL: try again."""

    exit_code = 75


class Note(NamedTuple):
    """A line of a run, for status.json; one that is `passing` is untrue once the run is finished or interrupted."""

    time: float
    text: str
    passing: bool = False


class NotingView:
    """Wraps a view: keeps its calls for status.json and counts them as progress."""

    def __init__(self, view: View, progress: Progress) -> None:
        self._view = view
        self._progress = progress
        self.name: str | None = None
        self.step: int | None = None
        self.steps: int | None = None
        self.notes: deque[Note] = deque(maxlen=NOTES)

    def stage(self, name: str, total: int | None, unit: str = "steps") -> None:
        self.name, self.step, self.steps = name, None, total
        self._progress.over()
        self._progress.made(f"the beginning of {name}")
        self._view.stage(name, total, unit)

    def advance(self, step: int, metrics: Values) -> None:
        self.step = step
        self._progress.over()
        self._progress.made(f"step {step}")
        self._view.advance(step, metrics)

    def evaluated(self, step: int, metrics: Values) -> None:
        self._progress.made(f"the evaluation of step {step}")
        self._view.evaluated(step, metrics)

    def beat(self, text: str) -> None:
        self._view.beat(text)

    def note(self, text: str) -> None:
        self.notes.append(Note(time.time(), text))
        self._view.note(text)

    def passing(self, text: str) -> None:
        """A temporary note, which status.json omits once the run has ended as requested."""
        self.notes.append(Note(time.time(), text, passing=True))
        self._view.note(text)

    def close(self) -> None:
        self._view.close()


class Watch:
    """Heartbeat and watchdog of the driver; a context manager around the whole run."""

    def __init__(
        self,
        run: Path,
        watchdog_seconds: float | None,
        view: View,
        progress: Progress = CURRENT,
        grace: float = GRACE_SECONDS,
    ) -> None:
        """`watchdog_seconds`: None never ends a run. `grace`: how long the main thread may take to end by itself."""
        self.run = run
        self.seconds = watchdog_seconds
        self.progress = progress
        self.view = NotingView(view, progress)
        self._grace = grace
        self._me = RegisteredWorker.of("driver", os.getpid())
        self._began = time.time()
        self._error: str | None = None
        self._done = threading.Event()
        self._writing = threading.Lock()
        self._thread = threading.Thread(target=self._watch, name="strop-watch", daemon=True)
        self._handler: Any = None

    def __enter__(self) -> Self:
        self.progress.made("the start")
        if self.seconds is not None and threading.current_thread() is threading.main_thread():
            self._handler = signal.signal(RAISE_SIGNAL, self._raise)
        self.write("running")
        self._set_timer()
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._done.set()
        if self.seconds is not None:
            faulthandler.cancel_dump_traceback_later()
            if self._handler is not None:
                signal.signal(RAISE_SIGNAL, self._handler)
        if error is None:
            state = "finished"
        elif isinstance(error, KeyboardInterrupt) or (isinstance(error, StropError) and error.exit_code == INTERRUPTED):
            state = "interrupted"
        else:
            state = "stuck" if isinstance(error, NoProgress) else "failed"
            self._error = str(error) if isinstance(error, StropError) else f"{type(error).__name__}: {error}"
        self.write(state)

    def write(self, state: str) -> None:
        """Write RUN/status.json as of now. A full disk ends nothing, because the heartbeat only informs."""
        view, doing = self.view, self.progress.parts[-1:]
        value = {
            "format": FORMAT,
            "state": state,
            "host": self._me.host,
            "pid": self._me.pid,
            "started": self._me.started,
            "began": self._began,
            "time": time.time(),
            "stage": view.name,
            "step": view.step,
            "steps": view.steps,
            "doing": [doing[0].name, doing[0].done, doing[0].total] if doing else None,
            "progress": {"what": self.progress.what, "age": self.progress.age},
            "watchdog_seconds": self.seconds,
            "notes": [
                {"time": note.time, "text": note.text}
                for note in list(view.notes)
                if not (note.passing and state in ("finished", "interrupted"))
            ],
            "error": self._error,
        }
        # The main thread may hang while it writes; the watchdog does not wait for it.
        if not self._writing.acquire(timeout=1.0):
            return
        try:
            with contextlib.suppress(StropError):  # other parts refuse a full disk for the files that matter
                write_json(self.run / STATUS, value)
        finally:
            self._writing.release()

    # ------------------------------------------------------------------ the thread

    def _watch(self) -> None:
        before = time.monotonic()
        while not self._done.wait(BEAT_SECONDS):
            now = time.monotonic()
            overslept = now - before - BEAT_SECONDS
            if overslept > 10 * BEAT_SECONDS:  # stopped by a signal, or the machine slept
                self.progress.excuse(overslept)
            before = now
            self._set_timer()
            if self.seconds is not None and self.progress.age >= self.seconds:
                self._end()
                return
            self.write("running")

    def _set_timer(self) -> None:
        """Put off the end by the timer in C, which needs no interpreter."""
        if self.seconds is not None:
            faulthandler.dump_traceback_later(2 * self.seconds + 10 * BEAT_SECONDS, exit=True, file=2)

    def _end(self) -> None:
        """The run hangs: see the top of this file."""
        assert self.seconds is not None
        self._error = (
            f"no progress for {duration(self.progress.age)} (orchestration.watchdog_seconds={self.seconds:g}): "
            f"the last was {self.progress.what}; the stacks of every process are in {self.run / STACKS}; "
            f"go on with: {command('train --resume', self.run)}"
        )
        workers = [self._me]
        with contextlib.suppress(StropError):  # a broken registry or a full disk
            workers += [worker for worker in read_processes(self.run) if worker.pid != self._me.pid]
        with contextlib.suppress(StropError):
            dump_stacks(self.run, workers)
        self.write("stuck")
        if self._handler is not None:
            signal.pthread_kill(threading.main_thread().ident or 0, RAISE_SIGNAL)
            self._done.wait(BEAT_SECONDS)
        for worker in workers[1:]:
            kill(worker)
        if self._handler is not None and self._done.wait(self._grace):
            return
        os.write(2, f"strop: {self._error}\n".encode())
        kill_children(self._me.pid)
        os._exit(NoProgress.exit_code)

    def _raise(self, number: int, frame: FrameType | None) -> None:
        raise NoProgress(self._error or "the run was ended by a signal")


def kill(worker: RegisteredWorker) -> None:
    """Send SIGKILL if exactly this process still runs on this host."""
    if worker.alive:
        with contextlib.suppress(ProcessLookupError):
            os.kill(worker.pid, signal.SIGKILL)


def kill_children(pid: int) -> None:
    """Send SIGKILL to all processes that `pid` started, and theirs."""
    for child in [RegisteredWorker.of("child", below) for below in descendants(pid)[1:]]:
        kill(child)
