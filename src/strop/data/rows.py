"""Sources with one problem per row: data sets of the Hugging Face hub, JSON lines, JSON, Parquet and CSV.

`Columns` says which column holds what; `where` selects rows. A path may be a pattern for several files of one data set,
such as `shards/train-*.parquet`: they are read one after the other, sorted by name. Text files are decompressed by
their suffix. JSON and CSV are read row by row with Python's readers, so that values keep their types and an error names
its line; DuckDB, polars and Arrow give a column one type (see docs/data.md).
"""

from __future__ import annotations

import csv
import io
import json
import re
from abc import abstractmethod
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from functools import cached_property
from glob import glob
from pathlib import Path
from typing import Any, BinaryIO, cast

from strop.base import hub
from strop.base.imports import require
from strop.base.types import InputError, Problem, first_line
from strop.data.cells import rows_of, typed
from strop.data.columns import PROMPTS, BrokenRow, Columns, NoColumn, Row, first_present
from strop.data.problem_table import from_columns, is_problem_table
from strop.data.source import SUFFIXES, ProblemSource, check_problem
from strop.data.where import Where, named_columns, wanted
from strop_verify.verdict import shortened

LONGEST_CELL = 2**31 - 1  # characters
_WILD = "*?"


class RowSource(ProblemSource):
    """A source with one problem a row.

    Fields:
        columns: which column holds what.
        domain: of the problems.
        where: a condition in SQL on the columns of a row (see docs/data.md), such as `difficulty BETWEEN 1 AND 15`;
            other rows are skipped. None reads all.
    """

    columns: Columns = Columns()
    domain: str = "math"
    where: Where = None

    @property
    @abstractmethod
    def name(self) -> str:
        """The `source` of the problems and the beginning of their ids."""

    @abstractmethod
    def records(self) -> Iterator[Row | BrokenRow]:
        """The records one by one; a broken one is a `BrokenRow`.

        Raises:
            InputError: the file or data set cannot be read.
        """

    def rows(self) -> Iterator[Row]:
        """The records one by one; a broken one raises `InputError` with its place."""
        return _unbroken(self.records())

    def wanted(self) -> Iterator[Row | BrokenRow]:
        """The records for which `where` holds, and the broken ones."""
        return wanted(self.records(), self.where, self.columns_for_where)

    def problems(self) -> Iterator[Problem]:
        """One problem for each row that `where` keeps.

        Raises:
            InputError: a row is broken; the message begins with its place.
        """
        named: Columns | None = None
        for row in _unbroken(self.wanted()):
            named = named or self.columns.named(row.columns)
            try:
                problem = self._problem(row, named)
                check_problem(problem, self.needs_answers)
            except NoColumn as error:
                way = "name it in data.source.columns (of a benchmark in evaluation.benchmark_columns), or fill it in"
                raise InputError(f"{row.where}: {error}; {way}") from error
            except ValueError as error:
                raise InputError(f"{row.where}: {error}") from error
            yield problem
        if named is None and self.where is not None and any(True for _ in self.records()):
            raise InputError(f"{self.label}: where={self.where!r} keeps none of its rows")

    def columns_for_where(self, row: Row) -> Mapping[str, Any]:
        """The columns that `where` sees."""
        return row.columns

    def unread(self) -> str:
        """The columns that neither problems nor `where` are made of, with the first row's values, in one line."""
        first = next(self.rows(), None)
        asked = {name[0] for name in named_columns(self.where)} if self.where is not None else ()
        if first is None:
            return ""
        return unread_line(self.label, first.columns, self.columns.named(first.columns), asked)

    def _problem(self, row: Row, named: Columns) -> Problem:
        """The problem of a row; `named` are the columns with the names of the first row."""
        fields = self.columns.fields(row.columns, self.domain, named)
        return Problem(
            id=f"{self.name}-{row.number}" if fields.id is None else fields.id,
            prompt=fields.prompt,
            reference=fields.reference,
            domain=self.domain,
            source=self.name,
            extra=fields.extra,
        )


