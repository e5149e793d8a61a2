"""What is refused before it is computed, and that no text makes a caller wait or a worker time out."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import suppress
from importlib import import_module
from itertools import cycle, product
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from strop.base.imports import allow_module
from strop.base.types import Problem, Verdict
from strop.verifiers.base import Isolation
from strop.verifiers.judges import judged
from strop.verifiers.math_verifier import MathVerifier
from strop_verify.extract import boxes
from strop_verify.math.expressions import TooMuch, Unreadable, refuse_answer, refuse_text
from strop_verify.math.grammar import read
from strop_verify.math.latex import tokens
from strop_verify.math.prose import Finder
from strop_verify.verdict import Status

TOO_MUCH = {
    "9^{9^{9^{9}}}": "exponent",
    "9^9^9^9": "exponent",
    "9**9**9": "exponent",
    "2^{1000000}": "exponent",
    "x^{10!}": "exponent",
    "2^{2^{2^{2^{2^{2}}}}}": "exponent",
    "((7^{9999})^{9999})": "exponent",
    "(10^{9})!": "factorial",
    "100000!": "factorial",
    "((9!)!)!": "factorial",
    r"\binom{10^{12}}{3}": "binomial",
    r"\binom{1000000}{500000}": "binomial",
    "(" * 17 + "1" + ")" * 17: "parentheses",
    "(" * 400 + "1" + ")" * 400: "parentheses",
    "{" * 25 + "1" + "}" * 25: "braces",
    "7" * 2000: "digits",
    "7" * 100_000: "characters",
    r"\pm 1" * 20: "±",
    r"\{" + ",".join(map(str, range(1000))) + r"\}": "members",
}
FINE = (
    "x^{2023}", "2^{2023}-1", "2^{2^{10}}", "2023!", "(2n+1)!", "(3!)!", r"\binom{2023}{1011}", r"\sum_{k=1}^{n} k^2",
    r"\sum_{k=1}^{2023} k", "((((x))))", r"\frac{1}{1+\frac{1}{1+\frac{1}{2}}}", "1" * 50, r"1 \pm \sqrt{2}", "10^{23}",
    "(x^{15}+x^{14}+1)^{2}", "e^{-x^2}", "10^{-9}", "n \\neq 3", "10^{-100000}", "{" * 15 + "1" + "}" * 15,
    "(" * 15 + "x" + ")" * 15,
)  # fmt: skip


def refused(answer: str) -> str | None:
    """Why an answer is refused before anything is computed, or None."""
    try:
        return refuse_text(answer) or refuse_answer(read(answer).answer)
    except TooMuch as limit:
        return str(limit)


@pytest.mark.parametrize(("answer", "what"), TOO_MUCH.items(), ids=range(len(TOO_MUCH)))
def test_too_much_is_refused_at_once(answer: str, what: str) -> None:
    begin = time.thread_time()
    reason = refused(answer)
    assert reason is not None and what in reason
    assert time.thread_time() - begin < 1


@pytest.mark.parametrize("answer", FINE)
def test_answers_of_data_sets_are_within_the_bounds(answer: str) -> None:
    assert refused(answer) is None


INTEGRAL = r"\int_0^1 \frac{\sin(x^5+e^x)}{\ln(x+\sin x)} dx"
NESTED = r"\sqrt{2+" * 12 + "x" + "}" * 12
ROOTS = "+".join(r"\sqrt{%d}" % number for number in range(2, 60))  # noqa: UP031
HEAVY = (
    *(rf"\boxed{{{answer}}}" for answer in TOO_MUCH),
    "the answer is 9^9^9^9",
    f"the answer is {'7' * 100_000}",
    f"the answer is {'1 + ' * 20_000}1",
    "$" * 20_001,
    "answer " * 20_000,
    r"\boxed{" * 20_000,
    "<think>" * 20_000,
    r"\boxed{(a+b+c+d+e+f)^{400}}",
    r"\boxed{(a+b+c+d+e+f)^{40}(a-b+c-d+e-f)^{40}}",
    rf"\boxed{{{INTEGRAL}}}",
    r"\boxed{\frac{\sin^{99}(x)\cos^{99}(y)+\tan(x+y+z)^{50}}{(x+y+z)^{70}}}",
    rf"\boxed{{{NESTED}}}",
    rf"\boxed{{{ROOTS}}}",
    r"\boxed{\sum_{k=1}^{100000} \frac{1}{k^2}}",
    rf"\boxed{{{'|' * 60}x{'|' * 60}}}",
    rf"\boxed{{{'-' * 3000}1}}",
    rf"\boxed{{{'x^' * 50}2}}",
    rf"\boxed{{{'!' * 200}}}",
    rf"\boxed{{3{'!' * 9}}}",
    rf"\boxed{{{' or '.join(f'x<{n}' for n in range(60))}}}",
    *(rf"\boxed{{{nest * 15}x{')' * 15}}}" for nest in (r"\sin(", r"\tan(", r"\max(x,", r"\min(x,y+", r"\log(", "f(")),
    rf"\boxed{{{'+'.join(rf'{chr(92)}frac1{{x+{n}}}' for n in range(60))}}}",
    rf"\boxed{{x{'!' * 2000}}}",
)
GOLDS = ("3", "(a+b+c+d+e+f)^{399}(a+b+c+d+e+f)+1", INTEGRAL.replace("sin", "cos"), r"\sqrt{2+\sqrt{3+x}}", r"\{1,2\}")
PAIRS = tuple(product(GOLDS, HEAVY))
EVERY_TEXT = tuple(zip(cycle(GOLDS), HEAVY, strict=False))


@pytest.mark.parametrize("pairs", [EVERY_TEXT, pytest.param(PAIRS, marks=pytest.mark.slow)], ids=len)
def test_no_text_chooses_a_timeout(pairs: Sequence[tuple[str, str]], monkeypatch: pytest.MonkeyPatch) -> None:
    """Every text gets a verdict that counts, at once: a policy cannot leave the loss, nor burn a worker's time."""
    monkeypatch.setattr("strop.verifiers.math_verifier.in_worker", lambda: True)  # whose time is measured here
    verifier = MathVerifier(extract="any")
    verifier(Problem("warm", "", "x^2"), r"\boxed{x \cdot x}")
    for gold, text in pairs:
        begin = time.thread_time()
        verdict = verifier(Problem("p", "", gold), text)
        assert time.thread_time() - begin < 2.0, text[:60]
        counts = verdict.status in (Status.WRONG, Status.UNPARSED)
        assert counts or (gold == GOLDS[2] and verdict.undecided), (gold, text[:60], verdict)


