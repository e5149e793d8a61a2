"""Problems from files of rows: JSON lines and Parquet here, CSV and JSON lists in `flat_files`.

A path may be a pattern that names several files of one set, such as `shards/train-*.parquet`: they are read one after
the other, by name.
"""

from __future__ import annotations

import gzip
import json
import re
from abc import abstractmethod
from collections.abc import Iterator, Mapping
from functools import cached_property
from glob import glob
from pathlib import Path
from typing import Any

from strop.base.types import InputError, Problem, first_line
from strop.data.problem_table import from_columns, is_problem_table
from strop.data.rows import BrokenRow, Columns, Row, RowSource
from strop.data.source import SUFFIXES

_WILD = "*?"


class FileSource(RowSource):
    """A file with one problem a row, called by its path; or several, which a pattern with `*` names.

    Fields:
        path: the file, or the pattern.
    """

    path: str

    @property
    def name(self) -> str:
        """The file's name without its suffix; of a pattern what its files have in common, else their folder's."""
        path = Path(self.path)
        return re.sub(rf"[-_.]*[{_WILD}].*", "", path.stem) or re.sub(rf"[{_WILD}]", "", path.parent.name) or "files"

    @property
    def label(self) -> str:
        return self.path

    @property
    def files(self) -> list[str]:
        """The paths of the files behind it, by name.

        Raises:
            InputError: the pattern names none.
        """
        return matching(self.path)

    def records(self) -> Iterator[Row | BrokenRow]:
        """The records of the files one after the other, numbered through."""
        before = 0
        for path in self.files:
            number = 0
            for record in self.records_of(path):
                if isinstance(record, Row):
                    number = record.number
                    record = record._replace(number=before + number)
                yield record
            before += number

    @abstractmethod
    def records_of(self, path: str) -> Iterator[Row | BrokenRow]:
        """The records of one of the files, numbered from 1.

        Raises:
            InputError: the file cannot be read.
        """


class JsonLines(FileSource):
    """A file with one JSON object a line, gzipped when its name ends in `.gz`; blank lines are skipped."""

    @property
    def name(self) -> str:
        return super().name.split(".")[0]

    def records_of(self, path: str) -> Iterator[Row | BrokenRow]:
        """One record a line."""
        file = existing_file(path)
        try:
            with gzip.open(file) if file.suffix == ".gz" else file.open("rb") as lines:
                for number, line in enumerate(lines, start=1):
                    if line.strip():
                        where = f"{path}:{number}"
                        try:
                            yield Row(number, where, _parse_line(line))
                        except ValueError as error:
                            yield BrokenRow(where, str(error))
        except (OSError, EOFError) as error:
            raise InputError(f"{path}: cannot be read ({first_line(error)})") from error


class ParquetFile(FileSource):
    """A Parquet file, read by batches.

    One that `strop data prepare` wrote gives its problems back whole: `columns` and `domain` have no part in it, and
    `where` sees the fields of the problems (`extra.level`).
    """

    def _fields(self, row: Row) -> Mapping[str, Any]:
        return vars(from_columns(row.columns)) if self.prepared else row.columns

    def _problem(self, row: Row, columns: Columns) -> Problem:
        return from_columns(row.columns) if self.prepared else super()._problem(row, columns)

    @property
    def needs_answers(self) -> bool:
        """A file of whole problems says itself which of them have none."""
        return not self.prepared

    @cached_property
    def prepared(self) -> bool:
        """Whether every file holds whole problems, so that no column needs a name."""
        import pyarrow

        try:
            return self.columns == Columns() and all(is_problem_table(existing_file(path)) for path in self.files)
        except (pyarrow.ArrowInvalid, OSError):
            return False  # `records` says what is wrong with it

    def records_of(self, path: str) -> Iterator[Row | BrokenRow]:
        """One record a row; a file that is not Parquet raises `InputError`."""
        import pyarrow
        from pyarrow import parquet

        file = existing_file(path)
        number = 0
        try:
            with parquet.ParquetFile(file) as table:
                for batch in table.iter_batches(batch_size=1024):
                    for columns in batch.to_pylist():
                        number += 1
                        yield Row(number, f"{path}: row {number}", columns)
        except (pyarrow.ArrowInvalid, OSError) as error:
            raise InputError(f"{path}: not a Parquet file that can be read ({first_line(error)})") from error


def matching(path: str) -> list[str]:
    """The paths of the files that `path` means: itself, or those of a pattern, by name.

    Raises:
        InputError: the pattern names none.
    """
    if Path(path).expanduser().exists() or not set(_WILD) & set(path):
        return [path]
    found = sorted(glob(str(Path(path).expanduser()), recursive=True))
    if not found:
        raise InputError(f"{path}: no file is called so")
    return found


def existing_file(path: str) -> Path:
    """`path` as a file that exists, `~` expanded.

    Raises:
        InputError: there is none; of a folder it says how the files in it are named.
    """
    found = Path(path).expanduser()
    if found.is_dir():
        raise InputError(f"{path} is a folder; {files_in(path)}")
    if not found.is_file():
        raise InputError(f"{path}: no such file")
    return found


def _parse_line(line: bytes) -> Mapping[str, Any]:
    try:
        value = json.loads(line.decode("utf-8-sig").rstrip("\r\n"))
    except UnicodeDecodeError as error:
        raise ValueError(f"not UTF-8 text (byte {error.start + 1})") from error
    except json.JSONDecodeError as error:
        raise ValueError(f"not valid JSON ({error.msg}, column {error.colno})") from error
    except (ValueError, RecursionError) as error:  # a number of thousands of digits, thousands of brackets
        raise ValueError(f"not usable JSON ({first_line(error)})") from error
    if not isinstance(value, dict):
        raise ValueError(f"a line must be a JSON object, not {type(value).__name__}")
    return value


def files_in(folder: str) -> str:
    """How the files of a folder are named as a source, for messages: a set often lies there in splits and shards."""
    names = sorted(entry.name for entry in Path(folder).expanduser().iterdir() if entry.name.endswith(tuple(SUFFIXES)))
    if not names:
        return f"name a file; it holds none that ends in {', '.join(SUFFIXES)}"
    name = next((name for name in names if "train" in name), names[0])
    pattern = re.sub(r"\d.*(?=\.(?:jsonl\.gz|\w+)$)", "*", name)
    several = sum(Path(other).match(pattern) for other in names) > 1
    return f"name a file in it, or several by a pattern: {Path(folder) / (pattern if several else name)}"
