"""Sources of a preparation: files, data sets of the hub, generators.

Source(mapping="deepscaler")                                  # a known data set, from the hub
Source(mapping="deepscaler", path="deepscaler.json")          # a local copy of it
Source(path="mine.jsonl", columns=Columns(prompt="question")) # any other file
Source(source="reasoning-gym:chain_sum")                      # a generator
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Annotated, Any, Self

from pydantic import Field, SerializeAsAny, model_validator

from strop.base.near import nearest
from strop.base.pieces import Settings
from strop.base.types import InputError, Problem
from strop.data.columns import BrokenRow, Columns, Row, stated
from strop.data.problem_table import from_columns, read_rows
from strop.data.rows import FileSource, HubDataset, ParquetFile, RowSource, files_in, matching
from strop.data.source import SUFFIXES, ProblemSource, check_problem
from strop.data.where import Where, wanted
from strop.prepare.mappings import KEPT, MAPPINGS, ReadyMapping, answer_text, plain_table
from strop.prepare.stage import DROPPED_COLUMNS


class Source(Settings):
    """One set of problems, named by `mapping`, `path` or `source`; a mapping may also have one of the others.

    Fields:
        mapping: a ready mapping (`strop data mappings` lists them); by default its data set comes from the hub.
        path: a .jsonl, .jsonl.gz, .json (one list), .parquet, .csv or .tsv file, or a pattern for several of them.
        source: any source, as `data.source` takes it: `OWNER/NAME` of the hub, `reasoning-gym:chain_sum`, or a piece.
        name: the problems' `source`, and the beginning of their ids; by default the mapping's or the file's name.
        columns: which column holds what; by default usual names are recognised.
        where: a condition in SQL on the columns of a row (see docs/data.md), such as
            `level >= 3 AND source <> 'synthetic'`: only rows that fulfil it are read.
        domain: of the problems; by default the mapping's, or math.
        limit: the first so many rows.
    """

    mapping: str | None = None
    path: str | None = None
    source: SerializeAsAny[ProblemSource] | None = None
    name: str | None = None
    columns: Columns | None = None
    where: Where = None
    domain: str | None = None
    limit: Annotated[int, Field(ge=1)] | None = None

    @model_validator(mode="before")
    @classmethod
    def _expand(cls, given: Any) -> Any:
        if not isinstance(given, str):
            return given
        return {"mapping" if given in MAPPINGS else "path" if given.endswith(tuple(SUFFIXES)) else "source": given}

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.mapping is not None and self.mapping not in MAPPINGS:
            raise ValueError(f"no mapping is called {self.mapping!r}; {nearest(self.mapping, MAPPINGS)}")
        places = (self.path is not None) + (self.source is not None)
        if places > 1 or (not places and self.mapping is None):
            raise ValueError("name one of mapping, path or source (only a mapping may also have one of the others)")
        if self.mapping is not None and self.columns is not None:
            raise ValueError("a mapping names its columns; leave out columns")
        makes = self.source is not None and not isinstance(self.source, RowSource)
        if makes and (self.mapping, self.columns, self.where) != (None, None, None):
            raise ValueError("mapping, columns and where are for tables, not for a source that makes problems")
        return self

    @property
    def label(self) -> str:
        """The problems' `source`."""
        if self.name is not None:
            return self.name
        if self.mapping is not None:
            return self.mapping
        table = self._table()
        if table is not None:
            return table.name
        assert self.source is not None
        return self.source.label

    def problems(self) -> Iterator[Problem | BrokenRow]:
        """The problems in the order of the rows, each with an id that begins with the label; broken rows among them.

        Raises:
            InputError: the file or the set cannot be read at all.
        """
        table, label = self._table(), self.label
        if table is None:
            yield from self._generated()
            return
        ready, where = self._ready(table), self.where or table.where
        for record in wanted(islice(table.records(), self.limit), where, table.columns_for_where):
            made = record if isinstance(record, BrokenRow) else self._problem(record, label, ready)
            if made is not None:
                yield made

    def unread(self) -> str:
        """The columns that nobody reads, see `RowSource.unread`; a ready mapping knows those of its set."""
        table = self._table()
        if table is None or self.mapping is not None or self._ready(table) is None:
            return ""
        columns = self.columns or table.columns.model_copy(update={"extra": (*table.columns.extra, *KEPT)})
        return table.model_copy(update={"columns": columns, "where": self.where or table.where}).unread()

    def stamp(self) -> str:
        """Sizes and modification times of its files; steps run again when these change."""
        table = self._table()
        return " ".join(map(_stamp, matching(table.path))) if isinstance(table, FileSource) else ""

    def _generated(self) -> Iterator[Problem]:
        assert self.source is not None
        label = self.label
        for number, problem in enumerate(self.source.problems()):
            if self.limit is not None and number >= self.limit:
                return
            domain = problem.domain if self.domain is None else self.domain
            yield replace(problem, source=label, domain=domain)

    def _problem(self, row: Row, label: str, ready: ReadyMapping | None) -> Problem | BrokenRow | None:
        try:
            if ready is None:
                return from_columns(row.columns)
            if not ready.keep(row.columns):
                return None
            fields = ready.convert(row.columns)
            domain = self.domain or ready.domain
            reference, solution = stated(fields.reference, domain)
            problem = Problem(
                id=f"{label}/{row.number if fields.id is None else fields.id}",
                prompt=fields.prompt,
                reference=answer_text(reference),
                domain=domain,
                source=label,
                extra={**solution, **fields.extra},
            )
            check_problem(problem)
        except (ValueError, TypeError, KeyError, AttributeError, IndexError) as error:
            # A row of another shape than its set may fail anywhere in a mapping; it is reported with its place.
            reason = str(error) if isinstance(error, ValueError) else f"{type(error).__name__} in the row: {error}"
            return BrokenRow(row.where, reason)
        return problem

    def _ready(self, table: RowSource) -> ReadyMapping | None:
        """How rows are read; None for whole problems."""
        if self.mapping is not None:
            return MAPPINGS[self.mapping]
        if self.columns is None and isinstance(table, ParquetFile) and table.prepared:
            return None
        columns, domain = self.columns or table.columns, self.domain or table.domain
        if columns == Columns():
            return ReadyMapping("", lambda row: plain_table(row, domain), domain=domain)
        return ReadyMapping("", lambda row: columns.fields(row, domain), domain=domain)

    def _table(self) -> RowSource | None:
        """The table of rows; None for a source that makes problems."""
        if self.path is not None:
            suffix = next((suffix for suffix in SUFFIXES if self.path.endswith(suffix)), None)
            if suffix is None:
                ending = f"a file must end with {', '.join(SUFFIXES)}"
                raise InputError(f"{self.path}: {files_in(self.path) if Path(self.path).is_dir() else ending}")
            found: ProblemSource = ProblemSource.model_validate({"piece": SUFFIXES[suffix], "path": self.path})
        elif self.source is not None:
            found = self.source
        else:
            ready = MAPPINGS[str(self.mapping)]
            found = HubDataset(dataset=ready.hub, subset=ready.subset, split=ready.split)
        return found if isinstance(found, RowSource) else None


def _stamp(path: str) -> str:
    try:
        state = Path(path).expanduser().stat()
    except OSError as error:
        raise InputError(f"{path}: {(error.strerror or str(error)).lower()}") from error
    return f"{state.st_size} {state.st_mtime_ns}"


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
