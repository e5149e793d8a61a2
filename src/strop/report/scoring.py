"""What a model says of the tokens of recorded rollouts: entropies, log-probs, values; and what follows from them.

R rollouts, T completion tokens of one, M scored tokens of all.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import nn

from strop.base.types import FloatArray, IntArray, Sample, Status
from strop.report.runs import RunData
from strop.report.snapshots import Models, Snapshot
from strop.training.scoring import score_samples

RolloutRow = dict[str, Any]
Doubles = NDArray[np.float64]

TOKENS_PER_PASS = 4096
SCORED_TOKENS = 24_000  # of a step's rollouts, prompts included; whole prompts are taken up to it
FEWEST_TOKENS = 1_000  # of them for a model so large that a CPU takes long
QUICK_PARAMETERS = 500_000_000  # beyond which as many fewer tokens are scored
PROBE_TOKENS = 2_000
SAME_MODEL = 0.2  # nats a token that recorded and recomputed log-probs may differ by on average
QUANTILE = 0.8  # tokens at or above it reason (Archer, Eq. 4 and 5)


@dataclass(frozen=True, eq=False)
class Batch:
    """Rollouts of one step under one model, M tokens, injected ones left out.

    Attributes:
        rows: R rows of the rollout table.
        rollout: int [M], index into `rows`.
        token_id: int [M].
        recorded: float [M], log-probs of the generator.
        logprob: float [M], log-probs of the model, at the run's temperature.
        entropy: float [M], its entropies, nats.
        step: whose rollouts they are.
        snapshot: the model.
        left_out: rollouts of the step beyond the budget.
    """

    rows: Sequence[RolloutRow]
    rollout: IntArray
    token_id: IntArray
    recorded: FloatArray
    logprob: FloatArray
    entropy: FloatArray
    step: int
    snapshot: Snapshot
    left_out: int

    def by_rollout(self, values: FloatArray) -> Doubles:
        """The mean of `values` [M] in each rollout, [R]; NaN where one has no token."""
        counts = np.bincount(self.rollout, minlength=len(self.rows))
        sums = np.bincount(self.rollout, weights=values, minlength=len(self.rows))
        return np.where(counts > 0, sums / np.maximum(counts, 1), np.nan)

    def advantage_sign(self) -> NDArray[np.int8]:
        """The sign of each rollout's reward against the mean of its prompt's, int8 [M].

        0 where the rewards are all alike, and for rollouts that the verifier failed on.
        """
        rewards = np.array([row["reward"] for row in self.rows], dtype=np.float64)
        usable = np.array([row["status"] not in (Status.TIMEOUT, Status.ERROR) for row in self.rows])
        tickets = np.array([row["ticket"] for row in self.rows])
        centred = np.zeros(len(rewards))
        for ticket in np.unique(tickets):
            members = (tickets == ticket) & usable
            if members.any():
                centred[members] = rewards[members] - rewards[members].mean()
        signs = np.where(np.abs(centred) < 1e-9, 0, np.sign(centred)).astype(np.int8)
        return signs[self.rollout]

    def reasoning(self) -> NDArray[np.bool_]:
        """Tokens at or above the 80 % quantile of the entropies of their own response, bool [M]."""
        import torch

        from strop.algorithms.token_types import group_quantile

        entropy = torch.from_numpy(self.entropy.astype(np.float64))
        group = torch.from_numpy(self.rollout.astype(np.int64))
        found: NDArray[np.bool_] = (entropy >= group_quantile(entropy, group, QUANTILE)).numpy()
        return found


def temperature_of(run: RunData) -> float:
    """What recorded log-probs were divided by; greedy sampling records them at 1."""
    assert run.config is not None
    return run.config.sampling.temperature or 1.0


def sample_of(row: RolloutRow) -> Sample:
    """A rollout as a sequence to score: its completion is `trained` but for injected tokens."""
    prompt, completion = row["prompt_ids"], row["token_ids"]
    injected = np.zeros(len(completion), dtype=np.bool_)
    if row["interrupted_at"] is not None:
        injected[row["interrupted_at"] : row["interrupted_at"] + row["injected_tokens"]] = True
    length = len(prompt) + len(completion)
    logprobs = np.zeros(length, dtype=np.float32)
    logprobs[len(prompt) :] = row["logprobs"]
    trained = np.concatenate([np.zeros(len(prompt), dtype=np.bool_), ~injected])
    if length:
        trained[0] = False
    return Sample(
        token_ids=np.array([*prompt, *completion], dtype=np.int32),
        trained=trained,
        logprobs=logprobs,
        advantages=np.zeros(length, dtype=np.float32),
        versions=np.zeros(length, dtype=np.int32),
        group=0,
    )


def score_rows(module: nn.Module, rows: Sequence[RolloutRow], temperature: float) -> tuple[list[FloatArray], ...]:
    """The module's two outputs on the completion tokens of each row, float32 [T] each, 0 on injected ones."""
    samples = [sample_of(row) for row in rows]
    first, second = score_samples(module, samples, temperature, TOKENS_PER_PASS)
    starts = [len(row["prompt_ids"]) for row in rows]
    return tuple([column[start:] for column, start in zip(columns, starts, strict=True)] for columns in (first, second))


