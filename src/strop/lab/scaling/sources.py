"""Which curves the arguments of `strop fit` name, and which of them are seeds of one recipe."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import cast

from strop.base.files import distinct_names
from strop.base.types import InputError
from strop.lab.ablation.manifest import FILE, read_manifest
from strop.lab.scaling.curves import Curve, XAxis, read_curve
from strop.run.folder import RunFolder, is_run


def read_sources(sources: Sequence[str], x: str, r0: float | None, metric: str) -> dict[str, list[Curve]]:
    """Curves by recipe; every curve has a name of its own.

    `NAME=PATH` names a curve; several of one name are seeds of that recipe. Of the others, run folders whose
    configurations differ in nothing but `seed` are seeds of one recipe; every other curve is a recipe by itself. The
    folder of an ablation stands for its runs as far as they are, each under its variant's name; beside other sources
    the name of the folder goes before it.

    Raises:
        InputError: as `read_curve`; `x` is no axis; a path is given twice under one name, which makes no two seeds; or
            an ablation is given a name or has no evaluated run.
    """
    if x not in ("compute", "steps", "tokens"):
        raise InputError(f"--x {x}: the x-axis is compute, steps or tokens")
    labelled = [part for source in sources for part in _runs_of(*_split(source), len(sources) > 1, metric)]
    _refuse_doubles(labelled)
    resolved = [Path(path).resolve() for _, path in labelled]
    names = distinct_names([path.with_suffix("") if path.suffix == ".csv" else path for path in resolved])
    recipes: dict[str, list[Curve]] = {}
    by_config: dict[str, str] = {}
    for (label, path), name in zip(labelled, names, strict=True):
        curve = read_curve(path, cast(XAxis, x), r0, label or name, metric)
        if label is None:
            label = by_config.setdefault(_but_for_the_seed(Path(path)) or name, name)
        recipes.setdefault(label, []).append(curve)
    return {recipe: _number(recipe, curves) for recipe, curves in recipes.items()}


def _split(source: str) -> tuple[str | None, str]:
    label, equals, path = source.partition("=")
    return (label, path) if equals and label and path and not Path(source).exists() else (None, source)


def _runs_of(label: str | None, path: str, beside_others: bool, metric: str) -> list[tuple[str | None, str]]:
    """A source as it is; in place of an ablation's folder its evaluated runs under the names of their variants."""
    folder = Path(path)
    if not (folder / FILE).is_file():
        return [(label, path)]
    if label is not None:
        raise InputError(f"{label}={path}: an ablation has a name for each variant; give {path}, or name its runs")
    manifest = read_manifest(folder)
    before = f"{folder.resolve().name}/" if beside_others else ""
    found = [(before + run.variant, str(manifest.path(folder, run))) for run in manifest.runs]
    evaluated = [pair for pair in found if is_run(Path(pair[1])) and _measured(RunFolder.open(Path(pair[1])), metric)]
    if not evaluated:
        raise InputError(f"{folder}: no run has {metric} after its start yet; look with: strop ablate show {folder}")
    return [*evaluated]


def _measured(run: RunFolder, metric: str) -> bool:
    return any(row["step"] and row.get(metric) is not None for row in run.read_metrics())


def _refuse_doubles(labelled: Sequence[tuple[str | None, str]]) -> None:
    counted = Counter((label, Path(path).resolve()) for label, path in labelled)
    for label, path in labelled:
        if counted[label, Path(path).resolve()] > 1:
            under = f" for {label}" if label else ""
            raise InputError(f"{path} is given twice{under}: a curve is no second seed of itself; leave one out")


def _but_for_the_seed(path: Path) -> str | None:
    if not (path.is_dir() and is_run(path)):
        return None
    run = RunFolder.open(path)
    if not run.config_path.is_file():
        return None
    config = run.read_json("config.json")
    return json.dumps({key: value for key, value in config.items() if key != "seed"}, sort_keys=True)


def _number(recipe: str, curves: Sequence[Curve]) -> list[Curve]:
    """Curves that share a name get a number."""
    counted = Counter(curve.name for curve in curves)
    seen: Counter[str] = Counter()
    found = []
    for curve in curves:
        seen[curve.name] += 1
        many = counted[curve.name] > 1
        found.append(replace(curve, name=f"{curve.name} #{seen[curve.name]}") if many else curve)
    return found
