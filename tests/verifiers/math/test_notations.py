"""One answer in several notations: each kind with equal pairs by rewriting and unequal ones by changing one part."""

from __future__ import annotations

import os

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from strop_verify.math import MathSettings
from strop_verify.math.compare import compare_readings
from strop_verify.math.expressions import TooMuch, Unreadable
from strop_verify.math.grammar import Reading, read
from strop_verify.math.prose import Finder

TIMES = int(os.environ.get("STROP_EXAMPLES", "1"))


def outcome(gold: str, answer: str) -> str:
    try:
        return str(compare_readings(read(gold), read(answer), MathSettings()).outcome)
    except (Unreadable, TooMuch):
        return "unreadable"


def both(gold: str, answer: str, same: bool) -> None:
    """The pair in both directions is proved equal, or in none of them."""
    for first, second in ((gold, answer), (answer, gold)):
        assert (outcome(first, second) == "equal") is same, (first, second)


@pytest.mark.parametrize(
    ("gold", "answer", "same"),
    [
        # sets by a condition: the member before the bar counts
        (r"\{x^2: x>1\}", r"\{x^2 \mid x>1\}", True), (r"x>1", r"\{x : x>1\}", True),
        (r"x>1", r"\{x\in\mathbb{R} \mid x>1\}", True), (r"x>1", r"\{x^2: x>1\}", False),
        (r"\{x^2: x>1\}", r"\{x: x>1\}", False), (r"0<x<3", r"\{x\in\mathbb{Z}: 0<x<3\}", False),
        (r"\{2k \mid k\in\mathbb{Z}\}", r"2n, n\in\mathbb{Z}", True), ("4", r"\{3:4\}", False),
        (r"\{2k \mid k\in\mathbb{Z}\}", r"\{3k \mid k\in\mathbb{Z}\}", False),
        (r"\{(1,2),(3,4)\}", r"\{(3,4);(1,2)\}", True),
        # families: over which integers
        (r"k\pi, k\in\mathbb{Z}", r"k\pi, k\in\mathbb{N}", False),
        (r"k\pi, k\in\mathbb{Z}", r"k\pi, k\in\mathbb{Z}_{\ge0}", False),
        (r"2k, k\in\mathbb{N}", r"2n, n\in\mathbb{N}", True), (r"2k, k\in\mathbb{N}", r"2n-2, n\in\mathbb{N}", False),
        (r"k\pi, k\in\mathbb{Z}^+", r"n\pi\text{ where }n\text{ is a positive integer}", True),
        (r"2n, n\in\mathbb{Z}", r"2n\text{ where }n\text{ is not an integer}", False),
        (r"2n, n\in\mathbb{Z}", r"2n\text{ for integers }n\ge2", False),
        (r"2n\text{ for integers }n\ge2", r"2k\text{ for integers }k\ge2", True),
        # values of several names: all, or one of them
        (r"x=2, y=-5", r"x=2\text{ and }y=-5", True), (r"x=2, y=-5", r"x=2\text{ or }y=-5", False),
        # names of values
        ("y=3x-2", "f(x)=3x-2", True), ("y=3x-2", "y(x)=3x-2", True),
        ("f(x)=x^2", r"g:x\mapsto x^2", False), ("f(x)=0", "f(0)=0", False),
        ("y=x", "f(y)=x", False), ("a_n=3n-1", "a_k=3k-1", True), ("a_n=3n-1", "b_n=3n-1", False),
        ("x=1", "y=1", False),
        ("|AB|=5", "AC=5", False), ("|AB|=5", r"|AB|^2=5", False),
        ("5", r"5\text{ for all }x\text{ except two}", False),
        ("5", r"5\text{ for every even }n", False),
        # derivatives
        (r"\frac{dy}{dx}=2xy", "y''=2xy", False),
        (r"\frac{dy}{dx}=2xy", "x'=2xy", False), (r"\frac{dy}{dx}=2xy", r"\dot{y}=2xy", False),
        (r"\ddot{x}=-x", r"\frac{dx}{dt}=-x", False),
        ("f'(x)=3x^2", "f'(3)=3x^2", False),
        # arbitrary constants of a general solution
        ("y=C_1e^x+C_2e^{-x}", "y=C_1e^x+C_1e^{-x}", False), ("y=C_1e^x+C_2e^{-x}", "y=C_1e^x+C_2xe^{-x}", False),
        ("F=Cx", "F=Ax", False),
        # chains of inequalities
        ("0<a<b", "b>a>0", True), (r"a\ge b\ge c", r"c\le b\le a", True), ("0<a<b", "0<b<a", False),
        ("0<a<b", r"0<a\le b", False),
        # words
        (r"\text{noon}", "12:00 AM", False),
        (r"\text{Anna and Ben}", r"\text{Anna \& Ben}", True), ("DNE", r"\nexists", True), (r"\emptyset", "∄", False),
        # numbers
        ("40320", "8!!", False), ("1.6e-19", r"1.6\mathrm{e}{-19}", True),
        ("x^2C_1", r"\binom{2}{1}", False),
        # what holds for every real number, and what is given in words
        ("x>1", r"x>1, x\in\mathbb{R}", True), (r"[0,\infty)", r"\mathbb{R}_{\ge0}", True),
        (r"[0,\infty)", r"\mathbb{R}^+", False), (r"[0,\infty)", r"\text{all nonnegative real numbers}", True),
        (r"[0,\infty)", r"\text{all positive real numbers}", False), (r"\mathbb{Z}", "the set of integers", True),
        (r"\mathbb{Z}", "the set of real numbers", False), ("Wednesday", "Thu.", False),
        # residues
        (r"n\equiv0,1\pmod4", r"n\equiv1,0\pmod{4}", True), (r"n\equiv0,1\pmod4", r"n\equiv0,3\pmod4", False),
        (r"n\equiv0,1\pmod4", r"n\equiv0\pmod4\text{ or }n\equiv1\pmod4", True),
        (r"n\equiv0,1\pmod4", r"n\equiv0\pmod4", False), (r"n\equiv0,1\pmod4", r"n\equiv0,1\pmod2", False),
        (r"x\equiv3\pmod7", r"2x\equiv3\pmod7", False), (r"3\pmod7", r"x^2\equiv3\pmod7", False),
        (r"2x\equiv3\pmod7", r"x\cdot2\equiv10\pmod7", True), (r"7k+3, k\in\mathbb{Z}", r"2x\equiv3\pmod7", False),
        (r"p\land q", r"p\lor q", False),
        # systems, lines and the parts of an answer
        ("x=2, y=-5", r"\begin{cases}x=2\\y=-5\end{cases}", True),
        ("x=2, y=-5", r"\begin{cases}x=-5\\y=2\end{cases}", False),
        ("x=2, y=-5", r"\begin{aligned}x&=2\\y&=-5\end{aligned}", True),
        ("8", r"\begin{aligned}x&=3+5\\&=8\end{aligned}", True), ("8", r"\begin{aligned}&8\\&9\end{aligned}", False),
        (r"\text{min }=1,\text{ max }=9", r"\min=9, \max=1", False),
        ("f(x)=0, f(x)=x", r"f\equiv1\text{ or }f(x)=x", False),
        (r"k\pi, k\in\mathbb{Z}", r"n\pi\ (n\in\mathbb{Z})", True),
        # conditional probabilities, per mille, a complex number by its angle, a base in words
        (r"P(A\mid B)", "P(A|B)", True), (r"P(A\mid B)", "P(B|A)", False), (r"P(A\mid B)", "P(A,B)", False),
        ("1.2", r"12\text{ per mille}", False),
        (r"1+i\sqrt3", r"2\operatorname{cis}60^\circ", True), (r"1+i\sqrt3", r"2\operatorname{cis}30^\circ", False),
        ("1101_2", r"1101\text{ (base 2)}", True), ("1101_2", r"1101\text{ in base 3}", False),
        (r"\text{FF}_{16}", "FF_{16}", True), ("FE_{16}", "EF_{16}", False),
        # the reason after an answer
        ("9", r"8\text{ since }9=8+1", False), ("7", r"\text{exactly }7", True),
        # inverse functions of constants
        (r"\arcsin\frac35", r"\arccos\frac45", True), (r"\arcsin\frac35", r"\arctan\frac34", True),
        (r"\arcsin\frac35", r"\arccos\frac35", False),
    ],
)  # fmt: skip
def test_notations(gold: str, answer: str, same: bool) -> None:
    both(gold, answer, same)


