"""The tally of dropped groups, by value: what was in, what was cancelled, and the bias that both bring."""

from __future__ import annotations

import numpy as np
from tests.made import PROBLEM, completion, group, rollout

from strop.base.types import Observation
from strop.orchestration.ledger import LedgerGroup, StaleGroups

LINE = "dropped that could not be trained within max_lag"


def entry(ticket: int, samples: int, *lengths: int) -> LedgerGroup:
    """A group of `samples` completions, of which those of these lengths are in."""
    found = LedgerGroup(ticket, 0, PROBLEM, samples, attempt=1)
    found.completions = {index: completion(length, index=index) for index, length in enumerate(lengths)}
    return found


def test_dropped_completions_count_when_they_are_in_and_when_they_are_cancelled() -> None:
    stale = StaleGroups()
    assert stale.line(0) == f"0 groups {LINE}"
    stale.dropped(entry(3, 4, 5, 7))  # two of four are in, of 12 tokens
    assert stale.line(1) == f"1 group {LINE}"  # nothing was trained that they could be longer than
    assert not stale.aborted(completion(9, "abort", request_id="4.1"))  # of a group that is still wanted
    assert not stale.aborted(completion(9, "abort", request_id="3.0"))  # of an attempt given up before
    assert stale.aborted(completion(40, "abort", request_id="3.1", index=2))
    assert stale.aborted(completion(6, "stop", request_id="3.1", index=3))  # it was done before it was cancelled
    assert not stale.aborted(completion(6, "abort", request_id="3.1", index=3))  # no fifth is awaited
    assert stale.tokens() == {"tokens/generated": 58, "tokens/injected": 0}
    assert stale.tokens() == {"tokens/generated": 0, "tokens/injected": 0}  # a step counts them once
    # 5 + 7 + 40 + 6 tokens in 4 completions; 3 trained groups of 1, 2 and 1 completions, of 3 and 10 tokens.
    trained = [group(1, rollout(1)), group(2, rollout(0), rollout(1)), group(5, rollout(1, length=11))]
    expected = {"stale/groups": 1.0, "stale/share": 0.25, "stale/length": 14.5, "stale/length_trained": 5.0}
    assert stale.trained(trained) == expected
    bias = "; those dropped so far had 14 tokens a completion by then, those trained on 5"
    assert stale.line(1) == f"1 group {LINE}{bias}"
    again = StaleGroups()
    again.load(stale.state())
    again.dropped(entry(8, 2))
    assert again.trained(trained[:1]) == {
        "stale/groups": 2.0, "stale/share": 2 / 6, "stale/length": 14.5, "stale/length_trained": 23 / 5,
    }  # fmt: skip


def test_the_short_completions_of_a_group_do_not_speak_for_the_long_ones_that_still_run() -> None:
    """When the note is written, those that were running have not been reported: they are the longest."""
    stale = StaleGroups()
    stale.trained([group(1, rollout(1, length=10))])
    stale.dropped(entry(3, 3, 2, 4))
    assert stale.line(1) == f"1 group {LINE}"
    assert stale.aborted(completion(54, "abort", request_id="3.1", index=2))
    assert stale.line(1).endswith("; those dropped so far had 20 tokens a completion by then, those trained on 10")


def test_a_later_turn_that_was_running_counts_with_those_before_it() -> None:
    stale, dropped = StaleGroups(), entry(3, 2, 5, 7)
    dropped.turns["3.1/1@9"] = 1, Observation(np.zeros(2, np.int32), "so")
    stale.dropped(dropped)
    assert stale.trained([])["stale/length"] is None
    assert stale.aborted(completion(8, "abort", request_id="3.1/1@9"))
    assert stale.trained([])["stale/length"] == 10.0  # 5 and 7 + 8


def test_a_group_that_was_whole_awaits_nobody() -> None:
    stale = StaleGroups()
    stale.dropped(entry(3, 2, 5, 7))
    stale.aborted(completion(9, "abort", request_id="3.1"))
    assert stale.tokens() == {"tokens/generated": 12, "tokens/injected": 0}
    assert not stale.aborted(completion(9, "abort", request_id="3.1"))
    assert stale.trained([]) == {
        "stale/groups": 1.0, "stale/share": 1.0, "stale/length": 6.0, "stale/length_trained": None,
    }  # fmt: skip


def test_a_resume_awaits_nobody_and_an_older_checkpoint_has_no_tally() -> None:
    stale = StaleGroups()
    stale.dropped(entry(3, 2))
    stale.load({})
    assert not stale.aborted(completion(9, "abort", request_id="3.1"))
    assert stale.trained([group(1, rollout(1))])["stale/length"] is None
