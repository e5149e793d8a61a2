"""Problems from tables: what every table has in common, and the rows of a Hugging Face data set.

`Columns` says which column is what, `where` which rows are wanted.
"""

from __future__ import annotations

import csv
import gzip
import json
import re
from abc import abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import nullcontext
from functools import cached_property
from glob import glob
from pathlib import Path
from typing import Any, ClassVar, Literal, NamedTuple

from strop.base import hub
from strop.base.imports import require
from strop.base.pieces import Settings
from strop.base.types import InputError, Message, Problem, Prompt, first_line
from strop.data.columns import (
    ANSWERS,
    PROMPTS,
    SOLUTIONS,
    NoColumn,
    Where,
    condition,
    final_answer,
    first_present,
    has,
    pick,
    refuse_unseen,
    stated,
)
from strop.data.problem_table import from_columns, is_problem_table
from strop.data.source import SUFFIXES, ProblemSource, check_problem

_CHAT = re.compile(r'\s*\[\s*\{\s*"(?:role|from|content|value)"\s*:')
SPEAKERS = {"human": "user", "gpt": "assistant"}  # ShareGPT's names of the roles
USERS = ("user", "human")


class Row(NamedTuple):
    """One record: its number from 1, where it stands (`train.jsonl:12`), and its columns."""

    number: int
    where: str
    columns: Mapping[str, Any]


class BrokenRow(NamedTuple):
    """A record that cannot be read: where it stands, and why."""

    where: str
    reason: str

    def error(self) -> InputError:
        """The same as an error."""
        return InputError(f"{self.where}: {self.reason}")


class Columns(Settings):
    """Which column holds what: `Columns(prompt="question")`. A dotted name reaches into nested columns.

    Fields:
        prompt: text, or a list of chat messages. None: the first of the usual names that the first row has: prompt,
            question, problem, messages, ….
        answer: the reference answer, or the tests of a program. None: answer, ground_truth, final_answer, …, or a
            solution that boxes its answer. Of a worked solution that ends as GSM8K's do (`#### 72`) it is the result,
            of a solution what it boxes.
        answer_json: the answer is JSON, written as text or not, and a list of one is what is in it
            (Skywork-OR1-RL-Data: `["42"]`).
        id: None numbers the rows under the source's name.
        extra: columns that are kept in `Problem.extra`.
        without: an instruction that the set's own prompts end with, taken off where they do.
        instruction: put on a line of its own after the prompt, for sets that are asked otherwise than those beside
            them; one template for all stands in `data.template`.
        starter: code that the program must begin with; where a row has any it is shown after the prompt.
        function: the name of the function that the tests call, where the set keeps it beside them.
    """

    prompt: str | None = None
    answer: str | None = None
    answer_json: bool = False
    id: str | None = None
    extra: tuple[str, ...] = ()
    without: str | None = None
    instruction: str | None = None
    starter: str | None = None
    function: str | None = None

    def named(self, row: Mapping[str, Any]) -> Columns:
        """These columns with the usual names that the row has in place of None."""
        prompt = self.prompt or first_present(row, PROMPTS) or "prompt"
        boxed = [name for name in SOLUTIONS if has(row, name) and r"\boxed" in str(pick(row, name))]
        answer = self.answer or first_present(row, ANSWERS) or next(iter(boxed), "answer")
        return self.model_copy(update={"prompt": prompt, "answer": answer})

    def advice(self, row: Mapping[str, Any], first: bool) -> str:
        """How to mend what this row lacks: by a setting, unless it is not the `first` and others have it."""
        settings = []
        for field, present, names in (("prompt", self.prompt, PROMPTS), ("answer", self.answer, ANSWERS + SOLUTIONS)):
            if present is None or not has(row, present):
                settings.append(f"data.source.columns.{field}={first_present(row, names) or 'COLUMN'}")
        if settings and not first:
            skipping = 'strop data prepare does, with broken_rows = "skip"'
            return f"the rows before it have one: fill it in, or leave such rows out ({skipping})"
        return f"set {' and '.join(settings or ['data.source.columns'])}"

    def asked(self, row: Mapping[str, Any]) -> Prompt:
        """The prompt of a row.

        Raises:
            ValueError: there is none, or it is neither text nor chat messages.
        """
        prompt = as_prompt(pick(row, self.prompt or "prompt"))
        starter = pick(row, self.starter) if self.starter is not None else None
        added = [f"\n\n```python\n{starter.strip()}\n```"] if isinstance(starter, str) and starter.strip() else []
        added += [f"\n{self.instruction}"] if self.instruction is not None else []
        if self.without is None and not added:
            return prompt
        last = prompt if isinstance(prompt, str) else prompt[-1]["content"]
        last = "".join([last.removesuffix(self.without or ""), *added])
        return last if isinstance(prompt, str) else (*prompt[:-1], Message(role=prompt[-1]["role"], content=last))

    def reference(self, row: Mapping[str, Any]) -> Any:
        """The reference of a row, which answers are compared with.

        Raises:
            ValueError: there is none, or it should be JSON and is not.
        """
        found = _answer(pick(row, self.answer or "answer"), self.answer_json)
        name = pick(row, self.function) if self.function is not None else None
        return {"fn_name": name, "tests": found} if name is not None else found


