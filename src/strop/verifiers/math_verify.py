"""`MathVerify`: the package math-verify as Skywork-OR1 uses it (Section 7.1); it needs the extra `math-verify`."""

from __future__ import annotations

import logging
from functools import lru_cache
from types import ModuleType
from typing import Any

from strop.base.imports import require
from strop.base.types import Problem, Verdict
from strop.data.templates import Instruction
from strop.verifiers.base import Isolation, Verifier, instruction_for, reference_text
from strop_verify.extract import after_thinking
from strop_verify.verdict import Status, shortened


class MathVerify(Verifier):
    r"""Correct where the text that math-verify finds is the reference, or what it means equals `\boxed{reference}`.

    Only what comes after the thinking is read. `MathVerifier` needs no package, proves more and says what it cannot
    prove; this piece repeats a reward that was computed with math-verify.

    Fields:
        isolation: the processes in which it runs; they end it where it hangs.
    """

    isolation: Isolation = Isolation()

    def isolated(self) -> Isolation | None:
        """It runs in processes: none of its bounds holds in every thread."""
        return self.isolation

    def warm(self) -> None:
        """Import the package before workers are forked."""
        _package()

    def judge(self, problem: Problem, text: str, truncated: bool) -> Verdict:
        """Correct, wrong, unparsed where nothing is found, error where the reference cannot be read.

        Raises:
            InputError: the package is absent.
        """
        reference = reference_text(problem)
        gold = [] if reference is None else _parsed(rf"\boxed{{{reference}}}")
        if not gold:
            return Verdict(0.0, Status.ERROR, f"math-verify cannot read the reference {shortened(str(reference))}")
        found = _parsed(after_thinking(text) or "")
        if not found:
            return Verdict(0.0, Status.UNPARSED, "no answer")
        written = next((part for part in reversed(found) if isinstance(part, str)), "")
        equal = written == reference or _package().verify(gold, found, timeout_seconds=None)
        return Verdict(float(equal), Status.CORRECT if equal else Status.WRONG, shortened(written))

    def refuses(self, problem: Problem) -> str | None:
        """A reference that is neither text nor number, or that math-verify cannot read."""
        reference = reference_text(problem)
        if reference is None:
            return f"MathVerify compares answers, and the reference is {type(problem.reference).__name__}"
        return None if _parsed(rf"\boxed{{{reference}}}") else f"math-verify cannot read {shortened(reference)}"

    def instruction(self, problem: Problem) -> Instruction | None:
        """To put the answer in a box."""
        return instruction_for("boxed")


@lru_cache
def _package() -> ModuleType:
    """The package, without its warning that its alarms are off: workers have a limit of time."""
    found = require("math_verify", extra="math-verify", purpose="verifier=MathVerify")
    logging.getLogger("math_verify").setLevel(logging.ERROR)
    return found


def _parsed(text: str) -> list[Any]:
    """What math-verify finds in a text: an expression and how it is written, or less."""
    found: list[Any] = _package().parse(text, parsing_timeout=None)
    return found
