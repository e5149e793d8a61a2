"""Jobs for worker processes and their results, as JSON behind the number of the job; nothing is unpickled."""

from __future__ import annotations

import json
import struct
from typing import Any, NamedTuple

from strop.base.types import Problem, Status, Verdict

HEARTBEAT = 0  # the number of messages that ask whether the supervisor runs, and answer it; jobs count from 1
NOT_JUDGED = Verdict(0.0, Status.ERROR, "not judged")
_NUMBER = struct.Struct(">Q")


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


def numbered(number: int, body: bytes = b"") -> bytes:
    """A message about job `number`."""
    return _NUMBER.pack(number) + body


def split_number(message: bytes) -> tuple[int, bytes]:
    """The number of the job that a message is about, and the rest of the message."""
    return _NUMBER.unpack_from(message)[0], message[_NUMBER.size :]


def write_job(operation: str, verifier: str, problem: Problem, text: str, truncated: bool) -> bytes:
    """A job as JSON; `verifier` is a piece as JSON.

    Raises:
        TypeError: the problem holds something that JSON does not know.
    """
    fields = problem_fields(problem)
    job = {"do": operation, "verifier": verifier, "problem": fields, "text": text, "truncated": truncated}
    return json.dumps(job).encode()


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


def write_result(result: Result) -> bytes:
    """A result as JSON."""
    verdict = result.verdict
    fields = [
        verdict.score, str(verdict.status), verdict.detail, verdict.reward, result.refusal, result.milliseconds
    ]  # fmt: skip
    return json.dumps(fields).encode()


def read_result(body: bytes) -> Result:
    """The result that `write_result` wrote."""
    score, status, detail, reward, refusal, milliseconds = json.loads(body)
    return Result(Verdict(score, Status(status), detail, reward), refusal, milliseconds)
