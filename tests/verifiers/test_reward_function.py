"""Reward functions: both signatures by value, weights, what is refused, and the failures that are no reward."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator
from decimal import Decimal
from typing import Any

import numpy as np
import pytest
import torch
from tests.made import completion

from strop.algorithms.rewards import DirectReward
from strop.algorithms.settings import Selection
from strop.base import session
from strop.base.types import Group, InputError, Problem, Rollout, Verdict
from strop.verifiers.judges import judge_for
from strop.verifiers.protocol import InlineJudge
from strop.verifiers.reward_function import RewardFunction, reward_functions, takes_lists
from strop_verify.verdict import Status

PROBLEM = Problem("p", "1+1=", "2", extra={"answer": "2", "level": 3})
CHAT = Problem("c", ({"role": "user", "content": "1+1?"},), "2", extra={"answer": "2"})


@pytest.fixture(autouse=True)
def _new_session() -> Iterator[None]:
    yield
    session.forget()


def correct(problem: Problem, text: str) -> float:
    return float(text == problem.reference)


def short(problem: Problem, text: str) -> float:
    return -float(len(text))


def right(problem: Problem, text: str) -> bool:
    return problem.reference in text


def boxed(problem: Problem, text: str) -> bool:
    return "box" in text


def trl(prompts: list[str], completions: list[str], answer: list[str], **kwargs: Any) -> list[float]:
    assert kwargs == {"level": [3]} and prompts == ["1+1="]
    return [float(a == c) for a, c in zip(answer, completions, strict=True)]


def trl_chat(completions: list[list[dict[str, str]]], **kwargs: Any) -> list[float]:
    assert kwargs["prompts"] == [[{"role": "user", "content": "1+1?"}]]
    return [float(len(completion[0]["content"])) for completion in completions]


def trl_narrow(completions: list[str], answer: list[str]) -> list[float]:
    return [2.0 * (a == c) for a, c in zip(answer, completions, strict=True)]


def half(problem: Problem, text: str) -> float:
    return 0.5


def never(problem: Problem, text: str) -> None:
    return None


def verdict_of(*functions: Callable[..., Any], weights: tuple[float, ...] = (), text: str = "2") -> Verdict:
    return reward_functions(functions, weights)(PROBLEM, text)


def test_a_function_is_the_reward() -> None:
    assert verdict_of(correct) == Verdict(1.0, Status.CORRECT, "", reward=1.0)
    assert verdict_of(correct, text="3") == Verdict(0.0, Status.WRONG, "", reward=0.0)
    assert verdict_of(lambda problem, text: text == "2").reward == 1.0
    assert verdict_of(lambda problem, text: Verdict(0.25, Status.WRONG)).reward == 0.25


def test_trls_signature_gives_the_same() -> None:
    assert verdict_of(trl) == verdict_of(correct)
    assert verdict_of(trl, text="3") == verdict_of(correct, text="3")
    assert verdict_of(trl_narrow).reward == 2.0
    assert reward_functions([trl_chat])(CHAT, "four").reward == 4.0
    assert [takes_lists(f) for f in (trl, trl_chat, trl_narrow, correct, never)] == [True, True, True, False, False]


def test_a_partial_and_an_object_are_functions() -> None:
    def weighed(factor: float, problem: Problem, text: str) -> float:
        return factor * correct(problem, text)

    class Judge:
        def __call__(self, problem: Problem, text: str) -> float:
            return 0.5

    assert verdict_of(functools.partial(weighed, 0.5)).reward == 0.5
    assert verdict_of(Judge()).reward == 0.5


def test_the_sum_is_weighted_and_the_score_lies_in_the_unit_interval() -> None:
    both = verdict_of(correct, half, weights=(2.0, 0.5))
    assert both.reward == 2.25 and both.score == pytest.approx(2.25 / 2.5) and both.status is Status.WRONG
    assert both.detail == "correct 1; half 0.5"
    assert verdict_of(correct, half, weights=(1.0, -3.0)).score == 0.0
    assert verdict_of(correct, trl).score == 1.0
    # A function that does not apply has no part in the sum, nor in what the score is measured by.
    assert verdict_of(correct, never) == Verdict(1.0, Status.CORRECT, "correct 1", reward=1.0)


@pytest.mark.parametrize("functions", [(trl_narrow,), (short,), (correct, short), (half, trl_narrow)])
def test_rewards_of_another_scale_do_not_say_what_is_right(functions: tuple[Callable[..., Any], ...]) -> None:
    """Neither counts: a reward of 2 for any box is no pass, and a penalty for length makes no right answer wrong."""
    found = verdict_of(*functions)
    assert (found.score, found.status, found.undecided) == (0.0, Status.WRONG, "reward")
    values = {correct: 1.0, short: -1.0, half: 0.5, trl_narrow: 2.0}
    assert found.reward == sum(values[function] for function in functions)
    assert verdict_of(right, *functions).score == 1.0 and not verdict_of(right, *functions).undecided


def test_functions_that_return_a_bool_say_what_is_right() -> None:
    """However much of the sum is lost to a length, a right answer counts as one in training and in evaluation."""
    weights = (1.0, 0.1, 0.25)
    found = [verdict_of(right, boxed, short, weights=weights, text=text) for text in ("box 2", "box 3", "2")]
    assert [each.score for each in found] == [1.0, 0.0, 0.0]
    assert [each.status for each in found] == [Status.CORRECT, Status.WRONG, Status.WRONG]
    assert [each.reward for each in found] == pytest.approx([1.1 - 1.25, 0.1 - 1.25, 1.0 - 0.25])
    assert found[0].detail == "right True; boxed True; short -5"
    # What has a negative weight should not be so; what weighs nothing has no say.
    assert [verdict_of(right, boxed, weights=(1.0, -0.5), text=text).score for text in ("2", "box 2")] == [1.0, 0.0]
    assert verdict_of(right, boxed, weights=(1.0, 0.0)).score == 1.0
    assert verdict_of(lambda problem, text: np.bool_(True), short).score == 1.0
    assert verdict_of(lambda problem, text: torch.tensor([0.5])).reward == 0.5
    assert verdict_of(lambda prompts, completions: torch.tensor([0.25])).reward == 0.25
    assert verdict_of(lambda problem, text: torch.tensor(True)).score == 1.0
    assert verdict_of(lambda problem, text: Decimal("0.5")).reward == 0.5
    assert verdict_of(lambda problem, text: torch.zeros(2)).status is Status.ERROR


def test_groups_of_rewards_below_zero_differ() -> None:
    """Scores are brought into the unit interval; what a group learns from are the rewards themselves."""
    verdicts = [reward_functions([short])(PROBLEM, text) for text in ("2", "22")]
    rollouts = tuple(Rollout(PROBLEM, completion(), v, DirectReward()(completion(), v)) for v in verdicts)
    assert [rollout.reward for rollout in rollouts] == [-1.0, -2.0]
    assert [rollout.verdict.score for rollout in rollouts] == [0.0, 0.0]
    assert Selection(zero_variance="drop").keeps(Group(0, PROBLEM, rollouts).usable)
    assert DirectReward()(completion(), Verdict(0.5, Status.WRONG)) == 0.5


@pytest.mark.parametrize(
    ("function", "named"),
    [
        (lambda problem, text: 1 / 0, "ZeroDivisionError in .*lambda"),
        (lambda problem, text: "good", "it returned str"),
        (lambda problem, text: math.nan, "not a finite number"),
        (lambda completions, **columns: 1.0, "not a list"),
        (lambda completions, **columns: [1.0, 2.0], "another length"),
        (lambda completions, **columns: [None], "no reward function applies"),
        (never, "no reward function applies"),
    ],
)
def test_a_failing_function_is_no_reward(function: Callable[..., Any], named: str) -> None:
    found = reward_functions([function])(PROBLEM, "2")
    assert found.status is Status.ERROR and not found.usable
    with pytest.raises(AssertionError, match=named):
        raise AssertionError(found.detail)


async def later(problem: Problem, text: str) -> float:
    return 1.0


@pytest.mark.parametrize(
    ("functions", "weights", "named"),
    [
        ([lambda text: 1.0], (), r"define it as f\(problem, text\)"),
        ([later], (), "asynchronous"),
        ([lambda completions, completion_ids: [1.0]], (), "'completion_ids'"),
        ([correct, short], (1.0,), "2 functions and 1 weights"),
        ([correct], (math.inf,), "must be finite"),
    ],
)
def test_what_cannot_be_a_reward_is_refused(
    functions: list[Callable[..., Any]], weights: tuple[float, ...], named: str
) -> None:
    with pytest.raises(InputError, match=named):
        reward_functions(functions, weights)


def test_a_column_that_a_function_needs_must_be_there() -> None:
    needs = reward_functions([lambda completions, hint: [1.0]])
    assert "'hint'" in str(needs.refuses(PROBLEM))
    assert reward_functions([trl]).refuses(PROBLEM) is None


def test_functions_have_names_that_find_them_again() -> None:
    first, second = (lambda problem, text: 1.0), (lambda problem, text: 2.0)
    verifier = reward_functions([first, second, correct])
    assert verifier.functions == (
        "__main__:test_functions_have_names_that_find_them_again.<locals>.<lambda>",
        "__main__:test_functions_have_names_that_find_them_again.<locals>.<lambda>#2",
        f"{__name__}:correct",  # can be imported again
    )
    written = RewardFunction.model_validate(verifier.model_dump(mode="json"))
    assert written(PROBLEM, "2").reward == 1.0 + 2.0 + 1.0
    session.forget()
    lost = written(PROBLEM, "2")
    assert lost.status is Status.ERROR
    assert "not in this Python session" in str(written.refuses(PROBLEM))


def test_functions_run_in_this_process() -> None:
    judge = judge_for(reward_functions([correct]))
    assert isinstance(judge, InlineJudge)
    judge.submit(("r", 0), PROBLEM, completion())
    assert judge.poll() == [(("r", 0), Verdict(0.0, Status.WRONG, "", reward=0.0))]
