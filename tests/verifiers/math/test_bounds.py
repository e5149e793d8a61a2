"""What is refused before it is parsed, and that nothing makes a caller wait for more than three seconds."""

from __future__ import annotations

import time
from collections.abc import Sequence
from itertools import cycle, product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from strop.base.types import Problem, Status, Verdict
from strop.verifiers.isolation import Isolation
from strop.verifiers.math.bound_checks import broken_bound
from strop.verifiers.math.bounds import Bounds
from strop.verifiers.math.dressing import undressed
from strop.verifiers.math.normalise import canonical, choice_of, prepared
from strop.verifiers.math.residue import residue
from strop.verifiers.math.units import without_units
from strop.verifiers.math.verifier import MathVerifier

TOO_MUCH = {
    "9^{9^{9^{9}}}": "exponent",
    "9^9^9^9": "exponent",
    "9**9**9": "exponent",
    "2^{1000000}": "exponent",
    "x^{10!}": "exponent",
    "2^{2^{2^{2^{2^{2}}}}}": "exponent",
    "((7^{9999})^{9999})": "powers",
    "(10^{9})!": "factorial",
    "100000!": "factorial",
    "((9!)!)!": "factorial",
    r"\binom{10^{12}}{3}": "binomial",
    r"\binom{1000000}{500000}": "binomial",
    r"\sum_{k=1}^{10000000} k": "sum",
    r"\sum_{k=1}^{10^7} k": "sum",
    r"\prod_{k=1}^{10000000} k": "sum",
    "(" * 400 + "1" + ")" * 400: "parentheses",
    "{" * 400 + "1" + "}" * 400: "braces",
    "7" * 2000: "digits",
    "7" * 100_000: "characters",
    r"\pm 1" * 20: "±",
}
FINE = (
    "x^{2023}", "2^{2023}-1", "2^{2^{10}}", "2023!", "(2n+1)!", "(3!)!", r"\binom{2023}{1011}", r"\sum_{k=1}^{n} k^2",
    r"\sum_{k=1}^{2023} k", "((((x))))", r"\frac{1}{1+\frac{1}{1+\frac{1}{2}}}", "1" * 50, r"1 \pm \sqrt{2}", "10^{23}",
    "(x^{15}+x^{14}+1)^{2}", "e^{-x^2}", "10^{-9}", "n \\neq 3", "x!=3",
)  # fmt: skip


@pytest.mark.parametrize(("answer", "what"), TOO_MUCH.items(), ids=range(len(TOO_MUCH)))
def test_too_much_is_refused(answer: str, what: str) -> None:
    reason = broken_bound(answer, Bounds())
    assert reason is not None
    assert what in reason


@pytest.mark.parametrize("answer", FINE)
def test_answers_of_data_sets_are_within_the_bounds(answer: str) -> None:
    assert broken_bound(answer, Bounds()) is None


def test_bounds_are_fields() -> None:
    assert broken_bound("x^{11}", Bounds(exponent=10)) is not None
    assert broken_bound("(" * 400 + ")" * 400, Bounds(parentheses=500, characters=9000)) is None


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
    r"\boxed{\int_0^1 \frac{\sin(x^5+e^x)}{\ln(x+\sin x)} dx}",
    r"\boxed{\frac{\sin^{99}(x)\cos^{99}(y)+\tan(x+y+z)^{50}}{(x+y+z)^{70}}}",
)


INTEGRAL = r"\int_0^1 \frac{\sin(x^5+e^x)}{\ln(x+\sin x)} dx"
GOLDS = ("3", "(a+b+c+d+e+f)^{399}(a+b+c+d+e+f)+1", INTEGRAL.replace("sin", "cos"))
PAIRS = tuple(product(GOLDS, HEAVY))
EVERY_TEXT = tuple(zip(cycle(GOLDS), HEAVY, strict=False))


