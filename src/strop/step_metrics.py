"""What a step's groups say about the policy: rewards, pass rate, lengths, truncation, zero variance, lag."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np

from strop.metrics import Maximum, Mean, Metrics, Total
from strop.types import Group, Sample, Status


def group_metrics(groups: Sequence[Group], survivors: Collection[int]) -> Metrics:
    """Metrics over every completion of the step, dropped groups included."""
    rollouts = [rollout for group in groups for rollout in group.rollouts]
    usable = [rollout for group in groups for rollout in group.usable]
    whole = [r for r in usable if not r.completion.truncated]
    correct = [r for r in usable if r.verdict.score == 1]
    lengths = [len(r.completion.token_ids) for r in rollouts]
    uniform = sum(len({r.verdict.score for r in group.usable}) <= 1 for group in groups)
    return {
        "reward/mean": Mean(sum(r.reward for r in usable), len(usable)),
        "pass_rate": Mean(sum(r.verdict.score for r in usable), len(usable)),
        "pass_rate/whole": Mean(sum(r.verdict.score for r in whole), len(whole)),
        "length/mean": Mean(sum(lengths), len(lengths)),
        "length/max": Maximum(max(lengths, default=None)),
        "length/correct": Mean(sum(len(r.completion.token_ids) for r in correct), len(correct)),
        "truncation_rate": Mean(sum(r.completion.truncated for r in rollouts), len(rollouts)),
        "unparsed_rate": Mean(sum(r.verdict.status is Status.UNPARSED for r in rollouts), len(rollouts)),
        "verifier/failures": Total(len(rollouts) - len(usable)),
        "groups/zero_variance_share": Mean(uniform, len(groups)),
        "groups/trained": Total(len(survivors)),
        "tokens/generated": Total(sum(lengths)),
    }


def lag_metrics(samples: Sequence[Sample], version: int) -> Metrics:
    """Version trained minus version that sampled, per trained token."""
    lags = [version - sample.versions[sample.trained] for sample in samples]
    flat = np.concatenate(lags) if lags else np.zeros(0, dtype=np.int32)
    largest = float(flat.max()) if len(flat) else None
    return {"lag/mean": Mean(float(flat.sum()), len(flat)), "lag/max": Maximum(largest)}


def verifier_failures(groups: Sequence[Group]) -> list[str]:
    """A line for each kind of failure of the verifier itself, with the first detail."""
    first: dict[Status, str] = {}
    for group in groups:
        for rollout in group.rollouts:
            if not rollout.verdict.usable:
                first.setdefault(rollout.verdict.status, f"problem {group.problem.id}: {rollout.verdict.detail}")
    return [f"verifier {status}: {detail}" for status, detail in first.items()]