def score_batch(
    run: RunData, models: Models, snapshot: Snapshot, step: int, rows: Sequence[RolloutRow]
) -> Batch | None:
    """The rollouts `rows` of `step` under a snapshot; None where they have no token."""
    kept = _within_budget(rows, token_budget(models.policy.computing_parameters))
    if not any(sample_of(row).trained_tokens for row in kept):
        return None
    logprobs, entropies = score_rows(models.become(snapshot), kept, temperature_of(run))
    masks = [sample_of(row).trained[len(row["prompt_ids"]) :] for row in kept]

    def flat(columns: Sequence[Any], kind: type) -> Any:
        parts: list[Any] = [np.asarray(column, dtype=kind)[mask] for column, mask in zip(columns, masks, strict=True)]
        return np.concatenate(parts)

    return Batch(
        rows=kept,
        rollout=np.repeat(np.arange(len(kept)), [int(mask.sum()) for mask in masks]).astype(np.int32),
        token_id=flat([row["token_ids"] for row in kept], np.int32),
        recorded=flat([row["logprobs"] for row in kept], np.float32),
        logprob=flat(logprobs, np.float32),
        entropy=flat(entropies, np.float32),
        step=step,
        snapshot=snapshot,
        left_out=len(rows) - len(kept),
    )


def token_budget(parameters: int) -> int:
    """How many tokens a model of that size scores, so that a report takes minutes on a CPU."""
    return max(FEWEST_TOKENS, min(SCORED_TOKENS, SCORED_TOKENS * QUICK_PARAMETERS // max(parameters, 1)))


def _within_budget(rows: Sequence[RolloutRow], budget: int) -> list[RolloutRow]:
    """Whole prompts from the first on, as many as fit; the first always."""
    kept: list[RolloutRow] = []
    spent = 0
    for ticket in dict.fromkeys(row["ticket"] for row in rows):
        group = [row for row in rows if row["ticket"] == ticket]
        spent += sum(len(row["prompt_ids"]) + len(row["token_ids"]) for row in group)
        if kept and spent > budget:
            break
        kept += group
    return kept


# ---------------------------------------------------------------------- which rollouts a model has written


def versions_of(row: RolloutRow) -> set[int]:
    """The weight versions that sampled a rollout."""
    return {span["version"] for span in row["versions"] if span["end"] > span["start"]}


def rollouts_of_version(run: RunData, version: int, after: int) -> tuple[int, list[RolloutRow]] | None:
    """A step after `after` and its rollouts that were sampled by `version` from end to end; None where there is none.

    They are in the next step's file, or in one of the few after it where generation runs ahead.
    """
    lag = run.config.orchestration.max_lag if run.config is not None else 0
    for step in run.folder.rollout_steps():
        if after < step <= after + lag + 1:
            rows = [row for row in run.folder.read_rollouts(step) if versions_of(row) == {version}]
            if rows:
                return step, rows
    return None


def check_start(run: RunData, models: Models) -> None:
    """Drop a starting model that does not give the log-probs the first rollouts were recorded with."""
    start = models.start
    if start is None:
        return
    found = rollouts_of_version(run, 0, 0)
    if found is None:
        return  # nothing contradicts it
    batch = score_batch(run, models, start, found[0], _within_budget(found[1], PROBE_TOKENS))
    if batch is None:
        return
    gap = float(np.abs(batch.logprob - batch.recorded).mean())
    if not gap < SAME_MODEL:
        models.drop_start(
            f"the starting model at hand is not the one the run began with: its log-probs of the first rollouts differ "
            f"by {gap:.3g} nats a token on average"
        )


def matched(run: RunData, models: Models) -> Batch | None:
    """The latest rollouts that one of the models at hand has sampled itself, scored by that model."""
    for snapshot in reversed(models.snapshots):
        if snapshot.version is None:
            continue
        found = rollouts_of_version(run, snapshot.version, snapshot.step)
        if found is not None:
            return score_batch(run, models, snapshot, *found)
    return None


def after_update(run: RunData, models: Models) -> Batch | None:
    """The rollouts of the latest step whose updated weights are at hand, under those weights."""
    steps = set(run.folder.rollout_steps())
    for snapshot in reversed(models.snapshots):
        if snapshot.step in steps:
            return score_batch(run, models, snapshot, snapshot.step, run.folder.read_rollouts(snapshot.step))
    return None