class RowSource(ProblemSource):
    """A source with one problem a row.

    Fields:
        columns: which column holds what.
        domain: of the problems.
        where: only rows of which this expression over their columns holds (see docs/data.md), such as
            `difficulty in 1..15`; None keeps all. A text written as a number is compared with numbers as that number.
    """

    texts: ClassVar[bool] = False  # whether every cell is a text, so that `where` takes one without characters as null

    columns: Columns = Columns()
    domain: str = "math"
    where: Where = None

    @property
    @abstractmethod
    def name(self) -> str:
        """The `source` of the problems and the beginning of their ids."""

    @abstractmethod
    def records(self) -> Iterator[Row | BrokenRow]:
        """The records one by one, those that cannot be read among them.

        Raises:
            InputError: nothing can be read any more.
        """

    def rows(self) -> Iterator[Row]:
        """The records one by one; a broken one raises `InputError` with the place where it stands."""
        for record in self.records():
            if isinstance(record, BrokenRow):
                raise record.error()
            yield record

    def problems(self) -> Iterator[Problem]:
        """One problem a row that `where` wants; a row that makes none raises `InputError` with its place."""
        left_out = kept = 0
        columns: Columns | None = None
        for row in self.rows():
            if not self._wanted(row):
                left_out += 1
                continue
            kept += 1
            columns = columns or self.columns.named(row.columns)
            try:
                if self.columns.prompt is None and columns.prompt is not None:
                    refuse_unseen(row.columns, columns.prompt, f"data.source.columns.prompt={columns.prompt}")
                problem = self._problem(row, columns)
                check_problem(problem, self.needs_answers)
            except NoColumn as error:
                raise InputError(f"{row.where}: {error}; {columns.advice(row.columns, kept == 1)}") from error
            except ValueError as error:
                raise InputError(f"{row.where}: {error}") from error
            yield problem
        if left_out and not kept:
            raise InputError(f"{self.label}: where={self.where!r} holds of none of its {left_out} rows")

    def _wanted(self, row: Row) -> bool:
        try:
            return self.where is None or condition(self.where, self.texts)(self._fields(row))
        except ValueError as error:
            raise InputError(f"{row.where}: where={self.where!r}: {error}") from error

    def _fields(self, row: Row) -> Mapping[str, Any]:
        """The columns that `where` sees."""
        return row.columns

    def _problem(self, row: Row, columns: Columns) -> Problem:
        """The problem of a row; `columns` are those of the source with every name known."""
        identity = pick(row.columns, columns.id) if columns.id is not None else f"{self.name}-{row.number}"
        worked = self.columns.answer is None and columns.answer in SOLUTIONS
        reference, solution = stated(columns.reference(row.columns), self.domain, worked)
        extra = {name: pick(row.columns, name) for name in columns.extra}
        return Problem(
            id=str(identity),
            prompt=columns.asked(row.columns),
            reference=reference,
            domain=self.domain,
            source=self.name,
            extra={**solution, **extra},
        )


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
        """The last part of the set's name; with the subset, so that two subsets in a mixture have ids of their own."""
        name = self.dataset.rstrip("/").rsplit("/", 1)[-1]
        return name if self.subset is None else f"{name}/{self.subset}"

    @property
    def label(self) -> str:
        kind = "folder" if Path(self.dataset).is_dir() else "hub data set"
        return f"{kind} {self.dataset} ({self.split})"

    def records(self) -> Iterator[Row | BrokenRow]:
        """One record a row.

        Raises:
            InputError: the package `datasets` is absent, or the data set cannot be had (unknown name, no network …).
        """
        datasets = require("datasets", extra="hub", purpose="data sets of the Hugging Face hub")
        silent = None if Path(self.dataset).is_dir() else hub.silence()
        try:
            with nullcontext() if silent is None else hub.offline_data(datasets):
                table = datasets.load_dataset(self.dataset, self.subset, split=self.split, revision=self.revision)
        except Exception as error:  # the library's errors have no common class, and each of them ends here for the user
            reason = f"{type(error).__name__}: {first_line(error)}"
            where = "is the name right, is there a network?" if silent is None else f"asked the cache alone: {silent}"
            raise InputError(f"{self.label} cannot be loaded ({reason}); {where}") from error
        for number, columns in enumerate(table, start=1):
            yield Row(number, f"{self.label}: row {number}", columns)


