"""The stored completions of a run under another verifier, reward or shaping: what would have been trained otherwise.

    found = rejudged(RunFolder.open("runs/first"), ["verifier=MathVerifier"])    # as JSON holds it

The completions stay as they are; a policy trained with these rewards would have written others.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from strop.algorithms.settings import AlgorithmSettings
from strop.base import rollout_table
from strop.base.text import percent
from strop.base.types import Group, InputError, Rollout, Verdict
from strop.config.edits import differing
from strop.config.parse import edit, parse
from strop.config.schema import RunConfig
from strop.lab.agreement import Sampled
from strop.report.audit import openings
from strop.run.curriculum import Stages
from strop.run.folder import RunFolder, config_of_step
from strop.training.samples import is_trained_on, make_candidates, outcomes
from strop.verifiers.judge_model import keep_in
from strop.verifiers.judges import judged

REJUDGED = "rejudged.json"
EXAMPLES = 8
JUDGING = ("verifier", "algorithm.reward", "algorithm.shaping")  # what a completion's reward is made by


@dataclass(frozen=True, eq=False)
class _Batch:
    """The groups of a batch with the verdicts and rewards of one configuration."""

    groups: list[Group]
    algorithm: AlgorithmSettings

    @property
    def rollouts(self) -> list[Rollout]:
        return [rollout for group in self.groups for rollout in group.rollouts]

    def trained(self) -> set[int]:
        """Tickets of the groups that enter the loss."""
        return {group.ticket for group in self.groups if is_trained_on(group, self.algorithm)}

    def signs(self) -> dict[tuple[int, int], int]:
        """The sign of each trained completion's advantage, by ticket and index."""
        candidates = make_candidates(self.groups, self.trained(), self.algorithm.truncation_mask)
        counted = [candidate for candidate in candidates if candidate.counts]
        if not counted:
            return {}
        estimated = self.algorithm.advantage(outcomes(counted, shaping=self.algorithm.shaping))
        return {
            (self.groups[one.group].ticket, one.rollout.completion.index): int(np.sign(values.sum()))
            for one, values in zip(counted, estimated, strict=True)
            if one.trains and not one.silenced
        }


def rejudged(run: RunFolder, sets: Sequence[str], begin: int = 0, end: int | None = None) -> dict[str, Any]:
    """What other settings make of the completions of the steps after `begin` up to `end` (None: the last).

    Returns:
        `rollouts`; `pass_rate` and `reward`, each `was` and `now`, means over usable verdicts; `flips`: `to_right` and
        `to_wrong`; `failed`: verdicts that are not usable now; `groups`: how many were `trained` on, how many are
        `gained` and `lost`; `advantages`: of how many `completions` trained on both times the sign `turned`, None with
        an advantage that reads a critic or the reference policy; `steps`: the counts of each; `examples` of what
        changed, from all of the steps.

    Raises:
        InputError: the settings change nothing, or what stored completions cannot answer; or there is no completion.
    """
    steps = [step for step in run.rollout_steps() if step > begin and (end is None or step <= end)]
    if run.fine_tunes or not steps:
        raise InputError(f"{run.path} has no rollouts of these steps")
    before = {step: _config(run, step) for step in steps}
    after = {step: _changed(config, sets) for step, config in before.items()}
    with keep_in(run.path):
        verdicts = _verdicts(run, before, after)
    rows: list[dict[str, float]] = []
    changed: list[dict[str, Any]] = []
    for step in steps:
        skipped = rollout_table.read_record(run.rollouts_path(step)).skipped
        groups = rollout_table.read_groups(run.rollouts_path(step))
        again = [_again(group, after[step].algorithm, verdicts) for group in groups]
        row: dict[str, float] = {"step": step}
        for part in (slice(0, skipped), slice(skipped, None)):
            sides = _Batch(groups[part], before[step].algorithm), _Batch(again[part], after[step].algorithm)
            counts, own = _counted(*sides)
            row = {name: row.get(name, 0) + counts.get(name, 0) for name in {**row, **counts}}
            changed += [{"step": step, **one} for one in own]
        rows.append(row)
    return _summary(sets, rows, changed)


def _config(run: RunFolder, step: int) -> RunConfig:
    """The configuration of a step, that of its stage."""
    stages = Stages(parse(config_of_step(run, step), str(run.config_path)))
    for done in range(1, step):
        stages.advance(done)
    return stages.config


def _changed(config: RunConfig, sets: Sequence[str]) -> RunConfig:
    found = edit(config, list(sets))
    keys = [key for key, *_ in differing(config.model_dump(mode="json"), found.model_dump(mode="json"))]
    if not keys:
        raise InputError("--set: these are the settings of the run; name others, such as verifier=MathVerifier")
    for key in keys:
        if not key.startswith(JUDGING):
            raise InputError(
                f"--set {key}: completions are judged again under {', '.join(JUDGING)}; what else changes a gradient "
                f"is compared by strop replay RUN --set {key}=…"
            )
    if config.environment is not None and found.verifier != config.verifier:
        raise InputError("--set verifier: the run's environment took part in the verdicts, and is not stored")
    return found


def _verdicts(
    run: RunFolder, before: dict[int, RunConfig], after: dict[int, RunConfig]
) -> Iterator[Verdict] | None:
    """The new verdict on each completion in the order of the tables; None where the verifier is the same."""
    if all(before[step].verifier == after[step].verifier for step in before):
        return None
    opened = openings(run)
    asked = []
    for step in before:
        for group in rollout_table.read_groups(run.rollouts_path(step)):
            for rollout in group.rollouts:
                completion = rollout.completion
                extra = {} if completion.turns else {"opening": opened({"prompt_ids": completion.prompt_ids})}
                text = completion.text[completion.last_turn_at or 0 :]
                asked.append(Sampled(replace(rollout.problem, extra=extra), text, completion.truncated))
    return iter(judged(after[max(after)].verifier, asked))


