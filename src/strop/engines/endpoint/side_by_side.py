"""Requests to endpoints that are made side by side: their threads, their giving up, what users hear of it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from typing import Any, Generic, TypeVar

from strop.base.view import duration

TOLD_AFTER = 2.0  # seconds of silence: a server that is busy for a moment is nothing to read about
TOLD_ANEW_AFTER = 60.0  # seconds between two notes of one URL, which may answer every other request
Result = TypeVar("Result")


@dataclass
class _Outage:
    """A URL that has answered no request since `began`; requests to it are given up at about `until`."""

    began: float
    until: float
    reason: str
    told: bool = False


class Patience:
    """What requests share while they are sent again: that they were given up, and which URL answers none of them.

    The threads of the requests report to it; the thread that shows things to the user asks it for `news`.
    """

    def __init__(self) -> None:
        self._given_up = threading.Event()
        self._lock = threading.Lock()
        self._outages: dict[str, _Outage] = {}
        self._told: dict[str, float] = {}  # when, by URL
        self._over: list[str] = []

    @property
    def given_up(self) -> bool:
        """Whether no request is to be sent any more."""
        return self._given_up.is_set()

    def give_up(self) -> None:
        """End every pause now; no request is sent after it."""
        self._given_up.set()

    def pause(self, seconds: float) -> None:
        """Wait, no longer than until requests are given up."""
        self._given_up.wait(seconds)

    def failed(self, url: str, reason: str, left: float) -> None:
        """A request failed for `reason`, and is sent again for about `left` seconds more."""
        now = time.monotonic()
        with self._lock:
            outage = self._outages.setdefault(url, _Outage(now, now + left, reason))
            # The first request that is given up ends them all.
            outage.until = min(outage.until, now + left)
            outage.reason = reason

    def answered(self, url: str) -> None:
        """A request was answered: whatever was the matter with `url` is over."""
        with self._lock:
            outage = self._outages.pop(url, None)
            if outage is not None and outage.told:
                self._over.append(f"{url} answers again, after {duration(time.monotonic() - outage.began)}")

    def news(self) -> list[str]:
        """What users have not been told yet: which URL does not answer, how long it is still asked, which is back."""
        now = time.monotonic()
        with self._lock:
            lines, self._over = self._over, []
            for url, outage in self._outages.items():
                silent = now - self._told.get(url, -TOLD_ANEW_AFTER) >= TOLD_ANEW_AFTER
                if silent and not outage.told and now - outage.began >= TOLD_AFTER:
                    outage.told, self._told[url] = True, now
                    left = duration(max(outage.until - now, 1.0))
                    lines.append(f"{url} does not answer ({outage.reason}); it is asked again for about {left}")
        return lines


@dataclass
class _Job(Generic[Result]):
    future: Future[Result]
    call: Callable[[], Result]

    def do(self) -> None:
        if not self.future.set_running_or_notify_cancel():
            return
        try:
            result = self.call()
        except BaseException as error:  # raised again where the result is asked for
            self.future.set_exception(error)
        else:
            self.future.set_result(result)


class Callers:
    """At most `count` threads that make calls.

    A program ends without waiting for them, as it would for those of a `ThreadPoolExecutor`: answers may take minutes.
    """

    def __init__(self, count: int) -> None:
        self._count = count
        self._threads: list[threading.Thread] = []
        self._jobs: SimpleQueue[_Job[Any] | None] = SimpleQueue()

    def submit(self, call: Callable[[], Result]) -> Future[Result]:
        """Have `call` made by a thread."""
        future: Future[Result] = Future()
        self._jobs.put(_Job(future, call))
        if len(self._threads) < self._count:
            thread = threading.Thread(target=self._work, name="strop-endpoint", daemon=True)
            self._threads.append(thread)
            thread.start()
        return future

    def close(self) -> None:
        """Cancel the calls that no thread has begun; each thread ends with the call that it is at."""
        with suppress(Empty):
            while (job := self._jobs.get_nowait()) is not None:
                job.future.cancel()
        for _ in self._threads:
            self._jobs.put(None)

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            job.do()