def unread_line(label: str, row: Mapping[str, Any], columns: Columns, asked: Collection[str] = ()) -> str:
    """The columns of a row that neither `columns` nor `asked` have, with their values; empty where there are none."""
    named = [f"{name} ({shortened(repr(cell), 30)})" for name, cell in columns.unread(row).items() if name not in asked]
    return f"{label}: nobody reads {', '.join(named)}" if named else ""


def _unbroken(records: Iterator[Row | BrokenRow]) -> Iterator[Row]:
    for record in records:
        if isinstance(record, BrokenRow):
            raise record.error()
        yield record


class HubDataset(RowSource):
    """A data set of the Hugging Face hub, or a folder that `datasets.load_dataset` reads. Needs the extra `hub`.

    Example: `HubDataset(dataset="openai/gsm8k", subset="main", columns=Columns(prompt="question"))`.
    """

    dataset: str
    subset: str | None = None
    split: str = "train"
    revision: str | None = None

    @property
    def name(self) -> str:
        """The last part of the data set's name, and the subset, so that the ids of two subsets differ."""
        name = self.dataset.rstrip("/").rsplit("/", 1)[-1]
        return name if self.subset is None else f"{name}/{self.subset}"

    @property
    def label(self) -> str:
        kind = "folder" if Path(self.dataset).is_dir() else "hub data set"
        return f"{kind} {self.dataset} ({self.split})"

    def records(self) -> Iterator[Row | BrokenRow]:
        """One record per row.

        Raises:
            InputError: the package `datasets` is absent, or the data set cannot be loaded (unknown name, no network …).
        """
        datasets = require("datasets", extra="hub", purpose="data sets of the Hugging Face hub")
        silent = None if Path(self.dataset).is_dir() else hub.silence()
        try:
            with nullcontext() if silent is None else hub.offline_data(datasets):
                table = datasets.load_dataset(self.dataset, self.subset, split=self.split, revision=self.revision)
        except Exception as error:  # the library's errors have no common class
            reason = f"{type(error).__name__}: {first_line(error)}"
            where = (
                "is the name right, is there a network?" if silent is None else f"only the cache was searched: {silent}"
            )
            raise InputError(f"{self.label} cannot be loaded ({reason}); {where}") from error
        schema = table.features.arrow_schema
        for number, columns in enumerate(table, start=1):
            yield Row(number, f"{self.label}: row {number}", typed(columns, schema))


class FileSource(RowSource):
    """A file with one problem per row, or several files that a pattern with `*` names.

    Fields:
        path: the file, or the pattern.
    """

    path: str

    @property
    def name(self) -> str:
        """The file's name without its suffix; for a pattern the part before the `*`, or the folder's name."""
        path = Path(self.path)
        return re.sub(rf"[-_.]*[{_WILD}].*", "", path.stem) or re.sub(rf"[{_WILD}]", "", path.parent.name) or "files"

    @property
    def label(self) -> str:
        return self.path

    @property
    def files(self) -> list[str]:
        """The paths of the files behind it, by name.

        Raises:
            InputError: no file matches the pattern.
        """
        return matching(self.path)

    def records(self) -> Iterator[Row | BrokenRow]:
        """The records of all files, numbered consecutively."""
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
    """A file with one JSON object per line; blank lines are skipped."""

    @property
    def name(self) -> str:
        return super().name.split(".")[0]

    def records_of(self, path: str) -> Iterator[Row | BrokenRow]:
        """One record per line."""
        return _records_of_lines(path)


