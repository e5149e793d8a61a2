"""The joint law and the split of a budget, held against published curves and runs. One JSON object a line.

    python bench/scaling.py                                     # the papers' curves; a minute of one core
    python bench/scaling.py --parts runs --out runs/sizes       # trains first, 25 CPU minutes

`law`: Tan et al. publish the parameters of four fits (their repository's fits_exp1.json), and the curves in pictures:
tan.csv is what extrap_{base,instruct}_holdout_N_C_raw_ErrRate.png shows of seven sizes of Qwen2.5, read off by colour.
Where points overlap their mean was read, so that the scatter of late points is lost; the published laws lie within .003
of the means. `largest`: k of the largest size from the others, which is the paper's extrapolation. `half`: mean errors
on the second half of the steps of the law, and of the sigmoid and the power law of each size by itself.

`budget`: IsoCompute's Figure 5 (easy problems, 32 prompts a step) as sigmoids through points read off it, with the
scatter of its points: at what share of five budgets `allocate` is sure of the best n, and how often falsely. Seeds move
whole curves. `equal` are four curves of which none is better.

`runs`: GRPO's tiny form on embedded bases of four widths, three seeds, 48 steps. k of each size by all runs, and the
second half of the largest size by the law of the others, with E of the first half, by the sigmoid, by the power law.
"""

from __future__ import annotations

import argparse
import csv
import itertools
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from strop.base.view import SilentView
from strop.lab.scaling import Curve, FitSettings, Sigmoid, fit
from strop.lab.scaling.compare import SURE, allocate
from strop.lab.scaling.curves import read_curve
from strop.lab.scaling.joint import fit_joint, parameters_of
from strop.recipes.resolve import resolve
from strop.run.run import train
from strop.training.embedded_base import EmbeddedBase, embedded_base

Array = NDArray[np.float64]
Unit = Literal["flops", "steps"]
POINTS = Path(__file__).with_name("tan.csv")
PUBLISHED: Mapping[tuple[str, Unit], tuple[float, float]] = {  # K_max, N_0; data are steps of 512 problems
    ("base", "flops"): (0.13304, 13.782e9),
    ("base", "steps"): (0.13996, 13.003e9),
    ("instruct", "flops"): (0.12942, 19.069e9),
    ("instruct", "steps"): (0.14379, 19.972e9),
}
LAST_STEP = 104
WIDTHS = {"63K": 32, "218K": 64, "805K": 128, "1.76M": 192}
SETTINGS = (
    "steps=48", "evaluation.every=2", "evaluation.samples_per_problem=2", "evaluation.temperature=1.0",
    "data.held_out.source.count=256", "algorithm.selection.zero_variance=drop", "model.dtype=float32",
    "checkpoint.every=1000", "checkpoint.keep_best=false",
)  # fmt: skip

# samples per prompt: A, B and C_mid (millions of rollouts) of a sigmoid within .004 of the figure's curve
FRONTIER: Mapping[int, Sigmoid] = {
    8: Sigmoid(0.5885, 1.33, 0.140, 0.43),
    32: Sigmoid(0.5960, 2.36, 0.208, 0.43),
    128: Sigmoid(0.6192, 2.72, 0.448, 0.43),
    256: Sigmoid(0.6627, 1.60, 0.600, 0.43),
    512: Sigmoid(0.7657, 1.20, 1.687, 0.43),
}
SCATTER = 0.015  # standard deviation of the figure's points around a curve
SEEDS = 0.01  # that of whole curves: ScaleRL's seeds differ by up to .02 (A.5)
BUDGETS, TOP = (0.15, 0.5, 1.0, 2.0, 3.5), tuple(FRONTIER)  # millions of rollouts, and the figure's best there


def emit(**figures: object) -> None:
    """One line of JSON."""
    print(json.dumps({"bench": "scaling", **figures}), flush=True)


def published(models: str, unit: Unit) -> dict[str, list[Curve]]:
    """The curves of tan.csv, by size."""
    found: dict[str, list[tuple[float, float]]] = {}
    for row in csv.DictReader(POINTS.read_text().splitlines()):
        if row["models"] == models:
            found.setdefault(row["size"], []).append((float(row[unit]), 1 - float(row["loss"])))
    columns = {size: np.array(points).T for size, points in found.items()}
    return {size: [Curve(size, x, rate, float(rate[0]), unit=unit)] for size, (x, rate) in columns.items()}


def law(bootstrap: int) -> None:
    """Our fit of the published curves against the published parameters."""
    for (models, unit), (k_max, n_0) in PUBLISHED.items():
        curves, settings = published(models, unit), FitSettings(bootstrap=bootstrap)
        whole = fit_joint(curves, settings)
        theirs = k_max / (1 + n_0 / whole.sizes)
        ours = np.array([whole.k(size)[0] for size in whole.sizes])
        largest = whole.sizes[-1]
        without = fit_joint(dict(list(curves.items())[:-1]), settings).k(float(largest))
        emit(
            part="law", models=models, over=unit, K_max=round(whole.K_max, 4), published_K_max=k_max,
            K_max_interval=rounded(whole.interval(0)), N_0=round(whole.N_0 / 1e9, 2), published_N_0=n_0 / 1e9,
            N_0_interval=rounded(np.array(whole.interval(1)) / 1e9), k=rounded(ours), published_k=rounded(theirs),
            k_of_largest=round(float(ours[-1]), 4), from_the_others=round(without[0], 4),
            from_the_others_interval=rounded(without[1]),
        )  # fmt: skip
    for models in ("base", "instruct"):
        half = fit_joint(published(models, "steps"), FitSettings(bootstrap=bootstrap, fit_until=LAST_STEP / 2))
        for size, error in half.held_out.items():
            shown = {key: None if value is None else round(value, 4) for key, value in vars(error).items()}
            emit(part="half", models=models, size=size, **shown)


