"""The study of `strop fit`: curves fitted and compared, as plain JSON values and as tables for a terminal.

    {"fits": [{name, A, B, C_mid, R_0, A_interval, B_interval, C_mid_interval, level, sse, predictions, refused}], …}

Compute is in the `unit` of each fit. `R_0` is the measured one; `curve_R_0` is where the curve starts, within the noise
of that measurement. A refused fit has null for every number but `level`, and the reason under `refused`. Intervals are
[low, high]. The `interval` of a prediction is that of the curve, `measured` that of a measurement there.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import combinations
from typing import Any, NamedTuple

from pydantic import ValidationError

from strop.base.pieces import refused_flag
from strop.base.progress import part
from strop.base.text import number
from strop.base.types import InputError
from strop.lab.ablation.collect import SeedMean, mean
from strop.lab.scaling.compare import (
    MARGIN,
    CurveComparison,
    Refit,
    Seeds,
    compare,
    joint_refit,
    seeds,
)
from strop.lab.scaling.curves import Curve
from strop.lab.scaling.fitting import PARAMETERS, Fit, FitSettings, fit


def fit_settings(given: Mapping[str, object]) -> FitSettings:
    """The settings with these fields.

    Raises:
        InputError: a value is out of its range.
    """
    until, skip = given["fit_until"], given["skip_until"]
    if isinstance(until, float) and isinstance(skip, float) and until <= skip:
        raise InputError(f"--fit-until {until:g} does not lie beyond --skip-until {skip:g}")
    try:
        return FitSettings.model_validate(given)
    except ValidationError as error:
        raise refused_flag(error) from error


def computes(flag: str, text: str) -> list[float]:
    """Computes with commas between.

    Raises:
        InputError: one of them is no positive number.
    """
    try:
        found = [float(part) for part in text.split(",") if part.strip()]
    except ValueError as error:
        raise InputError(f"{flag} {text}: write numbers with commas between, such as 16000,100000") from error
    if not all(0 < value < float("inf") for value in found):
        raise InputError(f"{flag} {text}: computes are positive numbers")
    return found

MOST_RECIPES = 12  # whose pairs are compared: beyond that the table cannot be read


@dataclass(frozen=True, eq=False)
class Study:
    """Fits and what was made of them.

    Attributes:
        fits: one a curve, in the order given.
        predict: the computes asked for.
        joint: all accepted fits with A fixed to their average; empty for a single one.
        comparisons: every pair of recipes, where there are at most 12.
        seeds: the scatter of each recipe with several seeds.
    """

    fits: Sequence[Fit]
    predict: Sequence[float] = ()
    joint: Sequence[Refit] = ()
    comparisons: Sequence[CurveComparison] = ()
    seeds: Sequence[Seeds] = ()


def fit_study(
    recipes: Mapping[str, Sequence[Curve]],
    settings: FitSettings,
    predict: Sequence[float] = (),
    margin: float = MARGIN,
) -> Study:
    """Fit every curve and compare what was fitted: every pair of recipes, all with A fixed to the average, their seeds.

    Args:
        recipes: curves by recipe.
        settings: of every fit.
        predict: computes to predict at.
        margin: by how much A must differ to count.
    """
    fitted: dict[str, list[Fit]] = {}
    for recipe, curves in recipes.items():
        for curve in curves:
            part("curves", sum(map(len, fitted.values())), sum(map(len, recipes.values())))
            fitted.setdefault(recipe, []).append(fit(curve, settings))
    fits = [found for members in fitted.values() for found in members]
    pairs = combinations(fitted, 2) if len(fitted) <= MOST_RECIPES else ()
    compared = (compare(first, fitted[first], second, fitted[second], margin) for first, second in pairs)
    return Study(
        fits,
        predict,
        joint_refit(fits) if len(fits) > 1 else (),
        [each for each in compared if each is not None],
        [seeds(name, members) for name, members in fitted.items() if len(members) > 1],
    )


def as_json(found: Study) -> dict[str, Any]:
    """The whole study as plain values; no NaN, no infinity."""
    value: dict[str, Any] = {"fits": [_fit(each, found.predict) for each in found.fits]}
    if found.joint:
        refits = [
            {"name": each.fit.name, "B": each.sigmoid.B, "C_mid": each.sigmoid.C_mid, "B_interval": each.b_interval,
             "C_mid_interval": each.c_mid_interval, "sse": each.sse}
            for each in found.joint
        ]  # fmt: skip
        value["joint"] = {"A": found.joint[0].sigmoid.A, "fits": refits}
    if found.comparisons:
        value["comparisons"] = [asdict(each) | {"text": str(each)} for each in found.comparisons]
    if found.seeds:
        value["seeds"] = [
            {"recipe": each.recipe, "asymptotes": each.asymptotes, "mean": each.mean if each.asymptotes else None,
             "largest_deviation": each.deviation if each.asymptotes else None, "enough": each.enough}
            for each in found.seeds
        ]  # fmt: skip
    return value


def _fit(found: Fit, predict: Sequence[float]) -> dict[str, Any]:
    """One entry of `fits`."""
    sigmoid, held = found.sigmoid, found.held_back_error()
    names = ("A", "B", "C_mid", "R_0", "A_interval", "B_interval", "C_mid_interval")
    value: dict[str, Any] = {"name": found.name, **dict.fromkeys(names)}
    predictions: list[dict[str, Any]] = [
        {"compute": compute, "pass_rate": None, "interval": None, "measured": None} for compute in predict
    ]
    details: dict[str, Any] = {}
    if sigmoid is not None:
        value |= {"A": sigmoid.A, "B": sigmoid.B, "C_mid": sigmoid.C_mid, "R_0": found.curve.r0}
        value |= {f"{name}_interval": found.interval(name) for name in PARAMETERS}
        predictions = [each._asdict() for each in found.predict(predict)]
        law = found.power_law()
        rates = [{"compute": compute, "pass_rate": float(law.value(compute))} for compute in predict]
        details = {"curve_R_0": sigmoid.R_0, "noise": found.noise, "power_law": asdict(law) | {"predictions": rates},
                   "held_back": None if held is None else held._asdict()}  # fmt: skip
    used = found.used.compute
    return value | {
        "level": found.settings.level,
        "sse": found.sse,
        "predictions": predictions,
        "refused": found.refused,
        "unit": found.curve.unit,
        "points": len(found.curve),
        "fitted_points": len(used),
        "fitted_from": float(used[0]) if len(used) else None,
        "fitted_to": float(used[-1]) if len(used) else None,
        "stderr_known": found.curve.stderr is not None,
        "settings": found.settings.model_dump(mode="json"),
        "notes": list(found.notes),
        **details,
    }


class TextTable(NamedTuple):
    """Columns, and rows of as many cells."""

    columns: Sequence[str]
    rows: Sequence[Sequence[str]]


def tables(found: Study) -> Iterator[TextTable | str]:
    """The fits, refusals and notes, predictions, the joint refit, seeds and comparisons."""
    if any(each.refused is None for each in found.fits):
        yield from _fitted(found)
    for each in found.fits:
        if each.refused is not None:
            yield f"{each.name}: refused, {each.refused}"
        yield from (f"{each.name}: {note}" for note in each.notes)
    yield from _predictions(found)
    if len(found.joint) > 1:
        joint = [
            (each.fit.name, with_interval(each.sigmoid.B, each.b_interval, ".2f"),
             with_interval(each.sigmoid.C_mid, each.c_mid_interval), f"{each.sse:.3g}")
            for each in found.joint
        ]  # fmt: skip
        yield TextTable((f"A fixed to {found.joint[0].sigmoid.A:.3f}", "B", _c_mid(found), "sse"), joint)
    for spread in found.seeds:
        if spread.asymptotes:
            few = "" if spread.enough else "; three seeds at least make a margin"
            yield (
                f"{spread.recipe}: A of {len(spread.asymptotes)} seeds {spread.mean:.3f} ± {spread.deviation:.3f} "
                f"(mean and largest deviation){few}"
            )
    yield from (f"{each.first} and {each.second}: {each}" for each in found.comparisons)


def _fitted(found: Study) -> Iterator[TextTable]:
    """The parameters of the fits, and the points and errors behind them."""
    level = f"{100 * found.fits[0].settings.level:g} % intervals"
    yield TextTable((level, "A", "B", _c_mid(found)), [(each.name, *_parameters(each)) for each in found.fits])
    columns = ("", "R_0", "points", "sse", "power law sse", "power law A")
    yield TextTable(columns, [_points_row(each) for each in found.fits])


def _c_mid(found: Study) -> str:
    return f"C_mid, {found.fits[0].curve.words}"


def _parameters(each: Fit) -> tuple[str, str, str]:
    """A, B and C_mid with their intervals."""
    sigmoid = each.sigmoid
    if sigmoid is None:
        return "refused", "", ""
    return (
        with_interval(sigmoid.A, each.interval("A"), ".3f"),
        with_interval(sigmoid.B, each.interval("B"), ".2f"),
        with_interval(sigmoid.C_mid, each.interval("C_mid")),
    )


def _points_row(each: Fit) -> tuple[str, ...]:
    points = str(len(each.used)) if len(each.used) == len(each.curve) else f"{len(each.used)} of {len(each.curve)}"
    if each.sse is None:
        return each.name, f"{each.curve.r0:.3f}", points, "", "", ""
    law = each.power_law()
    return each.name, f"{each.curve.r0:.3f}", points, f"{each.sse:.3g}", f"{law.sse:.3g}", f"{law.A:.3f}"


def _predictions(found: Study) -> Iterator[TextTable]:
    rows = [
        (each.name, f"{p.compute:,.6g}", with_interval(p.pass_rate, p.interval, ".3f"),
         f"{p.measured[0]:.3f} to {p.measured[1]:.3f}", f"{float(each.power_law().value(p.compute)):.3f}")
        for each in found.fits if each.sigmoid is not None for p in each.predict(found.predict)
    ]  # fmt: skip
    if rows:
        at = f"at {found.fits[0].curve.words}"
        yield TextTable(("prediction", at, "pass rate", "of a measurement", "power law"), rows)
    held = [(each.name, each.held_back_error()) for each in found.fits]
    lines = [
        (name, str(e.points), f"{e.mean_error:+.4f}", f"{e.mean_absolute_error:.4f}", f"{e.largest_error:+.4f}",
         f"{100 * e.covered:.0f} %", f"{e.power_law:.4f}")
        for name, e in held if e is not None
    ]  # fmt: skip
    if lines:
        columns = ("held back", "points", "mean error", "mean |error|", "largest", "in interval", "power law |error|")
        yield TextTable(columns, lines)


def slope(refits: Sequence[Refit]) -> str:
    """B of a recipe with A fixed: mean ± standard error over its seeds; of one fit with its bootstrap interval."""
    found = slope_mean(refits)
    if found is None:
        return ""
    if found.stderr is None:
        return with_interval(found.value, refits[0].b_interval, ".2f")
    return f"{found.value:.2f} ± {found.stderr:.2f}"


def slope_mean(refits: Sequence[Refit]) -> SeedMean | None:
    """B over the seeds of a recipe; None without any."""
    return mean([each.sigmoid.B for each in refits])


def with_interval(value: float, interval: tuple[float, float], form: str | None = None) -> str:
    """`0.609 (0.607 to 0.610)`, by default with four significant digits and without exponents."""
    low, middle, high = (
        number(part) if form is None else f"{part:{form}}" for part in (interval[0], value, interval[1])
    )
    return f"{middle} ({low} to {high})"
