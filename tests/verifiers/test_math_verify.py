"""The reward of Skywork-OR1's Section 7.1: the string first, then math-verify on a boxed reference."""

import pytest

from strop.base.types import Problem
from strop.verifiers.judges import judged
from strop.verifiers.math_verifier import MathVerify
from strop_verify.verdict import Status

pytest.importorskip("math_verify")


@pytest.mark.parametrize(
    ("reference", "text", "status"),
    [
        (r"\frac{1}{2}", r"so \boxed{0.5}", Status.CORRECT),
        ("x^2", r"\boxed{x^{2}}", Status.CORRECT),
        ("3", r"\boxed{4}", Status.WRONG),
        ("3", r"\boxed{3}</think> It is \boxed{4}", Status.WRONG),
        ("3", r"<think>\boxed{4}</think> It is \boxed{3}.", Status.CORRECT),
        ("3", "<think>no idea", Status.UNPARSED),
        ("(1, 2)", r"\boxed{(2, 1)}", Status.WRONG),
        (r"\text{east}", r"\boxed{\text{east}}", Status.CORRECT),
    ],
)
def test_verdicts(reference: str, text: str, status: Status) -> None:
    found = MathVerify()(Problem("p", "?", reference), text)
    assert (found.status, found.score) == (status, float(status is Status.CORRECT))


def test_a_reference_without_text_is_refused() -> None:
    problem = Problem("p", "?", [1, 2])
    assert "the reference is list" in str(MathVerify().refuses(problem))
    assert MathVerify()(problem, r"\boxed{1}").status is Status.ERROR
    assert MathVerify().refuses(Problem("p", "?", "12")) is None


def test_it_runs_in_workers() -> None:
    from strop.lab.agreement import Sampled

    problem = Problem("p", "?", "12")
    verdicts = judged(MathVerify(), [Sampled(problem, text, False) for text in (r"\boxed{12}", r"\boxed{13}")])
    assert [verdict.score for verdict in verdicts] == [1.0, 0.0]
