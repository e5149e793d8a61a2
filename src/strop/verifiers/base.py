"""The verifier family: a response in, a verdict out.

    verdict = Answer()(problem, "3+5=8, so \\\\boxed{8}", truncated=False)   # Verdict(score=1.0, status="correct", …)

What the response caused scores 0 (`wrong`, `unparsed`); what failed in the verifier itself is `timeout` or `error`,
which is never a reward.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from typing import TYPE_CHECKING, ClassVar

from pydantic import PositiveFloat, PositiveInt

from strop.base.pieces import Piece, Settings
from strop.base.types import Problem, Verdict
from strop.data.templates import BOXED, TAGGED, Instruction
from strop_verify.verdict import Status

if TYPE_CHECKING:
    from strop_verify.extract import Where


class Isolation(Settings):
    """Worker processes for a verifier that may hang, crash or eat memory.

    Fields:
        workers: how many; None: one less than the cores this process may use, at least 1 and at most 8.
        seconds: wall time of one verdict before the worker is killed.
        retry_seconds: wall time of the one further try, in a fresh worker; then the verdict is `timeout`.
        memory_mib: address space that a worker may take beyond what the supervisor has.
    """

    workers: PositiveInt | None = None
    seconds: PositiveFloat = 2.0
    retry_seconds: PositiveFloat = 0.6
    memory_mib: PositiveInt = 1024


class Verifier(Piece):
    """Judges responses; a subclass defines `judge`.

    Fields:
        require_stop: a truncated response scores 0 whatever it says (Open-Reasoner-Zero); else it is judged as it is.
    """

    modules: ClassVar[tuple[str, ...]] = (
        "strop.verifiers.answer",
        "strop.verifiers.math_verifier",
        "strop.verifiers.code_verifier",
        "strop.verifiers.combined",
        "strop.verifiers.reward_function",
        "strop.verifiers.judge_model",
    )

    require_stop: bool = False

    def __call__(self, problem: Problem, text: str, truncated: bool = False) -> Verdict:
        """The verdict on a completion.

        Args:
            problem: what was asked; what its prompt already wrote of the response (`extra["opening"]`) is put in front.
            text: the completion, without the token that ended it.
            truncated: the budget ended it.
        """
        return self.verdict(problem, response(problem, text), truncated)

    def verdict(self, problem: Problem, text: str, truncated: bool) -> Verdict:
        """The verdict on a whole response; on a truncated one by this verifier's own rule."""
        if truncated and self.require_stop:
            return Verdict(0.0, Status.UNPARSED, "truncated")
        return self.judge(problem, text, truncated)

    @abstractmethod
    def judge(self, problem: Problem, text: str, truncated: bool) -> Verdict:
        """The verdict on a whole response, a think block opened by the prompt included."""

    def isolated(self) -> Isolation | None:
        """The worker processes in which it must run, because it may hang; None where it is quick and safe."""
        return None

    def warm(self) -> None:
        """Import and build what every verdict needs, in the process from which workers are forked."""
        return None

    def refuses(self, problem: Problem) -> str | None:
        """Why this verifier can never judge the problem, or None; asked before training begins."""
        return None

    def caution(self, problem: Problem) -> str | None:
        """A warning about how this problem is judged, or None; shown before training begins."""
        return None

    def asks(self) -> tuple[Verifier, ...]:
        """The verifiers that it asks."""
        return ()

    def session_functions(self) -> tuple[str, ...]:
        """The functions of the running Python session that it calls (see `strop.base.session`)."""
        return tuple(name for member in self.asks() for name in member.session_functions())

    def threads(self) -> int:
        """How many threads may wait for its verdicts at once, because others give them; 0 where it computes."""
        return max((member.threads() for member in self.asks()), default=0)

    def instruction(self, problem: Problem) -> Instruction | None:
        """The form of the answer that the problem's prompt should ask for; None where any form is read."""
        return None

    def answer(self, problem: Problem, text: str) -> str | None:
        """The answer that a completion gives, in a form in which equal answers are equal texts, for majority votes.

        None where it gives none, or where this verifier does not know.
        """
        return self.stated(problem, response(problem, text))

    def stated(self, problem: Problem, text: str) -> str | None:
        """The answer of a whole response, see `answer`."""
        return None


def response(problem: Problem, text: str) -> str:
    """The whole response: what the prompt wrote of it, then the completion."""
    return f"{problem.extra.get('opening', '')}{text}"


def reference_text(problem: Problem) -> str | None:
    """The reference as text, numbers written out in full; None where it is neither a text nor a number.

    What arithmetic in binary added to a decimal number is left out, also within a text: 0.3 for 0.30000000000000004,
    and 0.1 for 0.10000000149011612, which was a float32.
    """
    reference = problem.reference
    if isinstance(reference, bool):
        return None
    if isinstance(reference, str | float):
        from strop.data.cells import without_noise  # here: with numpy

        return without_noise(reference)
    return str(reference) if isinstance(reference, int) else None


def scored(score: float, detail: str, partial_credit: bool) -> Verdict:
    """The verdict for a score: 1 is correct; less is wrong, and worth 0 unless `partial_credit`.

    A score outside [0, 1] is an error of the verifier that computed it.
    """
    if not (math.isfinite(score) and 0.0 <= score <= 1.0):
        return Verdict(
            0.0, Status.ERROR,
            f"a score must lie in [0, 1], not {score}: pass rates and groups count it; scale it, and weigh "
            "right against wrong with algorithm.reward (BinaryReward: correct, wrong)",
        )  # fmt: skip
    if score == 1.0:
        return Verdict(1.0, Status.CORRECT, detail)
    return Verdict(score if partial_credit else 0.0, Status.WRONG, detail)


def instruction_for(where: Where) -> Instruction | None:
    """The instruction of a prompt, so that the answer stands there; None where the last number is taken anyway."""
    return {"boxed": BOXED, "any": BOXED, "answer_tag": TAGGED, "last_number": None}[where]
