"""Several turns as one completion, by value."""

from __future__ import annotations

import numpy as np
import pytest

from strop.algorithms.diagnostics.groups import environment_metrics
from strop.base.metrics import values
from strop.base.types import (
    Completion,
    FinishReason,
    Group,
    Observation,
    Problem,
    Rollout,
    Status,
    Verdict,
    VersionSpan,
)
from strop.engines.protocol import Interruption, Sampling
from strop.environments.session import Reply
from strop.environments.sessions import with_turns
from strop.environments.turns import joined, next_turn, out_of_room
from strop.environments.worker import read_outcome, write_outcome


def said(
    ids: list[int], version: int = 3, text: str = "", finish: FinishReason = "stop", entropies: bool = True
) -> Completion:
    size = len(ids)
    return Completion(
        "5.0", 2, np.array([9, 8], np.int32), np.array(ids, np.int32), -np.arange(1, size + 1, dtype=np.float32),
        (VersionSpan(version, 0, size),) if size else (), np.zeros(size, np.bool_), text, finish,
        entropies=np.arange(size, dtype=np.float32) if entropies else None,
    )  # fmt: skip


HEARD = Observation(np.array([70, 71], np.int32), "<heard>")


def test_joined_puts_the_observation_between_the_turns() -> None:
    whole = joined(said([1, 2, 3], text="one"), HEARD, said([4, 5], version=4, text="two", finish="length"))
    assert whole.token_ids.tolist() == [1, 2, 3, 70, 71, 4, 5] and whole.token_ids.dtype == np.int32
    assert whole.injected.tolist() == [False] * 3 + [True] * 2 + [False] * 2
    assert whole.logprobs.tolist() == [-1, -2, -3, 0, 0, -1, -2] and whole.logprobs.dtype == np.float32
    assert whole.entropies is not None and whole.entropies.tolist() == [0, 1, 2, 0, 0, 0, 1]
    assert whole.versions == ((3, 0, 3), (4, 3, 7))
    assert (whole.request_id, whole.index, whole.finish_reason) == ("5.0", 2, "length")
    assert whole.text == "one<heard>two" and whole.prompt_ids.tolist() == [9, 8]


def test_turns_of_one_version_are_one_span() -> None:
    two = joined(said([1]), HEARD, said([4]))
    three = joined(two, HEARD, said([6, 7]))
    assert three.versions == ((3, 0, 8),)
    assert three.injected.nonzero()[0].tolist() == [1, 2, 4, 5]
    assert joined(said([1]), HEARD, said([])).versions == ((3, 0, 3),)


def test_entropies_are_unknown_where_one_turn_has_none() -> None:
    assert joined(said([1], entropies=False), HEARD, said([4])).entropies is None


def test_an_interruption_of_a_later_turn_is_found_in_the_whole() -> None:
    from dataclasses import replace

    turn = replace(said([4, 5, 6]), injected=np.array([False, True, False]), interrupted_at=1)
    whole = joined(said([1]), HEARD, turn)
    assert whole.interrupted_at == 4 and whole.injected.nonzero()[0].tolist() == [1, 2, 4]
    assert joined(whole, HEARD, turn).interrupted_at == 4


def test_the_next_turn_has_what_is_left_of_the_budget() -> None:
    request = next_turn(said([1, 2, 3]), HEARD, Sampling(max_new_tokens=9), None, seed=1)
    assert request is not None
    assert request.prompt_ids.tolist() == [9, 8, 1, 2, 3, 70, 71] and request.n == 1
    assert request.sampling == Sampling(max_new_tokens=4)
    assert request is not None and request.keeps and request.continues == "5.0/2"
    limited = next_turn(said([1, 2, 3]), HEARD, Sampling(max_new_tokens=9), 3, seed=1)
    assert limited is not None and limited.sampling.max_new_tokens == 3
    other = next_turn(said([1, 2]), HEARD, Sampling(max_new_tokens=9), None, seed=1)
    assert other is not None and other.seed != request.seed and other.id != request.id
    assert next_turn(said([1, 2, 3]), HEARD, Sampling(max_new_tokens=6), None, seed=1) is not None
    assert next_turn(said([1, 2, 3]), HEARD, Sampling(max_new_tokens=5), None, seed=1) is None


@pytest.mark.parametrize(("left", "kept"), [(12, True), (11, False)])
def test_an_interruption_is_left_out_where_it_has_no_room(left: int, kept: bool) -> None:
    interruption = Interruption(after=(2, 6), phrase="stop!")  # 6 + 5 bytes and a token of the answer
    sampling = Sampling(max_new_tokens=5 + left, interruption=interruption)
    request = next_turn(said([1, 2, 3]), HEARD, sampling, None, seed=1)
    assert request is not None and (request.sampling.interruption == interruption) == kept


def test_out_of_room_ends_the_trajectory_and_gives_an_empty_turn() -> None:
    whole = joined(said([1], text="a"), HEARD, said([2], text="b"))
    ended, turn = out_of_room(whole)
    assert ended.truncated and ended.text == whole.text and np.array_equal(ended.token_ids, whole.token_ids)
    assert turn.truncated and turn.text == ""


def test_what_is_known_of_turns_comes_through_to_the_metrics() -> None:
    verdict = with_turns(Verdict(0.0, Status.UNPARSED, malformed_calls=1), [0.0, 0.5], 2)
    assert verdict == Verdict(0.0, Status.UNPARSED, turn_scores=(0.0, 0.5), malformed_calls=3)
    assert with_turns(Verdict(1.0, Status.CORRECT), [0.0], 0) == Verdict(1.0, Status.CORRECT)
    for outcome in (verdict, Reply(({"role": "user", "content": "?"},), ({"type": "function"},), 0.25, 2), None):
        assert read_outcome(write_outcome(outcome)) == outcome
    whole = joined(said([1, 2, 3]), HEARD, said([4]))
    assert whole.turns == (5,) and joined(whole, HEARD, said([6])).turns == (5, 8)
    rollouts = (
        Rollout(Problem("p", "", ""), whole, verdict, 0.0),
        Rollout(Problem("p", "", ""), said([1]), Verdict(1.0, Status.CORRECT), 1.0),
    )
    found = values(environment_metrics([Group(0, Problem("p", "", ""), rollouts)]))
    assert found == {"environment/turns": 1.5, "environment/malformed_calls": 1.5}
    assert environment_metrics([Group(0, Problem("p", "", ""), rollouts[1:])]) == {}
