"""The arguments of `strop fit` as values; what cannot be read is refused by its flag."""

from __future__ import annotations

from collections.abc import Mapping

from pydantic import ValidationError

from strop.base.pieces import refused_flag
from strop.base.types import InputError
from strop.lab.scaling.fitted import FitSettings
from strop.lab.scaling.paper_grid import Grid

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