@pytest.mark.parametrize(
    ("gold", "answer", "same"),
    [
        (r"\text{(C) }12", "C", True),
        (r"\text{(C) }12", "13", False), (r"\text{(C) }12", "(B) 12", False), ("C", "(C) 12", True), ("C", "12", False),
        ("2n+1", r"2n+1\text{ for even }n", False), ("2n+1", r"2n+1\text{ for positive integers }n", True),
        (r"k\pi, k\in\mathbb{Z}", r"n\pi", True), ("e^x+C", r"e^x+C, C\in\mathbb{R}", True),
        ("y=C_1e^x", "y=Ae^{2x}", False),
        ("C_4^1", "4", False), ("C(4,1)", "4", False),
    ],
)  # fmt: skip
def test_what_the_reference_leaves_open(gold: str, answer: str, same: bool) -> None:
    assert (outcome(gold, answer) == "equal") is same


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("Answer: Yes", "yes"),
        ("Therefore there is no solution.", r"\emptyset"), ("The previous answer was 12.", None),
        ("I choose C or D.", None), ("Option C is not correct.", None), ("There is no answer.", None),
        ("One might think the answer is C.", None),
        ("Wrong answer: C", None), ("My friend says the answer is C.", None), ("The first answer is C.", None),
    ],
)  # fmt: skip
def test_sentences(text: str, answer: str | None) -> None:
    found = Finder().in_prose(text)
    if answer is None:
        assert not isinstance(found, Reading) or found.letters != "C"
    else:
        assert isinstance(found, Reading) and compare_readings(read(answer), found, MathSettings()).equal


