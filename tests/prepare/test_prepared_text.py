"""When two questions are one: typed differently, or with a few words changed, equal numbers and an equal answer."""

from __future__ import annotations

import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strop.prepare.deduplicate import same_answer
from strop.prepare.text import alike, canonical_number, normalize

QUESTION = "The shop sells 12 red apples for $1.50 each, and as many pears for $2. How much is it for 1,250 of them?"
WORDS = "In a small town there are many farmers who grow wheat and sell it at the market every week for money"


def typed_alike(first: str, second: str) -> bool:
    return normalize(first).typing == normalize(second).typing


def near(first: str, second: str) -> bool:
    return alike(normalize(first), normalize(second), 0.8)


@pytest.mark.parametrize(
    ("written", "canonical"),
    [("1,250.50", "1250.5"), ("007", "7"), (".5", "0.5"), ("3.0", "3"), ("0", "0"), ("1,000,000", "1000000")],
)  # fmt: skip
def test_numbers_have_one_form(written: str, canonical: str) -> None:
    assert canonical_number(written) == canonical


@pytest.mark.parametrize(
    ("text", "numbers"),
    [
        ("x-5 and 10-20", ("5", "10", "20")),
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
        "  " + QUESTION.replace(" ", " \n\t "),
        QUESTION.replace("?", "!!").replace(", ", " ; "),
        re.sub(r"[.,;?](?= |$)", "", QUESTION),
        f'"{QUESTION}"',
        QUESTION.replace("1,250", "1250"),
        QUESTION.replace("1.50", "1.5"),
    ],
    ids=range(7),
)
def test_case_space_and_punctuation_do_not_count(variant: str) -> None:
    assert typed_alike(QUESTION, variant)


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("What is $3-5$?", "What is 3 - 5?"),
        (r"What is $3 \cdot 5$?", "What is 3 * 5?"),
        (r"What is \(3\times 5\)?", "What is 3×5"),
        (r"Find $\left(x+1\right)\!\left(x-1\right)$.", "Find (x+1)(x−1)."),
        (r"Find \frac12 and $\dfrac{1}{10}$", "Find 1/2 and 1/10"),
        (r"Is \(x\le 5\), or \(x\neq 3\)?", "Is x ≤ 5 or x ≠ 3?"),
        (r"An angle of $30^\circ$, of $60^{\circ}$", "An angle of 30° of 60°"),
        ("A well-known two-digit number", "a well known two digit number"),
        ("Say it loud!!", "Say it loud."),
        ("Take the point (7, -2), or (3,4).", "take the point (7 -2) or (3,4)"),
    ],
)
def test_typing_mathematics_differently_does_not_count(first: str, second: str) -> None:
    assert typed_alike(first, second)


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("Pay $1.5 for the ink!", "Pay $15 for the ink!"),
        ("3+5-2=", "3-5+2="),
        ("3+5", "3*5"),
        ("Add 1 and 23.", "Add 12 and 3."),
        ("Solve for x: 2x + 3 = 7.", "Solve for x: -2x + 3 = 7."),
        ("Compute |3 - 8|.", "Compute 3 - 8."),
        ("What is (4 + 5) * 2?", "What is 4 + 5 * 2?"),
        ("What is 5!?", "What is 5?"),
        ("Take 20% of 50.", "Take 20 of 50."),
        (r"Find \sqrt{x+1}.", r"Find \sqrt{x}+1."),
        ("Find x^{n+1}.", "Find x^{n}+1."),
    ],
)
def test_another_number_sign_or_bracket_is_another_typing(first: str, second: str) -> None:
    assert not typed_alike(first, second)


@pytest.mark.parametrize(
    ("second", "expected"),
    [
        (WORDS.replace("wheat", "barley").replace("money", "gold"), True),  # 2 of 20 words
        (WORDS.replace(" every", ""), True),
        (f"{WORDS} 12 times", False),
        (" ".join(WORDS.split()[:12]), False),
        ("Completely different words stand here, and nothing else at all is the same as it was before", False),
    ],
)
def test_a_fifth_of_the_words_may_change_but_no_number(second: str, expected: bool) -> None:
    assert near(WORDS, second) is expected
    assert near(second, WORDS) is expected


@given(st.integers(0, 10**6), st.integers(0, 10**6))
def test_another_number_is_never_the_same_question(first: int, second: int) -> None:
    assert near(f"{WORDS} {first} times", f"{WORDS} {second:,} times") is (first == second)


@pytest.mark.parametrize(
    ("first", "second", "equal"),
    [
        ("1/2", r"\frac{1}{2}", True),
        ("Paris ", "paris", True),
        ("3", 3, True),
        ("least", "greatest", False),
        ("12", "13", False),
        ({"asserts": ["a"]}, {"inputs": ["1"], "outputs": ["2"]}, True),  # tests, which every set writes anew
        ("1", {"asserts": ["a"]}, False),
    ],
)
def test_answers_are_compared_as_the_math_verifier_does(first: Any, second: Any, equal: bool) -> None:
    assert same_answer(first, second) is equal


@given(st.text(max_size=200))
def test_a_text_is_typed_like_itself_in_capitals_and_spaced(text: str) -> None:
    if text.isascii():
        assert typed_alike(text, f" {text.swapcase()} ")


def test_reading_is_linear() -> None:
    repeated = ("-", "5!", "(", "{", "1,000", "\\", "^{", "\\frac{", "a'", ".", " ", "^ ")
    for text in (*(part * 30_000 for part in repeated), "^" + " " * 50_000):
        normalize(text)
