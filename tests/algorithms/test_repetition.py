"""Repeatness, repeated 20-grams and the first repetition, against their definitions."""

from __future__ import annotations

import time

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from strop.algorithms.step_diagnostics import first_repetition, measured, repeated_ngrams, repeatness


@pytest.mark.parametrize(
    ("text", "expected"),
    [("a" * 10, 0.8182), ("ab" * 6, 0.7051), ("abcdefghij", 0.0), ("", 0.0), ("a", 0.0), ("aa", 2 / 6), ("ab", 0.0)],
)
def test_repeatness_of_known_texts(text: str, expected: float) -> None:
    assert repeatness(text) == pytest.approx(expected, abs=5e-5)


def by_definition(text: str) -> float:
    """2·ΣLCP / (n (n + 1)) over the sorted suffixes, character by character."""
    suffixes = sorted(text[i:] for i in range(len(text)))
    total = 0
    for first, second in zip(suffixes, suffixes[1:], strict=False):
        common = 0
        while common < len(first) and first[common] == second[common]:
            common += 1
        total += common
    return 2 * total / (len(text) * (len(text) + 1))


@given(
    st.one_of(
        st.text("a", min_size=2, max_size=150),
        st.text("ab", min_size=2, max_size=90),
        st.text("abcdefghijklmnopq \n", min_size=2, max_size=60),
        st.text(min_size=2, max_size=40),  # any character of Unicode
        st.tuples(st.text("abc", min_size=1, max_size=25), st.integers(2, 6)).map(lambda pair: pair[0] * pair[1] + "x"),
    )
)
def test_repeatness_is_its_definition(text: str) -> None:
    # Sorting by code point or otherwise makes no difference to the sum: it counts substrings.
    assert repeatness(text) == pytest.approx(by_definition(text), abs=1e-15)


@given(st.text("abc", max_size=40))
def test_repeatness_is_the_share_of_substrings_that_are_not_new(text: str) -> None:
    n = len(text)
    distinct = {text[i:j] for i in range(n) for j in range(i + 1, n + 1)}
    assert repeatness(text) == pytest.approx(1 - 2 * len(distinct) / (n * (n + 1)) if n else 0.0, abs=1e-12)


def test_repeatness_of_a_surrogate_and_of_a_large_alphabet() -> None:
    assert repeatness("\ud800\ud800") == pytest.approx(1 / 3)
    assert repeatness("".join(map(chr, range(300)))) == 0.0
    assert repeatness("".join(map(chr, range(300))) * 2) == pytest.approx(300 * 301 / (600 * 601))


def test_texts_are_measured_whole_and_within_a_budget() -> None:
    texts = ["x" * 10] * 10
    assert list(measured(texts, 100)) == texts
    assert len(measured(texts, 99)) == 5 and len(measured(texts, 40)) == 4 and len(measured(texts, 39)) == 3
    assert list(measured(texts, 3)) == texts[:1] and list(measured([], 3)) == []


def test_repeated_ngrams_of_words() -> None:
    words = " ".join(f"w{i}" for i in range(20))
    assert repeated_ngrams(words) == (0, 1)
    assert repeated_ngrams(f"{words} {words.upper()}") == (1, 21), "case does not count"
    assert repeated_ngrams("no " * 30) == (10, 11)
    assert repeated_ngrams("too few words") == (0, 0)


@given(st.lists(st.sampled_from(["a", "b", "B"]), max_size=40), st.integers(1, 5))
def test_repeated_ngrams_are_all_less_the_distinct(words: list[str], n: int) -> None:
    lowered = [word.lower() for word in words]
    grams = [tuple(lowered[i : i + n]) for i in range(len(words) - n + 1)]
    assert repeated_ngrams(" ".join(words), n) == (len(grams) - len(set(grams)), len(grams))


@given(st.lists(st.integers(0, 2), max_size=50), st.integers(1, 6))
def test_the_first_repetition_is_the_first_window_that_was_there_before(ids: list[int], window: int) -> None:
    seen: set[tuple[int, ...]] = set()
    expected = None
    for i in range(len(ids) - window + 1):
        if expected is None and tuple(ids[i : i + window]) in seen:
            expected = i
        seen.add(tuple(ids[i : i + window]))
    assert first_repetition(np.array(ids, dtype=np.int32), window) == expected


def test_the_first_repetition_by_hand() -> None:
    loop = np.arange(20, dtype=np.int32)
    assert first_repetition(np.concatenate([[99], loop, [7], loop]).astype(np.int32)) == 22
    assert first_repetition(np.concatenate([loop, loop[:19]]).astype(np.int32)) is None
    assert first_repetition(np.zeros(21, dtype=np.int32)) == 1
    assert first_repetition(np.zeros(20, dtype=np.int32)) is None
    assert first_repetition(np.zeros(0, dtype=np.int32)) is None


def test_long_and_looping_texts_stay_cheap() -> None:
    """Processor time, at four to eight times what was measured (docs/metrics.md); anything quadratic takes minutes."""
    rng = np.random.default_rng(0)
    prose = "".join(rng.choice(list("etaoin shrdlu"), 100_000))
    begin = time.process_time()
    for text in (prose, "a" * 100_000, prose[:50] * 2000):
        repeatness(text)
    for number in range(256):
        repeatness(prose[number * 300 :][:2048] + prose[:60] * 34)
    assert time.process_time() - begin < 4
