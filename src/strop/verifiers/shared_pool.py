"""The pool behind verifiers that are called directly: made at the first call, ended with the process."""

from __future__ import annotations

import atexit
import threading

from strop.base.types import Problem, Status, Verdict
from strop.verifiers.base import Verifier
from strop.verifiers.isolation import Isolation
from strop.verifiers.jobs import Result
from strop.verifiers.process_pool import ProcessPool

_lock = threading.Lock()
_pools: dict[Isolation, ProcessPool] = {}


def judge_in_worker(verifier: Verifier, problem: Problem, text: str, truncated: bool) -> Verdict:
    """The verdict on a whole response, made in a worker.

    `text` already holds what the prompt wrote of the response.
    """
    plain = Problem(problem.id, "", problem.reference)
    try:
        return _result(verifier, "judge", plain, text, truncated).verdict
    except TypeError as error:
        return Verdict(0.0, Status.ERROR, f"the problem cannot be given to a worker: {error}")


def refuses_in_worker(verifier: Verifier, problem: Problem) -> str | None:
    """The result of `verifier.refuses` in a worker; a reference that takes too long is refused."""
    return _result(verifier, "refuses", Problem(problem.id, "", problem.reference)).refusal


def close_shared() -> None:
    """End the shared pools; the next call makes new ones."""
    with _lock:
        for pool in _pools.values():
            pool.close()
        _pools.clear()


def _result(verifier: Verifier, operation: str, problem: Problem, text: str = "", truncated: bool = False) -> Result:
    with _lock:
        isolation = verifier.isolated() or Isolation()
        pool = _pools.get(isolation)
        if pool is None or not pool.owned:
            pool = _pools[isolation] = ProcessPool(verifier, isolation)
        number = pool.submit(operation, problem, text, truncated, verifier.model_dump_json())
        return next(pool.completed([number]))[1]


atexit.register(close_shared)
