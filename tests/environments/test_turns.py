"""Several turns as one completion, by value."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from tests.environments.players import Praising

from strop.algorithms.step_diagnostics import environment_metrics
from strop.base.metrics import values
from strop.base.types import Completion, FinishReason, Group, Observation, Problem, Rollout, Verdict, VersionSpan
from strop.data.templates import Plain
from strop.engines.protocol import Interruption, Sampling
from strop.environments.base import Reply, Unjudged
from strop.environments.responder import Play, read_outcome, write_outcome
from strop.environments.sessions import with_turns
from strop.environments.tokens import TurnTokens
from strop.environments.turns import counted, joined, next_turn, out_of_room
from strop.model.files import byte_tokenizer
from strop.verifiers.answer import Answer
from strop.verifiers.protocol import InlineJudge
from strop_verify.verdict import Status


def said(
    ids: list[int], version: int = 3, text: str = "", finish: FinishReason = "stop", entropies: bool = True
) -> Completion:
    size = len(ids)
    return Completion(
        "5.0", 2, np.array([9, 8], np.int32), np.array(ids, np.int32), -np.arange(1, size + 1, dtype=np.float32),
        (VersionSpan(version, 0, size),) if size else (), np.zeros(size, np.bool_), text, finish,
        entropies=np.arange(size, dtype=np.float32) if entropies else None,
    )  # fmt: skip


KEY = ("5.0", 2)
HEARD = Observation(np.array([70, 71], np.int32), "<heard>")


def test_joined_puts_the_observation_between_the_turns() -> None:
    whole = joined(KEY, said([1, 2, 3], text="one"), HEARD, said([4, 5], version=4, text="two", finish="length"))
    assert whole.token_ids.tolist() == [1, 2, 3, 70, 71, 4, 5] and whole.token_ids.dtype == np.int32
    assert whole.injected.tolist() == [False] * 3 + [True] * 2 + [False] * 2
    assert whole.logprobs.tolist() == [-1, -2, -3, 0, 0, -1, -2] and whole.logprobs.dtype == np.float32
    assert whole.entropies is not None and whole.entropies.tolist() == [0, 1, 2, 0, 0, 0, 1]
    assert whole.versions == ((3, 0, 3), (4, 3, 7))
    assert (whole.request_id, whole.index, whole.finish_reason) == ("5.0", 2, "length")
    assert whole.text == "one<heard>two" and whole.prompt_ids.tolist() == [9, 8]


def test_turns_of_one_version_are_one_span() -> None:
    two = joined(KEY, said([1]), HEARD, said([4]))
    three = joined(KEY, two, HEARD, said([6, 7]))
    assert three.versions == ((3, 0, 8),)
    assert three.injected.nonzero()[0].tolist() == [1, 2, 4, 5]
    assert joined(KEY, said([1]), HEARD, said([])).versions == ((3, 0, 3),)


def test_entropies_are_unknown_where_one_turn_has_none() -> None:
    assert joined(KEY, said([1], entropies=False), HEARD, said([4])).entropies is None


def test_an_interruption_of_a_later_turn_is_found_in_the_whole() -> None:
    turn = replace(said([4, 5, 6]), injected=np.array([False, True, False]), interrupted_at=1)
    whole = joined(KEY, said([1]), HEARD, turn)
    assert whole.interrupted_at == 4 and whole.injected.nonzero()[0].tolist() == [1, 2, 4]
    assert joined(KEY, whole, HEARD, turn).interrupted_at == 4


def test_the_next_turn_has_what_is_left_of_the_budget() -> None:
    request = next_turn(KEY, said([1, 2, 3]), HEARD, Sampling(max_new_tokens=9), None, seed=1)
    assert request is not None
    assert request.prompt_ids.tolist() == [9, 8, 1, 2, 3, 70, 71] and request.n == 1
    assert request.sampling == Sampling(max_new_tokens=4)
    assert request is not None and request.keeps and request.continues == "5.0/2"
    limited = next_turn(KEY, said([1, 2, 3]), HEARD, Sampling(max_new_tokens=9), 3, seed=1)
    assert limited is not None and limited.sampling.max_new_tokens == 3
    other = next_turn(KEY, said([1, 2]), HEARD, Sampling(max_new_tokens=9), None, seed=1)
    assert other is not None and other.seed != request.seed and other.id != request.id
    assert next_turn(KEY, said([1, 2, 3]), HEARD, Sampling(max_new_tokens=6), None, seed=1) is not None
    assert next_turn(KEY, said([1, 2, 3]), HEARD, Sampling(max_new_tokens=5), None, seed=1) is None


def test_a_turn_that_its_own_limit_ended_is_not_cut_off_by_the_budget() -> None:
    turn, budget = said([1, 2, 3], finish="length"), Sampling(max_new_tokens=9)
    assert not counted(turn, budget, 3).truncated
    assert counted(turn, budget, 4).truncated and counted(turn, budget, None).truncated  # what was left of the budget
    assert counted(turn, Sampling(max_new_tokens=3), 3).truncated  # the limit is the budget
    assert counted(said([1, 2, 3], finish="abort"), budget, 3).finish_reason == "abort"


def rewritten(prompt: list[int]) -> Observation:
    return replace(HEARD, prompt_ids=np.array(prompt, np.int32))


def test_a_turn_behind_a_rewritten_chat_is_a_sequence_of_its_own() -> None:
    two = joined(KEY, said([1, 2, 3], text="one"), rewritten([9, 8, 3, 70]), said([4, 5], text="two"))
    three = joined(KEY, two, HEARD, said([6], text="three"))
    four = joined(KEY, three, rewritten([9]), said([7], text="four"))
    assert four.token_ids.tolist() == [1, 2, 3, 70, 71, 4, 5, 70, 71, 6, 70, 71, 7] and four.turns == (5, 9, 12)
    assert [(one.prompt_ids.tolist(), one.start, one.end) for one in four.sequences] == [
        ([9, 8], 0, 3), ([9, 8, 3, 70], 5, 10), ([9], 12, 13),
    ]  # fmt: skip
    assert three.last_turn == "three" and four.last_turn == "four"
    [whole] = joined(KEY, said([1]), HEARD, said([4])).sequences
    assert (whole.prompt_ids.tolist(), whole.start, whole.end) == ([9, 8], 0, 4)


def test_a_rewritten_chat_is_the_next_prompt_and_no_more_than_the_budget_has_room_for() -> None:
    request = next_turn(KEY, said([1, 2, 3]), rewritten([9, 8, 3, 70]), Sampling(max_new_tokens=9), None, seed=1)
    assert request is not None and request.prompt_ids.tolist() == [9, 8, 3, 70]
    assert request.sampling.max_new_tokens == 4  # of 9, as 3 were sampled and 2 were said
    two = joined(KEY, said([1, 2, 3]), rewritten([9, 8, 3, 70]), said([4, 5]))
    later = next_turn(KEY, two, HEARD, Sampling(max_new_tokens=12), None, seed=1)
    assert later is not None and later.prompt_ids.tolist() == [9, 8, 3, 70, 4, 5, 70, 71]
    assert later.sampling.max_new_tokens == 3
    longer = next_turn(KEY, said([1, 2, 3]), rewritten([9] * 10), Sampling(max_new_tokens=9), None, seed=1)
    assert longer is not None and longer.sampling.max_new_tokens == 1  # 2 + 9 is the longest sequence
    assert next_turn(KEY, said([1, 2, 3]), rewritten([9] * 11), Sampling(max_new_tokens=9), None, seed=1) is None


@pytest.mark.parametrize(("left", "kept"), [(12, True), (11, False)])
def test_an_interruption_is_left_out_where_it_has_no_room(left: int, kept: bool) -> None:
    interruption = Interruption(after=(2, 6), phrase="stop!")  # 6 + 5 bytes and a token of the answer
    sampling = Sampling(max_new_tokens=5 + left, interruption=interruption)
    request = next_turn(KEY, said([1, 2, 3]), HEARD, sampling, None, seed=1)
    assert request is not None and (request.sampling.interruption == interruption) == kept


def test_out_of_room_ends_the_trajectory_and_gives_an_empty_turn() -> None:
    whole = joined(KEY, said([1], text="a"), HEARD, said([2], text="b"))
    ended, turn = out_of_room(whole)
    assert ended.truncated and ended.text == whole.text and ended.last_turn == turn.last_turn == ""
    assert np.array_equal(ended.token_ids, whole.token_ids)
    assert turn.truncated and turn.text == ""


@pytest.mark.parametrize(
    ("replies", "scores"),
    [
        (["a", "done"], (0.5, 0.75)),  # the environment says that it is over
        (["a", "b", "done"], (0.5, 0.5, 0.75)),
        (["a", "b", "\\boxed{7}"], (0.5, 0.5, 0.5)),  # the turns are spent
    ],
)
def test_scores_of_turns_stay_where_the_verifier_judges_the_end(replies: list[str], scores: tuple[float, ...]) -> None:
    play = Play(Praising(max_turns=3), TurnTokens(byte_tokenizer(), Plain()))
    judge = play.responder(InlineJudge(Answer(extract="boxed")))
    found: list[Verdict | Observation] = []
    for reply in replies:
        judge.submit(("g", 0), Problem("p", "3+4=", "7"), said([1], text=reply))
        while judge.pending:
            found += [answer for _, answer in judge.poll()]
    *observed, verdict = found
    assert all(isinstance(one, Observation) for one in observed) and len(observed) == len(replies) - 1
    status = Status.UNPARSED if replies[-1] == "done" else Status.CORRECT
    assert isinstance(verdict, Verdict) and verdict.status is status
    assert verdict.turn_scores == scores and verdict.malformed_calls == len(replies)
    judge.close()


def test_what_is_known_of_turns_comes_through_to_the_metrics() -> None:
    verdict = with_turns(Verdict(0.0, Status.UNPARSED, malformed_calls=1), [0.0, 0.5], 2)
    assert verdict == Verdict(0.0, Status.UNPARSED, turn_scores=(0.0, 0.5), malformed_calls=3)
    assert with_turns(Verdict(1.0, Status.CORRECT), [0.0], 0) == Verdict(1.0, Status.CORRECT)
    reply = Reply(({"role": "user", "content": "?"},), ({"type": "function"},), 0.25, 2)
    for outcome in (verdict, reply, Unjudged(0.5, 3), Unjudged()):
        assert read_outcome(write_outcome(outcome)) == outcome
    whole = joined(KEY, said([1, 2, 3]), HEARD, said([4]))
    assert whole.turns == (5,) and joined(KEY, whole, HEARD, said([6])).turns == (5, 8)
    rollouts = (
        Rollout(Problem("p", "", ""), whole, verdict, 0.0),
        Rollout(Problem("p", "", ""), said([1]), Verdict(1.0, Status.CORRECT), 1.0),
    )
    found = values(environment_metrics([Group(0, Problem("p", "", ""), rollouts)]))
    assert found == {"environment/turns": 1.5, "environment/malformed_calls": 1.5, "environment/no_room_share": 0.0}
    assert environment_metrics([Group(0, Problem("p", "", ""), rollouts[1:])]) == {}