@pytest.mark.parametrize(
    "text",
    [
        "Twice the answer is {}.", "The square of the answer is {}.", "The answer has {} digits.", "Wrong answer: {}",
        "The answer plus one is {}.", "Possible answer: {}", "An upper bound for the answer is {}.",
        "Not the answer: {}",
        "It was claimed to be {}.",
        "The previous answer was {}.", "One could guess that the answer is {}.",
    ],
)  # fmt: skip
def test_sentences_about_another_number(text: str) -> None:
    found = Finder().in_prose(text.format(12))
    assert not isinstance(found, Reading) or not compare_readings(read("12"), found, MathSettings()).equal


integers = st.integers(-9, 9)
FEW = settings(max_examples=60 * TIMES, deadline=None)


@FEW
@given(st.integers(2, 9), integers, st.integers(-3, 3), st.sampled_from((1, -1)), st.integers(1, 8))
def test_families(step: int, start: int, shift: int, turn: int, change: int) -> None:
    gold = rf"{step}k+{start}, k\in\mathbb{{Z}}"
    moved = rf"\{{{turn * step}n+{start + shift * step} : n\in\mathbb{{Z}}\}}"
    assert outcome(gold, moved) == "equal"
    assert outcome(gold, rf"{step}n+{start + change}, n\in\mathbb{{Z}}") != "equal" or change % step == 0
    assert outcome(gold, rf"{step + change}n+{start}, n\in\mathbb{{Z}}") != "equal"
    assert outcome(gold, moved.replace("Z", "N")) != "equal"


@FEW
@given(st.lists(integers, min_size=3, max_size=3), st.sampled_from((2, 3, 4)), st.integers(0, 2), st.integers(1, 9))
def test_roots_of_powers(factors: list[int], degree: int, place: int, change: int) -> None:
    """A sum to a power, multiplied out under the root of that degree; and with another coefficient in the sum."""
    names = ("x", "y", "")

    def total(values: list[int]) -> str:
        return "".join(f"{value:+d}{name}" for value, name in zip(values, names, strict=True)) or "0"

    product = "".join(f"({total(factors)})" for _ in range(degree))
    outer = "({})" if degree % 2 else "|{}|"
    changed = [each + change * 20 * (at == place) for at, each in enumerate(factors)]
    both(rf"\sqrt[{degree}]{{{product}}}", outer.format(total(factors)), True)
    both(rf"\sqrt[{degree}]{{{product}}}", outer.format(total(changed)), False)
