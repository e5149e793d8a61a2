"""The law of several model sizes: its parameters come back from data made by the formula of Tan et al."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from bench.scaling import PUBLISHED, published
from typer.testing import CliRunner

from strop.base.types import InputError
from strop.cli import app
from strop.lab.scaling.curves import Curve
from strop.lab.scaling.fitting import FitSettings
from strop.lab.scaling.joint import fit_joint, parameters_of

SIZES = {"0.5B": 0.5e9, "1.5B": 1.5e9, "3B": 3e9, "7B": 7e9, "14B": 14e9, "32B": 32e9, "72B": 72e9}
SETTINGS = FitSettings(bootstrap=40)


def made(k_max: float, n_0: float, noise: float, seed: int = 0, points: int = 40) -> dict[str, list[Curve]]:
    """Curves of the formula, with `noise` as the standard deviation of log L."""
    random = np.random.default_rng(seed)
    compute = np.geomspace(1e3, 6e4, points)
    found = {}
    for place, (name, size) in enumerate(SIZES.items()):
        k = k_max / (1 + n_0 / size)
        start = np.log(0.85 - 0.07 * place)
        loss = np.exp(start - k * np.log(compute / compute[0]) + noise * random.standard_normal(points))
        found[name] = [Curve(name, compute, 1 - loss, 0.1)]
    return found


@pytest.mark.parametrize(("k_max", "n_0"), [(0.133, 13.782e9), (0.1, 3e9), (0.3, 2e10)])
def test_its_own_parameters_come_back_within_two_percent(k_max: float, n_0: float):
    """The first are those that Tan et al. publish of base models over compute."""
    found = fit_joint(made(k_max, n_0, 0.001), SETTINGS)
    assert found.refused is None
    assert (found.K_max, found.N_0) == pytest.approx((k_max, n_0), rel=0.02)
    assert found.k(7e9)[0] == pytest.approx(k_max / (1 + n_0 / 7e9), rel=0.01)


def test_published_curves_give_the_published_efficiencies():
    """The curves of Tan et al.'s figures; their law lies as close to the points as ours."""
    for (models, unit), (k_max, n_0) in PUBLISHED.items():
        found = fit_joint(published(models, unit), FitSettings(bootstrap=20))
        ours = [found.k(size)[0] for size in found.sizes]
        np.testing.assert_allclose(ours, k_max / (1 + n_0 / found.sizes), rtol=0.15)
        errors = [found.pass_rate(run, curve.compute) - curve.pass_rate for run, curve in enumerate(found.curves)]
        assert all(np.abs(error).mean() < 0.015 for error in errors)


def test_without_noise_they_are_exact():
    found = fit_joint(made(0.2, 2e9, 0.0), SETTINGS)
    assert (found.K_max, found.N_0) == pytest.approx((0.2, 2e9), rel=1e-5)
    curve = found.curves[3]
    np.testing.assert_allclose(found.pass_rate(3, curve.compute), curve.pass_rate, atol=1e-6)


def test_intervals_hold_the_truth_as_often_as_they_say():
    inside = [
        low <= 0.2 <= high
        for low, high in (fit_joint(made(0.2, 2e9, 0.02, seed), SETTINGS).interval(0) for seed in range(60))
    ]
    assert 0.8 <= np.mean(inside) <= 0.99


def test_the_law_is_held_against_sigmoid_and_power_law():
    found = fit_joint(made(0.2, 2e9, 0.005), FitSettings(bootstrap=40, fit_until=1.5e4))
    assert found.held_out.keys() == SIZES.keys()
    for error in found.held_out.values():
        assert error.joint < 0.01 and error.points == 14 and error.power_law < 0.02


def test_what_it_cannot_know_is_refused():
    reason = fit_joint(made(40.0, 2e12, 0.001), SETTINGS).refused
    assert reason is not None and "no saturation yet" in reason
    reason = fit_joint(made(0.2, 1e5, 0.001), SETTINGS).refused
    assert reason is not None and "far below the smallest" in reason
    few = dict(list(made(0.2, 2e9, 0.0).items())[:2])
    with pytest.raises(InputError, match="3 model sizes"):
        fit_joint(few, SETTINGS)
    with pytest.raises(InputError, match="0.5B=runs/small"):
        parameters_of("small")


def test_the_command_says_how_far_the_law_goes(tmp_path: Path):
    sources = []
    for name, (curve,) in made(0.2, 2e9, 0.005).items():
        rows = zip(curve.compute, curve.pass_rate, strict=True)
        (tmp_path / f"{name}.csv").write_text("\n".join(["compute,pass_rate", "0,0.1", *(f"{c},{r}" for c, r in rows)]))
        sources.append(f"{name}={tmp_path / name}.csv")
    given = ["fit", "--joint", *sources, "--bootstrap", "40"]
    done = CliRunner().invoke(app, given, catch_exceptions=False)
    assert done.exit_code == 0 and "beyond either it is not to be trusted" in done.stdout
    value = json.loads(CliRunner().invoke(app, [*given, "--json"], catch_exceptions=False).stdout)
    assert value["K_max"] == pytest.approx(0.2, rel=0.05) and len(value["runs"]) == 7 and value["refused"] is None