def _again(group: Group, algorithm: AlgorithmSettings, verdicts: Iterator[Verdict] | None) -> Group:
    """The group with new verdicts and rewards."""
    rollouts = []
    for rollout in group.rollouts:
        verdict = rollout.verdict if verdicts is None else next(verdicts)
        reward = algorithm.reward_of(rollout.completion, verdict) if verdict.usable else 0.0
        rollouts.append(replace(rollout, verdict=verdict, reward=reward))
    return replace(group, rollouts=tuple(rollouts))


def _counted(was: _Batch, now: _Batch) -> tuple[dict[str, float], list[dict[str, Any]]]:
    """The counts of a batch, and a row for each completion whose verdict or sign changed."""
    counts: dict[str, float] = {}

    def count(**more: float) -> None:
        counts.update({name: counts.get(name, 0) + value for name, value in more.items()})

    trained, trained_now = was.trained(), now.trained()
    count(trained=len(trained), gained=len(trained_now - trained), lost=len(trained - trained_now))
    known = not (was.algorithm.advantage.needs_values or was.algorithm.kl_in_reward)
    signs, signs_now = (was.signs(), now.signs()) if known else ({}, {})
    changed = []
    for group, again in zip(was.groups, now.groups, strict=True):
        for one, other in zip(group.rollouts, again.rollouts, strict=True):
            place = group.ticket, one.completion.index
            turned = signs.get(place, 0) * signs_now.get(place, 0) < 0
            passed, passed_now = (each.verdict.usable and each.verdict.passed for each in (one, other))
            count(
                rollouts=1, usable=one.verdict.usable, usable_now=other.verdict.usable, right=passed,
                right_now=passed_now, reward=one.reward, reward_now=other.reward, to_right=passed_now and not passed,
                to_wrong=passed and not passed_now, turned=turned, compared=place in signs and place in signs_now,
            )  # fmt: skip
            if passed != passed_now or turned:
                changed.append(_example(group.ticket, (one, signs.get(place, 0)), (other, signs_now.get(place, 0))))
    return counts, changed


def _example(ticket: int, was: tuple[Rollout, int], now: tuple[Rollout, int]) -> dict[str, Any]:
    """A completion with the sign of its advantage, each before and now."""
    sides = {
        name: {"status": str(one.verdict.status), "detail": one.verdict.detail, "reward": one.reward, "sign": sign}
        for name, (one, sign) in (("was", was), ("now", now))
    }
    completion, problem = was[0].completion, was[0].problem
    text = completion.text[completion.last_turn_at or 0 :]
    return {
        "ticket": ticket, "sample": completion.index, "question": problem.question,
        "reference": str(problem.reference), "completion": text, **sides,
    }  # fmt: skip


def _summary(sets: Sequence[str], rows: list[dict[str, float]], changed: list[dict[str, Any]]) -> dict[str, Any]:
    total = {name: sum(row.get(name, 0) for row in rows) for name in {name for row in rows for name in row}}

    def means(name: str) -> dict[str, float | None]:
        usable = total["usable"], total["usable_now"]
        values = total[name], total[f"{name}_now"]
        was, now = (value / count if count else None for value, count in zip(values, usable, strict=True))
        return {"was": was, "now": now}

    every = max(1, len(changed) // EXAMPLES)
    kept = ("step", "to_right", "to_wrong", "turned", "gained", "lost")
    return {
        "settings": list(sets), "rollouts": total["rollouts"], "pass_rate": means("right"), "reward": means("reward"),
        "flips": {name: total[name] for name in ("to_right", "to_wrong")},
        "failed": total["rollouts"] - total["usable_now"],
        "groups": {name: total[name] for name in ("trained", "gained", "lost")},
        "advantages": {"completions": total["compared"], "turned": total["turned"]} if total["compared"] else None,
        "steps": [{name: row.get(name, 0) for name in kept} for row in rows],
        "examples": changed[::every][:EXAMPLES],
    }  # fmt: skip


def lines(found: dict[str, Any]) -> list[tuple[str, ...]]:
    """The rows of a table of what `rejudged` returned: what, before, now."""
    rate, reward, groups, flips = (found[name] for name in ("pass_rate", "reward", "groups", "flips"))
    rows: list[tuple[str, ...]] = [
        ("right", *(_said(rate[side], percent) for side in ("was", "now"))),
        ("reward", *(_said(reward[side], "{:.4g}".format) for side in ("was", "now"))),
        ("verdicts turned", f"{flips['to_wrong']} right to wrong", f"{flips['to_right']} wrong to right"),
        ("groups trained on", f"{groups['trained']}", f"{groups['gained']} gained, {groups['lost']} lost"),
    ]
    advantages = found["advantages"]
    if advantages is not None:
        of = f"of {advantages['completions']} completions"
        rows.append(("signs of advantages", "", f"{advantages['turned']} {of} turned"))
    return rows


def example_rows(found: dict[str, Any]) -> list[tuple[str, ...]]:
    """The rows of a table of the examples: step, question, reference, how the completion ends, its verdicts."""
    return [
        (
            str(one["step"]), one["question"][-SHOWN:], one["reference"][:SHOWN], one["completion"][-SHOWN:],
            *(f"{one[side]['status']}, {one[side]['reward']:.4g}{SIGNS[one[side]['sign']]}" for side in ("was", "now")),
        )
        for one in found["examples"]
    ]  # fmt: skip


SHOWN = 200  # characters
SIGNS = {-1: ", advantage < 0", 0: "", 1: ", advantage > 0"}


def _said(value: float | None, write: Any) -> str:
    return "-" if value is None else str(write(value))
