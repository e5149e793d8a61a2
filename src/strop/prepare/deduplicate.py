"""Deduplication within and across sets: the order of the sources is their priority.

Candidates share a band of a MinHash signature, or n-grams. Of two candidates the later one is dropped if both are
typed alike, or if they have the same numbers, nearly the same words and the same answer.
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from strop.base.seeds import derive
from strop.base.types import InputError, Problem
from strop.prepare.stage import Dropped, Pair, Stage, Step
from strop.prepare.text import NormalizedText, alike, collapsed, fold, hash64, normalize, overlap
from strop_verify.math import verify
from strop_verify.verdict import Status

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
    """Collects the keys of questions, then finds the pairs that share one.

    Questions with different numbers never become candidates: their numbers are part of their keys.
    """

    def __init__(self, keys: MinHashKeys | NgramKeys) -> None:
        self._keys = keys
        self._values = array("Q")
        self._rows = array("I")

    def add(self, row: int, text: NormalizedText) -> None:
        """Take in the question of `row`; rows come in rising order."""
        if text.tokens:
            found = mix(self._keys(text.tokens) ^ np.uint64(hash64(" ".join(text.numbers))))
            self._values.frombytes(found.tobytes())
            self._rows.extend([row] * len(found))

    def pairs(self) -> Pairs:
        """Candidate pairs of rows, each once, sorted by the later row, the earlier one first: int64 [pairs, 2]."""
        together = np.zeros(0, dtype=np.uint64)
        values = np.frombuffer(self._values, dtype=np.uint64)
        rows = np.frombuffer(self._rows, dtype=np.uint32)
        for part in range(PARTS):
            chosen = np.flatnonzero(values & np.uint64(PARTS - 1) == part)
            together = np.union1d(together, _sharing(values[chosen], rows[chosen]))
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


Share = Annotated[float, Field(gt=0, le=1)]


class Duplicate(NamedTuple):
    """The earlier row that asks the same, how alike the two are (1: typed differently at most), how it was found."""

    row: int
    overlap: float
    kind: str


class Found(NamedTuple):
    """What `Deduplicate.find` found: a hash of the text of each row that stays, and the duplicates by their row."""

    distinct: dict[int, int]
    duplicates: dict[int, Duplicate]
    candidate_pairs: int


class Deduplicate(Step):
    """Keeps the first of problems that ask the same.

    Questions that differ only in case, space and punctuation are the same, whatever their answers. Near duplicates have
    at most 1 - `similarity` of their words changed, the same numbers in the same order, and the same answer, as the
    math verifier compares them. The tests of programs are not compared: every set writes its own. The set that is
    named first keeps its problem.

    Fields:
        near: how near duplicates are looked for: `minhash` (MinHash-LSH over word pairs), `ngram` (shared n-grams of
            words), `none`.
        similarity: share of the words of the longer question that both have.
        ngram: words of an n-gram, for `near = "ngram"`.
    """

    near: Literal["minhash", "ngram", "none"] = "minhash"
    similarity: Share = 0.8
    ngram: Annotated[int, Field(ge=1)] = 5

    def run(self, stage: Stage) -> None:
        """Three passes: keys, the texts of candidates, writing."""
        found = self.find(stage)
        stage.counts["candidate_pairs"] = found.candidate_pairs
        write(stage, found.duplicates)

    def find(self, stage: Stage) -> Found:
        """Which rows of the stage are duplicates, in two passes over it."""
        first_of: dict[int, int] = {}
        exact: dict[int, int] = {}  # rows typed as an earlier one, with that row
        index = CandidateIndex(NgramKeys(self.ngram) if self.near == "ngram" else MinHashKeys())
        for row, problem in enumerate(stage.problems(f"{stage.name}: reading")):
            text = normalize(problem.question)
            first = first_of.setdefault(text.typing, row)
            if first != row:
                exact[row] = first
            elif self.near != "none":
                index.add(row, text)
        pairs = index.pairs()
        near = self._decide(stage, pairs)
        # A row typed as a dropped one is a duplicate of the one that is kept.
        duplicates = near | {row: near.get(first, Duplicate(first, 1.0, "exact")) for row, first in exact.items()}
        return Found({row: key for key, row in first_of.items() if row not in near}, duplicates, len(pairs))

    def _decide(self, stage: Stage, pairs: Pairs) -> dict[int, Duplicate]:
        if not len(pairs):
            return {}
        wanted = np.zeros(stage.total, dtype=np.bool_)
        wanted[pairs.ravel()] = True
        texts: dict[int, tuple[NormalizedText, Any]] = {}
        for row, problem in enumerate(stage.problems(f"{stage.name}: comparing")):
            if wanted[row]:
                texts[row] = normalize(problem.question), problem.reference
        duplicates: dict[int, Duplicate] = {}
        for earlier, later in pairs.tolist():  # sorted by the later row, so that the earlier one is decided
            if later in duplicates:
                continue
            kept = duplicates[earlier].row if earlier in duplicates else earlier
            (first, answer), (second, other) = texts[kept], texts[later]
            if alike(first, second, self.similarity) and same_answer(answer, other):
                share = overlap(first.tokens, second.tokens) / max(len(first.tokens), len(second.tokens))
                duplicates[later] = Duplicate(kept, share, "near")
        return duplicates


def same_answer(first: Any, second: Any) -> bool:
    """Whether two references are equal: as text, or proved by the math verifier. Tests of programs always count as
    equal."""
    if isinstance(first, Mapping) and isinstance(second, Mapping):
        return True
    one, other = str(first), str(second)
    if collapsed(fold(one)) == collapsed(fold(other)):
        return True
    return verify(one, rf"\boxed{{{other}}}").status is Status.CORRECT


class Original(NamedTuple):
    """The fields of a problem with duplicates that are kept in memory."""

    id: str
    source: str
    question: str
    reference: str

    @classmethod
    def of(cls, problem: Problem) -> Original:
        """What is remembered of `problem`."""
        return cls(problem.id, problem.source, problem.question, str(problem.reference))


def write(stage: Stage, duplicates: dict[int, Duplicate]) -> None:
    """Keep every problem without a duplicate, and drop the others in favour of theirs."""
    originals = {duplicate.row for duplicate in duplicates.values()}
    kept: dict[int, Original] = {}
    other_answer = 0
    for row, problem in enumerate(stage.problems(f"{stage.name}: writing")):
        duplicate = duplicates.get(row)
        if duplicate is None:
            stage.keep(problem)
            if row in originals:
                kept[row] = Original.of(problem)
            continue
        first = kept[duplicate.row]
        differs = str(problem.reference) != first.reference
        other_answer += differs
        stage.drop(problem, _dropped(problem, first, duplicate, differs), pair_of(problem, first, duplicate.overlap))
    if other_answer:
        stage.counts["duplicates_with_another_answer"] = other_answer


def pair_of(problem: Problem, first: Original, share: float) -> Pair:
    """A dropped problem beside the one that is kept."""
    return Pair(problem, first.id, first.source, first.question, share)


def _dropped(problem: Problem, first: Original, duplicate: Duplicate, differs: bool) -> Dropped:
    scope = "within the set" if problem.source == first.source else "of another set"
    answer = f"; its answer there is {first.reference[:80]}" if differs else ""
    detail = f"of {first.id}, overlap {duplicate.overlap:.2f}{answer}"
    return Dropped(f"{duplicate.kind} duplicate {scope}", detail, first.id)


class Split(Step):
    """Draws `count` problems with different questions into validation.parquet (ScaleRL: 1,000).

    What `Deduplicate` calls typed differently only (case, space, punctuation) is the same question: a training problem
    that asks a held-out one is dropped.

    Fields:
        seed: which are drawn; None follows the preparation's seed.
    """

    count: Annotated[int, Field(ge=1)] = 1000
    seed: Annotated[int, Field(ge=0)] | None = None

    def run(self, stage: Stage) -> None:
        """As `Deduplicate` without near duplicates: keys, the texts of candidates, the split.

        Raises:
            InputError: nothing would be left to train on.
        """
        distinct, duplicates, _ = Deduplicate(near="none").find(stage)
        if len(distinct) <= self.count:
            came = f"different questions that came in: {len(distinct)}"
            raise InputError(f"Split.count={self.count} leaves nothing to train on: {came}")
        seed = derive(stage.seed if self.seed is None else self.seed, "split")
        chosen = _drawn(distinct, self.count, seed)
        held_out: dict[int, Original] = {}
        for row, problem in enumerate(stage.problems(f"{stage.name}: writing")):
            duplicate = duplicates.get(row)
            if row in chosen:
                stage.hold_out(problem)
                held_out[row] = Original.of(problem)
            elif duplicate is not None and duplicate.row in chosen:
                first = held_out[duplicate.row]
                dropped = Dropped("asks a held-out question", f"of {first.id}", first.id)
                stage.drop(problem, dropped, pair_of(problem, first, duplicate.overlap))
            else:
                stage.keep(problem)


def _drawn(questions: dict[int, int], count: int, seed: int) -> set[int]:
    """`count` rows, in an order that follows from their text and the seed, not from what else is in the set."""
    keys = np.array(list(questions.values()), dtype=np.uint64)
    order = np.argsort(mix(mix(keys ^ np.uint64(seed)) + np.uint64(seed)), kind="stable")
    return set(np.array(list(questions), dtype=np.int64)[order[:count]].tolist())
