r"""Repetition: how much of a text repeats earlier parts of it, and from which token on.

n characters of a text, T tokens of a completion, W words.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from strop.base.types import IntArray

WINDOW = 20  # words of a repeated n-gram (Archer), and tokens of a repeated window
TABLE = 1 << 14  # code points below are looked up in a table, which for larger ones takes longer than sorting
CHARACTERS = 1 << 20  # of a step whose repeatness is measured: 256 completions of 4,096 characters


def repeatness(text: str) -> float:
    r"""Open-Reasoner-Zero's measure of a text of n characters, in [0, 1).

    2·Σ LCP / (n (n + 1)), LCP being the longest common prefixes of neighbours in the suffix array: the share of the
    n (n + 1) / 2 substrings that are not the first of their kind. 0 for fewer than two characters. O(n log² n).

    Example: "aaaaaaaaaa" → 90 / 110 = 0.8182; "abababababab" → 110 / 156 = 0.7051; "abcdefghij" → 0.
    """
    n = len(text)
    if n < 2:
        return 0.0
    codes = np.frombuffer(text.encode("utf-32-le", "surrogatepass"), dtype=np.uint32)
    return 2 * int(_common_prefixes(codes).sum()) / (n * (n + 1))


def measured(texts: Sequence[str], characters: int = CHARACTERS) -> Sequence[str]:
    """Every k-th of the texts, k the smallest for which they hold at most `characters` together; at least the first.

    Texts are taken whole, because a part of a text has another repeatness than the whole.
    """
    lengths = np.array([len(text) for text in texts], dtype=np.int64)
    stride = 1
    while stride < len(texts) and int(lengths[::stride].sum()) > characters:
        stride += 1
    return texts[::stride]


def repeated_ngrams(text: str, n: int = WINDOW) -> tuple[int, int]:
    """(repeats, all) of the word n-grams of a text: lower-cased words between white space (Archer).

    An n-gram is a repeat when the same one has begun earlier in the text: all − distinct. Their quotient is the
    repetition ratio; a text of fewer than n words has none.
    """
    number: dict[str, int] = {}
    words = np.array([number.setdefault(word, len(number)) for word in text.lower().split()], dtype=np.int64)
    return len(_repeats(words, n)), max(len(words) - n + 1, 0)


def first_repetition(token_ids: IntArray, window: int = WINDOW) -> int | None:
    """The first token i whose window of `window` tokens, i to i + window − 1, has begun at an earlier token too.

    The two may overlap: 21 equal tokens repeat at token 1. Tokens from i on are those "after the onset of the first
    repetitive pattern" (Open-Reasoner-Zero, Section 3.3, which does not define it). None where no window recurs.
    """
    found = _repeats(token_ids.astype(np.int64), window)
    return int(found.min()) if len(found) else None


def _repeats(symbols: NDArray[np.int64], width: int) -> NDArray[np.int64]:
    """The starts of windows that have begun earlier, in no order.

    Windows are sorted by a 64-bit hash; neighbours of equal hash are then compared symbol by symbol, so that a
    collision can hide a repeat (once in 2^64 pairs) but never make one up.
    """
    if len(symbols) <= width:
        return np.zeros(0, dtype=np.int64)
    mixed = _mix(symbols.astype(np.uint64))
    count = len(symbols) - width + 1
    hashes = np.zeros(count, dtype=np.uint64)
    for offset in range(width):
        hashes *= np.uint64(0x9E3779B97F4A7C15)
        hashes += mixed[offset : offset + count]
    order = np.argsort(hashes, kind="stable")
    equal = hashes[order[1:]] == hashes[order[:-1]]
    later, earlier = order[1:][equal], order[:-1][equal]
    windows = np.lib.stride_tricks.sliding_window_view(symbols, width)
    return later[(windows[later] == windows[earlier]).all(axis=1)]


def _mix(values: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """The finalizer of splitmix64: neighbouring ids become unrelated 64-bit numbers."""
    values = values + np.uint64(0x9E3779B97F4A7C15)
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))


# ---------------------------------------------------------------------- suffix array by prefix doubling


def _common_prefixes(codes: NDArray[np.uint32]) -> NDArray[np.int64]:
    """LCP of each pair of neighbours in the suffix array, int64 [n − 1].

    The suffixes are sorted by their first w symbols, w doubling, each time only those that still are tied. The ranks
    of every round are kept: equal ranks mean w equal symbols, so the common prefix of a pair is read off from the
    widest round down to a single symbol. Position n, the empty suffix, equals no other.
    """
    n = len(codes)
    words, bits, letters = _packed(codes)
    width = letters
    order = np.argsort(words[:n])
    slots = np.arange(n)  # places of the suffix array that are not settled yet
    key: NDArray[Any] = words[order]
    rank = np.full(n + 1, -1, dtype=np.int64)  # of a suffix: the first slot of those it is tied with
    rounds: list[tuple[int, NDArray[np.int64]]] = []
    while True:
        rank = rank.copy()
        rank[order[slots]] = _first_of_equals(key, slots)
        tied = _tied(rank[order[slots]])
        if not tied.any():
            break
        rounds.append((width, rank))
        slots = slots[tied]
        members = order[slots]
        key = rank[members] * (n + 1) + rank[np.minimum(members + width, n)] + 1
        by_key = np.argsort(key)
        order[slots], key = members[by_key], key[by_key]
        width *= 2
    first, second = order[:-1].copy(), order[1:].copy()
    for width, rank in reversed(rounds):
        equal = (rank[first] == rank[second]) * width
        first += equal
        second += equal
    for shorter in _halves(letters):
        prefixes = words >> np.uint64(bits * (letters - shorter))
        equal = (prefixes[first] == prefixes[second]) * shorter
        first += equal
        second += equal
    return first - order[:-1]


def _packed(codes: NDArray[np.uint32]) -> tuple[NDArray[np.uint64], int, int]:
    """The first symbols of each suffix in a word, uint64 [n + 1]; bits of a symbol; symbols of a word, a power of two.

    What lies behind the end is 0.
    """
    symbols = _numbered(codes)
    bits = int(symbols.max()).bit_length()
    words = np.append(symbols.astype(np.uint64), np.uint64(0))
    width = 1
    while 2 * width * bits <= 64:
        behind = np.zeros_like(words)
        behind[:-width] = words[width:]
        words = (words << np.uint64(width * bits)) | behind
        width *= 2
    return words, bits, width


def _numbered(codes: NDArray[np.uint32]) -> NDArray[np.int64]:
    """The symbols of a text numbered from 1."""
    largest = int(codes.max())
    if largest >= TABLE:
        return np.unique(codes, return_inverse=True)[1] + 1
    present = np.zeros(largest + 1, dtype=np.bool_)
    present[codes] = True
    return np.cumsum(present, dtype=np.int64)[codes]


def _first_of_equals(key: NDArray[Any], slots: NDArray[np.int64]) -> NDArray[np.int64]:
    """For each of sorted keys the slot of the first that equals it."""
    starts = np.append(True, key[1:] != key[:-1])
    return np.maximum.accumulate(np.where(starts, slots, 0))


def _tied(rank: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Whether a neighbour has the same rank."""
    equal = rank[1:] == rank[:-1]
    return np.append(equal, False) | np.append(False, equal)


def _halves(width: int) -> Iterator[int]:
    while width > 1:
        width //= 2
        yield width
