"""Ablations for tests: made of written metrics, where no training is needed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from tests.runs import small_config

from strop.lab.ablation.manifest import Manifest, RunEntry, plan, write_manifest
from strop.lab.ablation.variants import VariantRequest, variants
from strop.lab.scaling import Sigmoid
from strop.run.folder import RunFolder

R_0 = 0.2


def write_base(folder: Path, *sets: str) -> Path:
    """A file with a small recipe, to be named on the command line."""
    target = folder / "small.json"
    target.write_text(small_config(*sets).model_dump_json())
    return target


def small_plan(folder: Path, seeds: Sequence[int], named: Sequence[str], *sets: str) -> Manifest:
    """The plan of an ablation of the small recipe."""
    target = write_base(folder, *sets)
    return plan("small", variants(str(target), VariantRequest(named=tuple(named))), seeds)


def write_run(
    out: Path, manifest: Manifest, run: RunEntry, rates: Sequence[float], stderr: float = 0.005, finish: bool = True
) -> None:
    """A run folder with an evaluation at every step, 10 device-seconds a step; `rates[0]` is before training.

    The evaluation before training takes 15 seconds, every step 6, of which its evaluation is one.
    """
    folder = RunFolder.create(manifest.path(out, run), manifest.config(run).model_dump(mode="json"))
    for step, rate in enumerate(rates):
        row = {"evaluation/pass_rate": float(rate), "evaluation/stderr": stderr}
        row["seconds/evaluation"] = 1.0 if step else 15.0
        if step:
            row |= {
                "entropy": 1.0 / step, "truncation_rate": 0.01 * (step == 3), "mismatch/max": 1e-3 * step,
                "grad_norm": 9.0 if step == 2 else 1.0, "compute/device_seconds": 10.0 * step, "seconds/step": 6.0,
            }  # fmt: skip
        folder.append_metrics(step, row)
    if finish:
        folder.write_json("summary.json", {"steps": len(rates) - 1})
    folder.close()


def sigmoid_rates(asymptote: float, seed: int, points: int = 20, noise: float = 0.004) -> list[float]:
    """Pass rates of steps 0 … points, R_0 first, around a sigmoid over compute 10, 20, …"""
    rng = np.random.default_rng(seed)
    compute = 10.0 * np.arange(1, points + 1)
    clean = Sigmoid(asymptote, 1.6, 40.0, R_0).value(compute)
    return [R_0, *(clean + noise * rng.standard_normal(points)).tolist()]


def write_ablation(
    out: Path, scratch: Path, asymptotes: Mapping[str, float], seeds: Sequence[int] = (0, 1, 2)
) -> Manifest:
    """A finished ablation whose variants follow sigmoids; the first name is the base."""
    names = list(asymptotes)[1:]
    named = [f"{name}:optim.lr={place + 2}e-3" for place, name in enumerate(names)]
    manifest = small_plan(scratch, seeds, named, "steps=20", "evaluation.every=1")
    write_manifest(out, manifest)
    for run in manifest.runs:
        asymptote = asymptotes[run.variant] + 0.005 * (run.seed - 1)
        noise_seed = 10 * run.seed + list(asymptotes).index(run.variant)
        write_run(out, manifest, run, sigmoid_rates(asymptote, noise_seed))
    return manifest
