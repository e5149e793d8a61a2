"""Collects the results of an ablation from its run folders, during the runs and after them."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np

from strop.base.metrics_file import by_step, read_metrics
from strop.base.progress import part
from strop.base.types import InputError
from strop.lab.ablation.manifest import Manifest, RunEntry, read_manifest
from strop.lab.ablation.power import look_level
from strop.lab.scaling.compare import ENOUGH_SEEDS, MARGIN, CurveComparison, Refit, compare, joint_refit
from strop.lab.scaling.curves import PASS_RATE, Curve, Unit, read_curve
from strop.lab.scaling.fitting import Fit, FitSettings, Interval, fit
from strop.run.folder import is_run

Verdict = Literal["better", "worse", "same", "undecided"]


class SeedMean(NamedTuple):
    """A mean over `n` seeds; its standard error is None where there is only one seed."""

    value: float
    stderr: float | None
    n: int


class Paired(NamedTuple):
    """The mean over `n` seeds of variant minus base; `interval` by Student's t, None where there is only one seed."""

    value: float
    interval: Interval | None
    n: int
    level: float


def mean(values: Sequence[float]) -> SeedMean | None:
    """Mean and standard error s/√n, s with n − 1; None without a value."""
    if not values:
        return None
    array = np.asarray(values, np.float64)
    error = float(array.std(ddof=1) / math.sqrt(len(array))) if len(array) > 1 else None
    return SeedMean(float(array.mean()), error, len(array))


def paired(differences: Sequence[float], level: float) -> Paired | None:
    """Mean ± t_{n−1} · s/√n of differences seed by seed; None without one.

    With few seeds a bootstrap of the seeds is far too narrow (three seeds have ten distinct samples); the t interval is
    wide enough.
    """
    found = mean(differences)
    if found is None:
        return None
    if found.stderr is None:
        return Paired(found.value, None, 1, level)
    from scipy.special import stdtrit

    half = float(stdtrit(found.n - 1, (1.0 + level) / 2.0)) * found.stderr
    return Paired(found.value, (found.value - half, found.value + half), found.n, level)


def verdict(difference: Paired | None, margin: float = MARGIN) -> Verdict:
    """The verdict on a difference of pass rates: better or worse than the base by more than the margin, or the same.

    Better or worse: the mean lies beyond the margin and the interval excludes 0. The same: the whole interval lies
    within the margin, with at least three seeds. Otherwise undecided.
    """
    if difference is None or difference.interval is None:
        return "undecided"
    low, high = difference.interval
    if abs(difference.value) > margin and not low <= 0.0 <= high:
        return "better" if difference.value > 0 else "worse"
    return "same" if difference.n >= ENOUGH_SEEDS and -margin <= low and high <= margin else "undecided"


def until_decided(differences: Sequence[float], level: float, margin: float = MARGIN) -> Paired | None:
    """The paired difference at the first look that decides, from the third seed on; else that of all seeds.

    The interval has the level of a look, so that the verdict on what is returned is right with probability `level`;
    before the third seed there is none.
    """
    if len(differences) < ENOUGH_SEEDS:
        found = paired(differences, look_level(level))
        return None if found is None else found._replace(interval=None)
    looks = [paired(differences[:n], look_level(level)) for n in range(ENOUGH_SEEDS, len(differences) + 1)]
    return next((look for look in looks if verdict(look, margin) != "undecided"), looks[-1])


def spikes(values: Sequence[float]) -> int:
    """How many values exceed 3 times the median of all (of gradient norms: steps that jumped)."""
    return int((np.asarray(values) > 3 * float(np.median(values))).sum()) if values else 0


Rows = Sequence[Mapping[str, float | None]]
BOOTSTRAP = 200


@dataclass(frozen=True, eq=False)
class RunResult:
    """The result of one run. Pass rates are fractions on the held-out problems; values that were not measured are None.

    Attributes:
        step: the last step of metrics.jsonl, of `steps`.
        final: pass rate of the last step; None before the run is finished.
        truncation: the largest share of truncated completions of a step. `mismatch` likewise, in nats.
        entropy: mean over the last tenth of the steps, in nats a token.
        grad_spikes: steps whose gradient norm exceeds 3 times the median of the run's.
        device_seconds: of generators and trainers, without evaluation; `wall_seconds` of all steps with it,
            that before training too.
        curve: over compute in the unit asked for; None before the second evaluation. `fit` is that of it.
    """

    entry: RunEntry
    step: int
    steps: int
    final: float | None
    truncation: float | None
    entropy: float | None
    mismatch: float | None
    grad_spikes: float | None
    device_seconds: float | None
    wall_seconds: float | None
    curve: Curve | None
    fit: Fit | None

    @property
    def seed(self) -> int:
        return self.entry.seed