STUCK = """
import time
from strop.verifiers.math_verifier import MathVerifier

class Stuck(MathVerifier):
    def warm(self):
        pass

    def judge(self, problem, text, truncated):
        time.sleep(100.0)
"""


def test_the_worker_is_killed_where_all_else_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The limits of `Isolation` hold for a mathematics verifier too, here one that no bound stops."""
    (tmp_path / "stuck_mathematics.py").write_text(STUCK)
    monkeypatch.syspath_prepend(tmp_path)
    allow_module("stuck_mathematics")
    verifier = import_module("stuck_mathematics").Stuck(isolation=Isolation(seconds=0.2, retry_seconds=0.1))
    begin = time.monotonic()
    (verdict,) = judged(verifier, [(Problem("p", "", "1"), r"\boxed{1}", False)])
    assert time.monotonic() - begin < 60.0  # of a hundred seconds
    assert verdict == Verdict(0.0, Status.TIMEOUT, "took too long twice")


def work(text: str) -> None:
    finder = Finder()
    for attempt in (lambda: finder.read(text), lambda: finder.in_prose(text)):
        with suppress(TooMuch, RecursionError):
            attempt()


@settings(max_examples=300, deadline=None)
@given(st.text(alphabet=r"\{}()[]$^_,.!~ 019abxfrcstqe%+-=/|", max_size=400))
def test_text_work_is_quick_on_any_text(text: str) -> None:
    begin = time.thread_time()
    work(text)
    assert time.thread_time() - begin < 0.5


UNITS = ("a ", "{", r"\text{", "1,", "m ", "s", "1 ", "^{", "(", "~", "\\", "!", ". ", r"\,1", "9^", r"\sqrt(", "is ",
         "5cm", "m/", r"5\text{m}", r"\text{ m}/", "5 thousand", r"\,~ ", r"\pmod", "per ", "A: ", "####", "answer is ",
         "and ", "or ", "0.1", "$1$ ", r"\boxed{1}", r"\frac", r"\begin{pmatrix}", "|", "x_", "'", "not ")  # fmt: skip


@pytest.mark.parametrize("unit", UNITS)
def test_text_work_does_not_backtrack(unit: str) -> None:
    text = unit * (4000 // len(unit))
    begin = time.thread_time()
    work(text)
    boxes(text)
    assert time.thread_time() - begin < 1.0


@given(st.text(max_size=200))
def test_any_text_has_tokens_or_is_unreadable(text: str) -> None:
    try:
        found = tokens(text)
    except Unreadable:
        return
    assert all(token.text for token in found)
