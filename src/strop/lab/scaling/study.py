"""The study of `strop fit`: curves fitted and compared, and all of that as plain JSON values.

    {"fits": [{name, A, B, C_mid, R_0, A_interval, B_interval, C_mid_interval, level, sse, predictions, refused}], …}

`R_0` is the measured one; where the curve itself starts, within the noise of that measurement, is `curve_R_0` in
`details`. A refused fit has null for every number but `level`, and the reason under `refused`. Intervals are
[low, high]. The `interval` of a prediction is that of the curve; that of a measurement there is in `details`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import combinations
from typing import Any

from pydantic import ValidationError

from strop.base.pieces import refused_flag
from strop.base.types import InputError
from strop.lab.scaling.compare import (
    MARGIN,
    CurveComparison,
    Refit,
    Seeds,
    auto_windows,
    compare,
    fit_windows,
    joint_refit,
    seeds,
)
from strop.lab.scaling.curves import Curve
from strop.lab.scaling.fitting import Fit, FitSettings, fit
from strop.lab.scaling.sigmoid import Grid

Window = tuple[float, float]


def fit_settings(given: Mapping[str, object], a_grid: str = "", c_mid_grid: str = "") -> FitSettings:
    """The settings with these fields; grids are FROM:TO:COUNT, those of C_mid with commas between.

    Raises:
        InputError: a value out of its range, or a grid with another method than the paper's.
    """
    fields = dict(given)
    until, skip = fields["fit_until"], fields["skip_until"]
    if (a_grid or c_mid_grid) and fields["method"] != "paper":
        raise InputError("--a-grid and --c-mid-grid are those of --method paper; the refined method has no grid")
    if a_grid:
        fields["a_grid"] = _grid("--a-grid", a_grid)
    if c_mid_grid:
        fields["c_mid_grids"] = tuple(_grid("--c-mid-grid", part) for part in c_mid_grid.split(","))
    if isinstance(until, float) and isinstance(skip, float) and until <= skip:
        raise InputError(f"--fit-until {until:g} does not lie beyond --skip-until {skip:g}")
    try:
        return FitSettings.model_validate(fields)
    except ValidationError as error:
        raise refused_flag(error, FitSettings) from error


def _grid(flag: str, text: str) -> Grid:
    parts = text.split(":")
    try:
        low, high, count = float(parts[0]), float(parts[1]), int(parts[2])
    except (ValueError, IndexError) as error:
        raise InputError(f"{flag} {text}: write FROM:TO:COUNT, such as 0.45:0.8:71") from error
    if len(parts) != 3 or not 0 < low < high < float("inf") or not 2 <= count <= 2000:
        raise InputError(f"{flag} {text}: write FROM:TO:COUNT with 0 < FROM < TO and 2 to 2000 values")
    return low, high, count


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


def windows(text: str) -> list[Window] | None:
    """Windows as LOW:HIGH with commas between; None for `auto`, empty where none are asked for.

    Raises:
        InputError: one of them is not written so.
    """
    if text == "auto":
        return None
    found = []
    for part in text.split(",") if text else ():
        low, _, high = part.partition(":")
        try:
            window = float(low), float(high)
        except ValueError as error:
            raise InputError(f"--windows {part}: write LOW:HIGH, such as 1500:50000, or auto") from error
        if not 0 <= window[0] < window[1] < float("inf"):
            raise InputError(f"--windows {part}: LOW must be 0 or more and below HIGH")
        found.append(window)
    return found


MOST_RECIPES = 12  # whose pairs are compared: beyond that the table cannot be read


@dataclass(frozen=True, eq=False)
class Study:
    """Fits and what was made of them.

    Attributes:
        fits: one a curve, in the order given.
        predict: the computes asked for.
        windows: by name of a fit, the fits over several windows.
        joint: all accepted fits with A fixed to their average; empty for a single one.
        comparisons: every pair of recipes, where there are at most 12.
        seeds: the scatter of each recipe with several seeds.
    """

    fits: Sequence[Fit]
    predict: Sequence[float] = ()
    windows: Mapping[str, Mapping[str, Fit]] = field(default_factory=dict)
    joint: Sequence[Refit] = ()
    comparisons: Sequence[CurveComparison] = ()
    seeds: Sequence[Seeds] = ()


def fit_study(
    recipes: Mapping[str, Sequence[Curve]],
    settings: FitSettings,
    predict: Sequence[float] = (),
    windows: Sequence[tuple[float, float]] | None = (),
    margin: float = MARGIN,
    progress: Callable[[int], None] = lambda done: None,
) -> Study:
    """Fit every curve and compare what was fitted: every pair of recipes, all with A fixed to the average, their seeds.

    Args:
        recipes: curves by recipe.
        settings: of every fit.
        predict: computes to predict at.
        windows: (low, high) of further fits of each curve; None for those of `auto_windows`.
        margin: by how much A must differ to count.
        progress: called after each curve with the number of those done.
    """
    fitted: dict[str, list[Fit]] = {}
    over: dict[str, Mapping[str, Fit]] = {}
    for recipe, curves in recipes.items():
        for curve in curves:
            fitted.setdefault(recipe, []).append(fit(curve, settings))
            chosen = auto_windows(curve, settings) if windows is None else windows
            if chosen:
                over[curve.name] = fit_windows(curve, chosen, settings)
            progress(sum(map(len, fitted.values())))
    fits = [found for members in fitted.values() for found in members]
    pairs = combinations(fitted, 2) if len(fitted) <= MOST_RECIPES else ()
    compared = (compare(first, fitted[first], second, fitted[second], margin) for first, second in pairs)
    return Study(
        fits,
        predict,
        over,
        joint_refit(fits) if len(fits) > 1 else (),
        [each for each in compared if each is not None],
        [seeds(name, members) for name, members in fitted.items() if len(members) > 1],
    )


def as_json(found: Study) -> dict[str, Any]:
    """The whole study as plain values; no NaN, no infinity."""
    value: dict[str, Any] = {
        "fits": [fit_as_json(each, found.predict) for each in found.fits],
        "details": [_details(each, found.predict) for each in found.fits],
    }
    if found.windows:
        value["windows"] = {
            name: {window: fit_as_json(each, found.predict) for window, each in fits.items()}
            for name, fits in found.windows.items()
        }
    if found.joint:
        value["joint"] = {"A": found.joint[0].sigmoid.A, "fits": [_refit(each) for each in found.joint]}
    if found.comparisons:
        value["comparisons"] = [_comparison(each) for each in found.comparisons]
    if found.seeds:
        value["seeds"] = [_seeds(each) for each in found.seeds]
    return value


def fit_as_json(found: Fit, predict: Sequence[float] = ()) -> dict[str, Any]:
    """One entry of `fits`."""
    sigmoid = found.sigmoid
    if sigmoid is None:
        numbers: dict[str, Any] = dict.fromkeys(("A", "B", "C_mid", "R_0"))
        numbers |= dict.fromkeys(("A_interval", "B_interval", "C_mid_interval"))
        predictions: list[dict[str, Any]] = [
            {"compute": compute, "pass_rate": None, "interval": None} for compute in predict
        ]
    else:
        numbers = {
            "A": sigmoid.A,
            "B": sigmoid.B,
            "C_mid": sigmoid.C_mid,
            "R_0": found.curve.r0,
            "A_interval": list(found.interval("A")),
            "B_interval": list(found.interval("B")),
            "C_mid_interval": list(found.interval("C_mid")),
        }
        predictions = [
            {"compute": each.compute, "pass_rate": each.pass_rate, "interval": list(each.interval)}
            for each in found.predict(predict)
        ]
    return {
        "name": found.name,
        **numbers,
        "level": found.settings.level,
        "sse": found.sse,
        "predictions": predictions,
        "refused": found.refused,
    }


def _details(found: Fit, predict: Sequence[float]) -> dict[str, Any]:
    value: dict[str, Any] = {
        "name": found.name,
        "unit": found.curve.unit,
        "measured_R_0": found.curve.r0,
        "points": len(found.curve),
        "fitted_points": len(found.used),
        "fitted_from": float(found.used.compute[0]) if len(found.used) else None,
        "fitted_to": float(found.used.compute[-1]) if len(found.used) else None,
        "stderr_known": found.curve.stderr is not None,
        "settings": found.settings.model_dump(mode="json"),
        "notes": list(found.notes),
    }
    if found.sigmoid is not None:
        law, held = found.power_law(), found.held_back_error()
        value["curve_R_0"] = found.sigmoid.R_0
        value["noise"] = found.noise
        value["power_law"] = {"A": law.A, "D": law.D, "B": law.B, "sse": law.sse}
        value["power_law"]["predictions"] = [{"compute": c, "pass_rate": float(law.value(c))} for c in predict]
        value["measured_intervals"] = [list(each.measured) for each in found.predict(predict)]
        value["held_back"] = None if held is None else held._asdict()
    return value


def _refit(each: Refit) -> dict[str, Any]:
    return {
        "name": each.fit.name,
        "B": each.sigmoid.B,
        "C_mid": each.sigmoid.C_mid,
        "B_interval": list(each.b_interval),
        "C_mid_interval": list(each.c_mid_interval),
        "sse": each.sse,
    }


def _comparison(each: CurveComparison) -> dict[str, Any]:
    value = asdict(each)
    return value | {"interval": list(each.interval), "A": value.pop("asymptote"), "text": str(each)}


def _seeds(each: Seeds) -> dict[str, Any]:
    known = len(each.asymptotes) > 0
    return {
        "recipe": each.recipe,
        "asymptotes": list(each.asymptotes),
        "mean": each.mean if known else None,
        "largest_deviation": each.deviation if known else None,
        "enough": each.enough,
    }
