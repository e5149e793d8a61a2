"""Judging beside generating: completions go in with `submit`, verdicts come out of `poll`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

from strop.base.types import Completion, Problem, Status, StropError, Verdict
from strop.verifiers.base import Verifier
from strop.verifiers.processes import ProcessPool, run_all
from strop.verifiers.wire import read_verdict

if TYPE_CHECKING:
    import asyncio

Key = tuple[str, int]


class Judge(Protocol):
    """Judges completions; the order of verdicts is free."""

    @property
    def pending(self) -> int:
        """Completions submitted whose verdict was not yet polled."""
        ...

    def submit(self, key: Key, problem: Problem, completion: Completion) -> None:
        """Begin to judge a completion."""
        ...

    def poll(self) -> list[tuple[Key, Verdict]]:
        """The verdicts that are there; does not wait."""
        ...

    def wait(self, seconds: float) -> None:
        """Sleep until a verdict is there, at most `seconds`; for callers that have nothing else to do."""
        ...

    def close(self) -> None:
        """End what runs."""
        ...


class InlineJudge:
    """Judges in the calling process, at `poll`: right for verifiers that are quick and cannot hang."""

    def __init__(self, verifier: Verifier) -> None:
        self._verifier = verifier
        self._queue: list[tuple[Key, Problem, Completion]] = []

    @property
    def pending(self) -> int:
        """Completions submitted and not yet judged."""
        return len(self._queue)

    def submit(self, key: Key, problem: Problem, completion: Completion) -> None:
        """Queue a completion."""
        self._queue.append((key, problem, completion))

    def poll(self) -> list[tuple[Key, Verdict]]:
        """Judge everything queued."""
        queue, self._queue = self._queue, []
        return [(key, self._verifier(problem, c.text, c.truncated)) for key, problem, c in queue]

    def wait(self, seconds: float) -> None:
        """Nothing to wait for: `poll` does the work."""

    def close(self) -> None:
        """Nothing to end."""


class ProcessJudge:
    """Judges in worker processes while the caller generates: `submit` starts the work, `poll` only collects.

    A worker that hangs, crashes or eats memory is killed by the supervisor, whether anyone polls or not.
    """

    def __init__(self, verifier: Verifier, pool: ProcessPool | None = None) -> None:
        self._pool = pool or ProcessPool(verifier)
        self._keys: dict[int, Key] = {}
        self._ready: list[tuple[Key, Verdict]] = []

    @property
    def pending(self) -> int:
        """Completions submitted whose verdict was not yet polled."""
        return len(self._keys) + len(self._ready)

    def submit(self, key: Key, problem: Problem, completion: Completion) -> None:
        """Send a completion to the workers; raises `WorkersLost` where they cannot be kept alive."""
        try:
            number = self._pool.submit("judge", problem, completion.text, completion.truncated)
        except TypeError as error:
            reason = f"the problem cannot be given to a worker: {error}"
            self._ready.append((key, Verdict(0.0, Status.ERROR, reason)))
            return
        self._keys[number] = key

    def poll(self) -> list[tuple[Key, Verdict]]:
        """The verdicts that are there; raises `WorkersLost` where the workers cannot be kept alive."""
        self._collect(0.0)
        ready, self._ready = self._ready, []
        return ready

    def wait(self, seconds: float) -> None:
        """Sleep until a verdict is there, at most `seconds`."""
        if not self._ready:
            self._collect(seconds)

    def close(self) -> None:
        """End the workers."""
        self._pool.close()

    def _collect(self, seconds: float) -> None:
        for number, result in self._pool.receive(seconds):
            self._ready.append((self._keys.pop(number), read_verdict(result)))


class AsyncJudge:
    """The same workers for asyncio: `await judge(problem, text)`; many may be awaited at once, in one event loop."""

    def __init__(self, verifier: Verifier, pool: ProcessPool | None = None) -> None:
        self._pool = pool or ProcessPool(verifier)
        self._waiting: dict[int, asyncio.Future[Verdict]] = {}
        self._watched: tuple[int, int] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    async def judge(self, problem: Problem, text: str, truncated: bool = False) -> Verdict:
        """The verdict on a completion.

        Raises:
            TypeError: the problem holds something that cannot be written as JSON.
            WorkersLost: the workers cannot be kept alive.
        """
        import asyncio  # here: it takes longer to import than all the rest of the configuration

        number = self._pool.submit("judge", problem, text, truncated)
        future: asyncio.Future[Verdict] = asyncio.get_running_loop().create_future()
        self._waiting[number] = future
        self._watch()
        return await future

    def close(self) -> None:
        """End the workers; verdicts still awaited are cancelled."""
        self._unwatch()
        for future in self._waiting.values():
            future.cancel()
        self._waiting.clear()
        self._pool.close()

    def _watch(self) -> None:
        """Look at the pool's socket, which is another one after a restart; also until it has taken every job."""
        import asyncio

        loop = self._loop = asyncio.get_running_loop()
        seen = (self._pool.generation, self._pool.fileno())
        if seen != self._watched:
            self._unwatch()
            loop.add_reader(seen[1], self._collect)
            self._watched = seen
        if self._pool.unsent:
            loop.add_writer(seen[1], self._collect)
        else:
            loop.remove_writer(seen[1])

    def _unwatch(self) -> None:
        if self._watched is not None and self._loop is not None and not self._loop.is_closed():
            self._loop.remove_reader(self._watched[1])
            self._loop.remove_writer(self._watched[1])
        self._watched = None

    def _collect(self) -> None:
        try:
            results = self._pool.receive(0.0)
        except StropError as error:
            self._unwatch()
            for future in self._waiting.values():
                if not future.done():
                    future.set_exception(error)
            self._waiting.clear()
            return
        for number, result in results:
            future = self._waiting.pop(number)
            if not future.done():
                future.set_result(read_verdict(result))
        self._watch()


def first_refusal(verifier: Verifier, problems: Sequence[Problem]) -> tuple[Problem, str] | None:
    """The first problem that a verifier can never judge, and why; asked of all workers at once where it needs them."""
    if type(verifier).refuses is Verifier.refuses:
        return None
    if verifier.isolated() is None or len(problems) < 2:
        refusals = ((problem, verifier.refuses(problem)) for problem in problems)
    else:
        pool = ProcessPool(verifier)
        try:
            results = run_all(pool, "refuses", problems)
        finally:
            pool.close()
        refusals = ((problem, result["refusal"]) for problem, result in zip(problems, results, strict=True))
    return next(((problem, reason) for problem, reason in refusals if reason is not None), None)
