"""The judges of verifiers: in this process, in worker processes that can be killed, in a sandbox, by domain."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from queue import Empty, SimpleQueue
from threading import Thread
from typing import Any, Protocol

import numpy as np

from strop.base.progress import part
from strop.base.types import Completion, FinishReason, Problem, Verdict
from strop.verifiers.base import Verifier, response
from strop.verifiers.code_verifier import CodeVerifier
from strop.verifiers.combined import ByDomain
from strop.verifiers.process_pool import VerifierPool, verdict_of
from strop.verifiers.protocol import InlineJudge, Judge, Key, Responder
from strop_verify.pool import JobReply
from strop_verify.verdict import Status

WAIT_SECONDS = 0.2


class FutureJudge(Judge):
    """Begins each verdict at once, elsewhere, and collects those that are there; a subclass says where.

    Work goes on while nobody polls. Both methods of a subclass may raise `WorkersLost`.
    """

    def __init__(self) -> None:
        self._pending = 0
        self._done: SimpleQueue[tuple[Key, Future[Any]]] = SimpleQueue()
        self._ready: list[tuple[Key, Future[Any]]] = []

    @property
    def pending(self) -> int:
        """Completions submitted whose verdict was not yet polled."""
        return self._pending

    def submit(self, key: Key, problem: Problem, completion: Completion, seed: int = 0) -> None:
        """Begin the verdict on a completion."""
        self._begin(problem, completion).add_done_callback(lambda future: self._done.put((key, future)))
        self._pending += 1

    def poll(self) -> list[tuple[Key, Verdict]]:
        """The verdicts that are there; does not wait."""
        while not self._done.empty():
            self._ready.append(self._done.get())
        ready, self._ready = self._ready, []
        self._pending -= len(ready)
        return [(key, self._verdict(future.result())) for key, future in ready]

    def wait(self, seconds: float) -> None:
        """Sleep until a verdict is there, at most `seconds`."""
        if self._pending and not self._ready:
            with suppress(Empty):
                self._ready.append(self._done.get(timeout=seconds))

    @abstractmethod
    def _begin(self, problem: Problem, completion: Completion) -> Future[Any]:
        """Begin the verdict."""

    @abstractmethod
    def _verdict(self, result: Any) -> Verdict:
        """The verdict in the result of a future."""


class ThreadJudge(FutureJudge):
    """Calls `judge(problem, whole response, truncated)` in threads of this process, which wait there for others.

    Closing it does not wait for the calls that are under way.
    """

    def __init__(self, judge: Callable[[Problem, str, bool], Verdict], threads: int) -> None:
        super().__init__()
        self._judge = judge
        self._jobs: SimpleQueue[tuple[Future[Verdict], Problem, Completion] | None] = SimpleQueue()
        # Daemons, unlike those of an executor: a process that ends waits for no answer.
        self._threads = [Thread(target=self._work, name="strop-judge", daemon=True) for _ in range(threads)]
        for thread in self._threads:
            thread.start()

    def close(self) -> None:
        """Drop what is queued."""
        with suppress(Empty):
            while True:
                self._jobs.get_nowait()
        for _ in self._threads:
            self._jobs.put(None)
        self._pending = 0

    def _begin(self, problem: Problem, completion: Completion) -> Future[Any]:
        future: Future[Verdict] = Future()
        self._jobs.put((future, problem, completion))
        return future

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            future, problem, completion = job
            try:
                future.set_result(self._judge(problem, response(problem, completion.text), completion.truncated))
            except BaseException as error:  # whoever polls gets it
                future.set_exception(error)

    def _verdict(self, result: Any) -> Verdict:
        verdict: Verdict = result
        return verdict


class SandboxJudge(ThreadJudge):
    """A `Judge` for a `CodeVerifier`, with its own sandbox.

    Raises:
        NoIsolation: this machine cannot isolate foreign programs.
    """

    def __init__(self, verifier: CodeVerifier) -> None:
        self._sandbox = verifier.open_sandbox()
        super().__init__(partial(verifier.judge_in, self._sandbox), self._sandbox.workers)

    def close(self) -> None:
        """Drop what is queued, kill what runs, leave nothing behind."""
        super().close()
        self._sandbox.close()
        for thread in self._threads:
            thread.join()


class ProcessJudge(FutureJudge):
    """Judges in worker processes: one that hangs, crashes or eats memory is killed by the supervisor."""

    def __init__(self, verifier: Verifier, pool: VerifierPool | None = None) -> None:
        super().__init__()
        self._pool = pool or VerifierPool(verifier)

    def close(self) -> None:
        """End the workers."""
        self._pool.close()

    def _begin(self, problem: Problem, completion: Completion) -> Future[Any]:
        try:
            return self._pool.ask(problem, completion.text, completion.truncated)
        except TypeError as error:
            failed: Future[JobReply] = Future()
            detail = f"the problem cannot be given to a worker: {error}"
            failed.set_result(JobReply(None, Status.ERROR, detail))
            return failed

    def _verdict(self, result: Any) -> Verdict:
        return verdict_of(result)


def judge_for(verifier: Verifier) -> Judge:
    """A sandbox for programs, threads for what waits for others, worker processes for what may hang, else the calling
    process; closed by the caller.

    Raises:
        NoIsolation: programs are to be judged, and this machine cannot isolate them.
    """
    if isinstance(verifier, ByDomain):
        return DomainJudge({domain: judge_for(member) for domain, member in verifier.members.items()})
    if isinstance(verifier, CodeVerifier):
        return SandboxJudge(verifier)
    if verifier.threads():
        return ThreadJudge(verifier.verdict, verifier.threads())
    return InlineJudge(verifier) if verifier.isolated() is None else ProcessJudge(verifier)


def judged(verifier: Verifier, completions: Iterable[tuple[Problem, str, bool]]) -> list[Verdict]:
    """The verdicts on (problem, text, truncated), in order.

    Raises:
        WorkersLost: worker processes cannot be kept alive.
        NoIsolation: programs are to be judged, and this machine cannot isolate them.
    """
    ids, logprobs, injected = np.zeros(0, np.int32), np.zeros(0, np.float32), np.zeros(0, np.bool_)
    asked, found = list(completions), dict[int, Verdict]()
    judge = judge_for(verifier)

    def collect() -> None:
        for (_, place), verdict in judge.poll():
            found[place] = verdict
            part(f"verdicts of {verifier.piece_name()}", len(found), len(asked))

    try:
        for place, (problem, text, truncated) in enumerate(asked):
            ended: FinishReason = "length" if truncated else "stop"
            judge.submit(("", place), problem, Completion("", place, ids, ids, logprobs, (), injected, text, ended))
            collect()
        while len(found) < len(asked):
            judge.wait(WAIT_SECONDS)
            collect()
    finally:
        judge.close()
    return [found[place] for place in range(len(asked))]


class Wraps(Protocol):
    """What stands between completions and the judge of a verifier: an environment."""

    def responder(self, judge: Judge) -> Responder:
        """Itself before `judge`, which is closed with it."""
        ...


class OpenJudges:
    """A judge for each verifier, opened at its first use: one that works in processes takes seconds to start.

    Args:
        known: of a verifier, by itself or behind an environment; open already, and closed by the caller.
    """

    def __init__(self, known: Sequence[tuple[Verifier, Wraps | None, Responder]] = ()) -> None:
        self._known = tuple(known)
        self._own: list[tuple[Verifier, Wraps | None, Responder]] = []

    def of(self, verifier: Verifier, before: Wraps | None = None) -> Responder:
        """The judge of `verifier`, or what stands before it."""
        for known, wraps, responder in (*self._known, *self._own):
            if known == verifier and wraps is before:
                return responder
        judge = judge_for(verifier)
        self._own.append((verifier, before, judge if before is None else before.responder(judge)))
        return self._own[-1][2]

    def close(self) -> None:
        """End those that were opened here; may be called twice."""
        for _, _, responder in self._own:
            responder.close()
        self._own = []


class DomainJudge(Judge):
    """Hands each completion to the judge of its problem's domain."""

    def __init__(self, members: Mapping[str, Judge]) -> None:
        self._members = dict(members)
        self._strays: list[tuple[Key, Verdict]] = []

    @property
    def pending(self) -> int:
        """Completions submitted whose verdict was not yet polled."""
        return len(self._strays) + sum(member.pending for member in self._members.values())

    def submit(self, key: Key, problem: Problem, completion: Completion, seed: int = 0) -> None:
        """Begin to judge a completion; one of a domain without a judge is an error."""
        member = self._members.get(problem.domain)
        if member is None:
            reason = f"no verifier for the domain {problem.domain!r}"
            self._strays.append((key, Verdict(0.0, Status.ERROR, reason)))
        else:
            member.submit(key, problem, completion)

    def poll(self) -> list[tuple[Key, Verdict]]:
        """The verdicts that are there; does not wait."""
        ready, self._strays = self._strays, []
        return [*ready, *(found for member in self._members.values() for found in member.poll())]

    def wait(self, seconds: float) -> None:
        """Sleep until the first member with work may have a verdict, at most `seconds`."""
        busy = [member for member in self._members.values() if member.pending]
        if busy and not self._strays:
            busy[0].wait(seconds / len(busy))

    def close(self) -> None:
        """End every member."""
        for member in self._members.values():
            member.close()