@dataclass(frozen=True, eq=False)
class VariantResult:
    """The results of a variant over its seeds. Means and differences are over finished runs.

    Attributes:
        pairs: final pass rate, variant minus base, of each seed of which both are finished; empty for the base.
        difference: their mean with its interval, of as many as decide where the ablation is run until decided; None
            for the base, and before there is a pair.
        comparison: of the fits of both, where both have some; it decides the verdict, the difference where it is None.
        refits: the fits again with A fixed to the average over all runs of the ablation, so that B and C_mid compare
            between variants (ScaleRL, Figure 5); empty where fewer than two variants have fits.
    """

    name: str
    changes: Mapping[str, tuple[str, str]]
    runs: tuple[RunResult, ...]
    pairs: tuple[float, ...]
    difference: Paired | None
    comparison: CurveComparison | None
    refits: tuple[Refit, ...]
    margin: float

    @property
    def is_base(self) -> bool:
        return not self.changes

    @property
    def finished(self) -> tuple[RunResult, ...]:
        return tuple(run for run in self.runs if run.entry.state == "finished")

    @property
    def fits(self) -> tuple[Fit, ...]:
        """The accepted fits."""
        return tuple(run.fit for run in self.runs if run.fit is not None and run.fit.sigmoid is not None)

    @property
    def refusals(self) -> tuple[str, ...]:
        """Why fits were refused, each reason once."""
        reasons = (run.fit.refused for run in self.runs if run.fit is not None)
        return tuple(dict.fromkeys(reason for reason in reasons if reason is not None))

    def mean(self, of: Callable[[RunResult], float | None]) -> SeedMean | None:
        """The mean over the seeds whose run is finished and has the value."""
        values = [of(run) for run in self.finished]
        return mean([value for value in values if value is not None])

    def largest(self, of: Callable[[RunResult], float | None]) -> float | None:
        """The largest value over all seeds, unfinished and failed runs included."""
        return max((value for value in map(of, self.runs) if value is not None), default=None)

    @property
    def verdict(self) -> Verdict | None:
        """Against the base, beyond the margin; None for the base."""
        if self.is_base:
            return None
        if self.comparison is None or self.comparison.verdict == "undecided":
            # If the fits do not decide, the final pass rates may.
            return verdict(self.difference, self.margin)
        if self.comparison.better is None:
            return "same"
        return "better" if self.comparison.better == self.name else "worse"

    @property
    def by(self) -> str | None:
        """The basis of the verdict: `A`, `B`, `C_mid`, or `final` for the final pass rate; None where undecided."""
        if self.verdict in (None, "undecided"):
            return None
        if self.comparison is None or self.comparison.verdict == "undecided":
            return "final"
        return self.comparison.by or "fit"


@dataclass(frozen=True, eq=False)
class Ablation:
    """The results of an ablation; the base is the first variant."""

    folder: Path
    manifest: Manifest
    variants: tuple[VariantResult, ...]
    unit: Unit
    level: float
    margin: float

    @property
    def finished(self) -> bool:
        return all(run.state == "finished" for run in self.manifest.runs)

    @property
    def undecided(self) -> list[str]:
        """The variants that more seeds may decide: undecided, and none of their runs has failed."""
        failed = {run.variant for run in self.failures}
        names = [variant.name for variant in self.variants if variant.verdict == "undecided"]
        return [name for name in names if name not in failed]

    @property
    def asymptote(self) -> float | None:
        """The A that `refits` share; None where there are none."""
        return next((each.sigmoid.A for variant in self.variants for each in variant.refits), None)

    @property
    def failures(self) -> tuple[RunEntry, ...]:
        return tuple(run for run in self.manifest.runs if run.state == "failed")


