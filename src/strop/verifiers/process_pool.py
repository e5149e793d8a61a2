"""Verifiers in worker processes that can be killed: `strop_verify.pool` with problems and verdicts as its JSON."""

from __future__ import annotations

from concurrent.futures import Future
from functools import lru_cache
from typing import Any

from pydantic import TypeAdapter

from strop.base.session import accept, carried
from strop.base.types import Problem, Verdict
from strop.verifiers.base import Isolation, Verifier
from strop_verify.pool import JobReply, Pool, WorkerLimits
from strop_verify.verdict import Status

SERVE = "strop.verifiers.process_pool:serve"


class VerifierPool(Pool):
    """A pool whose workers run a verifier; `verdict_of` reads its replies.

    Args:
        verifier: the piece served.
    """

    def __init__(self, verifier: Verifier) -> None:
        self.verifier = verifier
        self._written = verifier.model_dump_json()
        limits = verifier.isolated() or Isolation()
        super().__init__(SERVE, _setup(self._written), WorkerLimits(**limits.model_dump()))

    def ask(self, problem: Problem, text: str, truncated: bool = False) -> Future[JobReply]:
        """Start a verdict on a completion; `truncated`: the budget ended it.

        Raises:
            TypeError: the problem holds something that cannot be written as JSON.
            WorkersLost: the pool is closed.
        """
        fields = problem_fields(problem)
        return self.submit({"verifier": self._written, "problem": fields, "text": text, "truncated": truncated})


def verdict_of(reply: JobReply) -> Verdict:
    """The verdict in a reply."""
    if reply.failure is not None:
        return Verdict(0.0, reply.failure, reply.detail)
    score, status, detail, reward, undecided = reply.value
    return Verdict(score, Status(status), detail, reward, undecided=undecided)


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


# ---------------------------------------------------------------------- in the supervisor and its workers


def serve(setup: dict[str, Any]) -> Any:
    """Return the function of the workers. What the verifier needs is imported and built before they are forked."""
    accept(setup["code"])
    read_verifier(setup["verifier"]).warm()
    return _handle


def _handle(job: dict[str, Any]) -> tuple[float, str, str, float | None, str]:
    verdict = read_verifier(job["verifier"])(read_problem(job["problem"]), job["text"], job["truncated"])
    return verdict.score, str(verdict.status), verdict.detail, verdict.reward, verdict.undecided


@lru_cache(maxsize=256)
def read_verifier(written: str) -> Verifier:
    """The piece that is written as JSON."""
    family: TypeAdapter[Verifier] = TypeAdapter(Verifier)
    return family.validate_json(written)
