"""Turns problems given as Python objects (rows, tables, `Problem`s) into a source that a configuration can name.

They are written to the cache as one Parquet file under a hash of their content, so that a resumed run, an evaluation
and workers in other processes read the same problems.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np

from strop.base.files import cache_folder, replacing
from strop.base.types import InputError, Problem
from strop.data.cells import numbers, rows_of
from strop.data.columns import PROMPTS, SOLUTIONS, Columns, first_present, has
from strop.data.problem_table import ProblemWriter, to_columns
from strop.data.rows import ParquetFile, RowSource
from strop.data.source import ProblemSource, check_problem, parse_source

WHOLE = ("prompt", "messages")  # names of a complete prompt in TRL and others, whatever other columns there are
ROW_NUMBER = "__index_level_"  # what Arrow calls the index of a pandas table


@runtime_checkable
class ArrowTable(Protocol):
    """A table that hands itself over as Arrow: of pyarrow, pandas, polars, DuckDB …"""

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object: ...


Row = Mapping[str, Any] | Problem | str
# A source or its short name, a file, a table, or rows one by one (a list of dictionaries, a `datasets.Dataset` …).
Problems = str | Path | ProblemSource | ArrowTable | Iterable[Row]


def source_of(given: Problems, columns: Columns | Mapping[str, str] | None = None) -> ProblemSource:
    """The source of `given`: itself where it is one, else what its name means, else a file in the cache.

    Args:
        columns: which column holds the prompt and which the answer; by default those of the usual names.

    Raises:
        InputError: a row that makes no problem, or nothing that problems could be.
    """
    if isinstance(given, ProblemSource):
        return given
    if isinstance(given, str | Path):
        return _with_every_column(parse_source(str(given)), _wanted(columns))
    table: ArrowTable | Iterable[Row] = given
    if isinstance(given, Problem | Mapping) or not isinstance(given, ArrowTable | Iterable):
        raise InputError(f"problems: give a list, a table, a file or a source, not one {type(given).__name__}")
    return stored(problems_of(table, columns))


def _wanted(columns: Columns | Mapping[str, str] | None) -> Columns | None:
    return columns if columns is None or isinstance(columns, Columns) else Columns.model_validate(dict(columns))


def _with_every_column(source: ProblemSource, wanted: Columns | None) -> ProblemSource:
    """A file or a set of the hub whose other columns are kept too, as those of rows are.

    They are those that all rows have, and that JSON can hold.
    """
    if not isinstance(source, RowSource) or (isinstance(source, ParquetFile) and source.prepared):
        return source
    columns = source.columns if wanted is None else wanted
    rows = source.rows()
    first = next(rows, None)
    if first is None or columns.extra:
        return source.model_copy(update={"columns": columns})
    named = columns.named(first.columns)
    kept = [name for name, value in first.columns.items() if name not in (named.prompt, named.id) and _is_json(value)]
    for row in rows:
        kept = [name for name in kept if name in row.columns]
    return source.model_copy(update={"columns": columns.model_copy(update={"extra": tuple(kept)})})


def _is_json(value: Any) -> bool:
    try:
        json.dumps(value)
    except (TypeError, ValueError):
        return False
    return True


def count_of(source: ProblemSource) -> int | None:
    """How many problems a file of the cache holds; None of other sources, which would have to be read."""
    if not isinstance(source, ParquetFile):
        return None
    from strop.data.problem_table import count_rows

    return sum(count_rows(Path(path).expanduser()) for path in source.files)


def problems_of(
    given: ArrowTable | Iterable[Row], columns: Columns | Mapping[str, str] | None = None
) -> tuple[Problem, ...]:
    """The problems of a table or of rows; columns that are neither prompt nor id are kept in `Problem.extra`.

    Raises:
        InputError: there is none, a row makes no problem, or two of them have one id.
    """
    rows = _table_rows(given) if isinstance(given, ArrowTable) else given
    wanted = _wanted(columns)
    found: list[Problem] = []
    seen: set[str] = set()
    for number, row in enumerate(rows, start=1):
        try:
            problem = row if isinstance(row, Problem) else _problem(number, row, wanted)
            check_problem(problem, needs_answer=False)
        except ValueError as error:
            raise InputError(f"problems: row {number}: {error}") from error
        if problem.id in seen:
            raise InputError(f"problems: row {number}: another problem has the id {problem.id!r}; ids must be unique")
        seen.add(problem.id)
        found.append(problem)
    if not found:
        raise InputError("problems: there is none")
    return tuple(found)


def stored(problems: Sequence[Problem]) -> ParquetFile:
    """The problems as a file of the cache, written where it is not there yet."""
    digest = hashlib.blake2b(digest_size=8)
    for problem in problems:
        digest.update(json.dumps(to_columns(problem)).encode() + b"\n")
    path = cache_folder() / "problems" / f"{digest.hexdigest()}.parquet"
    if not path.is_file():
        own = path.with_name(f"{path.stem}.{os.getpid()}.parquet")  # two runs may begin with the same problems at once
        with replacing(own) as temporary, ProblemWriter(temporary) as writer:
            for problem in problems:
                writer.write(problem)
        own.replace(path)
    return ParquetFile(path=str(path))


def _table_rows(table: ArrowTable) -> Iterable[dict[str, Any]]:
    import pyarrow as pa

    whole = pa.table(table)
    kept = whole.select([name for name in whole.column_names if not name.startswith(ROW_NUMBER)])
    for batch in kept.to_batches(max_chunksize=1024):
        yield from rows_of(batch)


def _problem(number: int, row: object, columns: Columns | None) -> Problem:
    if isinstance(row, str):
        row = {"prompt": row}
    if not isinstance(row, Mapping):
        raise ValueError(f"a row is a dictionary, a Problem or a text, not {type(row).__name__}")
    fields = {str(name): _plain(value) for name, value in row.items()}
    domain = str(fields["domain"]) if isinstance(fields.get("domain"), str) else "math"
    asked = first_present(fields, PROMPTS)
    given = columns or Columns(prompt=asked if asked in WHOLE else None)
    named = given.named(fields)
    cells = fields
    if columns is None and not has(fields, str(named.answer)):  # a reward function may do without an answer
        solution = first_present(fields, SOLUTIONS)
        cells = {**fields, str(named.answer): None if solution is None else fields[solution]}
    prompt, reference, *_ = given.fields(cells, domain, named)
    return Problem(
        id=str(fields.get(named.id or "id", f"row-{number}")),
        prompt=prompt,
        reference=reference,
        domain=domain,
        source="python",
        extra={name: value for name, value in fields.items() if name not in (named.prompt, "id")},
    )


def _plain(value: Any) -> Any:
    """Numbers and arrays of numpy as Python's own."""
    return numbers(value) if isinstance(value, np.generic | np.ndarray) else value
