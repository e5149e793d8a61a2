"""Whether a verifier can judge the problems at hand, found out before any model answers them."""

from __future__ import annotations

from collections.abc import Sequence

from strop.base.types import InputError, Problem
from strop.data.dataset import Data
from strop.verifiers.answer import stated_answer
from strop.verifiers.base import Verifier, shortened
from strop.verifiers.judges import first_refusal


def refuse_unjudgeable(verifier: Verifier, data: Data) -> None:
    """Refuse training or held-out problems that the verifier can never judge.

    Raises:
        InputError: naming the first of them and why.
    """
    held_out = () if data.held_out is None else data.held_out.problems
    refused = first_refusal(verifier, [*data.train.problems, *held_out])  # at once: it may need processes of its own
    if refused is not None:
        problem, reason = refused
        within = data.train if data.held_out is None or problem not in held_out else data.held_out
        raise InputError(f"{within.name}: problem {problem.id!r}: {reason}; choose another verifier")


def caution(verifier: Verifier, problems: Sequence[Problem]) -> tuple[str, str] | None:
    """How many problems are judged more narrowly than their writer may think, and how; None: there are none."""
    found = [(problem, reason) for problem in problems if (reason := verifier.caution(problem)) is not None]
    if not found:
        return None
    problem, reason = found[0]
    share = f"{len(found):,} of {len(problems):,} references"
    return f"{share}, such as {shortened(stated_answer(str(problem.reference)))}", reason
