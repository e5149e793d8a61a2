"""Several runs at once: what lies in a folder of runs, what two of them differ in, and moving and removing them."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from strop.base.files import writing
from strop.base.types import InputError
from strop.config.edits import flatten
from strop.run.folder import RunFolder, is_run
from strop.run.status import RunStatus, read_status

ABSENT = "-"


@dataclass(frozen=True)
class ListedRun:
    """A run as it is listed: its status, when it began, and the bytes of its folder; or why it cannot be read."""

    path: Path
    status: RunStatus | None
    began: str
    size: int
    unread: str = ""

    def as_json(self) -> dict[str, Any]:
        """Plain values."""
        found = {"run": str(self.path), "began": self.began, "bytes": self.size, "unread": self.unread}
        if self.status is None:
            return found
        kept = (
            "state", "recipe", "step", "steps", "pass_rate", "held_out_pass_rate", "held_out_step",
            "held_out_sampling", "eta", "error",
        )  # fmt: skip
        return found | {name: value for name, value in self.status.as_json().items() if name in kept}


def free_folder(name: str) -> Path:
    """`runs/NAME`, or `runs/NAME-2`, `-3` … where that is taken."""
    folder = Path("runs") / name
    count = 1
    while folder.exists() and any(folder.iterdir()):
        count += 1
        folder = Path("runs") / f"{name}-{count}"
    return folder


def runs_in(root: Path) -> list[Path]:
    """The run folders below `root`, itself included, the ones begun last first; runs within runs are not looked for.

    Raises:
        InputError: there is no such folder.
    """
    if not root.is_dir():
        raise InputError(f"there is no folder {root}; name the one that holds your runs")
    found: list[Path] = []
    waiting = [root]
    while waiting:
        folder = waiting.pop()
        if is_run(folder):
            found.append(folder)
        else:
            waiting += [each for each in folder.iterdir() if each.is_dir() and not each.name.startswith(".")]
    return sorted(found, key=lambda run: (run / "run.json").stat().st_mtime, reverse=True)


def listed(run: Path) -> ListedRun:
    """A run as it is listed; one whose files are broken says so."""
    size = sum(file.stat().st_size for file in run.rglob("*") if file.is_file() and not file.is_symlink())
    try:
        folder = RunFolder.open(run)
        return ListedRun(run, read_status(folder), str(folder.read_json("run.json").get("began", "")), size)
    except InputError as error:
        return ListedRun(run, None, "", size, str(error))


def differences(runs: Sequence[Path]) -> list[tuple[str, tuple[str, ...]]]:
    """Every setting in which the runs' configurations differ, with its value in each; `-` where one has none.

    Raises:
        InputError: a folder is no run, or has no configuration.
    """
    sides = [dict(flatten(RunFolder.open(run).read_json("config.json"))) for run in runs]
    keys = dict.fromkeys(key for side in sides for key in side)
    rows = [(key, tuple(side.get(key, ABSENT) for side in sides)) for key in keys]
    return [(key, values) for key, values in rows if len(set(values)) > 1]


def delete(run: Path) -> None:
    """Remove a run and all that is in its folder.

    Raises:
        InputError: it is no run, or a process is writing to it.
    """
    _unused(run)
    with writing(run):
        shutil.rmtree(run)


def rename(run: Path, name: str) -> Path:
    """Give a run another name in its folder, or move it where `name` is a path; returns where it is then.

    Raises:
        InputError: it is no run, a process is writing to it, or something is there already.
    """
    _unused(run)
    target = Path(name) if "/" in name else run.parent / name
    if target.exists():
        raise InputError(f"{target} is there already; choose another name")
    with writing(target):
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.move(run, target)
    return target


def _unused(run: Path) -> None:
    folder = RunFolder.open(run)
    folder.lock()
    folder.close()