def _answer(value: Any, is_json: bool) -> Any:
    """A column's answer; raises `ValueError` where it should be JSON and is not."""
    if not is_json or not isinstance(value, str | list):
        return value
    try:
        found = json.loads(value) if isinstance(value, str) else value
    except json.JSONDecodeError as error:
        raise ValueError(f"the answer {value!r:.60} is not JSON: {error.msg}") from error
    return found[0] if isinstance(found, list) and len(found) == 1 else found


def as_prompt(value: Any) -> Prompt:
    """Text as it is, a list of chat messages (or ShareGPT's `from` and `value`) as a tuple of their roles and contents.

    Such a list may be written as JSON, as tables of texts have it.

    Raises:
        ValueError: it is neither.
    """
    if isinstance(value, str):
        value = _written_chat(value) or value
    if isinstance(value, str):
        return value
    if not isinstance(value, list | tuple) or not all(isinstance(message, Mapping) for message in value):
        raise ValueError(f"the prompt must be text or a list of chat messages, not {type(value).__name__}")
    return tuple(map(_message, value))


def question_asked(value: Any) -> Prompt:
    """`as_prompt` up to the user's last turn, after which published sets hold an answer; one turn alone as its text.

    Raises:
        ValueError: as `as_prompt`.
    """
    if isinstance(value, list) and all(isinstance(turn, Mapping) for turn in value):
        users = [number for number, turn in enumerate(value, 1) if turn.get("role", turn.get("from")) in USERS]
        value = value[: users[-1]] if users else value
    prompt = as_prompt(value)
    alone = not isinstance(prompt, str) and [turn["role"] for turn in prompt] == ["user"]
    return prompt[0]["content"] if alone and not isinstance(prompt, str) else prompt


def _written_chat(text: str) -> list[Any] | None:
    """The chat that a text is the JSON of; None for every other text."""
    if not _CHAT.match(text):
        return None
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, list) else None


def _message(turn: Mapping[str, Any]) -> Message:
    if "role" not in turn and "from" in turn:
        speaker = pick(turn, "from")
        return Message(role=SPEAKERS.get(speaker, speaker), content=pick(turn, "value"))
    return Message(role=pick(turn, "role"), content=pick(turn, "content"))


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


COLUMNS = Columns(prompt="question", answer="answer")


class Gsm8k(ProblemSource):
    """GSM8K from a local `.jsonl` or `.parquet` file with columns question and answer, else from the hub (extra `hub`).

    The reference is what follows `####` without thousands commas; the worked solution is kept in `extra["solution"]`.
    """

    path: str | None = None
    split: Literal["train", "test"] = "train"

    @property
    def table(self) -> RowSource:
        """The table behind it."""
        if self.path is None:
            return HubDataset(dataset="openai/gsm8k", subset="main", split=self.split, columns=COLUMNS)
        if self.path.endswith(".parquet"):
            return ParquetFile(path=self.path, columns=COLUMNS)
        return JsonLines(path=self.path, columns=COLUMNS)

    @property
    def label(self) -> str:
        return self.table.label

    def problems(self) -> Iterator[Problem]:
        """One problem a row; a row without `####` raises `InputError` with the place where it stands."""
        for row in self._rows():
            try:
                question, solution = pick(row.columns, "question"), pick(row.columns, "answer")
                reference = final_answer(solution)
            except ValueError as error:
                raise InputError(f"{row.where}: {error}") from error
            yield Problem(
                id=f"gsm8k-{row.number}",
                prompt=question,
                reference=reference,
                source="gsm8k",
                extra={"solution": solution},
            )

    def _rows(self) -> Iterator[Row]:
        try:
            yield from self.table.rows()
        except InputError as error:
            if self.path is not None:
                raise
            raise InputError(f"{error}; or name a local copy of GSM8K with data.path") from error