def rounded(values: Sequence[float] | Array) -> list[float]:
    """Four digits behind the point."""
    return [round(float(value), 4) for value in values]


def budget(studies: int, bootstrap: int) -> None:
    """How often `allocate` decides, and decides falsely, in simulated studies."""
    equal = dict.fromkeys((8, 32, 128, 512), FRONTIER[128])
    at = np.linspace(0.05, 4.1, 60)
    cases: Mapping[str, Mapping[int, Sigmoid]] = {"frontier": FRONTIER, "equal": equal}
    for (case, curves), (shift, seeds) in itertools.product(cases.items(), ((0.0, 1), (SEEDS, 1), (SEEDS, 3))):
        random = np.random.default_rng(0)
        sure = false = rises = 0
        for study in range(studies):
            drawn = {
                str(n): [
                    Curve(f"{n} {seed}", at, truth.value(at) + shift * random.standard_normal()
                          + SCATTER * random.standard_normal(len(at)), truth.R_0)
                    for seed in range(seeds)
                ]
                for n, truth in curves.items()
            }  # fmt: skip
            found = allocate(drawn, FitSettings(bootstrap=bootstrap, seed=100 * study), BUDGETS)
            rises += found.verdict.startswith("the best n rises")
            right = [best.n == top and case != "equal" for best, top in zip(found.best, TOP, strict=True)]
            said = [is_right for best, is_right in zip(found.best, right, strict=True) if best.sure >= SURE]
            sure, false = sure + len(said), false + said.count(False)
        asked = studies * len(BUDGETS)
        emit(
            part="budget", case=case, scatter_of_seeds=shift, seeds=seeds, studies=studies,
            decided=round(sure / asked, 3), false=round(false / asked, 3), says_it_rises=round(rises / studies, 3),
        )  # fmt: skip


def trained(folder: Path, width: int, seed: int) -> Path:
    """A run on the embedded base of that width, made where it is not there."""
    path = folder / str(width) / f"seed{seed}"
    if not (path / "summary.json").is_file():
        own = EmbeddedBase(seed=seed)
        shape = {"hidden_size": width, "heads": width // 16, "kv_heads": width // 32, "intermediate_size": 3 * width}
        base = own.model_copy(update={"model": own.model.model_copy(update=shape)})
        model = embedded_base(base, SilentView())
        train(resolve("grpo", [*SETTINGS, f"model.path={model}", f"seed={seed}"], small=True), path, SilentView())
    return path


def runs(folder: Path, bootstrap: int) -> None:
    """The law on runs of four sizes."""
    recipes = {
        size: [read_curve(trained(folder, width, seed), "steps", name=f"{size}, seed {seed}") for seed in range(3)]
        for size, width in WIDTHS.items()
    }
    settings = FitSettings(bootstrap=bootstrap)
    whole = fit_joint(recipes, settings)
    for size in recipes:
        k, interval = whole.k(parameters_of(size))
        emit(part="runs", size=size, k=round(k, 4), k_interval=rounded(interval), refused=whole.refused)
    *_, largest = recipes
    k, interval = fit_joint({size: recipes[size] for size in recipes if size != largest}, settings).k(
        parameters_of(largest)
    )
    for curve in recipes[largest]:
        until = float(curve.compute[-1]) / 2
        own = fit(curve, FitSettings(bootstrap=bootstrap, fit_until=until))
        first, rest = own.used, own.held_back
        start = float(np.mean(np.log(1 - first.pass_rate) + k * np.log(first.compute)))
        errors = {
            "law": 1 - np.exp(start - k * np.log(rest.compute)),
            "sigmoid": None if own.sigmoid is None else own.sigmoid.value(rest.compute),
            "power_law": own.power_law().value(rest.compute),
        }
        emit(
            part="runs", run=curve.name, k_from_the_others=round(k, 4), interval=rounded(interval), points=len(rest),
            **{name: None if rate is None else round(float(np.abs(rate - rest.pass_rate).mean()), 4)
               for name, rate in errors.items()},
        )  # fmt: skip
    half = fit_joint(recipes, FitSettings(bootstrap=bootstrap, fit_until=until))
    for size, curves in recipes.items():
        found = [half.held_out[curve.name] for curve in curves]
        emit(
            part="runs, half", size=size, law=round(float(np.mean([each.joint for each in found])), 4),
            sigmoid=rounded([each.sigmoid for each in found if each.sigmoid is not None]),
            power_law=round(float(np.mean([each.power_law for each in found])), 4),
        )  # fmt: skip


def main() -> None:
    """Measure what the options ask for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parts", default="law,budget")
    parser.add_argument("--studies", type=int, default=100)
    parser.add_argument("--bootstrap", type=int, default=200)
    parser.add_argument("--out", type=Path, default=Path("runs/sizes"))
    options = parser.parse_args()
    if "law" in options.parts:
        law(options.bootstrap)
    if "budget" in options.parts:
        budget(options.studies, options.bootstrap)
    if "runs" in options.parts:
        runs(options.out, options.bootstrap)


if __name__ == "__main__":
    main()
