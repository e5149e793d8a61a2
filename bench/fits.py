"""How well the scaling fits recover what is known, and how long they take. One JSON object a line.

    python bench/fits.py                                        # all of it
    python bench/fits.py --simulations 50 --rows scalerl,bs2048
    python bench/fits.py --points few --r0 noisy --no-stderr    # the hardest case

Three parts. `exact`: noise-free points of each row of ScaleRL's Table 1, fitted by both methods. `noisy`: simulated
curves with the noise of a held-out set of 1,000 prompts × 16 samples, standard deviation √(p (1 − p) / 16000), on 1.5k
to 50k GPU-hours: how often the 90 % interval of A covers the truth, the median error of A, how often the prediction at
100k lies within .005. `speed`: one fit with 200 bootstrap samples.

"A point every 100 steps" is a point every so many GPU-hours. The paper says what a step costs for three of its runs:
1,000 steps are about 1.5k GPU-hours at a batch of 768 (A.6), 7,400 steps 100k for the batch of 2,048 (Figure 1), 7,100
steps 50k for Scout. The others follow from completions a batch (bs512: two thirds) and from the length (32k instead of
14k tokens: 32/14). `--points few` gives every row 36 points, as the dearest step does.
"""

from __future__ import annotations

import argparse
import json
import time
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from strop.lab.scaling import Curve, FitSettings, Sigmoid, fit

Array = NDArray[np.float64]

FIRST, LAST, BEYOND = 1_500.0, 50_000.0, 100_000.0
SAMPLES = 16_000
R_0 = 0.2


class Row(NamedTuple):
    """A row of Table 1, and the GPU-hours of a step."""

    c_mid: float
    b: float
    a: float
    hours: float


PLAIN, LARGE_BATCH, SCOUT = 1.5, 100_000 / 7_400, 50_000 / 7_100
ROWS = {
    "scalerl": Row(2542, 1.92, 0.610, PLAIN),
    "32k": Row(11272, 1.89, 0.645, PLAIN * 32 / 14),
    "8gen": Row(2542, 2.44, 0.585, PLAIN),
    "24gen": Row(3054, 2.22, 0.590, PLAIN),
    "32gen": Row(2936, 2.07, 0.595, PLAIN),
    "scout": Row(4242, 1.65, 0.710, SCOUT),
    "bs512": Row(2818, 1.77, 0.605, PLAIN * 2 / 3),
    "bs2048": Row(10909, 1.70, 0.645, LARGE_BATCH),
    "math": Row(2896, 2.05, 0.595, PLAIN),
    "code": Row(1675, 1.09, 0.615, PLAIN),
}


def computes(row: Row, points: str) -> Array:
    """Where the row is evaluated: every 100 steps."""
    hours = LARGE_BATCH if points == "few" else row.hours
    return np.arange(FIRST, LAST + 1.0, 100.0 * hours)


def emit(**figures: object) -> None:
    """One line of JSON."""
    print(json.dumps({"bench": "fits", **figures}), flush=True)


def exact(name: str, row: Row, points: str) -> None:
    """The errors on noise-free points, by both methods."""
    at = computes(row, points)
    truth = Sigmoid(row.a, row.b, row.c_mid, R_0)
    for method in ("refined", "paper"):
        settings = FitSettings.model_validate({"method": method, "bootstrap": 20})
        found = fit(Curve(name, at, truth.value(at), R_0, r0_stderr=0.0), settings).sigmoid
        if found is None:
            emit(part="exact", row=name, method=method, ok=False)
            continue
        errors = abs(found.A - row.a), abs(found.B / row.b - 1.0), abs(found.C_mid / row.c_mid - 1.0)
        emit(
            part="exact",
            row=name,
            method=method,
            error_A=errors[0],
            relative_error_B=errors[1],
            relative_error_C_mid=errors[2],
            ok=errors[0] <= 0.002 and errors[1] <= 0.01 and errors[2] <= 0.01,
        )


