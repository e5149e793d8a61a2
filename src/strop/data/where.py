"""`where`: a condition in SQL that selects rows, evaluated by DuckDB.

    extra_info.model_difficulty."DeepSeek-R1-Distill-Qwen-7B" BETWEEN 1 AND 15 AND ability = 'math'

A name is a column; dots reach into nested columns. Names with characters other than letters, digits and `_` need
double quotes, texts single quotes. As in SQL, comparisons with an empty cell do not hold; `IS NULL` finds it.

DuckDB sees only the columns that the condition names: it cannot read files or other rows. A batch that it cannot
evaluate, because rows have different types, is halved. A row that lacks a column, or whose value cannot be compared,
becomes a `BrokenRow` with its place. In CSV every cell is text: `TRY_CAST(level AS DOUBLE) >= 2`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import islice
from typing import Annotated, Any

from pydantic import AfterValidator

from strop.base.types import first_line
from strop.data.columns import BrokenRow, NoColumn, Row, pick

ROWS_A_BATCH = 1024
NOT_OF_ONE_ROW = ("SUBQUERY", "WINDOW", "STAR")  # classes of DuckDB's syntax tree that look at other rows


def wanted(
    records: Iterable[Row | BrokenRow], where: str | None, fields: Callable[[Row], Mapping[str, Any]]
) -> Iterator[Row | BrokenRow]:
    """The records for which the condition holds, and the broken ones, in order.

    Args:
        records: the records; they are read in batches of `ROWS_A_BATCH`.
        where: the condition; None keeps all.
        fields: gives the columns of a row that the condition sees.
    """
    if where is None:
        yield from records
        return
    condition = Condition(where)
    rest = iter(records)
    while batch := list(islice(rest, ROWS_A_BATCH)):
        rows = [record for record in batch if isinstance(record, Row)]
        kept = iter(condition([fields(row) for row in rows]))
        for record in batch:
            verdict = next(kept) if isinstance(record, Row) else True
            if isinstance(verdict, str):
                yield BrokenRow(record.where, f"where={where!r}: {verdict}")
            elif verdict:
                yield record


class Condition:
    """A condition in SQL over the columns of one row."""

    def __init__(self, text: str) -> None:
        """Raises `ValueError` if `text` is not a condition."""
        self._text = text
        self._names = named_columns(text)
        self._connection = _connect()

    def __call__(self, rows: Sequence[Mapping[str, Any]]) -> list[bool | str]:
        """Whether the condition holds for each row; a text is the reason why this cannot be decided."""
        found: list[bool | str] = [False] * len(rows)
        values: dict[int, dict[str, Any]] = {}
        for place, row in enumerate(rows):
            try:
                values[place] = self._values(row)
            except NoColumn as error:
                found[place] = str(error)
        for place, verdict in zip(values, self._evaluate(list(values.values())), strict=True):
            found[place] = verdict
        return found

    def _values(self, row: Mapping[str, Any]) -> dict[str, Any]:
        """The columns that the condition names, nested as in the row."""
        values: dict[str, Any] = {}
        for name in self._names:
            inner = values
            for part in name[:-1]:
                inner = inner.setdefault(part, {})
            inner[name[-1]] = pick(row, ".".join(name))
        return values

    def _evaluate(self, rows: list[dict[str, Any]]) -> list[bool | str]:
        """`__call__` for rows that have every column."""
        import duckdb
        import pyarrow

        if not rows:
            return []
        try:
            self._connection.register("strop_rows", pyarrow.Table.from_pylist(rows))
            cells = self._connection.execute(f"SELECT ({self._text}\n) FROM strop_rows").fetchall()
        except (duckdb.Error, pyarrow.ArrowException, OverflowError) as error:
            if len(rows) == 1:
                return [first_line(error)]
            half = len(rows) // 2
            return self._evaluate(rows[:half]) + self._evaluate(rows[half:])
        other = next((cell for (cell,) in cells if not isinstance(cell, bool | None)), None)
        if other is not None or len(cells) != len(rows):
            return ["it is not true or false for each row"] * len(rows)
        return [bool(cell) for (cell,) in cells]


@lru_cache(maxsize=64)
def named_columns(condition: str) -> tuple[tuple[str, ...], ...]:
    """The columns that a condition names, as the parts of their dotted names, without columns nested in another one.

    Raises:
        ValueError: the text is not a condition on the columns of one row.
    """
    select = f"SELECT ({condition}\n)"
    (tree,) = _connect().execute("SELECT json_serialize_sql(?)", [select]).fetchall()[0]
    parsed = json.loads(tree)
    if parsed["error"]:
        raise ValueError(f"{condition!r} is not a condition in SQL: {parsed['error_message']}")
    node = parsed["statements"][0]["node"]
    refused = next((part["class"] for part in _parts(node) if part.get("class") in NOT_OF_ONE_ROW), None)
    single = len(parsed["statements"]) == 1 and len(node.get("select_list", ())) == 1
    if refused or not single or node["from_table"]["type"] != "EMPTY":
        raise ValueError(f"{condition!r} is not a condition on the columns of one row")
    names = {tuple(part["column_names"]) for part in _parts(node) if part.get("class") == "COLUMN_REF"}
    if not names:
        raise ValueError(f"{condition!r} names no column")
    return tuple(sorted(name for name in names if not any(name[:size] in names for size in range(1, len(name)))))


def _parts(node: Any) -> Iterator[dict[str, Any]]:
    """The dictionaries in a syntax tree."""
    if isinstance(node, dict):
        yield node
    for inner in node.values() if isinstance(node, dict) else node if isinstance(node, list) else ():
        yield from _parts(inner)


def _connect() -> Any:
    """A database in memory without access to files or the network."""
    import duckdb

    return duckdb.connect(config={"threads": "1", "enable_external_access": "false", "lock_configuration": "true"})


def _checked(text: str | None) -> str | None:
    if text is not None:
        named_columns(text)
    return text


# A condition in a configuration, checked when it is parsed; None keeps every row.
Where = Annotated[str | None, AfterValidator(_checked)]
