"""The judges of verifiers: in this process, in worker processes that can be killed, in a sandbox, by domain."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from typing import Protocol

from strop.base.types import Completion, Problem, Verdict
from strop.verifiers.base import Verifier, response
from strop.verifiers.code_verifier import CodeVerifier
from strop.verifiers.combined import ByDomain
from strop.verifiers.process_pool import VerifierPool, refusal_of, verdict_of
from strop.verifiers.protocol import InlineJudge, Judge, Key, Responder
from strop_verify.verdict import Status


class SandboxJudge(Judge):
    """A `Judge` for a `CodeVerifier`, with its own sandbox.

    Args:
        verifier: how programs are judged.

    Raises:
        NoIsolation: this machine cannot isolate foreign programs.
    """

    def __init__(self, verifier: CodeVerifier) -> None:
        self._verifier = verifier
        self._sandbox = verifier.open_sandbox()
        self._threads = ThreadPoolExecutor(self._sandbox.workers, thread_name_prefix="strop-sandbox")
        self._running: dict[Key, Future[Verdict]] = {}

    @property
    def pending(self) -> int:
        """Completions submitted whose verdict was not yet polled."""
        return len(self._running)

    def submit(self, key: Key, problem: Problem, completion: Completion, seed: int = 0) -> None:
        """Queue a completion; returns at once.

        Raises:
            ValueError: a completion of this key is being judged already.
        """
        if key in self._running:
            raise ValueError(f"completion {key} is being judged already")
        self._running[key] = self._threads.submit(self._judge, problem, completion)

    def poll(self) -> list[tuple[Key, Verdict]]:
        """The verdicts that have come in since; never waits."""
        done = [key for key, future in self._running.items() if future.done()]
        return [(key, self._running.pop(key).result()) for key in done]

    def wait(self, seconds: float) -> None:
        """Sleep until a verdict is there, at most `seconds`."""
        if self._running:
            wait(self._running.values(), seconds, FIRST_COMPLETED)

    def close(self) -> None:
        """Drop what is queued, kill what runs, leave nothing behind."""
        for future in self._running.values():
            future.cancel()
        self._sandbox.close()
        self._threads.shutdown()
        self._running.clear()

    def _judge(self, problem: Problem, completion: Completion) -> Verdict:
        verifier = self._verifier
        if completion.truncated and verifier.require_stop:
            return Verdict(0.0, Status.UNPARSED, "truncated")
        return verifier.judge_in(self._sandbox, problem, response(problem, completion.text))


def judge_for(verifier: Verifier) -> Judge:
    """A sandbox for programs, worker processes for what may hang, else the calling process; closed by the caller.

    Raises:
        NoIsolation: programs are to be judged, and this machine cannot isolate them.
    """
    if isinstance(verifier, ByDomain):
        return DomainJudge({domain: judge_for(member) for domain, member in verifier.members.items()})
    if isinstance(verifier, CodeVerifier):
        return SandboxJudge(verifier)
    return InlineJudge(verifier) if verifier.isolated() is None else ProcessJudge(verifier)


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


class ProcessJudge(Judge):
    """Judges in worker processes while the caller generates: `submit` starts the work, `poll` only collects.

    A worker that hangs, crashes or eats memory is killed by the supervisor, also while this process does not poll.
    """

    def __init__(self, verifier: Verifier, pool: VerifierPool | None = None) -> None:
        self._pool = pool or VerifierPool(verifier)
        self._keys: dict[int, Key] = {}
        self._ready: list[tuple[Key, Verdict]] = []

    @property
    def pending(self) -> int:
        """Completions submitted whose verdict was not yet polled."""
        return len(self._keys) + len(self._ready)

    def submit(self, key: Key, problem: Problem, completion: Completion, seed: int = 0) -> None:
        """Send a completion to the workers; raises `WorkersLost` where they cannot be kept alive."""
        try:
            number = self._pool.ask("judge", problem, completion.text, completion.truncated)
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
        for number, reply in self._pool.receive(seconds):
            self._ready.append((self._keys.pop(number), verdict_of(reply)))


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


FEW = 64  # problems that one worker has judged before a pool has started


def refusals(verifier: Verifier, problems: Sequence[Problem]) -> list[str | None]:
    """For each problem why the verifier can never judge it, or None.

    A verifier that needs processes judges few problems in one worker, which starts sooner than a pool does.
    """
    if type(verifier).refuses is Verifier.refuses:
        return [None] * len(problems)
    if verifier.isolated() is None or len(problems) < FEW:
        return [verifier.refuses(problem) for problem in problems]
    pool = VerifierPool(verifier)
    try:
        replies = dict(pool.completed([pool.ask("refuses", problem) for problem in problems]))
    finally:
        pool.close()
    return [refusal_of(replies[place]) for place in range(len(problems))]
