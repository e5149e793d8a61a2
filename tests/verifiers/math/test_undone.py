"""What is left to be done, names that only run, derivatives, and answers that have two readings."""

from __future__ import annotations

import pytest

from strop_verify.math import MathSettings
from strop_verify.math.compare import compare_readings
from strop_verify.math.grammar import Reading, read
from strop_verify.math.prose import Finder

FINDER = Finder()


def rewarded(gold: str, answer: str) -> bool:
    return compare_readings(read(gold), read(answer), MathSettings()).equal


@pytest.mark.parametrize(
    ("gold", "same", "other"),
    [
        (r"\sum_{k=1}^{n} k^2", r"\sum_{i=1}^{n} i^2", r"\sum_{k=1}^{k} n^2"),
        (r"\sum_{k=1}^{n} k^4", r"\sum^n_{j=1} j^4", r"\sum_{k=1}^{n} k^3"),
        (r"\sum_{i=1}^{n} i^2", r"\sum_{k=1}^{n} k^2", r"\sum_{i=1}^{n} (-1)"),  # i is no imaginary unit
        (r"\sum_{i=1}^{n} i^4", r"\sum_{m=1}^{n} m^4", r"\sum_{i=1}^{n} 1"),
        (r"\prod_{k=2}^{n} (1-x_k)", r"\prod_{j=2}^{n} (1-x_j)", r"\prod_{j=2}^{n} (1-x_k)"),
        (r"\int_0^1 x^2 e^x dx", r"\int_0^1 t^2 e^t dt", r"\int_0^1 x^2 e^t dx"),
        (r"\int_0^x t^2 dt", r"\int_0^x u^2 du", r"\int_0^t x^2 dx"),
        (r"\int x^2 dx", r"\int x\cdot x\, dx", r"\int t^2 dt"),  # without bounds a function of its variable
        (r"\lim_{x\to 0^+} f(x)", r"\lim_{t\to 0^+} f(t)", r"\lim_{x\to 0^-} f(x)"),
        (r"\lim_{x\to a} f(x)", r"\lim_{y\to a} f(y)", r"\lim_{a\to x} f(a)"),
        (r"\sum_{i=1}^n\sum_{j=1}^i x_i y_j", r"\sum_{a=1}^n\sum_{b=1}^a x_a y_b", r"\sum_{a=1}^n\sum_{b=1}^a x_b y_a"),
        (r"\sum_{i=1}^n\sum_{j=1}^i ij", r"\sum_{k=1}^n\sum_{j=1}^k kj", r"\sum_{k=1}^n\sum_{j=1}^n kj"),
    ],
)
def test_the_name_that_runs_is_no_part_of_the_answer(gold: str, same: str, other: str) -> None:
    assert rewarded(gold, same)
    assert rewarded(same, gold)
    assert not rewarded(gold, other)
    assert not rewarded(other, gold)


@pytest.mark.parametrize(
    ("gold", "answer"), [(r"\frac{dy}{dx}", "0"), (r"\frac{d}{dx}(xy)", "y"), (r"\frac{d}{dx}x^2", r"\frac{d}{dx}x^3")]
)
def test_a_derivative_of_which_nothing_is_known_is_nothing_else(gold: str, answer: str) -> None:
    assert not rewarded(gold, answer)


def test_words_in_an_inequality_are_compared() -> None:
    gold = r"\text{all odd integers } n\ge 3"
    assert rewarded(gold, gold.replace("3", "{3}"))
    for other in ("all integers", "all odd primes", "all even integers"):
        assert not rewarded(gold, gold.replace("all odd integers", other))


def test_a_set_with_a_condition_is_not_the_whole_set() -> None:
    gold = r"\{n\in\mathbb{N}: n\text{ is even}\}"
    assert rewarded(gold, gold.replace(":", r"\mid"))
    assert not rewarded(gold, r"\mathbb{N}")
    assert not rewarded(gold, gold.replace("even", "odd"))


def test_a_residue_class_is_not_one_number_of_it() -> None:
    assert not rewarded(r"n\equiv 1\pmod 3", "n = 1")
    assert rewarded(r"n\equiv 1\pmod 3", "n = 3k+1")
    assert rewarded(r"p\equiv 1,3\pmod 8", r"p\equiv 3\text{ or }1\pmod 8")
    assert not rewarded(r"p\equiv 1,3\pmod 8", r"p\equiv 1\text{ or }5\pmod 8")


def test_seconds_count() -> None:
    assert rewarded(r"4:35\text{ p.m.}", r"4:35:00\text{ p.m.}")
    assert not rewarded(r"4:35\text{ p.m.}", r"4:35:35\text{ p.m.}")


@pytest.mark.parametrize(
    ("gold", "answer", "same"),
    [
        ("AB=CD", "CD=AB", True), ("AB=CD", "AC=BD", False),
        ("(3,-4)", "P(-4,3)", False), ("(3,-4)", "f(3,-4)", False),
        ("a<b<c", r"a<b \text{ and } a<c", False),
        ("a<b<c", r"a<b \text{ or } b<c", False), ("a<b<c", r"a\le b \text{ and } b<c", False),
        ("150000", "15,0,000", False), ("150000", "1, 50, 000", False),
        ("14:45", "14/45", False), ("3:5", "6:11", False), ("6:10", "12:20", False),
        (r"\binom{2n}{n}", "C_{2n+1}^{n}", False),
    ],
)  # fmt: skip
def test_readings_that_the_reference_suggests(gold: str, answer: str, same: bool) -> None:
    assert rewarded(gold, answer) is same


@pytest.mark.parametrize(
    "text",
    [
        r"so we get => \boxed{42}", r"\color{blue}{\boxed{42}}", r"{\boxed{42}}",
        r"The number of integers that are not divisible by 3 is $\boxed{42}$.",
    ],
)  # fmt: skip
def test_a_box_that_is_the_answer(text: str) -> None:
    found = FINDER.find(text, "any")
    assert isinstance(found, Reading) and found.text == "42"


def test_a_part_of_a_sentence_is_no_answer() -> None:
    found = FINDER.find("The length is twice $42$.", "any")
    assert isinstance(found, str) or found.text != "42"
