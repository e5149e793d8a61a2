"""Which pairs of many questions may be the same, without comparing all of them.

    index = CandidateIndex(NearDuplicates())
    for row, question in enumerate(questions):
        index.add(row, normalize(question))
    pairs = index.pairs()          # int64 [pairs, 2], the earlier row first

Each question gets keys; two questions that share a key are a candidate pair. Keys are hashes of the letters (for what
differs in typing only) and bands of a MinHash signature, or n-grams of words. Equal numbers are a condition of being
the same question, so they are part of every such key: questions of one template with other numbers never meet.

A row takes 12 bytes a key (42 keys, twice that where it has number words); keys are sorted a sixteenth at a time.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from strop.prepare.text import NormalizedText, hash64

Keys = NDArray[np.uint64]
Pairs = NDArray[np.int64]

SEED = 1
PREDECESSORS = 8  # of rows that share a key, each meets so many before it, and the first: bounds what one key can cost
PARTS = 16
_MIX = (np.uint64(0x9E3779B97F4A7C15), np.uint64(0xC2B2AE3D27D4EB4F), np.uint64(0xFF51AFD7ED558CCD))


class MinHashKeys:
    """Keys from bands of a MinHash signature (datasketch) over pairs of neighbouring words.

    Two questions with Jaccard similarity J share a band with probability 1 - (1 - J^rows)^bands: with 42 bands of 3
    rows .96 at J = .42 and over .999 at .57, which is a question one word in ten of which was replaced.
    """

    def __init__(self, bands: int = 42, rows: int = 3) -> None:
        from datasketch import MinHash

        self._bands, self._rows = bands, rows
        self._minhash: Any = MinHash(num_perm=bands * rows, seed=SEED, hashfunc=_identity)
        self._powers = _odd_numbers(rows)
        self._band_salts = _odd_numbers(bands)

    @property
    def width(self) -> int:
        """How many keys a question gets."""
        return self._bands

    def __call__(self, tokens: Sequence[int]) -> Keys:
        """The keys of a question: uint64 [bands]."""
        self._minhash.clear()
        self._minhash.update_batch(shingles(tokens, 2).tolist())
        signature = self._minhash.hashvalues.astype(np.uint64).reshape(self._bands, self._rows)
        return np.asarray((signature * self._powers).sum(axis=1, dtype=np.uint64) * self._band_salts, dtype=np.uint64)


class NgramKeys:
    """Keys from n-grams of words, every `stride`-th by hash, so that a question has `width` of them at most."""

    def __init__(self, n: int, width: int = 42) -> None:
        self._n, self.width = n, width

    def __call__(self, tokens: Sequence[int]) -> Keys:
        """The smallest hashes of the question's n-grams, which two that share many n-grams have in common."""
        return np.sort(np.unique(shingles(tokens, self._n)))[: self.width]


class CandidateIndex:
    """Collects the keys of questions, then finds the pairs that share one."""

    def __init__(self, keys: MinHashKeys | NgramKeys | None) -> None:
        """`keys` None looks for questions that are typed differently only."""
        self._keys = keys
        self._key_values = array("Q")
        self._key_rows = array("I")
        self._typing: dict[str, array[int]] = {"exact": array("Q"), "bare": array("Q")}
        self._rows = array("I")

    def add(self, row: int, text: NormalizedText) -> None:
        """Take in the question of `row`; rows come in rising order."""
        self._rows.append(row)
        self._typing["exact"].append(text.exact)
        self._typing["bare"].append(text.bare)
        if self._keys is None or not text.tokens:
            return
        found = self._keys(text.tokens)
        for numbers in {text.numbers, text.values}:
            salt = np.uint64(hash64(" ".join(numbers)))
            self._key_values.frombytes(mix(found ^ salt).tobytes())
            self._key_rows.extend([row] * len(found))

    def pairs(self) -> Pairs:
        """Candidate pairs of rows, each once, sorted by the later row, the earlier one first: int64 [pairs, 2]."""
        rows = np.frombuffer(self._rows, dtype=np.uint32)
        together = np.zeros(0, dtype=np.uint64)
        for keys in self._typing.values():
            together = np.union1d(together, _sharing(np.frombuffer(keys, dtype=np.uint64), rows))
        values = np.frombuffer(self._key_values, dtype=np.uint64)
        value_rows = np.frombuffer(self._key_rows, dtype=np.uint32)
        for part in range(PARTS):
            chosen = np.flatnonzero(values & np.uint64(PARTS - 1) == part)
            together = np.union1d(together, _sharing(values[chosen], value_rows[chosen]))
        return np.stack([(together & np.uint64(0xFFFFFFFF)), together >> np.uint64(32)], axis=1).astype(np.int64)


def shingles(tokens: Sequence[int], n: int) -> Keys:
    """Hashes of 32 bits, as MinHash wants them, of the n-grams of a text: as `ngrams`."""
    return ngrams(tokens, n) >> np.uint64(32)


def ngrams(tokens: Sequence[int], n: int) -> Keys:
    """Hashes of the n-grams of a text (of all of it, where it is shorter): uint64 [max(tokens - n + 1, 1)]."""
    words = np.array(tokens, dtype=np.uint64)
    n = min(n, len(words))
    grams = np.zeros(len(words) - n + 1, dtype=np.uint64)
    for offset in range(n):
        grams = mix(grams + words[offset : len(words) - n + 1 + offset] * _MIX[0] + np.uint64(1))
    return grams


def mix(values: Keys) -> Keys:
    """Spread the bits of uint64 values, one to one."""
    values = (values ^ (values >> np.uint64(33))) * _MIX[2]
    return np.asarray(values ^ (values >> np.uint64(29)), dtype=np.uint64)


def _identity(value: int) -> int:
    return value


def _odd_numbers(count: int) -> Keys:
    """Multipliers that tell places apart."""
    places = np.arange(1, count + 1, dtype=np.uint64)
    return np.asarray(mix(places * _MIX[1]) | np.uint64(1), dtype=np.uint64)


def _sharing(keys: Keys, rows: NDArray[np.uint32]) -> Keys:
    """Pairs of rows with an equal key as later << 32 | earlier: each with those before it, up to `PREDECESSORS`."""
    order = np.argsort(keys, kind="stable")
    keys, rows = keys[order], rows[order]
    edges = np.flatnonzero(np.concatenate([[True], keys[1:] != keys[:-1]])) if len(keys) else np.zeros(0, np.int64)
    sizes = np.diff(np.append(edges, len(keys)))
    shared = np.repeat(sizes > 1, sizes)
    first = np.repeat(edges, sizes)[shared]
    place = np.flatnonzero(shared)
    found = []
    for back in (*range(1, PREDECESSORS + 1), None):
        earlier = first if back is None else place - back
        valid = (earlier >= first) & (earlier < place)
        a, b = rows[earlier[valid]].astype(np.uint64), rows[place[valid]].astype(np.uint64)
        different = a != b
        found.append((b[different] << np.uint64(32)) | a[different])
    return np.unique(np.concatenate(found))
