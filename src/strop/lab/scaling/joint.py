"""One law for runs of several model sizes: log L(N, X) = −k(N) log X + E(N), k(N) = K_max / (1 + N_0/N).

Tan et al. (arXiv 2509.25300). L is 1 − pass rate, X the compute or data spent (repeated data counts each time), N the
parameters of the model, E(N) a number for each size. Given N_0 the rest is linear, so only N_0 is searched for. The
law has no ceiling: it is not to be trusted where the pass rate levels off, nor for sizes beyond the largest, of which
E is unknown. Shapes: R runs, n points of one, S bootstrap samples.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from strop.base.text import number
from strop.base.types import InputError
from strop.lab.scaling.curves import Curve
from strop.lab.scaling.fitting import FitSettings, Interval, fit, quantiles
from strop.lab.scaling.study import TextTable, with_interval

Array = NDArray[np.float64]
SCALES = {"": 1.0, "K": 1e3, "M": 1e6, "B": 1e9, "T": 1e12}
DECADES = 3.0  # beyond the smallest and the largest size, in which N_0 is looked for
CELLS = 241
SIZES = 3  # fewer sizes give K_max and N_0 whatever the form


def parameters_of(name: str) -> float:
    """The parameters that a name such as 0.5B or 270M stands for.

    Raises:
        InputError: it is no such name.
    """
    found = re.fullmatch(r"(\d+(?:\.\d+)?)([KMBT]?)", name)
    if found is None or not float(found[1]):
        raise InputError(f"{name}: with --joint a run is named by its model's parameters, such as 0.5B=runs/small")
    return float(found[1]) * SCALES[found[2]]


@dataclass(frozen=True, eq=False)
class HeldOut:
    """Mean absolute errors of the pass rate on a run's points beyond --fit-until; None where a sigmoid was refused."""

    points: int
    joint: float
    sigmoid: float | None
    power_law: float


@dataclass(frozen=True, eq=False)
class JointFit:
    """The law fitted to several runs; `refused` is the reason in one line where N_0 and K_max are not determined.

    Attributes:
        sizes: float64 [R], N of each run.
        K_max, N_0: the efficiency that k approaches, and the size of half of it.
        E: float64 [R], natural logarithm of the loss at X = 1.
        samples: float64 [S, 2], K_max and N_0 of the bootstrap.
        residual: the root mean squared residual of log L.
        held_out: of each run with points beyond --fit-until, by name.
    """

    curves: Sequence[Curve]
    sizes: Array
    K_max: float
    N_0: float
    E: Array
    samples: Array
    residual: float
    settings: FitSettings
    held_out: Mapping[str, HeldOut]
    refused: str | None

    def k(self, size: float) -> tuple[float, Interval]:
        """k(N) with its interval."""
        drawn = self.samples[:, 0] / (1 + self.samples[:, 1] / size)
        return self.K_max / (1 + self.N_0 / size), quantiles(drawn, self.settings.level)

    def interval(self, column: int) -> Interval:
        """Of K_max (0) or N_0 (1)."""
        return quantiles(self.samples[:, column], self.settings.level)

    def pass_rate(self, run: int, compute: Array) -> Array:
        """The law's pass rate of the run's size at `compute` [m], [m]."""
        k, _ = self.k(float(self.sizes[run]))
        return 1 - np.exp(self.E[run] - k * np.log(compute))


def fit_joint(recipes: Mapping[str, Sequence[Curve]], settings: FitSettings) -> JointFit:
    """The law through all runs; the names of `recipes` are sizes (see `parameters_of`).

    Points are weighted by their standard errors where all runs have them. The bootstrap resamples the residuals of each
    run; they are those of this formula, so that an interval says nothing of another one.

    Raises:
        InputError: a name is no size, there are fewer than three sizes, or a run has too few points.
    """
    named = [(parameters_of(name), curve) for name, curves in recipes.items() for curve in curves]
    sizes = np.array([size for size, _ in named])
    if len(set(sizes)) < SIZES:
        raise InputError(f"--joint needs runs of {SIZES} model sizes or more, and has {len(set(sizes))}")
    low, high = settings.skip_until or 0.0, settings.fit_until or np.inf
    used = [curve.within(low, high) for _, curve in named]
    for curve in used:
        if len(curve) < 3 or np.any(curve.pass_rate >= 1):
            raise InputError(f"{curve.name}: --joint needs three points or more, of pass rates below 1 (log L)")
    x, y = ([f(curve) for curve in used] for f in (lambda c: np.log(c.compute), lambda c: np.log(1 - c.pass_rate)))
    weight = _weights(used)
    k_max, n_0, e = _solve(sizes, x, y, weight)
    rest = [y[i] - (e[i] - k_max / (1 + n_0 / sizes[i]) * x[i]) for i in range(len(sizes))]
    random = np.random.default_rng(settings.seed)
    samples = np.array([
        _solve(sizes, x, [y[i] - rest[i] + _redrawn(rest[i], random) for i in range(len(sizes))], weight)[:2]
        for _ in range(settings.bootstrap)
    ])  # fmt: skip
    residual = float(np.sqrt(np.mean(np.concatenate(rest) ** 2)))
    curves = [curve for _, curve in named]
    found = JointFit(curves, sizes, k_max, n_0, e, samples, residual, settings, {}, _refused(k_max, samples, sizes))
    return replace(found, held_out=_held_out(found))


