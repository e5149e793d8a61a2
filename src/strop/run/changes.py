"""Settings that a run went on with after a resume, in place of others: config.json has the last ones alone."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from strop.config.edits import differing
from strop.run.folder import CHANGES, RunFolder

SHOWN = 4  # settings of a change in its line


class Change(NamedTuple):
    """What another configuration said from the step after `step` on: (setting, its value before, from then on) each."""

    step: int
    settings: list[tuple[str, str, str]]

    @classmethod
    def between(cls, step: int, before: Mapping[str, Any], now: Mapping[str, Any]) -> Change:
        """What differs between two configurations; no settings where nothing does."""
        return cls(step, differing(dict(before), dict(now)))

    def said(self) -> str:
        """`after step 4: optim.lr 1e-06 → 2e-06`, and how many more there are."""
        shown = [f"{key} {before} → {now}" for key, before, now in self.settings[:SHOWN]]
        more = len(self.settings) - SHOWN
        return f"after step {self.step}: {', '.join([*shown, f'and {more} more'] if more > 0 else shown)}"


def read_changes(folder: RunFolder) -> list[Change]:
    """Every change of the run's settings, in order; of an older strop's runs none are known."""
    if not (folder.path / CHANGES).exists():
        return []
    rows = folder.read_json(CHANGES)["changes"]
    return [Change(row["step"], [(key, before, now) for key, before, now in row["settings"]]) for row in rows]


def write_change(folder: RunFolder, change: Change) -> None:
    """Write down a change, where it is one; those of the steps that are made again are forgotten."""
    known = read_changes(folder)
    found = [before for before in known if before.step < change.step] + [change] * bool(change.settings)
    if found != known:
        folder.write_json(CHANGES, {"changes": [change._asdict() for change in found]})
