"""Metrics of a step's groups: rewards, pass rates, truncation, what was solved, how much of the batch is trained on."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np

from strop.base.metrics import Maximum, Mean, Metrics, Total
from strop.base.sample import Sample, completions_of
from strop.base.types import Group, Rollout
from strop_verify.verdict import Status

_LAST_BIN = 8


def group_metrics(groups: Sequence[Group], survivors: Collection[int]) -> Metrics:
    """Metrics over every completion of the step, dropped groups included; `survivors` are the tickets trained on."""
    rollouts = [rollout for group in groups for rollout in group.rollouts]
    usable = [rollout for group in groups for rollout in group.usable]
    return {
        "reward/mean": Mean(sum(r.reward for r in usable), len(usable)),
        **_pass_rates(usable),
        "truncation_rate": _share([r.completion.truncated for r in rollouts]),
        "unparsed_rate": _share([r.verdict.status is Status.UNPARSED for r in rollouts]),
        "unknown_rate": _share([r.verdict.undecided for r in rollouts]),
        "well_formed_rate": _share([r.verdict.status is not Status.UNPARSED for r in usable]),
        "verifier/failures": Total(len(rollouts) - len(usable)),
        "verifier/failure_share": Mean(len(rollouts) - len(usable), len(rollouts)),
        "groups/zero_variance_share": _share([len({r.verdict.value for r in g.usable}) <= 1 for g in groups]),
        "groups/zero_variance_reward_share": _share([len({r.reward for r in g.usable}) <= 1 for g in groups]),
        "groups/without_baseline": Total(sum(len(g.usable) == 1 < len(g.rollouts) for g in groups)),
        "groups/trained": Total(len(survivors)),
        "tokens/generated": Total(sum(r.completion.sampled_tokens for r in rollouts)),
    }


def _pass_rates(usable: Sequence[Rollout]) -> Metrics:
    """The share that is right: of all, of those not truncated, and of each domain."""
    rates: Metrics = {
        "pass_rate": _share([r.verdict.passed for r in usable]),
        "pass_rate/whole": _share([r.verdict.passed for r in usable if not r.completion.truncated]),
    }
    domains: dict[str, list[bool]] = {}
    for rollout in usable:
        domains.setdefault(rollout.problem.domain, []).append(rollout.verdict.passed)
    for domain, passed in sorted(domains.items()):
        # The name of a domain is the user's; it must not hide the rate of whole completions.
        rates.setdefault(f"pass_rate/{domain}", _share(passed))
    return rates


def solved_metrics(groups: Sequence[Group]) -> Metrics:
    """A histogram of the groups by the share of their usable rollouts that are correct; its shares add up to 1.

    The bins are the same for every group size: none, up to ¼, ½ and ¾, the rest, all.
    """
    solved = np.array([np.mean([r.verdict.passed for r in g.usable]) for g in groups if g.usable], dtype=np.float64)
    return {
        "groups/solved_none_share": _share(solved == 0),
        "groups/solved_to_25_share": _share((solved > 0) & (solved <= 0.25)),
        "groups/solved_to_50_share": _share((solved > 0.25) & (solved <= 0.5)),
        "groups/solved_to_75_share": _share((solved > 0.5) & (solved <= 0.75)),
        "groups/solved_most_share": _share((solved > 0.75) & (solved < 1)),
        "groups/solved_all_share": _share(solved == 1),
    }


def effective_metrics(groups: Sequence[Group], samples: Sequence[Sample]) -> Metrics:
    """The effective batch: completions with an advantage other than 0 on a trained token, and their groups."""
    effective = [sample for sample in samples if np.any(sample.advantages[sample.trained])]
    prompts = len({sample.group for sample in effective})
    completions = sum(len(group.rollouts) for group in groups)
    counted = len(set(completions_of(effective)))
    return {
        "effective_batch/prompts": Total(prompts),
        "effective_batch/prompts_share": Mean(prompts, len(groups)),
        "effective_batch/completions": Total(counted),
        "effective_batch/completions_share": Mean(counted, completions),
    }


def interruption_metrics(groups: Sequence[Group]) -> Metrics:
    """Forced interruptions of thinking: how many completions, where, with which result."""
    rollouts = [rollout for group in groups for rollout in group.rollouts]
    positions = [r.completion.interrupted_at for r in rollouts if r.completion.interrupted_at is not None]
    passed = [r.verdict.passed for group in groups for r in group.usable if r.completion.interrupted_at is not None]
    return {
        "interruption/share": Mean(len(positions), len(rollouts)),
        "interruption/position": Mean(sum(positions), len(positions)),
        "interruption/pass_rate": _share(passed),
        "tokens/injected": Total(sum(int(r.completion.injected.sum()) for r in rollouts)),
    }


def environment_metrics(groups: Sequence[Group]) -> Metrics:
    """Of trajectories of several turns, or that should have several: how many turns one has, malformed calls of tools,
    and how many had no room for another turn; else nothing."""
    rollouts = [rollout for group in groups for rollout in group.rollouts]
    malformed = sum(rollout.verdict.malformed_calls for rollout in rollouts)
    no_room = sum(rollout.completion.had_no_room for rollout in rollouts)
    if not (malformed or no_room or any(rollout.completion.turns for rollout in rollouts)):
        return {}
    return {
        "environment/turns": Mean(sum(len(r.completion.turns) + 1 for r in rollouts), len(rollouts)),
        "environment/malformed_calls": Mean(malformed, len(rollouts)),
        "environment/no_room_share": Mean(no_room, len(rollouts)),
    }


def lag_metrics(samples: Sequence[Sample], version: int, max_lag: int = 0) -> Metrics:
    """Version trained minus version that sampled, per trained token; with max_lag > 0 its histogram besides.

    The shares of lag 0, 1, … 8 and of more, as far as max_lag lets them be, add up to 1.
    """
    lags = [version - sample.versions[sample.trained] for sample in samples]
    flat = np.concatenate(lags) if lags else np.zeros(0, dtype=np.int32)
    largest = float(flat.max()) if len(flat) else None
    found: Metrics = {"lag/mean": Mean(float(flat.sum()), len(flat)), "lag/max": Maximum(largest)}
    if max_lag > 0:
        bins = min(max_lag, _LAST_BIN) + 1
        found |= {f"lag/share_{lag}": _share(flat == lag) for lag in range(bins)}
    if max_lag > _LAST_BIN:
        found["lag/share_more"] = _share(flat > _LAST_BIN)
    return found


def verifier_failures(groups: Sequence[Group]) -> list[str]:
    """A line for each kind of failure of the verifier itself, with the first detail."""
    first: dict[Status, str] = {}
    for group in groups:
        for rollout in group.rollouts:
            if not rollout.verdict.usable:
                first.setdefault(rollout.verdict.status, f"problem {group.problem.id}: {rollout.verdict.detail}")
    return [f"verifier {status}: {detail}" for status, detail in first.items()]


def _share(holds: Collection[bool] | np.ndarray) -> Mean:
    return Mean(int(sum(holds)), len(holds))
