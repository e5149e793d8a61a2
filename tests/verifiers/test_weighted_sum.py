"""A weighted sum of verdicts: its score by value, its status, and whose failure it takes over."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from strop.base.types import Problem, Verdict
from strop.verifiers.answer import Answer
from strop.verifiers.base import Verifier
from strop.verifiers.combined import WeightedSum
from strop.verifiers.math_verifier import MathVerifier
from strop_verify.verdict import Status

PROBLEM = Problem("p", "1+1=", "2")


class Says(Verifier):
    """Gives the same verdict on everything."""

    score: float
    status: Status = Status.WRONG

    def judge(self, problem: Problem, text: str, truncated: bool) -> Verdict:
        return Verdict(self.score, self.status, "said")


RIGHT, HALF, NOTHING = Says(score=1.0, status=Status.CORRECT), Says(score=0.5), Says(score=0.0)
UNREAD = Says(score=0.0, status=Status.UNPARSED)


@pytest.mark.parametrize(
    ("members", "weights", "score", "status"),
    [
        ((RIGHT, RIGHT), (3.0, 1.0), 1.0, Status.CORRECT),
        ((RIGHT, NOTHING), (3.0, 1.0), 0.75, Status.WRONG),
        ((NOTHING, RIGHT), (3.0, 1.0), 0.25, Status.WRONG),
        ((HALF, RIGHT), (), 0.75, Status.WRONG),
        ((UNREAD, RIGHT), (), 0.5, Status.WRONG),
        ((UNREAD, UNREAD), (), 0.0, Status.UNPARSED),
        ((NOTHING, NOTHING), (2.0, 5.0), 0.0, Status.WRONG),
    ],
)
def test_by_value(members: tuple[Verifier, ...], weights: tuple[float, ...], score: float, status: Status) -> None:
    verdict = WeightedSum(members=members, weights=weights)(PROBLEM, "x")
    assert verdict.score == pytest.approx(score) and verdict.status is status


@pytest.mark.parametrize("status", [Status.ERROR, Status.TIMEOUT])
def test_a_member_that_fails_makes_no_part_of_a_reward(status: Status) -> None:
    verdict = WeightedSum(members=(RIGHT, Says(score=0.0, status=status)))(PROBLEM, "x")
    assert verdict.status is status and not verdict.usable


def test_members_keep_their_own_rules() -> None:
    strict = WeightedSum(members=(Answer(require_stop=True), Answer(extract="last_number")))
    assert strict(PROBLEM, r"\boxed{2}", truncated=True).score == pytest.approx(0.5)
    assert strict(PROBLEM, r"\boxed{2}", truncated=False).status is Status.CORRECT
    assert strict.refuses(Problem("p", "?", ["no text"])) is not None
    computed = Problem("p", "?", r"\int_0^1 x dx")
    assert "same operation" in str(WeightedSum(members=(RIGHT, MathVerifier())).caution(computed))
    assert WeightedSum(members=(Answer(), MathVerifier())).isolated() == MathVerifier().isolated()


def test_a_weight_for_each_member() -> None:
    with pytest.raises(ValidationError, match="weights"):
        WeightedSum(members=(Answer(), Answer()), weights=(1.0,))
    read = Verifier.model_validate({"piece": "WeightedSum", "members": [{"piece": "Answer"}], "weights": [2]})
    assert Verifier.model_validate(read.model_dump(mode="json")) == read
