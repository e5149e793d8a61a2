"""The verdict on a response, and the errors that this package raises."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum


class VerifyError(Exception):
    """A problem the user can solve. Its message is one line that names what is wrong and the way out.

    A command line prints the message without a traceback and exits with `exit_code`; IPython prints it the same way.
    """

    exit_code = 1

    def _render_traceback_(self) -> list[str]:
        """The lines that IPython prints; it looks for a method of this name."""
        return [f"{type(self).__name__}: {self}"]


class Status(StrEnum):
    """How a verdict came about. `timeout` and `error` are failures of the verifier and never a reward.

    `undecided`: the answer was proved neither right nor wrong.
    """

    CORRECT = "correct"
    UNDECIDED = "undecided"
    WRONG = "wrong"
    UNPARSED = "unparsed"
    TIMEOUT = "timeout"
    ERROR = "error"


@dataclass(frozen=True)
class Verdict:
    """A verifier's judgement of one response.

    Attributes:
        score: in [0, 1]; 1 is right, and pass rates count how many are.
        status: how it came about.
        detail: why, in a few words.
        undecided: the kind of reference of which the answer was proved neither equal nor different, also where that
            counts as wrong or another verifier then judged it; else empty.
    """

    score: float
    status: Status
    detail: str = ""
    undecided: str = field(default="", kw_only=True)

    @property
    def failed(self) -> bool:
        """Whether the verifier itself failed."""
        return self.status in (Status.TIMEOUT, Status.ERROR)

    @property
    def usable(self) -> bool:
        """False where the verifier failed or decided nothing: the sample leaves the loss and the group's statistics."""
        return not self.failed and self.status is not Status.UNDECIDED

    @property
    def passed(self) -> bool:
        """Whether the answer is right, which is a score of 1."""
        return self.score == 1.0


def shortened(text: str, limit: int = 60) -> str:
    """`text` on one line, at most `limit` characters."""
    line = " ".join(text.split())
    return line if len(line) <= limit else f"{line[: limit - 1]}…"
