"""Deduplication within and across sets, whose order is their priority, and decontamination against benchmarks.

Candidates share a band of a MinHash signature, or n-grams. Of two candidates the later one is dropped if both are
typed alike, or if they have the same numbers, nearly the same words and the same answer.
"""

from __future__ import annotations

from array import array
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from strop.base.seeds import derive
from strop.base.types import FloatArray, InputError, Problem, first_line
from strop.data.columns import BrokenRow
from strop.model.location import locate
from strop.model.settings import ModelSettings
from strop.prepare.sources import Source
from strop.prepare.stage import Dropped, Stage, Step
from strop.prepare.text import NormalizedText, alike, collapsed, fold, hash64, normalize, overlap
from strop_verify.math import verify
from strop_verify.verdict import Status

Keys = NDArray[np.uint64]
Pairs = NDArray[np.int64]

SEED = 1
BANDS, ROWS = 42, 3  # of a signature
PREDECESSORS = 8  # a row is paired with so many rows before it under the same key, and with the first one
PARTS = 16
_MIX = (np.uint64(0x9E3779B97F4A7C15), np.uint64(0xC2B2AE3D27D4EB4F), np.uint64(0xFF51AFD7ED558CCD))


class MinHashKeys:
    """Keys from the bands of a MinHash signature (datasketch) over pairs of neighbouring words.

    Two questions with Jaccard similarity J share a band with probability 1 - (1 - J^rows)^bands: with 42 bands of 3
    rows .96 at J = .42 and over .999 at .57, which is a question one word in ten of which was replaced.
    """

    def __init__(self) -> None:
        from datasketch import MinHash

        self._minhash: Any = MinHash(num_perm=BANDS * ROWS, seed=SEED, hashfunc=int)
        self._powers = _odd_numbers(ROWS)
        self._band_salts = _odd_numbers(BANDS)

    def __call__(self, tokens: Sequence[int]) -> Keys:
        """The keys of a question: uint64 [BANDS]."""
        self._minhash.clear()
        self._minhash.update_batch(shingles(tokens, 2).tolist())
        signature = self._minhash.hashvalues.astype(np.uint64).reshape(BANDS, ROWS)
        return np.asarray((signature * self._powers).sum(axis=1, dtype=np.uint64) * self._band_salts, dtype=np.uint64)


class NgramKeys:
    """Keys from n-grams of words: the `BANDS` smallest hashes of a question."""

    def __init__(self, n: int) -> None:
        self._n = n

    def __call__(self, tokens: Sequence[int]) -> Keys:
        """The smallest hashes of the question's n-grams."""
        return np.sort(np.unique(shingles(tokens, self._n)))[:BANDS]


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
    """The upper 32 bits of `ngrams`, as MinHash needs them."""
    return ngrams(tokens, n) >> np.uint64(32)


def ngrams(tokens: Sequence[int], n: int) -> Keys:
    """Hashes of the n-grams of a text (or of the whole text if it is shorter): uint64 [max(tokens - n + 1, 1)]."""
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


def _odd_numbers(count: int) -> Keys:
    """A different odd multiplier for each place."""
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
    """The earlier row that is repeated, the share of common words (1: typed alike), and how it was found."""

    row: int
    overlap: float
    kind: str


class Found(NamedTuple):
    """The result of `Deduplicate.find`: a hash of the text of each kept row, and the duplicates by their row."""

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
    """The fields of a kept problem that its duplicates are reported with."""

    id: str
    source: str
    question: str
    reference: str

    @classmethod
    def of(cls, problem: Problem) -> Original:
        """The fields of `problem`."""
        return cls(problem.id, problem.source, problem.question, str(problem.reference))


def write(stage: Stage, duplicates: dict[int, Duplicate]) -> None:
    """Drop the `duplicates`, and keep the other problems."""
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
        stage.drop(problem, _dropped(problem, first, duplicate, differs))
    if other_answer:
        stage.counts["duplicates_with_another_answer"] = other_answer


