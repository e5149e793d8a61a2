"""Problems from CSV files and from JSON files that hold one list."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

from strop.base.types import InputError, first_line
from strop.data.files import FileSource, existing_file
from strop.data.rows import BrokenRow, Row

LONGEST_CELL = 2**31 - 1


class CsvFile(FileSource):
    """A CSV file with a header; every cell is text. To `where` one that is written as a number can be that number.

    Fields:
        delimiter: what parts the cells; by default a tab where the name ends in `.tsv`, else a comma.
    """

    texts: ClassVar[bool] = True
    delimiter: str | None = None

    def records_of(self, path: str) -> Iterator[Row | BrokenRow]:
        """One record a row; a row with more or fewer cells than the header is broken."""
        file = existing_file(path)
        delimiter = self.delimiter or ("\t" if path.endswith(".tsv") else ",")
        csv.field_size_limit(LONGEST_CELL)
        try:
            with file.open(newline="", encoding="utf-8-sig") as lines:
                reader = csv.reader(lines, delimiter=delimiter, strict=True)
                header = next(reader, None)
                if header is None:
                    return
                sign = next((sign for sign in ";\t|" if len(header) == 1 and sign in header[0]), None)
                if sign is not None:
                    raise InputError(
                        f"{path}: its header is a single column, {header[0]!r:.60}; are its cells parted by "
                        f"{sign!r}? then set the source's delimiter, data.source.delimiter={json.dumps(sign)}"
                    )
                for number, cells in enumerate(filter(None, reader), start=1):
                    where = f"{path}:{reader.line_num}"
                    if len(cells) == len(header):
                        yield Row(number, where, dict(zip(header, cells, strict=True)))
                    else:
                        yield BrokenRow(where, f"{len(cells)} cells under a header of {len(header)}")
        except (OSError, UnicodeDecodeError, csv.Error) as error:  # a parser that has lost its place cannot go on
            raise InputError(f"{path}: cannot be read as CSV in UTF-8 ({first_line(error)})") from error


class JsonFile(FileSource):
    """A JSON file that is one list, or an object with one list of objects in it; it is read into memory whole.

    An entry is an object, or a list, whose columns are then called `0`, `1` … as the hub names them.
    """

    def records_of(self, path: str) -> Iterator[Row | BrokenRow]:
        """One record an entry."""
        try:
            found = json.loads(existing_file(path).read_bytes())
        except (OSError, ValueError, RecursionError) as error:
            raise InputError(f"{path}: not a JSON file that can be read ({first_line(error)})") from error
        entries = _entries(found, path)
        for number, entry in enumerate(entries, start=1):
            where = f"{path}: entry {number}"
            columns = _columns(entry)
            if columns is None:
                yield BrokenRow(where, f"an entry must be an object or a list, not {type(entry).__name__}")
            else:
                yield Row(number, where, columns)


def _entries(found: Any, path: str) -> list[Any]:
    """The list of the entries: the file's whole value, or the only list of objects in it (`{"data": […]}`).

    Raises:
        InputError: there is none, or more than one.
    """
    if isinstance(found, list):
        return found
    if not isinstance(found, dict):
        raise InputError(f"{path}: a list is expected, not {type(found).__name__}; is it JSON lines (.jsonl)?")
    lists = [name for name, value in found.items() if isinstance(value, list) and value and isinstance(value[0], dict)]
    if len(lists) > 1:
        raise InputError(f"{path}: it holds several lists ({', '.join(lists)}); save the one that is meant as a file")
    if not lists:
        raise InputError(f"{path}: a list is expected, not an object; is it JSON lines (.jsonl)?")
    return list(found[lists[0]])


def _columns(entry: Any) -> Mapping[str, Any] | None:
    if isinstance(entry, list):
        return {str(place): value for place, value in enumerate(entry)}
    return entry if isinstance(entry, dict) else None
