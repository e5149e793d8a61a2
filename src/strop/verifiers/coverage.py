"""How many references of a set a verifier can decide, with examples of those that it compares only as texts."""

from __future__ import annotations

from collections import Counter

from strop.base.types import Problem
from strop.verifiers.answer import stated_answer
from strop.verifiers.base import Verifier
from strop_verify.verdict import shortened

EXAMPLES = 3  # for each reason


class Coverage:
    """Collects `Verifier.caution` over the problems of a set."""

    def __init__(self, verifier: Verifier) -> None:
        self._verifier = verifier
        self._examples: dict[str, list[str]] = {}
        self._counts: Counter[str] = Counter()
        self._total = 0

    def add(self, problem: Problem) -> None:
        """Count a problem that the verifier does not refuse."""
        self._total += 1
        reason = self._verifier.caution(problem)
        if reason is not None:
            self._counts[reason] += 1
            examples = self._examples.setdefault(reason, [])
            shown = shortened(stated_answer(str(problem.reference)))
            if len(examples) < EXAMPLES and shown not in examples:
                examples.append(shown)

    @property
    def lines(self) -> list[str]:
        """A line for each reason: how many references, which for example, and why."""
        return [
            f"{count:,} of {self._total:,} references, such as {', '.join(self._examples[reason])}: {reason}"
            for reason, count in self._counts.most_common()
        ]
