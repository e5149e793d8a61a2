"""The best samples per prompt at a budget: it rises, and saturates, as in IsoCompute's Figures 5 and 6."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from strop.base.types import InputError
from strop.cli import app
from strop.lab.scaling.compare import Allocation, allocate
from strop.lab.scaling.curves import Curve
from strop.lab.scaling.fitting import FitSettings
from strop.lab.scaling.sigmoid import Sigmoid

SETTINGS = FitSettings(bootstrap=40)


def found_of(curves: dict[int, tuple[float, float]], noise: float = 0.003) -> Allocation:
    """The allocation of runs whose curves have these (A, C_mid)."""
    compute = np.geomspace(100, 1e5, 40)
    drawn = noise * np.random.default_rng(0).standard_normal(40)
    recipes = {}
    for n, (a, middle) in curves.items():
        rate = Sigmoid(a, 1.2, middle, 0.1).value(compute) + drawn
        recipes[str(n)] = [Curve(str(n), compute, rate, 0.1, np.full(40, noise))]
    return allocate(recipes, SETTINGS)


def test_the_best_n_rises_and_saturates():
    """A small n gains soon and ends low; 512 costs more than 128 and ends no higher."""
    curves = {8: (0.4, 500.0), 32: (0.5, 1500.0), 128: (0.6, 4000.0), 512: (0.6, 9000.0)}
    found = found_of(curves)
    best = [each.n for each in found.best]
    assert best == sorted(best) and best[0] == 8 and best[-1] == 128
    assert found.verdict == "the best n rises from 8 and saturates at 128: 512 was tried and is not better"
    for each in found.best:
        truth = max(float(Sigmoid(a, 1.2, middle, 0.1).value(each.compute)) for a, middle in curves.values())
        assert each.pass_rate == pytest.approx(truth, abs=0.01)


def test_without_saturation_it_says_so():
    assert "no saturation yet" in found_of({8: (0.4, 500.0), 128: (0.6, 4000.0)}).verdict


def test_equal_curves_are_undecided():
    """The same points twice: only the bootstrap tells that nothing is known."""
    assert "undecided" in found_of({8: (0.5, 2000.0), 16: (0.5, 2000.0)}).verdict


def test_the_scatter_of_seeds_counts():
    """A mean that lies .01 above another, of three seeds each that scatter by .02: Student's t gives it 71 %."""
    compute, truth = np.geomspace(100, 1e5, 12), Sigmoid(0.5, 1.2, 2000.0, 0.1)

    def sure(shifts: dict[str, tuple[float, ...]]) -> float:
        recipes = {
            n: [Curve(f"{n} {shift}", compute, truth.value(compute) + shift, 0.1 + shift) for shift in given]
            for n, given in shifts.items()
        }
        (best,) = allocate(recipes, FitSettings(bootstrap=150), [1e4]).best
        assert best.n == 32
        return best.sure

    assert sure({"8": (0.0,), "32": (0.01,)}) == 1
    assert sure({"8": (-0.02, 0.0, 0.02), "32": (-0.01, 0.01, 0.03)}) == pytest.approx(0.713, abs=0.1)


def test_nothing_is_extrapolated():
    curve = Curve("8", np.geomspace(1, 100, 20), np.linspace(0.2, 0.3, 20), 0.1)
    with pytest.raises(InputError, match="two curves at least"):
        allocate({"8": [curve]}, SETTINGS)
    with pytest.raises(InputError, match="name each run by"):
        allocate({"eight": [curve]}, SETTINGS)


def test_the_command_names_the_best(tmp_path: Path):
    sources = []
    for n, (a, middle) in {8: (0.4, 500.0), 128: (0.6, 4000.0)}.items():
        compute = np.geomspace(100, 1e5, 30)
        rows = zip(compute, Sigmoid(a, 1.2, middle, 0.1).value(compute), strict=True)
        (tmp_path / f"{n}.csv").write_text("\n".join(["tokens,pass_rate", "0,0.1", *(f"{c},{r}" for c, r in rows)]))
        sources.append(f"{n}={tmp_path / str(n)}.csv")
    given = ["plan", "allocate", *sources, "--budget", "300,50000", "--json"]
    value = json.loads(CliRunner().invoke(app, given, catch_exceptions=False).stdout)
    assert [each["n"] for each in value["best"]] == [8, 128] and "no saturation yet" in value["verdict"]
    with pytest.raises(InputError, match="none is extrapolated"):
        CliRunner().invoke(app, [*given[:-2], "1e9"], catch_exceptions=False)
