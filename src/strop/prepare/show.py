"""Problems of a file as plain values, for looking at them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from strop.data.files import ParquetFile
from strop.data.problem_table import from_columns, read_rows
from strop.data.rows import BrokenRow
from strop.prepare.sources import Source
from strop.prepare.stage import DROPPED_COLUMNS


def described(file: str, mapping: str | None = None) -> Iterator[dict[str, Any]]:
    """One dictionary a row: id, prompt, reference, domain, source, extra, and why it was dropped where it was.

    Raises:
        InputError: the file cannot be read.
    """
    if mapping is None and file.endswith(".parquet") and (table := ParquetFile(path=file)).prepared:
        for path in table.files:
            yield from map(_described, read_rows(Path(path).expanduser()))
        return
    for made in Source.model_validate({"path": file, "mapping": mapping}).problems():
        if isinstance(made, BrokenRow):
            yield {"id": made.where, "broken": made.reason}
        else:
            yield {**vars(made), "extra": dict(made.extra)}


def _described(row: dict[str, Any]) -> dict[str, Any]:
    more = {name: row[name] for name in DROPPED_COLUMNS if name in row}
    if row["reference"] == "" and more:
        return {"id": row["id"], **more}
    problem = from_columns(row)
    return {**vars(problem), "extra": dict(problem.extra), **more}
