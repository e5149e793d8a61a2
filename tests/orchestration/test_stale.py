"""The count of dropped groups, by value: the completions that were in, and those that are cancelled."""

from __future__ import annotations

import numpy as np
from tests.made import PROBLEM, completion

from strop.base.types import Observation
from strop.orchestration.ledger import LedgerGroup, StaleGroups


def entry(ticket: int, samples: int, *lengths: int) -> LedgerGroup:
    """A group of `samples` completions, of which those of these lengths are in."""
    found = LedgerGroup(ticket, 0, PROBLEM, samples, attempt=1)
    found.completions = {index: completion(length, index=index) for index, length in enumerate(lengths)}
    return found


def test_tokens_of_dropped_groups_count_once_whenever_they_are_reported() -> None:
    stale = StaleGroups()
    stale.dropped(entry(3, 4, 5, 7))  # two of four are in, of 12 tokens
    assert not stale.aborted(completion(9, "abort", request_id="4.1"))  # of a group that is still wanted
    assert not stale.aborted(completion(9, "abort", request_id="3.0"))  # of an attempt given up before
    assert stale.aborted(completion(40, "abort", request_id="3.1", index=2))
    assert stale.aborted(completion(6, "stop", request_id="3.1", index=3))  # it was done before it was cancelled
    assert not stale.aborted(completion(6, "abort", request_id="3.1", index=3))  # no fifth is awaited
    assert stale.tokens() == {"tokens/generated": 58, "tokens/injected": 0}
    assert stale.tokens() == {"tokens/generated": 0, "tokens/injected": 0}  # a step counts them once
    assert stale.trained(3) == {"stale/groups": 1.0, "stale/share": 0.25}
    again = StaleGroups()
    again.load(stale.state())
    again.dropped(entry(8, 2))
    assert again.trained(1) == {"stale/groups": 2.0, "stale/share": 2 / 6}


def test_a_later_turn_that_was_running_is_awaited() -> None:
    stale, dropped = StaleGroups(), entry(3, 2, 5, 7)
    dropped.turns["3.1/1@9"] = 1, Observation(np.zeros(2, np.int32), "so")
    stale.dropped(dropped)
    assert stale.aborted(completion(8, "abort", request_id="3.1/1@9"))
    assert not stale.aborted(completion(8, "abort", request_id="3.1"))
    assert stale.tokens()["tokens/generated"] == 20  # 5 and 7 + 8


def test_a_resume_awaits_nothing() -> None:
    stale = StaleGroups()
    stale.dropped(entry(3, 2))
    stale.load(stale.state())
    assert not stale.aborted(completion(9, "abort", request_id="3.1"))
