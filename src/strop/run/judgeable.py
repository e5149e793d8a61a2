"""Whether a verifier can judge the problems at hand, found out before any model answers them."""

from __future__ import annotations

from collections.abc import Sequence

from strop.base.types import InputError, Problem
from strop.data.dataset import Data
from strop.verifiers.answer import stated_answer
from strop.verifiers.base import Verifier
from strop.verifiers.judges import refusals
from strop_verify.verdict import shortened


def refuse_unjudgeable(verifier: Verifier, data: Data) -> None:
    """Refuse training or held-out problems that the verifier can never judge.

    Raises:
        InputError: how many of their source they are, the first of them and why, and the way out.
    """
    parts = [part for part in (data.train, data.held_out) if part is not None]
    asked = [(part.name, problem) for part in parts for problem in part.problems]
    reasons = refusals(verifier, [problem for _, problem in asked])  # at once: it may need processes of its own
    refused = [(*one, reason) for one, reason in zip(asked, reasons, strict=True) if reason is not None]
    if not refused:
        return
    source, problem, reason = refused[0]
    count, total = (sum(one[0] == source for one in of) for of in (refused, asked))
    piece = verifier.piece_name()
    step = f'{{ piece = "Verifiable", verifier = "{piece}" }}'
    alone = isinstance(problem.reference, list) and len(problem.reference) == 1
    taken = "set data.source.columns.answer_json=true, which takes the answer out of a list of one, or " * alone
    prepared = f"strop data prepare with the step {step} mends or drops them, or " if count < total else ""
    raise InputError(
        f"{source}: {piece} cannot judge {count:,} of {total:,} problems, the first of them {problem.id!r}: {reason}; "
        f"{taken}{prepared}choose another verifier"
    )


def caution(verifier: Verifier, problems: Sequence[Problem]) -> tuple[str, str] | None:
    """How many problems are judged more narrowly than their writer may think, and how; None: there are none."""
    found = [(problem, reason) for problem in problems if (reason := verifier.caution(problem)) is not None]
    if not found:
        return None
    problem, reason = found[0]
    share = f"{len(found):,} of {len(problems):,} references"
    return f"{share}, such as {shortened(stated_answer(str(problem.reference)))}", reason
