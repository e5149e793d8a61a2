"""Running a preparation in a test: problems in, what came out."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from strop.base.types import Problem
from strop.base.view import SilentView
from strop.data.problem_table import read_problems, read_rows
from strop.prepare import parse_config, prepare


@dataclass(frozen=True)
class Outcome:
    """What a preparation left in its folder."""

    folder: Path
    report: dict[str, Any]

    @property
    def kept(self) -> list[Problem]:
        return list(read_problems(self.folder / "train.parquet"))

    @property
    def prompts(self) -> list[str]:
        return [problem.question for problem in self.kept]

    @property
    def held_out(self) -> list[Problem]:
        return list(read_problems(self.folder / "validation.parquet"))

    @property
    def dropped(self) -> list[dict[str, Any]]:
        return list(read_rows(self.folder / "dropped.parquet"))

    @property
    def reasons(self) -> dict[str, int]:
        found: dict[str, int] = {}
        for step in self.report["steps"]:
            found |= step["reasons"]
        return found

    @property
    def pairs(self) -> list[dict[str, Any]]:
        """The dropped problems that repeat another one."""
        return [row for row in self.dropped if row["duplicate_of"]]

    def step(self, name: str) -> dict[str, Any]:
        return next(step for step in self.report["steps"] if step["step"] == name)


def write_lines(path: Path, rows: Sequence[dict[str, Any]]) -> Path:
    """Rows as JSON lines."""
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def questions(*prompts: str) -> list[dict[str, Any]]:
    """Rows with prompts and an answer."""
    return [{"prompt": prompt, "answer": "1"} for prompt in prompts]


def run(folder: Path, sources: Sequence[Any], steps: Sequence[Any], **more: Any) -> Outcome:
    """Prepare; a source that is a list of rows is written to a file first."""
    given = []
    for number, source in enumerate(sources):
        if isinstance(source, list):
            source = {"path": str(write_lines(folder / f"set{number}.jsonl", source))}
        given.append(source)
    out = folder / "out"
    config = parse_config({"out": str(out), "sources": given, "steps": list(steps), **more})
    return Outcome(out, prepare(config, SilentView()))