def noisy(name: str, row: Row, options: argparse.Namespace) -> None:
    """Coverage and errors over simulated curves."""
    at = computes(row, options.points)
    truth = Sigmoid(row.a, row.b, row.c_mid, R_0)
    rates, target = truth.value(at), float(truth.value(BEYOND))
    rng = np.random.default_rng([options.seed, *name.encode()])
    errors, missed, covered, covered_there, refused = [], [], 0, 0, 0
    for simulation in range(options.simulations):
        drawn = rates + noise(rates) * rng.standard_normal(len(at))
        stderr = None if options.no_stderr else noise(drawn)
        r0 = R_0
        r0_stderr: float | None = 0.0
        if options.r0 == "noisy":
            r0 += float(noise(np.array(R_0))) * rng.standard_normal()
        if options.r0 != "given":
            r0_stderr = None if options.no_stderr else float(noise(np.array(r0)))
        curve = Curve(name, at, drawn, r0, stderr, r0_stderr)
        settings = FitSettings.model_validate(
            {"method": options.method, "bootstrap": options.bootstrap, "seed": simulation}
        )
        found = fit(curve, settings)
        if found.sigmoid is None:
            refused += 1
            continue
        low, high = found.interval("A")
        there = found.predict([BEYOND])[0]
        covered += low <= row.a <= high
        covered_there += there.interval[0] <= target <= there.interval[1]
        errors.append(abs(found.sigmoid.A - row.a))
        missed.append(abs(there.pass_rate - target))
    within = float(np.mean(np.array(missed) <= 0.005)) if missed else 0.0
    coverage, median = covered / options.simulations, float(np.median(errors)) if errors else float("inf")
    emit(
        part="noisy",
        row=name,
        points=len(at),
        simulations=options.simulations,
        coverage_A=coverage,
        median_error_A=round(median, 5),
        within_005_at_100k=within,
        coverage_at_100k=covered_there / options.simulations,
        refused=refused,
        ok=0.84 <= coverage <= 0.96 and median <= 0.003 and within >= 0.95 and refused == 0,
    )


def noise(rates: Array) -> Array:
    """The standard deviation of a pass rate over the held-out samples."""
    return np.asarray(np.sqrt(rates * (1.0 - rates) / SAMPLES))


def speed(name: str, row: Row) -> None:
    """Seconds of one fit with 200 bootstrap samples, the second of two, by both methods."""
    at = computes(row, "paper")
    rates = Sigmoid(row.a, row.b, row.c_mid, R_0).value(at)
    drawn = rates + noise(rates) * np.random.default_rng(0).standard_normal(len(at))
    for method in ("refined", "paper"):
        settings = FitSettings.model_validate({"method": method, "bootstrap": 200})
        for _ in range(2):
            begin = time.perf_counter()
            fit(Curve(name, at, drawn, R_0, noise(drawn), 0.0), settings)
            seconds = time.perf_counter() - begin
        emit(part="speed", row=name, method=method, points=len(at), seconds=round(seconds, 3), ok=seconds < 5.0)


def main() -> None:
    """Measure what the options ask for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", default=",".join(ROWS))
    parser.add_argument("--parts", default="exact,noisy,speed")
    parser.add_argument("--simulations", type=int, default=200)
    parser.add_argument("--bootstrap", type=int, default=200)
    parser.add_argument("--method", choices=("refined", "paper"), default="refined")
    parser.add_argument("--points", choices=("paper", "few"), default="paper")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--r0",
        choices=("given", "row", "noisy"),
        default="given",
        help="R_0 is given by flag, is a row at compute 0 that happens to be exact, or such a row with noise",
    )
    parser.add_argument("--no-stderr", action="store_true", help="the fit is not told the standard errors")
    options = parser.parse_args()
    rows = {name: ROWS[name] for name in options.rows.split(",")}
    for name, row in rows.items():
        if "exact" in options.parts:
            exact(name, row, options.points)
        if "noisy" in options.parts:
            noisy(name, row, options)
    if "speed" in options.parts:
        speed(*next(iter(rows.items())))


if __name__ == "__main__":
    main()
