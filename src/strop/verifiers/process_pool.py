"""Verifiers in worker processes that can be killed: `strop_verify.pool` with problems and verdicts as its JSON."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

from pydantic import TypeAdapter

from strop.base.session import accept, carried
from strop.base.types import Problem, Verdict
from strop.verifiers.base import Isolation, Verifier
from strop_verify.pool import JobReply, Pool, WorkerLimits, submit
from strop_verify.verdict import Status

NOT_JUDGED = Verdict(0.0, Status.ERROR, "not judged")
SERVE = "strop.verifiers.process_pool:serve"


class Result(NamedTuple):
    """The result of a job.

    Attributes:
        verdict: on a completion, where the job was to judge one.
        refusal: why the verifier can never judge the problem; None where it can, or where the job did not ask.
        milliseconds: the time it took in the worker.
    """

    verdict: Verdict = NOT_JUDGED
    refusal: str | None = None
    milliseconds: float = 0.0


class ProcessPool:
    """Runs verifiers in killable processes. Not thread-safe.

    Args:
        verifier: the piece served; a job may name a variant of it.
        isolation: how many processes and how long they may take; by default what the verifier asks for.
    """

    def __init__(self, verifier: Verifier, isolation: Isolation | None = None) -> None:
        self.verifier = verifier
        self.isolation = isolation or verifier.isolated() or Isolation()
        self.written = verifier.model_dump_json()
        self._pool = Pool(SERVE, _setup(self.written), limits_of(self.isolation))

    @property
    def workers(self) -> int:
        """How many worker processes there are."""
        return self._pool.workers

    @property
    def pid(self) -> int:
        """The supervisor's process id."""
        return self._pool.pid

    def submit(
        self, operation: str, problem: Problem, text: str = "", truncated: bool = False, written: str | None = None
    ) -> int:
        """Start a job and return its number.

        Args:
            operation: `judge` or `refuses`.
            written: the verifier as JSON where it is not the pool's own.

        Raises:
            TypeError: the problem holds something that cannot be written as JSON.
            WorkersLost: the supervisor cannot be kept alive.
        """
        return self._pool.submit(_job(operation, written or self.written, problem, text, truncated))

    def receive(self, seconds: float | None = 0.0) -> list[tuple[int, Result]]:
        """The results that are in; waits up to `seconds` (None: as long as it takes) where there are none.

        Raises:
            WorkersLost: the supervisor cannot be kept alive.
        """
        return [(number, _result(reply)) for number, reply in self._pool.receive(seconds)]

    def completed(self, numbers: Sequence[int]) -> Iterator[tuple[int, Result]]:
        """The results of these jobs as they come, each with the place of its number; those of other jobs are dropped.

        Raises:
            WorkersLost: the supervisor cannot be kept alive.
        """
        for place, reply in self._pool.completed(numbers):
            yield place, _result(reply)

    def close(self) -> None:
        """End the supervisor and its workers; may be called twice."""
        self._pool.close()


def judge_in_worker(verifier: Verifier, problem: Problem, text: str, truncated: bool) -> Verdict:
    """The verdict on a whole response, made in a worker of a pool that all verifiers of equal isolation share.

    `text` already holds what the prompt wrote of the response.
    """
    written = verifier.model_dump_json()
    job = _job("judge", written, Problem(problem.id, "", problem.reference), text, truncated)
    limits = limits_of(verifier.isolated() or Isolation())
    try:
        return _result(submit(SERVE, _setup(written), limits, job).result()).verdict
    except TypeError as error:
        return Verdict(0.0, Status.ERROR, f"the problem cannot be given to a worker: {error}")


def limits_of(isolation: Isolation) -> WorkerLimits:
    """The limits of the workers that a verifier asks for."""
    return WorkerLimits(**isolation.model_dump())


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


def _job(operation: str, verifier: str, problem: Problem, text: str, truncated: bool) -> dict[str, Any]:
    fields = problem_fields(problem)
    return {"do": operation, "verifier": verifier, "problem": fields, "text": text, "truncated": truncated}


def _result(reply: JobReply) -> Result:
    if reply.failure is not None:
        return Result(Verdict(0.0, reply.failure, reply.detail), reply.detail, reply.milliseconds)
    score, status, detail, reward, refusal = reply.value
    return Result(Verdict(score, Status(status), detail, reward), refusal, reply.milliseconds)


# ---------------------------------------------------------------------- in the supervisor and its workers


def serve(setup: dict[str, Any]) -> Any:
    """The function of the workers; what the verifier needs is imported and built before they are forked."""
    accept(setup["code"])
    read_verifier(setup["verifier"]).warm()
    return _handle


def _handle(job: dict[str, Any]) -> tuple[float, str, str, float | None, str | None]:
    verifier = read_verifier(job["verifier"])
    problem = read_problem(job["problem"])
    verdict, refusal = NOT_JUDGED, None
    if job["do"] == "refuses":
        refusal = verifier.refuses(problem)
    else:
        verdict = verifier(problem, job["text"], job["truncated"])
    return verdict.score, str(verdict.status), verdict.detail, verdict.reward, refusal


@lru_cache(maxsize=256)
def read_verifier(written: str) -> Verifier:
    """The piece that is written as JSON."""
    family: TypeAdapter[Verifier] = TypeAdapter(Verifier)
    return family.validate_json(written)
