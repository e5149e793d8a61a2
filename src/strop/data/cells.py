"""Cells of tables as JSON can hold them."""

from __future__ import annotations

import datetime
import re
from collections.abc import Iterator, Mapping
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import pyarrow as pa


NOISE = 3  # digits of a double that rounding to 15 takes away, at least, where they are no part of the number
_DOUBLE = re.compile(r"(?<![\w.])\d+\.\d{12,}(?![\w.])")


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


def without_noise(stated: str | float) -> str:
    """A number, or a text with numbers, without digits that only its rounding to a double or a float32 gave it.

    In a text these are the doubles that have all the digits with which programs print them.
    """
    if isinstance(stated, float):
        exact = Decimal(repr(stated))
        if not stated.is_integer() and float(np.float32(stated)) == stated and Decimal(stated) != exact:
            return format(Decimal(str(np.float32(stated))), "f")
        rounded = Decimal(format(stated, ".15g")).normalize()
        noisy = len(exact.as_tuple().digits) - len(rounded.as_tuple().digits) >= NOISE
        return format(rounded if noisy else exact, "f")

    def shortened(found: re.Match[str]) -> str:
        number = float(found[0])
        return without_noise(number) if found[0] in (repr(number), format(number, ".17g")) else found[0]

    return _DOUBLE.sub(shortened, stated)


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
