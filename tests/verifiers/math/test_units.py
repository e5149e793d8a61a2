"""Units, multiples and residues in the text of an answer, by value; that names are none of them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strop.verifiers.math.dressing import undressed
from strop.verifiers.math.normalise import prepared
from strop.verifiers.math.numbers import plain_number
from strop.verifiers.math.residue import residue
from strop.verifiers.math.units import counted, without_units


@pytest.mark.parametrize(
    ("written", "number"),
    [
        (r"5\text{ cm}^2", "5"),
        (r"5 \mathrm{~cm}^{2}", "5"),
        (r"5\ \mathrm{m/s}^2", "5"),
        (r"5\text{ m}/\text{s}", "5"),
        (r"\frac{5}{2} \text{ hours}", r"\frac{5}{2}"),
        (r"36\pi \text{ cm}^3", r"36\pi"),
        (r"(x+2)\text{ cm}", "(x+2)"),
        (r"x\text{ cm}", "x"),
        ("12 km/h", "12"),
        ("12 m", "12"),
        ("12 square meters.", "12"),
        (r"5\text{ (students)}", "5"),
    ],
)
def test_a_unit_goes(written: str, number: str) -> None:
    assert without_units(written) == number


@pytest.mark.parametrize(
    "written",
    ["2n", "x+3t", "4\\pi h", "x+2ab", "3c", "10s", "12m", "2 \\text{ if } n", r"2\text{ otherwise}",
     r"5\text{ tenths}", r"5\text{ or more}", r"5 \text{ times } 3", r"5\text{ squared}", r"5\text{ and a half}",
     r"x\text{ is even}",
     r"5\text{x}", r"\text{cm}", r"\text{Monday}", "cm", "", "5 percent"],
)  # fmt: skip
def test_what_is_no_unit_stays(written: str) -> None:
    assert without_units(written) == written


@given(number=st.integers(0, 10**6), letter=st.sampled_from("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"))
def test_a_letter_is_a_unit_only_where_the_caller_says_so(number: int, letter: str) -> None:
    assert without_units(f"{number}{letter}") == f"{number}{letter}"
    alone = without_units(f"{number}{letter}", lone_letters=True)
    assert alone == (str(number) if letter in "msghlLJNW" else f"{number}{letter}")


def test_what_a_number_counts() -> None:
    assert counted("17 red balls") == "17"
    assert counted("3 men") == "3"
    assert counted("3 xy") is None and counted("2 less than x") is None and counted("4 dozen eggs") is None


@pytest.mark.parametrize(
    ("written", "value"),
    [(r"5 \text{ thousand}", 5000), ("2.5 million", 2_500_000), (r"3\text{ hundred thousand}", 300_000),
     (r"5\text{ dozen}", 60)],
)  # fmt: skip
def test_multiples_are_multiplied(written: str, value: int) -> None:
    product = 1.0
    for factor in undressed(written).replace(" ", "").split(r"\times"):
        base, _, power = factor.partition("^{")
        product *= float(base) ** int(power.rstrip("}") or 1)
    assert product == value


def test_multiples_keep_what_follows() -> None:
    assert undressed(r"5\text{ thousand dollars}") == r"5\times 10^{3}\text{ dollars}"
    assert undressed(r"5\text{ percent}") == r"5\%"


@pytest.mark.parametrize(
    ("written", "answer"),
    [
        (r"\text{The answer is } 5", "5"),
        (r"\text{The answer is not } 5", r"\text{The answer is not } 5"),
        (r"\large \bf 5\\", "5"),
        (r"\left. 5 \right.", "5"),
        (r"\boldsymbol{5}", "{5}"),
        (r"\text{Option A}", "A"),
        (r"7^{\text{th}}", "7"),
        (r"\approx 12", "12"),
        (r"\frac{\pi}{4}+k\pi,\ k \in \mathbb{Z}", r"\frac{\pi}{4}+k\pi"),
        (r"x, k \in \mathbb{Z}", r"x, k \in \mathbb{Z}"),
        (r"x \in \mathbb{R}", r"x \in \mathbb{R}"),
    ],
)
def test_what_stands_around_an_answer_goes(written: str, answer: str) -> None:
    assert undressed(written) == answer


def test_powers_of_ten_are_exact() -> None:
    found, same = plain_number(r"6.02\times10^{23}"), plain_number("602" + "0" * 21)
    assert found is not None and same is not None and found.value == same.value
    tiny = plain_number(r"1.2\cdot10^{-8}")
    assert tiny is not None and not tiny.inexact  # else every number below it would equal it at six decimal places


def test_what_programs_write() -> None:
    assert prepared("5*x**3") == "5*x^{3}"
    assert prepared("2**(n+1)") == "2^(n+1)" and prepared("2**-3") == "2^{-3}"
    assert prepared("**5**") == "**5**"
    assert prepared(r"\log_e 2") == r"\ln  2" and prepared(r"\lg 2") == r"\log_{10}  2"


def test_residues() -> None:
    assert residue(r"x \equiv 5 \pmod{7}") == ("5", "7")
    assert residue(r"n \equiv 1, 4 \pmod 5") == ("1, 4", "5")
    assert residue(r"5 (\bmod 7)") == ("5", "7")
    assert residue(r"17 \bmod 5") == ("2", "5")
    assert residue("17") is None and residue(r"\pmod 5") is None
