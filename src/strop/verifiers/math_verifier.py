"""Is the response's answer the same mathematics as the reference? By strop_verify's comparison, or by math-verify."""

from __future__ import annotations

import logging
from dataclasses import fields, replace
from functools import lru_cache
from types import ModuleType
from typing import Any, Literal, Self

from pydantic import NonNegativeInt, SerializeAsAny, model_validator

from strop.base.imports import require
from strop.base.types import Problem, Verdict
from strop.data.templates import Instruction
from strop.verifiers.base import Isolation, Verifier, instruction_for, reference_text
from strop_verify.extract import after_thinking
from strop_verify.math import MathSettings
from strop_verify.math.settings import GoldForm, MatchType, stated_settings
from strop_verify.math.verifier import answer_key, narrow, unreadable, verify, verify_here, warm
from strop_verify.pool import WorkerLimits, in_worker
from strop_verify.verdict import Status, shortened


class MathVerifier(Verifier):
    r"""Compares mathematics: `\frac{1}{2}` is `0.5`, `x > 2` is `(2, \infty)`, `\{1, 2\}` is `\{2, 1\}`.

    The answer is found, both sides are read by one grammar of kinds (a quantity, a word, a time, an interval …), and
    each kind has its rule. Equal means proved equal; what is proved neither equal nor different is undecided. It runs
    in a worker process that can be killed, also when called directly.

    What the problem says of its answer counts more than these settings: the row by `is_multiple_answer`, `error` (a
    tolerance) and `unit`, kept in `extra["answer_form"]`; the question where it says so plainly ("in increasing order",
    "respectively", "interval notation", "antiderivative", `a, b > 0`).

    Fields:
        undecided: what happens to an answer that is proved neither equal nor different: `leave_out` (no reward and no
            penalty: the sample leaves its group; where a model is measured it counts as wrong), `wrong`, or `ask`.
        second: the verifier that is asked with `undecided=ask`.
        isolation: the processes in which it runs.
    """

    documented_by = MathSettings

    extract: Literal["boxed", "answer_tag", "any"] = "boxed"
    box_required: bool = False
    gold_form: GoldForm = "bare"
    match_types: tuple[MatchType, ...] = ("latex", "expr")
    precision: NonNegativeInt = 6
    strict: bool = True
    allow_set_relation_comp: bool = False
    ordered_lists: bool = False
    undecided: Literal["leave_out", "wrong", "ask"] = "leave_out"
    second: SerializeAsAny[Verifier] | None = None
    explain: bool = False
    isolation: Isolation = Isolation()

    @model_validator(mode="after")
    def _asks_somebody(self) -> Self:
        if (self.undecided == "ask") != (self.second is not None):
            raise ValueError("undecided=ask and second belong together: set both, or neither")
        return self

    def isolated(self) -> Isolation | None:
        """It runs in processes, so that a worker that hangs can be killed; not with a second one bound to this one."""
        return None if self.session_functions() or self.threads() else self.isolation

    def warm(self) -> None:
        """Import what every verdict needs, and build its tables, before workers are forked."""
        warm(self.settings)
        if self.second is not None:
            self.second.warm()

    def asks(self) -> tuple[Verifier, ...]:
        """The second verifier."""
        return () if self.second is None else (self.second,)

    @property
    def settings(self) -> MathSettings:
        """How answers are found, read and compared."""
        return _settings(self)

    def judge(self, problem: Problem, text: str, truncated: bool) -> Verdict:
        """Correct, wrong, undecided, unparsed (no answer, unreadable, too large) or error."""
        reference = reference_text(problem)
        if reference is None:
            return Verdict(0.0, Status.ERROR, f"the reference is {type(problem.reference).__name__}, not an answer")
        settings = stated_settings(self.settings, problem.question, problem.extra.get("answer_form", {}))
        if in_worker():
            found = verify_here(reference, text, settings)
        else:
            found = verify(reference, text, settings, WorkerLimits(**self.isolation.model_dump()))
        if found.undecided and self.second is not None:
            return replace(self.second.verdict(problem, text, truncated), undecided=found.undecided)
        return Verdict(found.score, found.status, found.detail, undecided=found.undecided)

    def refuses(self, problem: Problem) -> str | None:
        """A reference that is neither text nor number, is beyond the bounds, cannot be read, or has no value."""
        gold = reference_text(problem)
        if gold is None:
            return f"MathVerifier compares answers, and the reference is {type(problem.reference).__name__}"
        return unreadable(gold, self.settings)

    def caution(self, problem: Problem) -> str | None:
        """Where the reference is words, a computation, or too much for a proof: then only the same one meets it."""
        gold = reference_text(problem)
        return None if gold is None else narrow(gold, self.settings)

    def instruction(self, problem: Problem) -> Instruction | None:
        """To put the answer where `extract` looks for it."""
        return instruction_for(self.extract)

    def stated(self, problem: Problem, text: str) -> str | None:
        """A text that is the same for equal simple numbers, and for answers that are written alike."""
        return answer_key(text, self.settings)


@lru_cache(maxsize=256)
def _settings(verifier: MathVerifier) -> MathSettings:
    own = {each.name: getattr(verifier, each.name) for each in fields(MathSettings) if hasattr(verifier, each.name)}
    return MathSettings(**{**own, "undecided": "wrong" if verifier.undecided == "wrong" else "leave_out"})


# ---------------------------------------------------------------------- the package math-verify


class MathVerify(Verifier):
    r"""Correct where the text that math-verify finds is the reference, or what it means equals `\boxed{reference}`.

    As Skywork-OR1 uses it (Section 7.1): only what comes after the thinking is read. `MathVerifier` needs no package,
    proves more and says what it cannot prove; this piece repeats a reward that was computed with math-verify.

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
