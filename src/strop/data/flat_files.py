"""Problems from CSV files and from JSON files that hold one list."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator, Mapping
from typing import Any

from strop.base.types import InputError, first_line
from strop.data.rows import BrokenRow, FileSource, Row, existing_file

LONGEST_CELL = 2**31 - 1


class CsvFile(FileSource):
    """A CSV file with a header; every cell is text."""

    delimiter: str = ","

    def records(self) -> Iterator[Row | BrokenRow]:
        """One record a row; a row with more or fewer cells than the header is broken."""
        path = existing_file(self.path)
        csv.field_size_limit(LONGEST_CELL)
        try:
            with path.open(newline="", encoding="utf-8-sig") as lines:
                reader = csv.reader(lines, delimiter=self.delimiter, strict=True)
                header = next(reader, None)
                if header is None:
                    return
                sign = next((sign for sign in ";\t|" if len(header) == 1 and sign in header[0]), None)
                if sign is not None:
                    raise InputError(
                        f"{self.path}: its header is a single column, {header[0]!r:.60}; are its cells parted by "
                        f"{sign!r}? then set the source's delimiter, data.source.delimiter={json.dumps(sign)}"
                    )
                for number, cells in enumerate(filter(None, reader), start=1):
                    where = f"{self.path}:{reader.line_num}"
                    if len(cells) == len(header):
                        yield Row(number, where, dict(zip(header, cells, strict=True)))
                    else:
                        yield BrokenRow(where, f"{len(cells)} cells under a header of {len(header)}")
        except (OSError, UnicodeDecodeError, csv.Error) as error:  # a parser that has lost its place cannot go on
            raise InputError(f"{self.path}: cannot be read as CSV in UTF-8 ({first_line(error)})") from error


class JsonFile(FileSource):
    """A JSON file that is one list; it is read into memory whole.

    An entry is an object, or a list, whose columns are then called `0`, `1` … as the hub names them.
    """

    def records(self) -> Iterator[Row | BrokenRow]:
        """One record an entry."""
        try:
            entries = json.loads(existing_file(self.path).read_bytes())
        except (OSError, ValueError, RecursionError) as error:
            raise InputError(f"{self.path}: not a JSON file that can be read ({first_line(error)})") from error
        if not isinstance(entries, list):
            raise InputError(
                f"{self.path}: a list is expected, not {type(entries).__name__}; is it JSON lines (.jsonl)?"
            )
        for number, entry in enumerate(entries, start=1):
            where = f"{self.path}: entry {number}"
            columns = _columns(entry)
            if columns is None:
                yield BrokenRow(where, f"an entry must be an object or a list, not {type(entry).__name__}")
            else:
                yield Row(number, where, columns)


def _columns(entry: Any) -> Mapping[str, Any] | None:
    if isinstance(entry, list):
        return {str(place): value for place, value in enumerate(entry)}
    return entry if isinstance(entry, dict) else None
