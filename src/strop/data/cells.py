"""Cells of tables as JSON can hold them."""

from __future__ import annotations

import datetime
from collections.abc import Iterator, Mapping
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import pyarrow as pa


def plain(value: Any) -> Any:
    """A cell as a value of JSON; decimals, dates and times become text, as they are written.

    Raises:
        ValueError: there is no one way to write it, as with bytes and durations.
    """
    if value is None or isinstance(value, str | bool | int | float) and not isinstance(value, np.generic):
        return value
    if isinstance(value, np.generic | np.ndarray):
        return numbers(value)
    if isinstance(value, Decimal):
        return format(value, "f")
    if isinstance(value, datetime.date | datetime.time):  # a datetime is a date
        return value.isoformat()
    if isinstance(value, Mapping):
        return {str(name): plain(part) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return [plain(part) for part in value]
    raise ValueError(f"a cell of type {type(value).__name__} is neither text nor number; write it as text")


def numbers(value: np.generic | np.ndarray) -> Any:
    """Numbers of numpy as Python's; a float32 as the shortest number that it stands for, 0.1 and not 0.10000000149."""
    if value.dtype.kind == "f":
        array = np.asarray(value)
        return np.asarray(array.astype(str) if value.dtype.itemsize < 8 else array, np.float64).tolist()
    return plain(value.tolist())


def rows_of(table: pa.Table | pa.RecordBatch) -> Iterator[dict[str, Any]]:
    """The rows of a table of Arrow."""
    return (typed(row, table.schema) for row in table.to_pylist())


def typed(row: Mapping[str, Any], schema: pa.Schema) -> dict[str, Any]:
    """A row that Python made of Arrow's types, its float32 numbers as `numbers` has them."""
    short = {field.name: field.type for field in schema if "float" in str(field.type)}  # `double` is Python's own
    return {name: _shortest(value, short[name]) if name in short else value for name, value in row.items()}


def _shortest(value: Any, kind: pa.DataType) -> Any:
    from pyarrow import types

    if value is None:
        return None
    if types.is_float16(kind) or types.is_float32(kind):
        return numbers(np.float32(value) if types.is_float32(kind) else np.float16(value))
    if types.is_struct(kind):
        return {part.name: _shortest(value[part.name], part.type) for part in kind}
    if types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind):
        return [_shortest(part, kind.value_type) for part in value]
    return value
