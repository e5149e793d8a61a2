"""The file metrics.jsonl of a run: one line a step, appended while it runs and read by everything that looks at it."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, TextIO

from strop.base.files import write_text, writing
from strop.base.types import InputError


class MetricsFile:
    """The metrics of one run; opened for appending at the first line."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file: TextIO | None = None

    def append(self, step: int, metrics: Mapping[str, float | None]) -> None:
        """Append one line, flushed at once.

        Raises:
            StropError: the disk is full or cannot be written.
        """
        values = {name: value if value is None else _writable(value) for name, value in metrics.items()}
        line = json.dumps({"step": step, "time": round(time.time(), 3), **values}, allow_nan=False)
        with writing(self.path):
            if self._file is None:
                self._file = self.path.open("a", encoding="utf-8")
            self._file.write(line + "\n")
            self._file.flush()

    def truncate(self, step: int) -> None:
        """Drop the lines of later steps, and a torn last line."""
        self.close()
        if self.path.exists():
            kept = [row for row in _parse_lines(self.path) if row["step"] <= step]
            write_text(self.path, "".join(json.dumps(row) + "\n" for row in kept))

    def close(self) -> None:
        """Close the file; the next `append` opens it again."""
        if self._file is not None:
            file, self._file = self._file, None
            with writing(self.path):
                file.close()


def read_metrics(path: Path) -> list[dict[str, float | None]]:
    """One row per step, ordered by step; empty if there is no file yet.

    Of several lines of a step the last that has a metric counts; `time` is that of the first.

    Raises:
        InputError: a line before the last is broken; it is named by its number.
    """
    if not path.exists():
        return []
    rows: dict[int, dict[str, float | None]] = {}
    for line in _parse_lines(path):
        found = {name: float(value) if isinstance(value, str) else value for name, value in line.items()}
        begun = rows.setdefault(line["step"], {})
        begun |= found | {name: begun[name] for name in ("time",) if name in begun}
    return [rows[step] for step in sorted(rows)]


def by_step(rows: Iterable[Mapping[str, float | None]], name: str) -> dict[int, float]:
    """The finite values of a metric by step, in order."""
    found: dict[int, float] = {}
    for row in rows:
        step, value = row.get("step"), row.get(name)
        if step is not None and value is not None and math.isfinite(value):
            found[int(step)] = value
    return dict(sorted(found.items()))


def _parse_lines(path: Path) -> list[dict[str, Any]]:
    # Every whole line ends in a newline: what follows the last one is torn, even where it happens to be JSON.
    *lines, _ = path.read_bytes().split(b"\n")
    rows: list[dict[str, Any]] = []
    for number, line in enumerate(lines, start=1):
        try:
            row = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise InputError(f"{path}, line {number}: not JSON ({error})") from error
        if not isinstance(row, dict) or not isinstance(row.get("step"), int):
            raise InputError(f"{path}, line {number}: no metric line (it has no whole number `step`)")
        rows.append(row)
    return rows


def _writable(value: float) -> float | str:
    number = float(value)
    return number if math.isfinite(number) else str(number)
