"""Problems from tables: what every table has in common, and the rows of a Hugging Face data set.

`Columns` says which column is what, `where` which rows are wanted.
"""

from __future__ import annotations

import json
import re
from abc import abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

from strop.base import hub
from strop.base.imports import require
from strop.base.pieces import Settings
from strop.base.types import InputError, Message, Problem, Prompt, first_line
from strop.data.columns import NoColumn, Where, condition, pick
from strop.data.source import ProblemSource, check_problem
from strop.data.usual import ANSWERS, PROMPTS, SOLUTIONS, first_present, has, refuse_unseen, stated

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