def collect(
    folder: Path,
    unit: Unit = "device_hours",
    settings: FitSettings | None = None,
    margin: float = MARGIN,
) -> Ablation:
    """Read the runs of an ablation, fit their curves, compare the variants with the base.

    Args:
        unit: of compute in curves and fits.
        settings: of every fit; their level is that of all intervals.
        margin: of the verdicts, in pass rate; ScaleRL's ± 0.02 by default.

    Raises:
        InputError: the folder is no ablation, or a metrics file is broken.
    """
    manifest = read_manifest(folder)
    settings = (settings or FitSettings()).model_copy(update={"bootstrap": BOOTSTRAP})
    results: list[RunResult] = []
    for run in manifest.runs:
        part("runs", len(results), len(manifest.runs))
        results.append(_run_result(folder, manifest, run, unit, settings))
    by_name = {v.name: tuple(run for run in results if run.entry.variant == v.name) for v in manifest.variants}
    base = by_name[manifest.base.name]
    joint = _joint(by_name)
    variants = []
    for entry in manifest.variants:
        runs, is_base = by_name[entry.name], entry is manifest.base
        pairs = () if is_base else _pairs(runs, base)
        if manifest.until_decided:  # fits were not part of the looks, so they have no say
            against, difference = None, until_decided(pairs, settings.level, margin)
        else:
            against = None if is_base else compare(entry.name, _fits(runs), manifest.base.name, _fits(base), margin)
            difference = paired(pairs, settings.level)
        refits = tuple(each for each in joint if each.fit in _fits(runs))
        variants.append(VariantResult(entry.name, entry.changes, runs, pairs, difference, against, refits, margin))
    return Ablation(folder, manifest, tuple(variants), unit, settings.level, margin)


def pairs_by_step(folder: Path) -> dict[str, dict[int, list[float]]]:
    """Pass rate of each variant minus the base's after each step evaluated in both, of every seed finished in both."""
    manifest = read_manifest(folder)
    rates = {
        (run.variant, run.seed): by_step(read_metrics(manifest.path(folder, run) / "metrics.jsonl"), PASS_RATE)
        for run in manifest.runs if run.state == "finished"
    }  # fmt: skip
    found: dict[str, dict[int, list[float]]] = {variant.name: {} for variant in manifest.variants[1:]}
    for (variant, seed), own in rates.items():
        base = rates.get((manifest.base.name, seed), {})
        if variant != manifest.base.name:
            for step in own.keys() & base.keys() - {0}:
                found[variant].setdefault(step, []).append(own[step] - base[step])
    return found


def _fits(runs: Sequence[RunResult]) -> list[Fit]:
    return [run.fit for run in runs if run.fit is not None]


def _joint(by_name: Mapping[str, Sequence[RunResult]]) -> list[Refit]:
    """All accepted fits with A fixed to their average; none where there is nothing to compare."""
    fits = [_fits(runs) for runs in by_name.values()]
    if sum(any(fit.sigmoid is not None for fit in members) for members in fits) < 2:
        return []
    return joint_refit([fit for members in fits for fit in members])


def _pairs(runs: Sequence[RunResult], base: Sequence[RunResult]) -> tuple[float, ...]:
    """Final pass rate minus that of the base, for every seed of which both are finished."""
    finals = {run.seed: run.final for run in base}
    found = []
    for run in runs:
        against = finals.get(run.seed)
        if run.final is not None and against is not None:
            found.append(run.final - against)
    return tuple(found)


def _run_result(folder: Path, manifest: Manifest, run: RunEntry, unit: Unit, settings: FitSettings) -> RunResult:
    path = manifest.path(folder, run)
    rows: Rows = read_metrics(path / "metrics.jsonl")
    rates = by_step(rows, PASS_RATE)
    trained = [rate for step, rate in rates.items() if step]
    curve = _curve(path, run, unit) if trained else None
    entropies, norms = _values(rows, "entropy"), _values(rows, "grad_norm")
    tail = entropies[-max(1, len(entropies) // 10) :]
    latest = list(rates.values())[-1] if rates else None
    return RunResult(
        entry=run,
        step=max((int(row["step"] or 0) for row in rows), default=0),
        steps=int(manifest.variant(run.variant).config["steps"]),
        final=latest if run.state == "finished" and trained else None,
        truncation=max(_values(rows, "truncation_rate"), default=None),
        entropy=sum(tail) / len(tail) if tail else None,
        mismatch=max(_values(rows, "mismatch/max"), default=None),
        grad_spikes=float(spikes(norms)) if norms else None,
        device_seconds=max(_values(rows, "compute/device_seconds"), default=None),
        wall_seconds=_wall_seconds(rows) if rows else None,
        curve=curve,
        fit=None if curve is None else fit(curve, settings),
    )


def _curve(path: Path, run: RunEntry, unit: Unit) -> Curve | None:
    if not is_run(path):
        return None
    try:
        return read_curve(path, unit, name=run.label)
    except InputError:
        return None  # no evaluation before training, which fits need; the table still has the pass rates


def _wall_seconds(rows: Rows) -> float:
    """Of all steps; the time of step 0 is that of its evaluation, which other steps have among their own."""
    before_training = by_step(rows, "seconds/evaluation").get(0, 0.0)
    return before_training + sum(_values(rows, "seconds/step"))


def _values(rows: Rows, name: str) -> list[float]:
    return list(by_step(rows, name).values())
