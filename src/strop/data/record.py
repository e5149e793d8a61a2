"""Which problems a run trains on and which it holds out, written down when it begins.

    record = ProblemRecord.of(data)                        # kept in the run folder as problems.json
    data = record.held_out_of(problems)                    # later, whatever has become of the data file
    record.other_answers(data)                             # how many of them have another answer since
    record.trained_on(problems)                            # how many of these the run was trained on

A problem is known by its question, not by its id or its place in a file, so that lines appended to a file, a limit or
another split cannot bring a question that was trained on among those that are called held out.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from strop.base.types import InputError, Problem
from strop.data.dataset import Data
from strop.data.source import question_digest

PROBLEMS = "problems.json"


@dataclass(frozen=True)
class ProblemRecord:
    """Digests of the questions of a run, 16 hexadecimal digits each.

    Attributes:
        trained: questions that the run may train on.
        held_out: questions that it never trains on, in their order; empty where nothing is held out.
        answers: the references of these.
        before: questions that the model had been trained on when the run began.
    """

    trained: frozenset[str]
    held_out: tuple[str, ...]
    answers: tuple[str, ...]
    before: frozenset[str]

    @classmethod
    def of(cls, data: Data, before: frozenset[str] = frozenset()) -> ProblemRecord:
        """The record of a run on `data`, with a model that had been trained on the questions `before`."""
        held_out = () if data.held_out is None else data.held_out.problems
        trained = frozenset(map(question_digest, data.train.problems))
        digests, answers = tuple(map(question_digest, held_out)), tuple(map(_answer_digest, held_out))
        return cls(trained, digests, answers, before)

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> ProblemRecord:
        """The record that `to_json` wrote."""
        return cls(
            frozenset(value["trained"]), tuple(value["held_out"]), tuple(value["answers"]), frozenset(value["before"])
        )

    def to_json(self) -> dict[str, Any]:
        """As it is kept in the run folder."""
        return {
            "held_out": list(self.held_out), "answers": list(self.answers), "trained": sorted(self.trained),
            "before": sorted(self.before),
        }  # fmt: skip

    def held_out_of(self, problems: Iterable[Problem], source: str) -> tuple[Problem, ...]:
        """The problems that the run held out, in the order of the run, found among those of its source.

        Where a source asks a question several times, perhaps with other ids and answers, a run holds out the first; all
        of them where its held-out problems have a source of their own.

        Raises:
            InputError: some of them are not there any more.
        """
        present = tuple(problems)
        known = dict(zip(_numbered(map(question_digest, present)), present, strict=True))
        wanted = tuple(_numbered(self.held_out))
        missing = sum(each not in known for each in wanted)
        if missing:
            raise InputError(
                f"{source}: {missing} of the {len(self.held_out)} problems that the run held out are not in it any "
                "more; restore it, or name other problems with --source"
            )
        return tuple(known[each] for each in wanted)

    def other_answers(self, held_out: Iterable[Problem]) -> str | None:
        """A line on how many of the held-out problems, in the order of the run, have another answer than it began with;
        None where none has."""
        pairs = zip(map(_answer_digest, held_out), self.answers, strict=False)  # perhaps the first of them alone
        changed = sum(now != before for now, before in pairs)
        if not changed:
            return None
        return (
            f"{changed} of the {len(self.held_out)} problems that the run held out have another answer than when it "
            "began: what it measured before went by the former ones"
        )

    def trained_on(self, problems: Iterable[Problem]) -> int:
        """How many of these problems the run was trained on."""
        return sum(question_digest(problem) in self.trained for problem in problems)


def _answer_digest(problem: Problem) -> str:
    return hashlib.blake2b(repr(problem.reference).encode(), digest_size=8).hexdigest()


def _numbered(digests: Iterable[str]) -> Iterator[tuple[str, int]]:
    """Each digest with how often it came before."""
    before: Counter[str] = Counter()
    for digest in digests:
        yield digest, before[digest]
        before[digest] += 1
