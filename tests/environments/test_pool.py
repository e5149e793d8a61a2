"""Sessions in processes: thousands at once, and one that hangs, raises, floods or dies costs its own sample only."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator

import pytest
from tests.environments.players import Chatty, Harmful, Slow

from strop.base.imports import allow_module
from strop.base.types import Problem, Verdict
from strop.environments.base import Environment, Outcome, Reply
from strop.environments.responder import SessionPool
from strop.environments.sessions import InlineSessions, Turn
from strop_verify.verdict import Status

PROBLEM = Problem("p", "x", "1")


@pytest.fixture(autouse=True)
def _players() -> Iterator[None]:
    allow_module("tests.environments.players")
    yield


def played(
    sessions: InlineSessions | SessionPool, count: int, reply: str = "again", patience: float = 110.0
) -> dict[int, list[Outcome]]:
    """All outcomes of `count` sessions, whose seeds are their numbers, by session."""
    found: dict[int, list[Outcome]] = {number: [] for number in range(count)}
    for number in found:
        sessions.take(Turn(("g", number), PROBLEM, number, "hello", False))
    deadline = time.monotonic() + patience
    while sessions.pending:
        assert time.monotonic() < deadline
        sessions.wait(1.0)
        for key, outcome in sessions.poll():
            found[key[1]].append(outcome)
            if isinstance(outcome, Reply):
                sessions.take(Turn(key, PROBLEM, key[1], reply, False))
    return found


def in_pool(environment: Environment, count: int) -> dict[int, list[Outcome]]:
    pool = SessionPool(environment)
    try:
        return played(pool, count)
    finally:
        pool.close()


def test_processes_come_to_what_this_process_does() -> None:
    here, there = InlineSessions(Chatty()), in_pool(Chatty(here=False, processes=2), 50)
    assert played(here, 50) == there
    here.close()


@pytest.mark.parametrize("awaits", [True, False])
def test_steps_overlap(awaits: bool) -> None:
    pool = SessionPool(Slow(awaits=awaits, seconds=0.5, processes=1))
    played(pool, 1)  # it is up
    begin = time.monotonic()
    assert len(played(pool, 60)) == 60
    assert time.monotonic() - begin < 15  # one after the other they take 30
    pool.close()


@pytest.mark.parametrize("how", ["exit", "memory", "thread", "awaits", "blocks"])
def test_a_harmful_session_costs_its_own_sample(how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """`blocks` stops the event loop of its process, `thread` and `awaits` only never end."""
    monkeypatch.setattr("strop.environments.responder.GRACE_SECONDS", 0.5)
    # Each look for who did it starts a process, and there are as many as halvings.
    count, harmful = 4, (2,)
    seconds = 20.0 if how in ("exit", "memory") else 1.0
    found = in_pool(Harmful(how=how, harmful=harmful, processes=1, step_seconds=seconds, memory_mib=2048), count)
    for number, outcomes in found.items():
        last = outcomes[-1]
        assert isinstance(last, Verdict)
        if number in harmful:  # those that do harm, in their second turn
            assert len(outcomes) == 2 and last.status is Status.ERROR, (number, outcomes)
        else:
            assert len(outcomes) == 3 and last == Verdict(1.0, Status.CORRECT, str(number)), (number, outcomes)


def test_what_cannot_be_played_again_is_an_error() -> None:
    found = in_pool(Harmful(how="exit", harmful=(2, 5), processes=1, again=False), 8)
    said = [outcomes[-1].detail for outcomes in found.values() if isinstance(outcomes[-1], Verdict)]
    assert any("not repeatable" in detail for detail in said)
    last = [outcomes[-1] for outcomes in found.values()]
    assert all(isinstance(outcome, Verdict) for outcome in last)
    assert last[2] == last[5] == Verdict(0.0, Status.ERROR, last[2].detail)  # type: ignore[union-attr]
    assert {outcome.status for outcome in last if isinstance(outcome, Verdict)} <= {Status.ERROR, Status.CORRECT}


def test_nothing_is_left_of_forgotten_sessions_nor_of_the_pool() -> None:
    pool = SessionPool(Slow(awaits=True, seconds=0.2, processes=1))
    for number in range(10):
        pool.take(Turn(("g", number), PROBLEM, number, "hello", False))
    for number in range(10):
        pool.forget(("g", number))
    deadline = time.monotonic() + 30
    while pool.pending:
        assert time.monotonic() < deadline
        pool.wait(0.1)
        assert pool.poll() == []
    pid = pool._processes[0].served.child.pid
    pool.close()
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
