"""Findings of checks: what was found, how serious it is, the way out, and how findings are shown.

    refuse(findings)             # raises the first error
    note(findings, view)         # a line each
    rows(findings)               # a table, as `strop doctor` and `strop smoke` print it
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from strop.base.types import InputError
from strop.base.view import View

Level = Literal["ok", "note", "warning", "error"]  # only an error refuses the run
MARKS = {"ok": "ok", "note": "note", "warning": "WARNING", "error": "ERROR"}


@dataclass(frozen=True)
class Finding:
    """One finding.

    Attributes:
        code: names the kind of finding; it never changes, whatever the words.
        level: only `error` refuses a run; a `warning` means that the run probably teaches nothing, or not here.
        subject: the part of the run or the machine.
        found: what was found, in one line.
        way_out: what to do about it; empty if nothing needs to be done.
    """

    code: str
    level: Level
    subject: str
    found: str
    way_out: str = ""

    @property
    def line(self) -> str:
        """What was found and the way out, in one line."""
        return f"{self.found}; {self.way_out}" if self.way_out else self.found


def elsewhere(finding: Finding) -> Finding:
    """What would refuse a start here, as a warning: the run may be meant for another machine."""
    if finding.level != "error":
        return finding
    return replace(finding, level="warning", found=f"on this machine {finding.found}")


def refused(code: str, subject: str, check: Callable[[], object]) -> Iterator[Finding]:
    """Call `check` and turn its `InputError` into an error finding."""
    try:
        check()
    except InputError as error:
        yield Finding(code, "error", subject, str(error))


def refuse(findings: Iterable[Finding]) -> None:
    """Raise the first error among the findings.

    Raises:
        InputError: its line.
    """
    for one in findings:
        if one.level == "error":
            raise InputError(one.line)


def note(findings: Iterable[Finding], view: View) -> None:
    """Show each finding as a note; errors are for `refuse`."""
    for one in findings:
        view.note(f"{one.subject}: {one.line}")


def rows(findings: Sequence[Finding]) -> list[tuple[str, str, str]]:
    """The rows of a table: level, subject, and what was found."""
    return [(MARKS[one.level], one.subject, one.found) for one in findings]