def _weights(used: Sequence[Curve]) -> list[Array]:
    """1 / the variance of log L, (L / stderr)²; 1 where a run has no standard errors."""
    if any(curve.stderr is None for curve in used):
        return [np.ones(len(curve)) for curve in used]
    return [((1 - curve.pass_rate) / curve.stderr) ** 2 for curve in used if curve.stderr is not None]


def _redrawn(rest: Array, random: np.random.Generator) -> Array:
    """Residuals [n] drawn with replacement, as large as they would be without the two parameters a run has."""
    return random.choice(rest, len(rest)) * np.sqrt(len(rest) / max(len(rest) - 2, 1))


def _solve(
    sizes: Array, x: Sequence[Array], y: Sequence[Array], weight: Sequence[Array]
) -> tuple[float, float, Array]:
    """K_max, N_0 and E [R] of the least squares: a grid over log N_0, refined twice around its best cell."""
    total = [w.sum() for w in weight]
    mean_x, mean_y = ([float((w * v).sum() / t) for v, w, t in zip(z, weight, total, strict=True)] for z in (x, y))
    xx = np.array([(w * (v - m) ** 2).sum() for v, w, m in zip(x, weight, mean_x, strict=True)])
    xy = np.array([
        (w * (v - m) * (u - mu)).sum() for v, u, w, m, mu in zip(x, y, weight, mean_x, mean_y, strict=True)
    ])  # fmt: skip
    low, high = np.log(sizes.min()) - DECADES * np.log(10), np.log(sizes.max()) + DECADES * np.log(10)
    for _ in range(4):
        grid = np.linspace(low, high, CELLS)
        share = 1 / (1 + np.exp(grid)[:, None] / sizes)  # [cells, R]
        k_max = -(share @ xy) / (share**2 @ xx)
        best = int(np.argmax(np.maximum(-(share @ xy), 0) ** 2 / (share**2 @ xx)))  # what it explains
        step = grid[1] - grid[0]
        low, high, found = grid[best] - step, grid[best] + step, (float(k_max[best]), float(np.exp(grid[best])))
    k = found[0] / (1 + found[1] / sizes)
    return *found, np.array(mean_y) + k * np.array(mean_x)


def _refused(k_max: float, samples: Array, sizes: Array) -> str | None:
    """Why K_max and N_0 are no numbers to go by."""
    if k_max <= 0:
        return "the loss does not fall with compute"
    low, high = np.quantile(samples[:, 1], (0.05, 0.95))
    if high > 10 * sizes.max():
        return "no saturation yet: k grows with N throughout, so that K_max and N_0 are only known by their ratio"
    if low < sizes.min() / 100:
        return "k is that of every size alike: N_0 lies far below the smallest"
    return None


def _held_out(found: JointFit) -> dict[str, HeldOut]:
    """Errors beyond --fit-until of the law and, fitted to each run by itself, of the sigmoid and the power law."""
    if found.settings.fit_until is None:
        return {}
    errors = {}
    for run, curve in enumerate(found.curves):
        rest = curve.beyond(found.settings.fit_until)
        if len(rest):
            own = fit(curve, found.settings)
            sigmoid = own.held_back_error()
            joint, power_law = (
                float(np.abs(rate - rest.pass_rate).mean())
                for rate in (found.pass_rate(run, rest.compute), own.power_law().value(rest.compute))
            )
            errors[curve.name] = HeldOut(
                len(rest), joint, None if sigmoid is None else sigmoid.mean_absolute_error, power_law
            )
    return errors


def joint_as_json(found: JointFit) -> dict[str, Any]:
    """The fit as plain values."""
    runs = [
        {"name": curve.name, "N": float(size), "k": found.k(float(size))[0], "k_interval": found.k(float(size))[1],
         "E": float(e)}
        for curve, size, e in zip(found.curves, found.sizes, found.E, strict=True)
    ]  # fmt: skip
    return {
        "K_max": found.K_max, "N_0": found.N_0, "K_max_interval": found.interval(0), "N_0_interval": found.interval(1),
        "level": found.settings.level, "residual": found.residual, "unit": found.curves[0].unit, "runs": runs,
        "held_out": {name: asdict(error) for name, error in found.held_out.items()}, "refused": found.refused,
    }  # fmt: skip


def joint_tables(found: JointFit) -> Iterator[TextTable | str]:
    """The law, k of every run, the errors on held-out points, and how far it goes."""
    level = f"{100 * found.settings.level:g} % intervals"
    if found.refused is None:
        values = (with_interval(found.K_max, found.interval(0)), with_interval(found.N_0, found.interval(1)))
        yield TextTable((level, "K_max", "N_0", "residual of log L"), [("", *values, f"{found.residual:.4f}")])
    else:
        yield f"refused: {found.refused}"
    sizes = [float(size) for size in found.sizes]
    rows = [(curve.name, with_interval(*found.k(n))) for curve, n in zip(found.curves, sizes, strict=True)]
    yield TextTable(("run", "k"), rows)
    if found.held_out:
        yield TextTable(("held back, mean |error|", "points", "this law", "sigmoid", "power law"), [
            (name, str(e.points), f"{e.joint:.4f}",
             *("refused" if value is None else f"{value:.4f}" for value in (e.sigmoid, e.power_law)))
            for name, e in found.held_out.items()
        ])  # fmt: skip
    last = max(float(curve.compute[-1]) for curve in found.curves)
    yield (
        f"Measured up to {number(last)} {found.curves[0].words} and {number(max(sizes))} parameters. The law has no "
        "ceiling, and E of another size is unknown: beyond either it is not to be trusted."
    )