class ParquetFile(FileSource):
    """A Parquet file, read in batches.

    A file written by `strop data prepare` holds whole problems: `columns` and `domain` are not used, and `where` sees
    the fields of the problems (`extra.level`).
    """

    def columns_for_where(self, row: Row) -> Mapping[str, Any]:
        return vars(from_columns(row.columns)) if self.prepared else row.columns

    def unread(self) -> str:
        return "" if self.prepared else super().unread()

    def _problem(self, row: Row, named: Columns) -> Problem:
        return from_columns(row.columns) if self.prepared else super()._problem(row, named)

    @property
    def needs_answers(self) -> bool:
        """Whole problems may have no answer."""
        return not self.prepared

    @cached_property
    def prepared(self) -> bool:
        """Whether every file holds whole problems, so that no column needs a name."""
        import pyarrow

        try:
            return self.columns == Columns() and all(is_problem_table(existing_file(path)) for path in self.files)
        except (pyarrow.ArrowInvalid, OSError):
            return False  # reading the records reports the error

    def records_of(self, path: str) -> Iterator[Row | BrokenRow]:
        """One record per row; a file that is not Parquet raises `InputError`."""
        import pyarrow
        from pyarrow import parquet

        file = existing_file(path)
        number = 0
        try:
            with parquet.ParquetFile(file) as table:
                refuse_twice(path, table.schema_arrow.names)
                for batch in table.iter_batches(batch_size=1024):
                    for columns in rows_of(batch):
                        number += 1
                        yield Row(number, f"{path}: row {number}", columns)
        except (pyarrow.ArrowInvalid, OSError) as error:
            raise InputError(f"{path}: not a Parquet file that can be read ({first_line(error)})") from error


@contextmanager
def _opened(path: str) -> Iterator[BinaryIO]:
    """The bytes of a file, decompressed by its suffix (`.gz`, `.bz2`, `.zst` …); raises `InputError`."""
    import pyarrow

    file = existing_file(path)
    try:
        with pyarrow.input_stream(str(file), compression="detect") as stream, io.BufferedReader(stream) as opened:
            yield cast(BinaryIO, opened)
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({first_line(error)})") from error


def matching(path: str) -> list[str]:
    """`path` itself, or the paths that match it as a pattern, sorted by name.

    Raises:
        InputError: no file matches.
    """
    if Path(path).expanduser().exists() or not set(_WILD) & set(path):
        return [path]
    found = sorted(glob(str(Path(path).expanduser()), recursive=True))
    if not found:
        raise InputError(f"{path}: no file is called so")
    return found


def existing_file(path: str) -> Path:
    """`path` with `~` expanded.

    Raises:
        InputError: there is no such file; for a folder the message suggests a file in it.
    """
    found = Path(path).expanduser()
    if found.is_dir():
        raise InputError(f"{path} is a folder; {files_in(path)}")
    if not found.is_file():
        raise InputError(f"{path}: no such file")
    return found


def refuse_twice(path: str, names: Sequence[str]) -> None:
    """Refuse columns of a table, two of which have the same name.

    Raises:
        InputError: there are some.
    """
    if len(set(names)) != len(names):
        raise InputError(f"{path}: two columns are called {_repeated(names)!r}; rename one of them")


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """A JSON object; raises `ValueError` if it has a name twice, of which Python would keep the last value."""
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError(f"two values are called {_repeated([name for name, _ in pairs])!r}")
    return found


def _repeated(names: Sequence[str]) -> str:
    """The first name that was there before."""
    return next(name for place, name in enumerate(names) if name in names[:place])


def _records_of_lines(path: str) -> Iterator[Row | BrokenRow]:
    with _opened(path) as lines:
        for number, line in enumerate(lines, start=1):
            if line.strip():
                where = f"{path}:{number}"
                try:
                    yield Row(number, where, _parse_line(line))
                except ValueError as error:
                    yield BrokenRow(where, str(error))