def _dropped(problem: Problem, first: Original, duplicate: Duplicate, differs: bool) -> Dropped:
    scope = "within the set" if problem.source == first.source else "of another set"
    answer = f"; its answer there is {first.reference[:80]}" if differs else ""
    detail = f"of {first.id}, overlap {duplicate.overlap:.2f}{answer}"
    return Dropped(f"{duplicate.kind} duplicate {scope}", detail, first.id, first.question)


class Split(Step):
    """Draws `count` problems with different questions into validation.parquet (ScaleRL: 1,000).

    A training problem that is typed like a held-out one (case, space and punctuation aside) is dropped.

    Fields:
        seed: seed of the draw; None uses the preparation's seed.
    """

    count: Annotated[int, Field(ge=1)] = 1000
    seed: Annotated[int, Field(ge=0)] | None = None

    def run(self, stage: Stage) -> None:
        """Find problems that are typed alike, then split.

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
                stage.drop(
                    problem, Dropped("asks a held-out question", f"of {first.id}", first.id, first.question)
                )
            else:
                stage.keep(problem)


def _drawn(questions: dict[int, int], count: int, seed: int) -> set[int]:
    """`count` rows, in an order that depends only on their text and the seed, not on the other rows."""
    keys = np.array(list(questions.values()), dtype=np.uint64)
    order = np.argsort(mix(mix(keys ^ np.uint64(seed)) + np.uint64(seed)), kind="stable")
    return set(np.array(list(questions), dtype=np.int64)[order[:count]].tolist())


BLOCK = 2048  # rows of the similarity matrix that exist at once
LACKS = ("missing_keys", "mismatched_keys")


class DeduplicateByEmbedding(Step):
    """Keeps the first of problems whose questions have a cosine similarity of at least `similarity`.

    Every question is compared with every other one (Skywork-OR1, code), which suits tens of thousands of problems.

    Fields:
        model: the folder (or hub name) of an encoder; the mean of its last hidden states is the embedding.
        same_numbers: keep questions whose numbers differ, however similar.
        max_tokens: longer questions are cut.
        batch: number of questions encoded at once.
    """

    model: str
    similarity: Share = 0.95
    same_numbers: bool = True
    max_tokens: Annotated[int, Field(ge=8)] = 512
    batch: Annotated[int, Field(ge=1)] = 32

    def run(self, stage: Stage) -> None:
        """Encode, compare, write.

        Raises:
            InputError: the model cannot be loaded.
        """
        encoder = TextEncoder(self.model, self.max_tokens)
        vectors: list[FloatArray] = []
        numbers: list[tuple[str, ...]] = []
        texts: list[str] = []
        for problem in stage.problems(f"{stage.name}: encoding"):
            numbers.append(normalize(problem.question).numbers)
            texts.append(problem.question)
            if len(texts) == self.batch:
                vectors.append(encoder(texts))
                texts = []
        if texts:
            vectors.append(encoder(texts))
        matrix = np.concatenate(vectors) if vectors else np.zeros((0, 1), dtype=np.float32)
        duplicates: dict[int, Duplicate] = {}
        for earlier, later, similarity in self._pairs(matrix):
            if earlier in duplicates or later in duplicates:
                continue  # pairs are sorted by their later row: the earlier one is already decided
            if not self.same_numbers or numbers[earlier] == numbers[later]:
                duplicates[later] = Duplicate(earlier, similarity, "embedding")
        write(stage, duplicates)

    def _pairs(self, matrix: FloatArray) -> Iterator[tuple[int, int, float]]:
        """Pairs that are similar enough, sorted by the later row."""
        for start in range(0, len(matrix), BLOCK):
            block = matrix[start : start + BLOCK]
            similar: NDArray[np.float32] = block @ matrix[: start + len(block)].T
            later, earlier = np.nonzero(similar >= self.similarity)
            for place, row in zip(later.tolist(), earlier.tolist(), strict=True):
                if row < start + place:
                    yield row, start + place, float(similar[place, row])


class TextEncoder:
    """An encoder of transformers; its embeddings have unit length."""

    def __init__(self, path: str, max_tokens: int) -> None:
        import torch
        from safetensors import SafetensorError
        from transformers import AutoModel

        from strop.model.files import load_tokenizer, refuse_incomplete, without_progress_bars

        source, cached_only = locate(ModelSettings(path=path), "embedding model", made=None)
        try:
            self._tokenizer: Any = load_tokenizer(source, cached_only=cached_only)
            with without_progress_bars():
                self._model, report = AutoModel.from_pretrained(
                    source, local_files_only=cached_only, trust_remote_code=False, use_safetensors=True,
                    output_loading_info=True,
                )  # fmt: skip
        except (OSError, ValueError, AssertionError, SafetensorError) as error:
            raise InputError(f"embedding model {path}: cannot be loaded ({first_line(error)})") from error
        # The pooler is not needed, and often not stored.
        lacks = {kind: [name for name in report[kind] if "pooler" not in str(name)] for kind in LACKS}
        refuse_incomplete(f"embedding model {path}", lacks)
        self._model.eval()
        self._torch, self._max_tokens = torch, max_tokens
        if self._tokenizer.pad_token is None:
            self._tokenizer.pad_token = self._tokenizer.eos_token

    def __call__(self, texts: list[str]) -> FloatArray:
        """float32 [texts, hidden]."""
        batch = self._tokenizer(
            texts, padding=True, truncation=True, max_length=self._max_tokens, return_tensors="pt", padding_side="right"
        )
        mask = batch["attention_mask"]
        with self._torch.no_grad():
            hidden = self._model(input_ids=batch["input_ids"], attention_mask=mask).last_hidden_state.float()
        weight = mask[..., None].float()
        mean = (hidden * weight).sum(1) / weight.sum(1).clamp(min=1)
        unit = mean / mean.norm(dim=1, keepdim=True).clamp(min=1e-12)
        return np.asarray(unit.numpy(), dtype=np.float32)


# ---------------------------------------------------------------------- decontamination


SHORTEST_EMBEDDED = 10  # fewest words of a question that is searched for inside a longer one
LARGEST_SURROUNDING = 2  # most words of a question that contains a problem, as a multiple of the problem's
ENOUGH_TO_COMPARE = 0.4  # share of common n-grams; with a tenth of the words changed it is about 0.7


class BenchmarkQuestion(NamedTuple):
    """A question of a benchmark."""

    id: str
    source: str
    text: str
    normalized: NormalizedText


class Decontaminate(Step):
    """Drops problems that ask a benchmark's question.

    Candidates share n-grams of words. A problem is dropped if its numbers equal the question's and nearly all words do,
    or if one of the two contains the other: at least `similarity` of the shorter one's words, and its numbers in a row.
    Answers are not compared. dropped.parquet has the question next to each dropped problem.

    Fields:
        against: benchmarks by name (`aime24`, `math500`, from the hub), files, or sources as under `sources`.
        ngram: words of an n-gram.
        similarity: share of words that must be common.
    """

    against: Annotated[tuple[Source, ...], Field(min_length=1)]
    ngram: Annotated[int, Field(ge=1)] = 3
    similarity: Share = 0.8

    def inputs(self) -> str:
        """The stamps of the benchmarks' files."""
        return " ".join(source.stamp() for source in self.against)

    def run(self, stage: Stage) -> None:
        """Read the benchmarks into memory, then go through the problems once."""
        questions = [question for source in self.against for question in _questions(source)]
        index = _QuestionIndex(questions, self.ngram)
        stage.counts["benchmark_questions"] = Counter(question.source for question in questions)
        hit: set[int] = set()
        for problem in stage.problems():
            found = self._find(index, normalize(problem.question))
            if found is None:
                stage.keep(problem)
                continue
            place, share, how = found
            question = questions[place]
            hit.add(place)
            detail = f"{how} {question.id}, overlap {share:.2f}"
            stage.drop(problem, Dropped(f"contaminated by {question.source}", detail, question.id, question.text))
        stage.counts["benchmark_questions_found"] = Counter(questions[place].source for place in hit)

    def _find(self, index: _QuestionIndex, problem: NormalizedText) -> tuple[int, float, str] | None:
        """The question that a problem repeats: its place, the share of common words, and how it was found."""
        for place in index.candidates(problem):
            question = index.questions[place].normalized
            longest = max(len(question.tokens), len(problem.tokens), 1)
            share = overlap(question.tokens, problem.tokens) / longest
            if question.typing == problem.typing or alike(question, problem, self.similarity):
                return place, share, "asks"
            if self._holds(problem, question):
                return place, share, "holds"
            if len(question.tokens) <= LARGEST_SURROUNDING * len(problem.tokens) and self._holds(question, problem):
                return place, share, "is part of"
        return None

    def _holds(self, long: NormalizedText, short: NormalizedText) -> bool:
        """Whether `long` contains `short`."""
        size = len(short.tokens)
        return (
            SHORTEST_EMBEDDED <= size < len(long.tokens)
            and _run_in(short.numbers, long.numbers)
            and overlap(short.tokens, long.tokens) >= self.similarity * size
            and _shared_grams(short, long, self.ngram) >= ENOUGH_TO_COMPARE
        )


