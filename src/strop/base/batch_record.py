"""What a training step was given beyond its rollouts, kept with them: enough to take the step again.

    record = BatchRecord(kept=(3, 5), skipped=0, states={}, inputs=inputs_of(groups), weights="…", made=made)
    rollout_table.write(path, step, groups, samples, record)        # and read back by `rollout_table.read_record`
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from hashlib import blake2b
from typing import Any

import numpy as np

from strop.base.types import Group, Rollout, first_line


@dataclass(frozen=True)
class MadeWith:
    """What the bits of a step depend on beyond the configuration.

    Fields:
        machine: a digest of torch, processor and GPU.
        threads: of torch.
        dtype: of the weights.
        chosen: the settings that were left to strop and the memory of the machine decided.
    """

    machine: str
    threads: int
    dtype: str
    chosen: tuple[str, ...]


@dataclass(frozen=True)
class BatchRecord:
    """A batch as the learner took it.

    Fields:
        kept: tickets of the groups that passed selection.
        skipped: how many of the first groups of the table are of earlier batches, which trained nothing.
        states: of stateful pieces, by path.
        inputs: digest of all that the learner reads of the groups.
        weights: digest of the parameters after the step, see `Learner.digest`.
        made: what it was made with.
    """

    kept: tuple[int, ...]
    skipped: int
    states: Mapping[str, Mapping[str, Any]]
    inputs: str
    weights: str
    made: MadeWith

    def to_json(self) -> str:
        """The record as text."""
        return json.dumps(asdict(self), separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str) -> BatchRecord:
        """The record of `to_json`.

        Raises:
            ValueError: it is none.
        """
        try:
            row = json.loads(text)
            made = MadeWith(**{**row["made"], "chosen": tuple(row["made"]["chosen"])})
            return cls(**{**row, "kept": tuple(row["kept"]), "made": made})
        except (TypeError, KeyError) as error:
            raise ValueError(first_line(error)) from error


def inputs_of(groups: Sequence[Group]) -> str:
    """A digest of what the learner reads of these groups, and of their order."""
    found = blake2b(digest_size=8)
    for group in groups:
        for rollout in group.rollouts:
            for part in _parts(rollout):
                found.update(len(part).to_bytes(8, "little"))
                found.update(part)
        found.update(f"end of {group.ticket}".encode())
    return found.hexdigest()


def _parts(rollout: Rollout) -> Iterator[bytes]:
    completion, verdict = rollout.completion, rollout.verdict
    spans = [[int(value) for value in span] for span in completion.versions]
    places = [int(place) for place in (completion.index, *completion.turns)]
    scores = [float(score) for score in verdict.turn_scores]
    reward = float(rollout.reward) if verdict.usable else None
    yield repr((places, spans, scores, reward, completion.finish_reason, verdict.usable)).encode()
    columns = [(completion.logprobs, np.float32), (completion.injected, np.bool_)]
    texts = [completion.prompt_ids, completion.token_ids, *(restart.prompt_ids for restart in completion.restarts)]
    if rollout.teacher_prompt_ids is not None:
        texts.append(rollout.teacher_prompt_ids)
    for column, kind in [*columns, *((ids, np.int32) for ids in texts)]:
        yield np.ascontiguousarray(column, dtype=kind).tobytes()
    yield repr([int(restart.start) for restart in completion.restarts]).encode()
