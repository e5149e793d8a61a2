"""Does a fit on the first half of a run predict the second? One JSON object a line; about two CPU minutes a seed.

    python bench/halves.py --out runs/halves                 # seeds 0, 1 and 2; finished runs are not made again
    python bench/halves.py --out runs/halves --seeds 0 --x steps

GRPO in its tiny form on the embedded model, strictly on-policy, 64 steps, measured every second on 256 held-out
problems, twice each. Of every run the points of the first half of its steps, or of its tokens, are fitted as by
`strop fit`, and the curve is held against those of the second half: mean |predicted − measured| must be within .03. A
fit that is refused predicts nothing, and counts as missed.

Device-seconds are left out unless asked for (by `--x device_seconds`), as other programs on the machine bend them.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from strop.base.view import SilentView
from strop.lab.scaling import Curve, Fit, FitSettings, fit
from strop.lab.scaling.curves import UNITS, read_curve
from strop.recipes.resolve import resolve
from strop.run.folder import is_run
from strop.run.run import resume, train

BAR = 0.03
SETTINGS = (
    "steps=64", "evaluation.every=2", "evaluation.samples_per_problem=2", "evaluation.temperature=1.0",
    "data.held_out.source.count=256", "algorithm.selection.zero_variance=drop", "model.dtype=float32",
    "checkpoint.every=16", "checkpoint.keep=1", "checkpoint.keep_best=false",
)  # fmt: skip


def run(folder: Path, seed: int) -> Path:
    """The run of a seed, made or gone on with where it is not finished."""
    path = folder / f"seed{seed}"
    if not is_run(path):
        train(resolve("grpo", [*SETTINGS, f"seed={seed}"], small=True), path, SilentView())
    elif not (path / "summary.json").is_file():
        resume(path, SilentView())
    return path


def fit_first_half(curve: Curve, settings: FitSettings | None = None) -> Fit:
    """The fit to the points of the first half of the compute; the others are held back."""
    whole = settings or FitSettings()
    return fit(curve, whole.model_copy(update={"fit_until": float(curve.compute[-1]) / 2}))


def halves(curve: Curve) -> dict[str, Any]:
    """The errors on the second half of what was fitted to the first; `refused` with its reason where nothing was."""
    found = fit_first_half(curve)
    error = found.held_back_error()
    line: dict[str, Any] = {"points": len(found.used), "held_back": len(found.held_back), "refused": found.refused}
    if error is None:
        return line | {"ok": False}
    assert found.sigmoid is not None
    return line | {
        "A": round(found.sigmoid.A, 4), "last_measured": round(float(curve.pass_rate[-1]), 4),
        "mean_error": round(error.mean_error, 4), "mean_absolute_error": round(error.mean_absolute_error, 4),
        "largest_error": round(error.largest_error, 4), "inside_interval": round(error.covered, 3),
        "power_law_mean_absolute_error": round(error.power_law, 4), "ok": error.mean_absolute_error <= BAR,
    }  # fmt: skip


def main(arguments: Sequence[str] | None = None) -> int:
    """Run, fit, tell; 1 where a half is not predicted."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("runs/halves"))
    parser.add_argument("--seeds", default="0,1,2", help="with commas between (0,1,2)")
    parser.add_argument("--x", default="steps,tokens", help=f"what curves are over, of {', '.join(UNITS)}")
    asked = parser.parse_args(arguments)
    axes = [unit for unit in UNITS if unit in asked.x.split(",")]
    missed = 0
    for seed in map(int, asked.seeds.split(",")):
        path = run(asked.out, seed)
        for x in axes:
            line = {"bench": "halves", "seed": seed, "x": x, "bar": BAR} | halves(read_curve(path, x))
            missed += not line["ok"]
            print(json.dumps(line), flush=True)
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