class _QuestionIndex:
    """The questions of the benchmarks with an index by n-grams."""

    def __init__(self, questions: Sequence[BenchmarkQuestion], ngram: int) -> None:
        self.questions = questions
        self._ngram = ngram
        self._by_gram: dict[int, list[int]] = defaultdict(list)
        self._by_typing: dict[int, list[int]] = defaultdict(list)
        self._sizes: list[int] = []
        for place, question in enumerate(questions):
            text = question.normalized
            self._by_typing[text.typing].append(place)
            grams = self._grams(text)
            self._sizes.append(len(grams))
            for gram in grams:
                self._by_gram[gram].append(place)

    def candidates(self, text: NormalizedText) -> list[int]:
        """Questions that are typed alike or share enough n-grams, the most similar first."""
        grams = self._grams(text)
        hits = Counter(place for gram in grams for place in self._by_gram.get(gram, ()))
        near = [
            (count / max(min(self._sizes[place], len(grams)), 1), place)
            for place, count in hits.items()
            if count >= ENOUGH_TO_COMPARE * min(self._sizes[place], len(grams))
        ]
        typed = self._by_typing.get(text.typing, [])
        return list(dict.fromkeys([*typed, *(place for _, place in sorted(near, reverse=True))]))

    def _grams(self, text: NormalizedText) -> set[int]:
        return set(shingles(text.tokens, self._ngram).tolist()) if text.tokens else set()


def _questions(source: Source) -> list[BenchmarkQuestion]:
    """The questions of a benchmark.

    Raises:
        InputError: the benchmark cannot be read, or a row of it is broken (it could hide a question).
    """
    found: list[BenchmarkQuestion] = []
    for problem in source.problems():
        if isinstance(problem, BrokenRow):
            raise InputError(f"benchmark {source.label}: {problem.where}: {problem.reason}")
        found.append(BenchmarkQuestion(problem.id, source.label, problem.question, normalize(problem.question)))
    if not found:
        raise InputError(f"benchmark {source.label}: no questions in it")
    return found


def _run_in(short: Sequence[str], long: Sequence[str]) -> bool:
    """Whether `short` is a contiguous part of `long`."""
    return any(long[start : start + len(short)] == short for start in range(len(long) - len(short) + 1))


def _shared_grams(short: NormalizedText, long: NormalizedText, ngram: int) -> float:
    """The share of the shorter question's n-grams that the longer one has."""
    wanted = set(shingles(short.tokens, ngram).tolist())
    return len(wanted & set(shingles(long.tokens, ngram).tolist())) / len(wanted)
