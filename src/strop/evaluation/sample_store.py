"""The store of one model's samples on one benchmark: written as they arrive, continued, and read back.

    FOLDER/settings.json            what the samples depend on; a resumed evaluation must have the same
    FOLDER/samples-000003.parquet   problems whose samples are all judged: the columns of `rollout_table` and `answer`
    FOLDER/summary.json             the rates, once every problem is there

A problem is stored once all of its samples are judged; what an interruption cuts off is sampled again, to the same
tokens, since samples depend only on the seed and the problem's id.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from strop.base import rollout_table
from strop.base.files import read_json, replacing, write_json
from strop.base.types import Group, InputError, Rollout, first_line
from strop.evaluation.result import EvaluationResult
from strop.verifiers.base import Verifier
from strop_verify.verdict import Status

SETTINGS, SUMMARY = "settings.json", "summary.json"
TRAINED_ON = "trained_on"  # of a summary: how many of the problems the model was trained on, as far as runs tell
FLUSH_SECONDS, FLUSH_PROBLEMS = 30.0, 256
_READ = ("problem_id", "sample", "score", "status", "finish_reason", "token_ids", "answer", "versions")


class SampleStore:
    """The samples of one model on one benchmark in `folder`; one process writes it.

    `settings` are JSON-able and hold `problem_ids` (every problem, in order) and `samples_per_problem`.

    Raises:
        InputError: the folder holds samples drawn under other settings.
    """

    def __init__(self, folder: Path, settings: Mapping[str, Any], verifier: Verifier) -> None:
        self._folder, self._verifier = folder, verifier
        self._settings: dict[str, Any] = json.loads(json.dumps(settings))
        self._samples = int(settings["samples_per_problem"])
        self._index = {name: index for index, name in enumerate(settings["problem_ids"])}
        self._open: dict[str, list[Rollout]] = {}
        self._waiting: list[Group] = []
        self._flushed = time.monotonic()
        self._begin()
        stored = _read(folder, ["problem_id"])
        self.done: set[str] = set() if stored is None else set(stored.column(0).to_pylist())

    @property
    def missing(self) -> tuple[int, ...]:
        """Places of the problems that are still to be sampled."""
        return tuple(index for name, index in self._index.items() if name not in self.done)

    def add(self, rollout: Rollout) -> None:
        """Add a judged sample; it is written together with its problem's other samples."""
        name = rollout.problem.id
        rollouts = self._open.setdefault(name, [])
        rollouts.append(rollout)
        if len(rollouts) == self._samples:
            del self._open[name]
            ordered = tuple(sorted(rollouts, key=lambda found: found.completion.index))
            self._waiting.append(Group(self._index[name], rollout.problem, ordered))
        if len(self._waiting) >= FLUSH_PROBLEMS or time.monotonic() - self._flushed > FLUSH_SECONDS:
            self.flush()

    def flush(self) -> None:
        """Write the problems whose samples are all there."""
        import pyarrow as pa
        import pyarrow.parquet as pq

        self._flushed = time.monotonic()
        if not self._waiting:
            return
        table = rollout_table.table(0, self._waiting)
        answers = [
            self._verifier.answer(rollout.problem, rollout.completion.last_turn)
            for group in self._waiting
            for rollout in group.rollouts
        ]
        table = table.append_column("answer", pa.array(answers, pa.string()))
        with replacing(self._folder / f"samples-{len(_files(self._folder)):06d}.parquet") as temporary:
            pq.write_table(table, temporary, compression="zstd")
        self.done |= {group.problem.id for group in self._waiting}
        self._waiting = []

    def _begin(self) -> None:
        path = self._folder / SETTINGS
        if not path.exists() or not has_samples(self._folder):  # what an endpoint refused is asked otherwise
            write_json(path, self._settings)
            return
        stored = read_json(path)
        keys = [key for key in {**stored, **self._settings} if stored.get(key) != self._settings.get(key)]
        if keys:
            raise InputError(
                f"{self._folder} holds samples drawn under other settings ({', '.join(keys)}); choose another --out"
            )


def _files(folder: Path) -> list[Path]:
    return sorted(folder.glob("samples-*.parquet"))


def _read(folder: Path, columns: list[str]) -> Any:
    """The samples in `folder` as a table, None where there are none; a file that cannot be read is an `InputError`."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    tables = []
    for path in _files(folder):
        try:
            tables.append(pq.ParquetFile(path).read(columns))
        except (pa.ArrowInvalid, OSError) as error:
            raise InputError(f"{path}: cannot be read ({first_line(error)})") from error
    return pa.concat_tables(tables) if tables else None


def has_samples(folder: Path) -> bool:
    """Whether samples of any model and benchmark lie in `folder` or below it."""
    return any(folder.rglob("*.parquet"))


def load_result(folder: Path) -> EvaluationResult:
    """The evaluation that `folder` holds.

    Raises:
        InputError: it holds no finished evaluation, or files that cannot be read.
    """
    import pyarrow.compute as pc

    settings = read_json(folder / SETTINGS)
    names: list[str] = settings["problem_ids"]
    table = _read(folder, list(_READ))
    shape = (len(names), int(settings["samples_per_problem"]))
    if table is None or table.num_rows != shape[0] * shape[1]:
        raise InputError(f"{folder} holds no finished evaluation; go on with it by the same strop eval command")
    place = {name: index for index, name in enumerate(names)}
    rows = np.array([place[name] for name in table.column("problem_id").to_pylist()], dtype=np.int64)
    where = rows, table.column("sample").to_numpy().astype(np.int64)

    def spread(values: Any, dtype: Any) -> Any:
        array = np.zeros(shape, dtype=dtype)
        array[where] = values
        return array

    status = np.array(table.column("status").to_pylist(), dtype=object)
    usable = spread(~np.isin(status, ("timeout", "error")), np.bool_)
    scores = np.where(usable, spread(table.column("score").to_numpy(), np.float32), np.float32(0.0))
    answers = np.empty(shape, dtype=object)
    answers[where] = table.column("answer").to_pylist()
    versions = table.column("versions").to_pylist()
    return EvaluationResult(
        dataset=settings["benchmark"],
        problem_ids=tuple(names),
        scores=scores,
        correct=scores == 1.0,
        usable=usable,
        unparsed=spread(status == Status.UNPARSED.value, np.bool_),
        undecided=spread(status == Status.UNDECIDED.value, np.bool_),
        truncated=spread(np.array(table.column("finish_reason").to_pylist()) == "length", np.bool_),
        lengths=spread(pc.list_value_length(table.column("token_ids")).to_numpy(), np.int32),
        answers=tuple(tuple(row) for row in answers.tolist()),
        version=int(versions[0][0]["version"]) if versions and versions[0] else 0,
        seconds=float(read_json(folder / SUMMARY)["seconds"]) if (folder / SUMMARY).exists() else 0.0,
    )
