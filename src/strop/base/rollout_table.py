"""The Parquet table of a step's rollouts: one row per completion, with fixed column types, and the batch's record."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from itertools import groupby, pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from strop.base.batch_record import BatchRecord
from strop.base.near import nearest
from strop.base.sample import Sample, sample_id
from strop.base.types import (
    BoolArray,
    Completion,
    FloatArray,
    Group,
    InputError,
    Problem,
    Restart,
    Rollout,
    Status,
    Verdict,
    VersionSpan,
)

SCHEMA = pa.schema(
    [
        ("step", pa.int32()),
        ("ticket", pa.int64()),
        ("sample", pa.int32()),
        ("problem_id", pa.string()),
        ("source", pa.string()),
        ("domain", pa.string()),
        ("reference", pa.string()),  # text unchanged, anything else as JSON
        ("prompt", pa.string()),  # text unchanged, chat messages as JSON
        ("completion", pa.string()),
        ("prompt_ids", pa.list_(pa.int32())),
        ("teacher_prompt_ids", pa.list_(pa.int32())),  # null where a teacher reads the same prompt, or is not asked
        ("token_ids", pa.list_(pa.int32())),
        ("logprobs", pa.list_(pa.float32())),
        # Where the engine does not know them, the policy's when it learned from the token; null without both.
        ("entropies", pa.list_(pa.float32())),
        # The next three are null where the completion was not trained on, and 0 on injected tokens, which never are.
        ("advantages", pa.list_(pa.float32())),
        ("trainer_logprobs", pa.list_(pa.float32())),  # of the policy when it learned from the token
        ("values", pa.list_(pa.float32())),  # of a critic when the batch began; null without one
        ("versions", pa.list_(pa.struct([("version", pa.int32()), ("start", pa.int32()), ("end", pa.int32())]))),
        ("interrupted_at", pa.int32()),
        ("injected", pa.list_(pa.struct([("start", pa.int32()), ("end", pa.int32())]))),
        ("turns", pa.list_(pa.int32())),  # where each turn after the first begins
        ("turn_scores", pa.list_(pa.float64())),
        ("restarts", pa.list_(pa.struct([("start", pa.int32()), ("prompt_ids", pa.list_(pa.int32()))]))),
        ("last_turn_at", pa.int32()),  # where the text of the last turn begins in `completion`
        ("finish_reason", pa.string()),
        ("reward", pa.float64()),  # null where the verifier failed (status timeout or error), as is the score
        ("score", pa.float64()),
        ("status", pa.string()),
        ("detail", pa.string()),
    ]
)

# Values of tokens hardly repeat: with dictionaries of them 64 completions of 8,192 tokens took three times as long to
# write, and 20 % more room. Without Arrow's own schema, which Parquet's repeats, and statistics, which nothing reads,
# files of few short completions are a seventh smaller.
_WRITING: dict[str, Any] = {
    "compression": "zstd",
    "use_dictionary": [field.name for field in SCHEMA if not pa.types.is_list(field.type)],
    "store_schema": False,
    "write_statistics": False,
}
_RECORD = b"strop.batch"  # of the file's metadata


def write(
    path: Path, step: int, groups: Sequence[Group], samples: Sequence[Sample] = (), record: BatchRecord | None = None
) -> None:
    """Write the rollouts of `groups` to `path`, with the training columns of those among the `samples`."""
    with pq.ParquetWriter(path, SCHEMA, **_WRITING) as writer:
        writer.write_table(table(step, groups, samples))
        if record is not None:
            writer.add_key_value_metadata({_RECORD: record.to_json()})


def read_record(path: Path) -> BatchRecord:
    """The record of the batch that was trained on.

    Raises:
        InputError: there is none, or it cannot be read.
    """
    text = (pq.read_metadata(path).metadata or {}).get(_RECORD)
    if text is None:
        raise InputError(f"{path} has no record of the batch: nothing was trained on it, or an earlier strop wrote it")
    try:
        return BatchRecord.from_json(text.decode())
    except ValueError as error:
        raise InputError(f"{path}: its record is damaged, or of another version of strop: {error}") from error


def read_groups(path: Path) -> list[Group]:
    """The groups in the order in which they were written, with all that is kept of them: of a problem no `extra`, of a
    completion neither its request nor the experts that computed it."""
    found = read(path)
    arrays = {name: _arrays(found[name]) for name in ("prompt_ids", "token_ids", "logprobs")}
    present = {name: _present(found[name]) for name in ("entropies", "teacher_prompt_ids")}
    small = found.drop_columns([*arrays, *present, "advantages", "trainer_logprobs", "values"]).to_pylist()
    rollouts: list[tuple[int, Rollout]] = []
    for place, row in enumerate(small):
        columns = {name: column[place] for name, column in arrays.items()}
        known = {name: column[place] for name, column in present.items()}
        rollouts.append((row["ticket"], _rollout(row, known, **columns)))
    groups = groupby(rollouts, key=lambda pair: pair[0])
    return [Group(ticket, own[0].problem, own) for ticket, pairs in groups for own in [tuple(one for _, one in pairs)]]


def read_arrays(path: Path, names: Sequence[str]) -> dict[str, list[np.ndarray]]:
    """Columns of numbers a token, by name; a row that has none is empty."""
    found = read(path, names)
    return {name: _arrays(found[name]) for name in names}


def _arrays(column: pa.ChunkedArray) -> list[np.ndarray]:
    """The values of each row of a column of lists; empty where it is null."""
    whole = column.combine_chunks()
    # Arrow's own conversions, and `pq.read_table`, import pandas where it is installed, which takes half a second.
    values, bounds = np.from_dlpack(whole.values), np.from_dlpack(whole.offsets)
    return [values[start:end] for start, end in pairwise(bounds)]


def _present(column: pa.ChunkedArray) -> list[np.ndarray | None]:
    """The values of each row of a column of lists, None where it is null."""
    pairs = zip(column.is_valid().to_pylist(), _arrays(column), strict=True)
    return [values if there else None for there, values in pairs]


def _rollout(row: dict[str, Any], known: Mapping[str, np.ndarray | None], **arrays: np.ndarray) -> Rollout:
    completion = Completion(
        request_id=f"{row['ticket']}", index=row["sample"], versions=tuple(VersionSpan(**s) for s in row["versions"]),
        injected=injected_mask(row["injected"], len(arrays["token_ids"])), text=row["completion"],
        finish_reason=row["finish_reason"],
        interrupted_at=row["interrupted_at"], entropies=known["entropies"], turns=tuple(row["turns"]),
        restarts=tuple(Restart(r["start"], np.array(r["prompt_ids"], np.int32)) for r in row["restarts"]),
        last_turn_at=row["last_turn_at"], **arrays,
    )  # fmt: skip
    problem = Problem(row["problem_id"], row["prompt"], row["reference"], row["domain"], row["source"])
    score, status = row["score"] or 0.0, Status(row["status"])
    verdict = Verdict(score, status, row["detail"], turn_scores=tuple(row["turn_scores"]))
    return Rollout(problem, completion, verdict, row["reward"] or 0.0, known["teacher_prompt_ids"])


def table(step: int, groups: Sequence[Group], samples: Sequence[Sample] = ()) -> pa.Table:
    """The rollouts of `groups` as a table of `SCHEMA`, with the training columns of those among the `samples`."""
    trained = {sample.id: sample for sample in samples}
    rows = [
        _row(step, group.ticket, place, rollout) | learned(group.ticket, rollout.completion, trained)
        for group in groups
        for place, rollout in enumerate(group.rollouts)
    ]
    return pa.Table.from_pylist(rows, schema=SCHEMA)


def injected_spans(injected: BoolArray) -> list[dict[str, int]]:
    """The spans [start, end) of injected tokens of a mask, bool [T]."""
    edges = np.flatnonzero(np.diff(injected, prepend=False, append=False))
    return [{"start": int(start), "end": int(end)} for start, end in edges.reshape(-1, 2)]


def injected_mask(spans: Sequence[Mapping[str, int]], length: int) -> BoolArray:
    """The mask, bool [length], of spans as the table has them."""
    mask = np.zeros(length, np.bool_)
    for span in spans:
        mask[span["start"] : span["end"]] = True
    return mask


def read(path: Path, columns: Sequence[str] | None = None) -> pa.Table:
    """The rows as a table of `SCHEMA`, or of these columns of it; a column that the file lacks is null.

    Raises:
        InputError: there is no such column.
    """
    names = SCHEMA.names if columns is None else list(columns)
    for name in names:
        if name not in SCHEMA.names:
            raise InputError(f"rollouts have no column {name!r}; {nearest(name, SCHEMA.names)}")
    with pq.ParquetFile(path) as file:
        there = file.schema_arrow.names
        chosen = [name for name in names if name in there]
        found = file.read(chosen).select(chosen)
    for place, name in enumerate(names):
        if name not in there:
            found = found.add_column(place, SCHEMA.field(name), pa.nulls(found.num_rows, SCHEMA.field(name).type))
    return found


def _row(step: int, ticket: int, sample: int, rollout: Rollout) -> dict[str, Any]:
    problem, completion, verdict = rollout.problem, rollout.completion, rollout.verdict
    return {
        "step": step,
        "ticket": ticket,
        "sample": sample,
        "problem_id": problem.id,
        "source": problem.source,
        "domain": problem.domain,
        "reference": _text(problem.reference),
        "prompt": _text(problem.prompt),
        "completion": completion.text,
        "prompt_ids": completion.prompt_ids,
        "teacher_prompt_ids": rollout.teacher_prompt_ids,
        "token_ids": completion.token_ids,
        "logprobs": completion.logprobs,
        "entropies": completion.entropies,
        "versions": [span._asdict() for span in completion.versions],
        "interrupted_at": completion.interrupted_at,
        "injected": injected_spans(completion.injected),
        "turns": completion.turns,
        "turn_scores": verdict.turn_scores,
        "restarts": [restart._asdict() for restart in completion.restarts],
        "last_turn_at": completion.last_turn_at,
        "finish_reason": completion.finish_reason,
        "reward": rollout.reward if verdict.usable else None,
        "score": verdict.score if verdict.usable else None,
        "status": str(verdict.status),
        "detail": verdict.detail,
    }


def learned(ticket: int, completion: Completion, trained: Mapping[int, Sample]) -> dict[str, FloatArray]:
    """The training columns of a completion, which was trained as one sequence or as several."""
    found: dict[str, FloatArray] = {}
    for part, (prompt_ids, start, end) in enumerate(completion.sequences):
        sample = trained.get(sample_id(ticket, completion.index, part))
        known: dict[str, FloatArray | None] = {}
        if sample is not None:
            known = {
                "advantages": sample.advantages, "trainer_logprobs": sample.trainer_logprobs, "values": sample.values
            }  # fmt: skip
            if completion.entropies is None:
                known["entropies"] = sample.trainer_entropies
        for name, column in known.items():
            if column is not None:
                whole = found.setdefault(name, np.zeros(len(completion.token_ids), dtype=np.float32))
                whole[start:end] = np.where(completion.injected[start:end], 0.0, column[len(prompt_ids) :])
    return found


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