def _parse_line(line: bytes) -> Mapping[str, Any]:
    try:
        value = json.loads(line.decode("utf-8-sig").rstrip("\r\n"), object_pairs_hook=_once)
    except UnicodeDecodeError as error:
        raise ValueError(f"not UTF-8 text (byte {error.start + 1})") from error
    except json.JSONDecodeError as error:
        spread = "; each line must be a whole object, or the file a list called .json" * (error.pos >= len(error.doc))
        raise ValueError(f"not valid JSON ({error.msg}, column {error.colno}){spread}") from error
    except (ValueError, RecursionError) as error:  # a name twice, thousands of digits or brackets
        raise ValueError(f"not usable JSON ({first_line(error)})") from error
    if not isinstance(value, dict):
        called = "; call a file that is one list .json" if isinstance(value, list) else ""
        raise ValueError(f"a line must be a JSON object, not {type(value).__name__}{called}")
    return value


def files_in(folder: str) -> str:
    """Advice for a path that is a folder: a file in it."""
    names = sorted(entry.name for entry in Path(folder).expanduser().iterdir() if entry.name.endswith(tuple(SUFFIXES)))
    if not names:
        return f"name a file; it holds none that ends in {', '.join(SUFFIXES)}"
    return f"name a file in it, or several by a pattern with *, such as {Path(folder) / names[0]}"


class CsvFile(FileSource):
    """A CSV file with a header. Every cell is text.

    Fields:
        delimiter: between the cells; by default a tab if the name ends in `.tsv`, else a comma.
    """

    delimiter: str | None = None

    def records_of(self, path: str) -> Iterator[Row | BrokenRow]:
        """One record per row; a row with more or fewer cells than the header is broken."""
        delimiter = self.delimiter or ("\t" if path.endswith(".tsv") else ",")
        csv.field_size_limit(LONGEST_CELL)
        try:
            with _opened(path) as opened, io.TextIOWrapper(opened, encoding="utf-8-sig", newline="") as lines:
                reader = csv.reader(lines, delimiter=delimiter, strict=True)
                header = next(reader, None)
                if header is None:
                    return
                refuse_twice(path, header)
                for number, cells in enumerate(filter(None, reader), start=1):
                    where = f"{path}:{reader.line_num}"
                    if len(cells) == len(header):
                        yield Row(number, where, dict(zip(header, cells, strict=True)))
                    else:
                        yield BrokenRow(where, f"{len(cells)} cells under a header of {len(header)}")
        except (UnicodeDecodeError, csv.Error) as error:
            raise InputError(f"{path}: cannot be read as CSV in UTF-8 ({first_line(error)})") from error


class JsonFile(FileSource):
    """A JSON file that is a list, which is read into memory, or JSON lines.

    An entry of the list is an object, or a list whose columns are called `0`, `1` … as on the hub.
    """

    def records_of(self, path: str) -> Iterator[Row | BrokenRow]:
        """One record per entry."""
        try:
            with _opened(path) as opened:
                found = json.load(opened, object_pairs_hook=_once)
        except (ValueError, RecursionError) as error:
            if getattr(error, "msg", "") == "Extra data":  # behind the first object, as in JSON lines
                yield from _records_of_lines(path)
                return
            raise InputError(f"{path}: not a JSON file that can be read ({first_line(error)})") from error
        if isinstance(found, dict) and first_present(found, PROMPTS):  # JSON lines of which there is one
            found = [found]
        if not isinstance(found, list):
            parts = found.items() if isinstance(found, dict) else ()
            lists = [repr(name) for name, part in parts if isinstance(part, list)]
            inner = f"keep only its list {' or '.join(lists)}" if lists else "write an object for each row"
            raise InputError(f"{path}: a list of rows is expected, not {type(found).__name__}; {inner}")
        for number, entry in enumerate(found, start=1):
            where = f"{path}: entry {number}"
            if isinstance(entry, list):
                yield Row(number, where, {str(place): value for place, value in enumerate(entry)})
            elif isinstance(entry, dict):
                yield Row(number, where, entry)
            else:
                yield BrokenRow(where, f"an entry must be an object or a list, not {type(entry).__name__}")
