"""When two questions are one: typed differently, words changed; and when their numbers tell them apart."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strop.prepare.text import canonical_number, normalize, same_question, same_typing

QUESTION = (
    "Mia's shop sells 12 red apples for $1.50 each, and half as many pears for $2. How much is it for 1,250 of them?"
)


def same(first: str, second: str) -> bool:
    return same_question(normalize(first), normalize(second), 0.8)


@pytest.mark.parametrize(
    ("written", "canonical"),
    [
        ("1,250.50", "1250.5"),
        ("007", "7"),
        (".5", "0.5"),
        ("3.0", "3"),
        ("0", "0"),
        ("000", "0"),
        ("1,000,000", "1000000"),
    ],
)
def test_numbers_have_one_form(written: str, canonical: str) -> None:
    assert canonical_number(written) == canonical


@pytest.mark.parametrize(
    ("text", "numbers"),
    [
        ("from -5 to 3", ("-5", "3")),
        ("x-5 and 10-20", ("5", "10", "20")),
        ("the point (-2, -3)", ("-2", "-3")),
        ("COVID-19", ("19",)),
        ("1,250 or 1{,}250 or 1250.0", ("1250", "1250", "1250")),
        ("the list 1,2,3,100,200", ("1", "2", "3", "100", "200")),
        ("x^2 + .5", ("2", "0.5")),
        ("x² and ５", ("2", "5")),
        ("it ends.5 more", ("5",)),
        (r"\frac12 = \frac{1}{2}", ("1", "2", "1", "2")),
    ],
)
def test_numbers_are_read_out(text: str, numbers: tuple[str, ...]) -> None:
    assert normalize(text).numbers == numbers


@pytest.mark.parametrize(
    "variant",
    [
        QUESTION.upper(),
        QUESTION.swapcase(),
        "  " + QUESTION.replace(" ", " \n\t "),
        QUESTION.replace("?", "!!").replace(", ", " ; "),
        re.sub(r"[.,;?](?= |$)", "", QUESTION),
        re.sub(r"[^\w\s]", "", QUESTION),
        re.sub(r"[^\w\s]", " ", QUESTION),
        f'"{QUESTION}"',
        QUESTION.replace("1,250", "1250"),
        QUESTION.replace("1.50", "1.5"),
    ],
    ids=range(10),
)
def test_case_space_and_punctuation_do_not_count(variant: str) -> None:
    assert same_typing(normalize(QUESTION), normalize(variant))
    assert same_typing(normalize(variant), normalize(QUESTION))


def test_a_comma_before_a_negative_number_does_not_count() -> None:
    assert same_typing(normalize("Take the point (7, -2), or (3,4)."), normalize("take the point (7 -2) or (3,4)"))


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("Pay $1.5 for the ink!", "Pay $15 for the ink!"),
        ("3+5-2=", "3-5+2="),
        ("3+5", "3*5"),
        ("the absolute value of -5?", "the absolute value of 5?"),
        ("Add 1 and 23.", "Add 12 and 3."),
        ("12 and 3!", "1 and 23!"),
    ],
)
def test_other_numbers_or_operators_are_another_typing(first: str, second: str) -> None:
    assert not same_typing(normalize(first), normalize(second))


WORDS = "In a small town there are many farmers who grow wheat and sell it at the market every week for money"


@pytest.mark.parametrize(
    ("second", "expected"),
    [
        (WORDS.replace("wheat", "barley").replace("money", "gold"), True),  # 2 of 20 words
        (WORDS.replace(" every", ""), True),
        (" ".join(WORDS.split()[:12]) + " 7", False),
        ("Completely different words stand here, and nothing else at all is the same as it was before", False),
    ],
)
def test_a_tenth_of_the_words_may_change(second: str, expected: bool) -> None:
    assert same(WORDS, second) is expected


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (f"{WORDS} 12 times", f"{WORDS} 13 times"),
        (f"{WORDS} three times", f"{WORDS} four times"),
        (f"{WORDS} twice", f"{WORDS} thrice"),
        (f"{WORDS} in 2 of 5 years", f"{WORDS} in 5 of 2 years"),
        (f"Find the least number: {WORDS}", f"Find the greatest number: {WORDS}"),
        (f"How many up quarks does it contain? {WORDS}", f"How many down quarks does it contain? {WORDS}"),
        (f"What is the magnitude of z? {WORDS}", f"What is the real part of z? {WORDS}"),
        (f"{WORDS} where x + 3 = y", f"{WORDS} where x - 3 = y"),
        (rf"{WORDS} at \sin 30", rf"{WORDS} at \cos 30"),
    ],
)
def test_look_alikes_are_not_the_same(first: str, second: str) -> None:
    assert not same(first, second)


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (f"{WORDS} 5 times", f"{WORDS} five times"),
        (f"{WORDS} two times", f"{WORDS} some times"),  # a changed word may have been a number word
        (f"Find the largest number: {WORDS}", f"Find the greatest number: {WORDS}"),
    ],
)
def test_what_means_the_same_is_the_same(first: str, second: str) -> None:
    assert same(first, second)


@given(st.text(max_size=200))
def test_a_text_is_the_same_as_itself_in_capitals_and_spaced(text: str) -> None:
    assert same_typing(normalize(text), normalize(text))
    if text.isascii():
        assert same_typing(normalize(text), normalize(f" {text.swapcase()} "))


@given(st.integers(0, 10**6), st.integers(0, 10**6))
def test_another_number_is_never_the_same_question(first: int, second: int) -> None:
    assert same(f"{WORDS} {first} times", f"{WORDS} {second:,} times") is (first == second)


def test_reading_is_linear() -> None:
    for text in ("-" * 50_000, "5!" * 50_000, "(" * 50_000, "(a," * 20_000 + ")" * 20_000, "{" * 50_000 + "}" * 50_000,
                 "1,000" * 20_000, "\\" * 50_000, "a'" * 50_000, "." * 50_000, " " * 50_000):  # fmt: skip
        normalize(text)
