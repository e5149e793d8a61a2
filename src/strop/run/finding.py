"""A finding of a check: what was found, how serious it is, and the way out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Level = Literal["ok", "note", "warning", "error"]  # only an error refuses the run


@dataclass(frozen=True)
class Finding:
    """One finding.

    Attributes:
        code: names the kind of finding; it never changes, whatever the words.
        level: only `error` refuses a run; of a `warning` it is likely that the run teaches nothing.
        subject: the part of the run or the machine.
        found: what was found, in one line.
        way_out: what to do about it; empty where nothing need be done.
    """

    code: str
    level: Level
    subject: str
    found: str
    way_out: str = ""

    @property
    def line(self) -> str:
        """All of it in one line."""
        return f"{self.found}; {self.way_out}" if self.way_out else self.found
