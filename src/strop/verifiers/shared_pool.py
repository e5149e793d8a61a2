"""The pool behind verifiers that are called directly: made at the first call, ended with the process."""

from __future__ import annotations

import atexit
import threading

from strop.base.types import Problem, Status, Verdict
from strop.verifiers.base import Verifier
from strop.verifiers.isolation import Isolation
from strop.verifiers.process_pool import ProcessPool

_lock = threading.Lock()
_pools: dict[Isolation, ProcessPool] = {}


def judge_in_worker(verifier: Verifier, problem: Problem, text: str, truncated: bool) -> Verdict:
    """The verdict on a whole response, made in a worker.

    `text` already holds what the prompt wrote of the response.
    """
    plain = Problem(problem.id, "", problem.reference)
    with _lock:
        isolation = verifier.isolated() or Isolation()
        pool = _pools.get(isolation)
        if pool is None or not pool.owned:
            pool = _pools[isolation] = ProcessPool(verifier, isolation)
        try:
            number = pool.submit("judge", plain, text, truncated, verifier.model_dump_json())
        except TypeError as error:
            return Verdict(0.0, Status.ERROR, f"the problem cannot be given to a worker: {error}")
        return next(pool.completed([number]))[1].verdict


def close_shared() -> None:
    """End the shared pools; the next call makes new ones."""
    with _lock:
        for pool in _pools.values():
            pool.close()
        _pools.clear()


atexit.register(close_shared)
