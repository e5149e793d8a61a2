"""Decontamination: drops training problems that repeat a benchmark's question."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import Annotated, NamedTuple

from pydantic import Field

from strop.base.types import InputError
from strop.data.columns import BrokenRow
from strop.prepare.deduplicate import Share, shingles
from strop.prepare.sources import Source
from strop.prepare.stage import Dropped, Stage, Step
from strop.prepare.text import NormalizedText, alike, normalize, overlap

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
