"""Problems that ask the same and want different answers: whatever the model says, one of them calls it wrong."""

from __future__ import annotations

import json
from collections.abc import Sequence

from strop.base.types import Problem
from strop.data.source import question_key

SHOWN = 40  # characters of a question or an answer


def contradictions(problems: Sequence[Problem]) -> list[tuple[Problem, Problem]]:
    """Pairs of problems with one question (white space aside) and different references, a pair for each question.

    References are compared as they stand, strings without the white space around them: `18` and `18.0` are different
    here, for which of them a verifier takes for equal is not known.
    """
    first: dict[str, Problem] = {}
    found: dict[str, tuple[Problem, Problem]] = {}
    for problem in problems:
        key = question_key(problem)
        before = first.setdefault(key, problem)
        if before is not problem and key not in found and _written(before) != _written(problem):
            found[key] = (before, problem)
    return list(found.values())


def warning(name: str, problems: Sequence[Problem]) -> str | None:
    """A line on the contradictions among the problems of a data set, with an example; None where there are none."""
    found = contradictions(problems)
    if not found:
        return None
    one, other = found[0]
    count = f"{len(found)} questions stand" if len(found) > 1 else "a question stands"
    return (
        f"{name}: {count} there more than once with different answers, such as {_short(one.question)!r}: "
        f"{_short(_written(one))} ({one.id}) and {_short(_written(other))} ({other.id}); what is right for "
        "one is wrong for the other"
    )


def _written(problem: Problem) -> str:
    reference = problem.reference
    if isinstance(reference, str):
        return reference.strip()
    return json.dumps(reference, sort_keys=True, default=str)


def _short(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= SHOWN else f"{line[: SHOWN - 1]}…"
