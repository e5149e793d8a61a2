"""A Parquet file of whole problems, as `strop data prepare` writes it.

Columns: id, prompt, reference, domain, source, extra, json. Text is stored as it is. `json` lists the fields that are
stored as JSON (chat messages, a reference that is not text), and `verbatim` if that is true; `extra` is always JSON.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from strop.base.files import writing
from strop.base.types import Message, Problem

MARK = b"strop.problems"
VERSION = b"1"
FIELDS = ("id", "prompt", "reference", "domain", "source", "extra", "json")
ROWS_A_BATCH = 1024


def to_columns(problem: Problem) -> dict[str, str]:
    """The row of a problem; values that JSON does not know (dates …) are written as text.

    Raises:
        ValueError: a text holds half of a surrogate pair, or a value has no JSON form.
    """
    values = {"prompt": problem.prompt, "reference": problem.reference}
    encoded = [name for name, value in values.items() if not isinstance(value, str)]
    encoded += ["verbatim"] if problem.verbatim else []
    row = {
        "id": problem.id,
        "prompt": _text(problem.prompt),
        "reference": _text(problem.reference),
        "domain": problem.domain,
        "source": problem.source,
        "extra": _dump(dict(problem.extra)) if problem.extra else "{}",
        "json": ",".join(encoded),
    }
    for name, value in row.items():
        try:
            value.encode()
        except UnicodeEncodeError as error:
            raise ValueError(f"{name} holds half of a surrogate pair, which is no character") from error
    return row


def from_columns(row: Mapping[str, Any]) -> Problem:
    """The problem of a row that `to_columns` made."""
    encoded = row["json"].split(",")
    prompt = row["prompt"]
    if "prompt" in encoded:
        prompt = tuple(Message(role=turn["role"], content=turn["content"]) for turn in json.loads(prompt))
    return Problem(
        id=row["id"],
        prompt=prompt,
        reference=json.loads(row["reference"]) if "reference" in encoded else row["reference"],
        domain=row["domain"],
        source=row["source"],
        extra=json.loads(row["extra"]) if row["extra"] != "{}" else {},
        verbatim="verbatim" in encoded,
    )


class ProblemWriter:
    """Writes problems row by row with bounded memory; a context manager. `more` names further text columns."""

    def __init__(self, path: Path, more: tuple[str, ...] = ()) -> None:
        import pyarrow as pa
        from pyarrow import parquet

        self.count = 0
        self._columns: dict[str, list[str]] = {name: [] for name in (*FIELDS, *more)}
        fields = [(name, pa.string()) for name in self._columns]
        self._schema = pa.schema(fields, metadata={MARK: VERSION})
        self._path = path
        with writing(path):
            self._writer = parquet.ParquetWriter(path, self._schema, compression="zstd")

    def __enter__(self) -> ProblemWriter:
        return self

    def __exit__(self, *_: object) -> None:
        self._flush()
        self._writer.close()

    def write(self, problem: Problem, more: Mapping[str, str] | None = None) -> None:
        """Write a problem, and the values of the further columns."""
        self.write_row({**to_columns(problem), **(more or {})})

    def write_row(self, row: Mapping[str, str]) -> None:
        """Write a row from `to_columns`."""
        for name, values in self._columns.items():
            values.append(row[name])
        self.count += 1
        if self.count % ROWS_A_BATCH == 0:
            self._flush()

    def _flush(self) -> None:
        import pyarrow as pa

        if not self._columns["id"]:
            return
        with writing(self._path):
            self._writer.write_table(pa.table(self._columns, schema=self._schema))
        for values in self._columns.values():
            values.clear()


def is_problem_table(path: Path) -> bool:
    """Whether the Parquet file at `path` was written by `ProblemWriter`."""
    from pyarrow import parquet

    return MARK in (parquet.read_schema(path).metadata or {})


def count_rows(path: Path) -> int:
    """The number of rows of a Parquet file."""
    from pyarrow import parquet

    return int(parquet.read_metadata(path).num_rows)


def read_rows(path: Path) -> Iterator[dict[str, Any]]:
    """The rows one by one; one batch is in memory at a time."""
    from pyarrow import parquet

    with parquet.ParquetFile(path) as table:
        for batch in table.iter_batches(batch_size=ROWS_A_BATCH):
            yield from batch.to_pylist()


def read_problems(path: Path) -> Iterator[Problem]:
    """The problems of a file that `ProblemWriter` wrote."""
    return map(from_columns, read_rows(path))


def _text(value: Any) -> str:
    return value if isinstance(value, str) else _dump(value)


def _dump(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, default=str)
