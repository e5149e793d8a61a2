"""Curves of known truth, and files and run folders that hold them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from strop.lab.scaling import Curve, Sigmoid
from strop.run.folder import RunFolder

Array = NDArray[np.float64]

# ScaleRL Table 1: C_mid, B, A.
TABLE_1 = {
    "scalerl": (2542.0, 1.92, 0.610),
    "32k": (11272.0, 1.89, 0.645),
    "8gen": (2542.0, 2.44, 0.585),
    "24gen": (3054.0, 2.22, 0.590),
    "32gen": (2936.0, 2.07, 0.595),
    "scout": (4242.0, 1.65, 0.710),
    "bs512": (2818.0, 1.77, 0.605),
    "bs2048": (10909.0, 1.70, 0.645),
    "math": (2896.0, 2.05, 0.595),
    "code": (1675.0, 1.09, 0.615),
}
R_0 = 0.2
COMPUTE = np.arange(1500.0, 50001.0, 1351.0)


def truth(row: str = "scalerl") -> Sigmoid:
    """A row of Table 1."""
    c_mid, b, a = TABLE_1[row]
    return Sigmoid(a, b, c_mid, R_0)


def noise(rates: Array) -> Array:
    """Of a held-out set of 1,000 prompts × 16 samples."""
    return np.asarray(np.sqrt(rates * (1.0 - rates) / 16000.0))


def drawn(
    rates: Array, seed: int = 0, compute: Array = COMPUTE, known: bool = True, name: str = "curve", scale: float = 1.0
) -> Curve:
    """A curve through `rates` with noise of the paper's size, times `scale`."""
    spread = scale * noise(rates)
    measured = rates + spread * np.random.default_rng(seed).standard_normal(len(rates))
    return Curve(name, compute, measured, R_0, spread if known else None, 0.0)


def write_csv(path: Path, columns: Mapping[str, Sequence[object]]) -> Path:
    """A CSV file with these columns."""
    lines = [",".join(columns), *(",".join(map(str, row)) for row in zip(*columns.values(), strict=True))]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def write_curve(path: Path, curve: Curve) -> Path:
    """A CSV file with a row at compute 0."""
    columns: dict[str, list[object]] = {"compute": [0, *curve.compute], "pass_rate": [curve.r0, *curve.pass_rate]}
    if curve.stderr is not None:
        columns["stderr"] = [0.003, *curve.stderr]
    return write_csv(path, columns)


def write_run(path: Path, rows: Sequence[tuple[int, Mapping[str, float | None]]], seed: int = 0) -> Path:
    """A run folder with these metric lines."""
    run = RunFolder.create(path, {"recipe": "grpo", "seed": seed, "steps": 100})
    for step, metrics in rows:
        run.append_metrics(step, metrics)
    run.close()
    return path
