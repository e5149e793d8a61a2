"""Pages of completions out of a run's Parquet files, by filters; of a hundred thousand in a fraction of a second.

    found = page(folder, Filters(status="wrong", text="wait"))      # the newest step first
    more = page(folder, Filters(status="wrong", text="wait", before=found["next"]))

A step is a file. Files are looked through from the newest on until a page is full, of each only the columns that the
filters need; prompts and completions are read of the rows that are shown.
"""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray
from pydantic import Field

from strop.base.pieces import Settings
from strop.base.types import InputError
from strop.run.folder import RunFolder
from strop_verify.verdict import Status

LIGHT = ("problem_id", "ticket", "sample", "reward", "score", "status", "finish_reason")
SHOWN = ("prompt", "completion", "reference", "detail")
PATIENCE = 0.3  # seconds
LAST_ROW = 2**31  # after every row of a step
UNJUDGED = [str(Status.TIMEOUT), str(Status.ERROR)]
PREVIEW = 280  # characters of a prompt and of a completion in a list


class Filters(Settings):
    """Which completions are wanted; None lets every one through.

    Fields:
        step: of this step alone.
        status: of this verdict.
        problem: of this problem, by its id.
        truncated: that the budget ended, or not.
        lowest, highest: by their reward; what the verifier failed on has none.
        shortest, longest: by their tokens.
        text: with this text in prompt or completion, upper and lower case alike.
        before: `STEP:ROW`, where the page before ended.
        limit: completions on a page.
    """

    step: int | None = None
    status: str | None = None
    problem: str | None = None
    truncated: bool | None = None
    lowest: float | None = None
    highest: float | None = None
    shortest: int | None = None
    longest: int | None = None
    text: str | None = None
    before: str | None = Field(default=None, pattern=r"^\d+:\d+$")
    limit: int = Field(default=20, ge=1, le=200)


def page(folder: RunFolder, filters: Filters) -> dict[str, Any]:
    """The next completions that the filters let through, and where the page after begins (None: there is none).

    A page that takes longer than `PATIENCE` to fill comes as it is then, perhaps empty; the next one looks on.

    Raises:
        InputError: the run has no completions of the step.
    """
    steps = folder.rollout_steps()[::-1]
    if filters.step is not None:
        if filters.step not in steps:
            raise InputError(f"{folder.path} has no completions of step {filters.step}")
        steps = [filters.step]
    first, after = map(int, filters.before.split(":")) if filters.before else (None, -1)
    rows: list[dict[str, Any]] = []
    begin = time.monotonic()
    for step in steps:
        if first is not None and (step > first or (step == first and after == LAST_ROW)):
            continue
        found = _matching(folder, step, filters)
        found = found[found > after] if step == first else found
        wanted = found[: filters.limit - len(rows)]
        rows += _shown(folder, step, wanted)
        if len(rows) == filters.limit:
            return {"rows": rows, "next": f"{step}:{rows[-1]['row']}"}
        if time.monotonic() - begin > PATIENCE and step != steps[-1]:
            return {"rows": rows, "next": f"{step}:{LAST_ROW}"}
    return {"rows": rows, "next": None}


def _matching(folder: RunFolder, step: int, filters: Filters) -> NDArray[np.int64]:
    """The numbers of the rows of a step that the filters let through."""
    by_length = filters.shortest is not None or filters.longest is not None
    columns = [*LIGHT, *(("prompt", "completion") if filters.text else ()), *(("token_ids",) if by_length else ())]
    table = pq.read_table(folder.rollouts_path(step), columns=columns)
    kept: NDArray[np.bool_] = np.ones(table.num_rows, np.bool_)
    if filters.status is not None:
        kept &= _mask(pc.equal(table["status"], filters.status))
    if filters.problem is not None:
        kept &= _mask(pc.equal(table["problem_id"], filters.problem))
    if filters.truncated is not None:
        kept &= _mask(pc.equal(table["finish_reason"], "length")) == filters.truncated
    if filters.lowest is not None or filters.highest is not None:  # an older strop gave 0 where the verifier failed
        kept &= ~_mask(pc.is_in(table["status"], pa.array(UNJUDGED)))
    if filters.lowest is not None:
        kept &= _mask(pc.greater_equal(table["reward"], filters.lowest))
    if filters.highest is not None:
        kept &= _mask(pc.less_equal(table["reward"], filters.highest))
    if by_length:
        length = pc.list_value_length(table["token_ids"]).to_numpy()
        kept &= (length >= (filters.shortest or 0)) & (filters.longest is None or length <= (filters.longest or 0))
    if filters.text and kept.any():
        found = [pc.match_substring(table[name], filters.text, ignore_case=True) for name in ("prompt", "completion")]
        kept &= _mask(pc.or_(*found))
    return np.flatnonzero(kept)


def _mask(column: pa.ChunkedArray) -> NDArray[np.bool_]:
    found: NDArray[np.bool_] = column.fill_null(False).to_numpy().astype(np.bool_)
    return found


def _shown(folder: RunFolder, step: int, rows: NDArray[np.int64]) -> list[dict[str, Any]]:
    """What a list shows of these rows of a step."""
    if not len(rows):
        return []
    table = pq.read_table(folder.rollouts_path(step), columns=[*LIGHT, *SHOWN, "token_ids"]).take(rows)
    lengths = pc.list_value_length(table["token_ids"]).to_pylist()
    found = table.drop_columns(["token_ids"]).to_pylist()
    for number, length, row in zip(rows.tolist(), lengths, found, strict=True):
        row |= {"step": step, "row": number, "length": length}
        row |= {name: _beginning(row[name]) for name in SHOWN[:2]}
    return found


def _beginning(text: str) -> str:
    """What a list shows of a text: of one that begins with empty lines what follows them."""
    text = text.strip()
    return text if len(text) <= PREVIEW else f"{text[:PREVIEW]}…"
