"""GSM8K: grade-school problems whose worked solutions end in `#### answer`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from strop.base.types import InputError, Problem
from strop.data.columns import pick
from strop.data.files import JsonLines, ParquetFile
from strop.data.rows import Columns, HubDataset, Row, RowSource
from strop.data.source import ProblemSource
from strop.data.usual import final_answer

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
