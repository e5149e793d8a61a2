"""Verifiers in worker processes that can be killed: `strop_verify.pool` with problems and verdicts as its JSON."""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from typing import Any, Literal

from pydantic import TypeAdapter

from strop.base.session import accept, carried
from strop.base.types import Problem, Verdict
from strop.verifiers.base import Isolation, Verifier
from strop_verify.pool import JobReply, Pool, WorkerLimits, submit
from strop_verify.verdict import Status

Operation = Literal["judge", "refuses"]
SERVE = "strop.verifiers.process_pool:serve"


class VerifierPool(Pool):
    """A pool whose workers run a verifier; `verdict_of` and `refusal_of` read its replies.

    Args:
        verifier: the piece served; a job may name a variant of it.
        isolation: how many processes and how long they may take; by default what the verifier asks for.
    """

    def __init__(self, verifier: Verifier, isolation: Isolation | None = None) -> None:
        self.verifier = verifier
        self.written = verifier.model_dump_json()
        limits = isolation or verifier.isolated() or Isolation()
        super().__init__(SERVE, _setup(self.written), WorkerLimits(**limits.model_dump()))

    def ask(
        self, operation: Operation, problem: Problem, text: str = "", truncated: bool = False,
        written: str | None = None,
    ) -> int:  # fmt: skip
        """Start a job and return its number.

        Args:
            operation: what is asked of the verifier about the problem.
            text: the completion to judge.
            truncated: the budget ended it.
            written: the verifier as JSON where it is not the pool's own.

        Raises:
            TypeError: the problem holds something that cannot be written as JSON.
            WorkersLost: the supervisor cannot be kept alive.
        """
        return self.submit(_job(operation, written or self.written, problem, text, truncated))


def verdict_of(reply: JobReply) -> Verdict:
    """The verdict in a reply to `judge`."""
    if reply.failure is not None:
        return Verdict(0.0, reply.failure, reply.detail)
    score, status, detail, reward = reply.value
    return Verdict(score, Status(status), detail, reward)


def refusal_of(reply: JobReply) -> str | None:
    """The answer in a reply to `refuses`: why the verifier can never judge the problem, or None."""
    if reply.failure is not None:
        return reply.detail
    refusal: str | None = reply.value
    return refusal


def judged(verifier: Verifier, completions: Iterable[tuple[Problem, str, bool]]) -> list[Verdict]:
    """The verdicts on (problem, text, truncated), in order; in worker processes where the verifier needs them.

    Raises:
        WorkersLost: worker processes cannot be kept alive.
    """
    if verifier.isolated() is None:
        return [verifier(*each) for each in completions]
    pool = VerifierPool(verifier)
    try:
        replies = dict(pool.completed([pool.ask("judge", *each) for each in completions]))
    finally:
        pool.close()
    return [verdict_of(replies[place]) for place in range(len(replies))]


def judge_in_worker(verifier: Verifier, problem: Problem, text: str, truncated: bool) -> Verdict:
    """The verdict on a whole response, made in a worker of a pool that all verifiers of equal isolation share.

    `text` already holds what the prompt wrote of the response.
    """
    written = verifier.model_dump_json()
    job = _job("judge", written, Problem(problem.id, "", problem.reference), text, truncated)
    limits = WorkerLimits(**(verifier.isolated() or Isolation()).model_dump())
    try:
        return verdict_of(submit(SERVE, _setup(written), limits, job).result())
    except TypeError as error:
        return Verdict(0.0, Status.ERROR, f"the problem cannot be given to a worker: {error}")


def problem_fields(problem: Problem) -> dict[str, Any]:
    """A problem as JSON knows it, where its reference and what it has extra do."""
    return {
        "id": problem.id,
        "prompt": problem.prompt,
        "reference": problem.reference,
        "domain": problem.domain,
        "source": problem.source,
        "extra": dict(problem.extra),
    }


def read_problem(fields: dict[str, Any]) -> Problem:
    """The problem of a job; chat messages are a tuple again."""
    prompt = fields["prompt"]
    return Problem(**{**fields, "prompt": prompt if isinstance(prompt, str) else tuple(prompt)})


def _setup(written: str) -> dict[str, Any]:
    return {"verifier": written, "code": carried(written)}


def _job(operation: Operation, verifier: str, problem: Problem, text: str, truncated: bool) -> dict[str, Any]:
    fields = problem_fields(problem)
    return {"do": operation, "verifier": verifier, "problem": fields, "text": text, "truncated": truncated}


# ---------------------------------------------------------------------- in the supervisor and its workers


def serve(setup: dict[str, Any]) -> Any:
    """Return the function of the workers. What the verifier needs is imported and built before they are forked."""
    accept(setup["code"])
    read_verifier(setup["verifier"]).warm()
    return _handle


def _handle(job: dict[str, Any]) -> tuple[float, str, str, float | None] | str | None:
    verifier = read_verifier(job["verifier"])
    problem = read_problem(job["problem"])
    if job["do"] == "refuses":
        return verifier.refuses(problem)
    verdict = verifier(problem, job["text"], job["truncated"])
    return verdict.score, str(verdict.status), verdict.detail, verdict.reward


@lru_cache(maxsize=256)
def read_verifier(written: str) -> Verifier:
    """The piece that is written as JSON."""
    family: TypeAdapter[Verifier] = TypeAdapter(Verifier)
    return family.validate_json(written)