@pytest.mark.parametrize("pairs", [EVERY_TEXT, pytest.param(PAIRS, marks=pytest.mark.slow)], ids=len)
def test_no_input_hangs(pairs: Sequence[tuple[str, str]]) -> None:
    """A text that passes every bound is killed, tried again, killed again; then there is a verdict."""
    verifier = MathVerifier(extract="any", isolation=Isolation(seconds=0.7, retry_seconds=0.3))
    verifier(Problem("warm", "", "x^2"), r"\boxed{x \cdot x}")
    timeouts = 0
    for gold, text in pairs:
        begin = time.monotonic()
        verdict = verifier(Problem("p", "", gold), text)
        assert time.monotonic() - begin < 3.0, text[:60]
        assert verdict.status is not Status.CORRECT
        assert verdict.status is not Status.ERROR, verdict
        timeouts += verdict.status is Status.TIMEOUT
    assert timeouts > 0 and {text for _, text in pairs} == set(HEAVY)


def test_with_the_default_limits_the_caller_waits_three_seconds_at_most() -> None:
    verifier = MathVerifier()
    verifier(Problem("warm", "", "x^2"), r"\boxed{x \cdot x}")
    begin = time.monotonic()
    verdict = verifier(Problem("p", "", INTEGRAL.replace("sin", "cos")), rf"\boxed{{{INTEGRAL}}}")
    assert time.monotonic() - begin < 3.0
    assert verdict == Verdict(0.0, Status.TIMEOUT, "took too long twice")


@settings(max_examples=300, deadline=None)
@given(st.text(alphabet=r"\{}()[]$^_,.!~ 019abxfrcstqe%+-=/", max_size=400))
def test_text_work_is_quick_on_any_text(text: str) -> None:
    begin = time.process_time()
    canonical(prepared(text))
    choice_of(text)
    broken_bound(text, Bounds())
    assert time.process_time() - begin < 0.5


UNITS = ("a ", "{", r"\text{", "1,", "m ", "s", "1 ", "^{", "(", "~", "\\", "!", ". ", r"\,1", "9^", r"\sqrt(",
         "5cm", "m/", r"5\text{m}", r"\text{ m}/", "5 thousand", r"\,~ ", r"\pmod", "per ")  # fmt: skip


@pytest.mark.parametrize("unit", UNITS)
def test_text_work_does_not_backtrack(unit: str) -> None:
    text = unit * (4000 // len(unit))
    begin = time.process_time()
    canonical(prepared(text), lone_letters=True)
    without_units(undressed(prepared(text)))
    residue(text)
    broken_bound(text, Bounds())
    assert time.process_time() - begin < 0.5


@pytest.mark.parametrize(
    ("written", "key"),
    [
        (r"\dfrac12", r"\frac{1}{2}"),
        (r"\frac{3}4", r"\frac{3}{4}"),
        (r"$5\text{ cm}^2$.", "5"),
        (r"45^{\circ}", "45"),
        (r"\left( 1 , 2 \right)", "(1,2)"),
        ("1,234,567", "1234567"),
        ("1,23", "1,23"),
        ("1 2", "1 2"),
        (r"\text{Even}", "even"),
        (r"\mathrm{E}", "E"),
        ("(C)", "C"),
        (r"28 \text{ percent}", "28%"),
        (r"x^{2}", "x^2"),
        ("42 square", "42"),
        ("3 or 4", "3or4"),
        ("2√3", r"2\sqrt3"),
        ("x ≤ 3", r"x\leq3"),
        (r"1.5e3", r"1.5\times10^3"),
        (r"\sqrt(x+(1))", r"\sqrt{x+(1)}"),
        (r"0.1\overline{6}", r"\frac{15}{90}"),
        ("<|im_start|>42<|im_end|>", "42"),
    ],
)
def test_canonical(written: str, key: str) -> None:
    assert canonical(prepared(written)) == key


def test_powers_in_powers_are_looked_at_once() -> None:
    """A find of `bench/fuzz.py`: every depth doubled the work, a second for these 55 characters."""
    text = "^^^^^^^^((\\U^^^^^((\\^^^(\\^^^(\\^^^(@2^^^(\\^^^(@2!_^^)"
    begin = time.process_time()
    broken_bound(text, Bounds())
    broken_bound(text.replace("2", "2" + text), Bounds())
    assert time.process_time() - begin < 0.2
