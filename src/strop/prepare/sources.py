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
from strop.base.pieces import Settings, choices
from strop.base.types import InputError, Problem
from strop.data.columns import BrokenRow, Columns, Row, stated
from strop.data.problem_table import from_columns, read_rows
from strop.data.rows import HubDataset, ParquetFile, RowSource, files_in, matching
from strop.data.source import SUFFIXES, ProblemSource, check_problem, expand_source
from strop.data.where import Where, wanted
from strop.prepare.mappings import MAPPINGS, ReadyMapping, answer_text, plain_table
from strop.prepare.stage import DROPPED_COLUMNS


class Source(Settings):
    """One set of problems, named by `mapping`, `path`, `hub` or `source`; a mapping may also have a path or a hub.

    Fields:
        mapping: a ready mapping (`strop data mappings` lists them); without `path` its data set comes from the hub.
        path: a .jsonl, .jsonl.gz, .json (one list), .parquet, .csv or .tsv file, or a pattern for several of them.
        hub: a data set of the hub, or a folder that the package `datasets` reads; `subset`, `split`, `revision` of it.
        source: any other source of problems, such as `reasoning-gym:chain_sum`.
        name: the problems' `source`, and the beginning of their ids; by default the mapping's or the file's name.
        columns: which column holds what; by default usual names are recognised.
        where: a condition in SQL on the columns of a row (see docs/data.md), such as
            `level >= 3 AND source <> 'synthetic'`: only rows that fulfil it are read.
        domain: of the problems; by default the mapping's, or math.
        limit: the first so many rows.
    """

    mapping: str | None = None
    path: str | None = None
    hub: str | None = None
    subset: str | None = None
    split: str | None = None
    revision: str | None = None
    source: SerializeAsAny[ProblemSource] | None = None
    name: str | None = None
    columns: Columns | None = None
    where: Where = None
    domain: str | None = None
    limit: Annotated[int, Field(ge=1)] | None = None

    @model_validator(mode="before")
    @classmethod
    def _expand(cls, given: Any) -> Any:
        if isinstance(given, str):
            return {"mapping": given} if given in MAPPINGS else _named(given)
        return given

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.mapping is not None and self.mapping not in MAPPINGS:
            raise ValueError(f"no mapping is called {self.mapping!r}; {nearest(self.mapping, MAPPINGS)}")
        places = [name for name in ("path", "hub", "source") if self.model_dump()[name] is not None]
        if len(places) > 1 or (not places and self.mapping is None):
            raise ValueError("name one of mapping, path, hub or source (only a mapping may also have a path or a hub)")
        if self.mapping is not None and (self.columns is not None or self.source is not None):
            raise ValueError("a mapping names its columns; leave out columns and source")
        if self.source is not None and (self.columns is not None or self.where is not None):
            raise ValueError("columns and where are for tables, not for a source that makes problems")
        return self

    @property
    def label(self) -> str:
        """The problems' `source`."""
        if self.name is not None:
            return self.name
        if self.mapping is not None:
            return self.mapping
        if self.source is not None:
            return self.source.label
        return self._table().name

    def problems(self) -> Iterator[Problem | BrokenRow]:
        """The problems in the order of the rows, each with an id that begins with the label; broken rows among them.

        Raises:
            InputError: the file or the set cannot be read at all.
        """
        if self.source is not None:
            yield from self._generated()
            return
        table, label = self._table(), self.label
        whole = isinstance(table, ParquetFile) and table.prepared
        for record in wanted(islice(table.records(), self.limit), self.where, table.columns_for_where):
            made = record if isinstance(record, BrokenRow) else self._problem(record, label, whole)
            if made is not None:
                yield made

    def stamp(self) -> str:
        """Sizes and modification times of its files; steps run again when these change."""
        return " ".join(map(_stamp, matching(self.path))) if self.path is not None else ""

    def _generated(self) -> Iterator[Problem]:
        assert self.source is not None
        label = self.label
        for number, problem in enumerate(self.source.problems()):
            if self.limit is not None and number >= self.limit:
                return
            domain = problem.domain if self.domain is None else self.domain
            yield replace(problem, source=label, domain=domain)

    def _problem(self, row: Row, label: str, whole: bool) -> Problem | BrokenRow | None:
        ready = self._ready
        try:
            if whole and self.columns is None and self.mapping is None:
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

    @property
    def _ready(self) -> ReadyMapping:
        if self.mapping is not None:
            return MAPPINGS[self.mapping]
        columns, domain = self.columns, self.domain or "math"
        if columns is None:
            return ReadyMapping("", lambda row: plain_table(row, domain))
        return ReadyMapping("", lambda row: columns.fields(row, domain))

    def _table(self) -> RowSource:
        if self.path is not None:
            suffix = next((suffix for suffix in SUFFIXES if self.path.endswith(suffix)), None)
            if suffix is None:
                ending = f"a file must end with {', '.join(SUFFIXES)}"
                raise InputError(f"{self.path}: {files_in(self.path) if Path(self.path).is_dir() else ending}")
            found = ProblemSource.model_validate({"piece": SUFFIXES[suffix], "path": self.path})
            assert isinstance(found, RowSource)  # SUFFIXES holds tables only
            return found
        ready = self._ready
        return HubDataset(
            dataset=self.hub or ready.hub,
            subset=self.subset or (ready.subset if self.hub is None else None),
            split=self.split or ready.split,
            revision=self.revision,
            columns=Columns(),
        )


def _stamp(path: str) -> str:
    try:
        state = Path(path).expanduser().stat()
    except OSError as error:
        raise InputError(f"{path}: {(error.strerror or str(error)).lower()}") from error
    return f"{state.st_size} {state.st_mtime_ns}"


def _named(text: str) -> dict[str, Any]:
    """The fields for a source given as a string: a file, a data set of the hub, or a generator."""
    if any(text.endswith(suffix) for suffix in SUFFIXES):
        return {"path": text}
    source = expand_source(text)
    if source["piece"] == "HubDataset":
        return {"hub": source["dataset"]}
    if issubclass(choices(ProblemSource)[source["piece"]], RowSource):
        return {"mapping": text}
    return {"source": source}


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
