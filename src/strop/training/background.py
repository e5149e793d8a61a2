"""Work beside the caller, one piece at a time: what it raised comes up where it is waited for."""

from __future__ import annotations

import threading
from collections.abc import Callable


class Background:
    """Runs one piece of work in a thread."""

    def __init__(self) -> None:
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None

    @property
    def busy(self) -> bool:
        """Whether a piece of work is not done."""
        return self._thread is not None and self._thread.is_alive()

    def start(self, work: Callable[[], object], name: str) -> None:
        """Begin `work`, after the piece before it; raises what that one raised."""
        self.wait()
        # Not a daemon: a process that ends in the meantime finishes what it has begun.
        self._thread = threading.Thread(target=self._run, args=(work,), name=name)
        self._thread.start()

    def wait(self) -> None:
        """Until the work is done; raises what it raised, once."""
        if self._thread is None:
            return
        self._thread.join()
        self._thread = None
        error, self._error = self._error, None
        if error is not None:
            raise error

    def _run(self, work: Callable[[], object]) -> None:
        try:
            work()
        except BaseException as error:  # whatever it is, it is raised again in `wait`
            self._error = error
