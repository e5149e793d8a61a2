"""The fit recovers known curves, its intervals hold, and points that support no fit are refused."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from scipy.optimize import curve_fit
from tests.lab.scaling.cases import COMPUTE, R_0, TABLE_1, drawn, noise, truth

from strop.lab.scaling import Curve, Fit, FitSettings, Sigmoid, fit
from strop.lab.scaling.curves import Unit

QUICK = FitSettings(bootstrap=40)
PAPER = FitSettings(method="paper", bootstrap=20)


def exact(sigmoid: Sigmoid, compute: np.ndarray = COMPUTE) -> Curve:
    return Curve("exact", compute, sigmoid.value(compute), sigmoid.R_0, None, 0.0)


def accepted(found: Fit) -> Sigmoid:
    assert found.refused is None and found.sigmoid is not None, found.refused
    return found.sigmoid


@pytest.mark.parametrize("row", TABLE_1)
@pytest.mark.parametrize("chosen", [QUICK, PAPER], ids=["refined", "paper"])
def test_every_row_of_table_1_is_recovered_from_exact_points(row: str, chosen: FitSettings) -> None:
    c_mid, b, a = TABLE_1[row]
    found = accepted(fit(exact(truth(row)), chosen))
    assert abs(found.A - a) < 1e-6 and abs(found.B / b - 1) < 1e-6 and abs(found.C_mid / c_mid - 1) < 1e-6


@settings(max_examples=40, deadline=None)
@given(
    a=st.floats(0.45, 1.0),
    b=st.floats(0.7, 4.0),
    r0=st.floats(0.0, 0.3),
    unit=st.floats(1e-3, 1e6),
    n=st.integers(6, 40),
)
def test_any_curve_past_its_midpoint_is_recovered_in_any_unit(
    a: float, b: float, r0: float, unit: float, n: int
) -> None:
    compute = unit * np.geomspace(0.2, 12.0, n)
    found = accepted(fit(exact(Sigmoid(a, b, unit, r0), compute), FitSettings(bootstrap=20)))
    assert abs(found.A - a) < 1e-5 and abs(found.B / b - 1) < 1e-4 and abs(found.C_mid / unit - 1) < 1e-4


def test_the_weighted_optimum_is_that_of_scipy() -> None:
    curve = drawn(truth("scout").value(COMPUTE), seed=4, scale=3.0)
    assert curve.stderr is not None
    found = accepted(fit(curve, QUICK))

    def value(c: np.ndarray, a: float, b: float, mid: float) -> np.ndarray:
        return R_0 + (a - R_0) / (1.0 + (mid / c) ** b)

    best, _ = curve_fit(value, curve.compute, curve.pass_rate, p0=(0.7, 1.6, 4000.0), sigma=curve.stderr)
    assert (found.A, found.B, found.C_mid) == pytest.approx(tuple(best), rel=1e-5)


def test_the_bootstrap_spreads_as_the_linear_theory_says() -> None:
    sigmoid = truth()
    rates = sigmoid.value(COMPUTE)
    found = fit(drawn(rates, seed=1), FitSettings(bootstrap=1500))
    center, step = (sigmoid.A, sigmoid.B, sigmoid.C_mid), (1e-5, 1e-5, 1e-2)

    def moved(parameter: int, sign: float) -> np.ndarray:
        a, b, mid = (value + sign * step[k] * (k == parameter) for k, value in enumerate(center))
        return Sigmoid(a, b, mid, R_0).value(COMPUTE)

    columns = [(moved(k, 1.0) - moved(k, -1.0)) / (2.0 * step[k]) for k in range(3)]
    jacobian = np.stack(columns, axis=1) / noise(rates)[:, None]
    expected = np.sqrt(np.diag(np.linalg.inv(jacobian.T @ jacobian)))
    assert found.samples[:, :3].std(axis=0) == pytest.approx(expected, rel=0.1)


@pytest.mark.parametrize("known", [True, False])
def test_the_interval_of_a_covers_the_truth_as_often_as_it_says(known: bool) -> None:
    sigmoid, covered, errors = truth("bs2048"), 0, []
    for seed in range(30):
        found = fit(drawn(sigmoid.value(COMPUTE), seed, known=known), FitSettings(bootstrap=100, seed=seed))
        low, high = found.interval("A")
        covered += low <= sigmoid.A <= high
        errors.append(abs(accepted(found).A - sigmoid.A))
    assert 22 <= covered <= 30  # 27 ± 3 standard deviations of a binomial
    assert float(np.median(errors)) <= 0.003


def test_one_seed_gives_one_answer_and_another_level_a_wider_interval() -> None:
    curve = drawn(truth().value(COMPUTE))
    first, again = fit(curve, QUICK), fit(curve, QUICK)
    assert first.interval("A") == again.interval("A")
    wide = fit(curve, FitSettings(bootstrap=40, level=0.99)).interval("A")
    assert wide[0] < first.interval("A")[0] < first.interval("A")[1] < wide[1]


def test_predictions_are_the_curve_and_a_measurement_is_less_certain() -> None:
    found = fit(drawn(truth().value(COMPUTE)), FitSettings(bootstrap=200))
    (prediction,) = found.predict([100000.0])
    assert prediction.pass_rate == pytest.approx(float(accepted(found).value(100000.0)))
    assert prediction.pass_rate == pytest.approx(float(truth().value(100000.0)), abs=0.005)
    assert prediction.measured[0] < prediction.interval[0] < prediction.interval[1] < prediction.measured[1]


def test_an_r0_with_noise_moves_within_it_and_an_exact_one_stays() -> None:
    """Early points know R_0 better than one vague measurement of it does."""
    compute = np.geomspace(100.0, 50000.0, 60)
    curve = drawn(truth().value(compute), compute=compute)
    vague = Curve("vague", compute, curve.pass_rate, R_0 + 0.03, curve.stderr, r0_stderr=0.03)
    assert abs(accepted(fit(vague, QUICK)).R_0 - R_0) < 0.003
    assert abs(accepted(fit(vague, QUICK)).B - 1.92) < 0.1
    given = accepted(fit(Curve("given", compute, curve.pass_rate, R_0 + 0.03, curve.stderr, r0_stderr=0.0), QUICK))
    assert given.R_0 == R_0 + 0.03 and abs(given.B - 1.92) > 0.1


@pytest.mark.parametrize("noisy", [True, False], ids=["noisy row", "exact row"])
def test_the_interval_of_a_holds_whether_the_row_of_r0_is_noisy_or_not(noisy: bool) -> None:
    """Taking R_0 as exact covers in 60 % here where the row is noisy; redrawing it alone in all where it is not."""
    compute = np.arange(1500.0, 50001.0, 150.0)
    sigmoid, covered = truth("bs2048"), 0
    rng = np.random.default_rng(3)
    for seed in range(30):
        curve = drawn(sigmoid.value(compute), seed, compute)
        r0 = R_0 + noisy * float(noise(np.array(R_0))) * rng.standard_normal()
        row = Curve("row", compute, curve.pass_rate, r0, curve.stderr, float(noise(np.array(R_0))))
        low, high = fit(row, FitSettings(bootstrap=100, seed=seed)).interval("A")
        covered += low <= sigmoid.A <= high
    assert 22 <= covered <= 29


def test_held_back_points_are_not_fitted_and_their_error_is_measured() -> None:
    sigmoid = truth()
    rates = sigmoid.value(COMPUTE)
    shifted = np.where(COMPUTE > 20000, rates + 0.05, rates)
    found = fit(Curve("c", COMPUTE, shifted, R_0, None, 0.0), FitSettings(bootstrap=20, fit_until=20000))
    error = found.held_back_error()
    assert abs(accepted(found).A - 0.61) < 1e-6
    assert error is not None and error.points == int((COMPUTE > 20000).sum())
    assert error.mean_error == pytest.approx(-0.05, abs=1e-5) and error.covered == 0.0
    assert error.mean_absolute_error == pytest.approx(0.05, abs=1e-5)
    assert fit(Curve("c", COMPUTE, rates, R_0), QUICK).held_back_error() is None


def test_early_compute_is_cut_off() -> None:
    rates = truth().value(COMPUTE)
    rates[:3] = 0.5  # a start that is no sigmoid
    found = fit(Curve("c", COMPUTE, rates, R_0), FitSettings(bootstrap=20, skip_until=COMPUTE[3]))
    assert abs(accepted(found).A - 0.61) < 1e-6 and len(found.used) == len(COMPUTE) - 3


def test_noise_beyond_the_stated_stderr_widens_the_interval_and_is_said() -> None:
    curve = drawn(truth().value(COMPUTE), scale=4.0)
    assert curve.stderr is not None
    boasting = Curve("b", COMPUTE, curve.pass_rate, R_0, curve.stderr / 4.0, 0.0)
    honest, widened = (fit(each, FitSettings(bootstrap=300)) for each in (curve, boasting))
    assert any("scatter" in note for note in widened.notes) and not honest.notes
    ratio = np.diff(widened.interval("A"))[0] / np.diff(honest.interval("A"))[0]
    assert 0.7 < ratio < 1.4


def shared(curve: Curve, times: float) -> Curve:
    """The same points with standard errors so many times as large, most of which all points have in common."""
    assert curve.stderr is not None
    r0_stderr = times * float(noise(np.array(R_0)))
    return replace(curve, stderr=curve.stderr * times, r0_stderr=r0_stderr, same_problems=True)


def test_errors_that_all_points_share_are_no_scatter() -> None:
    """One set of problems at every point: its own error moves the curve and hides no curvature."""
    early = COMPUTE[COMPUTE < 16000]
    curve = drawn(truth("bs2048").value(early), compute=early, scale=0.5)
    ours = shared(curve, 20.0)
    assert fit(replace(ours, same_problems=False), QUICK).refused is not None
    found, honest = fit(ours, FitSettings(bootstrap=300)), fit(curve, FitSettings(bootstrap=300))
    assert any("these problems" in note for note in found.notes) and 0.02 < found.noise_factor < 0.1
    assert 0.5 < np.diff(found.interval("A"))[0] / np.diff(honest.interval("A"))[0] < 2.0
    # Errors that are as large as the scatter are taken as they are.
    assert fit(replace(curve, same_problems=True), QUICK).interval("A") == fit(curve, QUICK).interval("A")


def test_the_interval_of_a_holds_where_most_of_the_errors_is_shared() -> None:
    sigmoid, covered = truth("bs2048"), 0
    for seed in range(30):
        curve = shared(drawn(sigmoid.value(COMPUTE), seed, scale=0.5), 4.0)
        low, high = fit(curve, FitSettings(bootstrap=100, seed=seed)).interval("A")
        covered += low <= sigmoid.A <= high
    assert 22 <= covered <= 30


def test_points_that_bend_otherwise_are_said() -> None:
    rates = 0.5 * truth().value(COMPUTE) + 0.5 * Sigmoid(0.61, 4.0, 20000.0, R_0).value(COMPUTE)
    found = fit(drawn(rates), QUICK)
    assert found.refused is not None or any("bend otherwise" in note for note in found.notes)


# ---------------------------------------------------------------------- refusals

LOG = np.log(COMPUTE / COMPUTE[0])
BASE = truth().value(COMPUTE)
REFUSED = {
    "flat at R_0": (np.full(len(COMPUTE), R_0), "flat"),
    "flat above R_0": (np.full(len(COMPUTE), 0.45), "flat"),
    "rises and falls back": (BASE - 0.2 * np.clip((COMPUTE - 30000) / 20000, 0, 1), "non-monotone"),
    "slow decline": (BASE - 0.06 * np.clip((COMPUTE - 15000) / 35000, 0, 1), "non-monotone"),
    "falls throughout": (R_0 - COMPUTE * 2e-6, "non-monotone"),
    "waves": (BASE + 0.06 * np.sin(COMPUTE / 4000), "non-monotone"),
    "dip": (BASE - 0.1 * ((COMPUTE > 20000) & (COMPUTE < 27000)), "non-monotone"),
    "linear in compute": (R_0 + COMPUTE * 6e-6, "no curvature"),
    "square root": (R_0 + 0.0018 * np.sqrt(COMPUTE), "no curvature"),
    "line in log compute": (R_0 + 0.1 * LOG, "no curvature"),
    "long before its midpoint": (Sigmoid(0.6, 1.9, 200000.0, R_0).value(COMPUTE), "no curvature"),
    "just before its midpoint": (Sigmoid(0.6, 1.9, 55000.0, R_0).value(COMPUTE), "no curvature"),
}


@pytest.mark.parametrize("case", REFUSED)
@pytest.mark.parametrize("scale", [0.0, 1.0], ids=["exact", "noisy"])
@pytest.mark.parametrize("known", [True, False], ids=["stderr", "no stderr"])
def test_points_that_support_no_fit_are_refused_with_the_reason(case: str, scale: float, known: bool) -> None:
    rates, reason = REFUSED[case]
    if scale == 0.0:
        curve = Curve(case, COMPUTE, rates, R_0, noise(rates) if known else None, 0.0)
    else:
        curve = drawn(rates, seed=3, known=known)
    found = fit(curve, QUICK)
    assert found.refused is not None and found.refused.startswith(reason)
    assert found.sigmoid is None and found.sse is None and "\n" not in found.refused
    with pytest.raises(ValueError):
        found.predict([1.0])


@pytest.mark.parametrize("known", [True, False])
@pytest.mark.parametrize("points", [5, 8, 40])
def test_noise_around_a_constant_is_never_a_curve(points: int, known: bool) -> None:
    compute = np.linspace(1500, 50000, points)
    for seed in range(10):
        for level in (R_0, 0.5):
            assert fit(drawn(np.full(points, level), seed, compute, known), QUICK).refused is not None


def test_four_points_are_too_few_even_when_repeated() -> None:
    compute = np.repeat([1000.0, 3000.0, 9000.0, 27000.0], 3)
    found = fit(exact(truth(), compute), QUICK)
    assert found.refused is not None and found.refused.startswith("too few points: 4 at different compute")


def test_a_task_that_is_nearly_solved_is_no_missing_ceiling() -> None:
    found = fit(drawn(Sigmoid(0.995, 1.8, 4000.0, 0.3).value(COMPUTE), known=False), QUICK)
    assert abs(accepted(found).A - 0.995) < 0.01


def test_a_on_the_rim_of_the_papers_grid_is_refused() -> None:
    found = fit(exact(Sigmoid(0.95, 1.8, 4000.0, R_0)), PAPER)
    assert found.refused is not None and "rim of the grid 0.45 to 0.8" in found.refused
    wider = FitSettings(method="paper", bootstrap=20, a_grid=(0.5, 1.0, 101))
    assert abs(accepted(fit(exact(Sigmoid(0.95, 1.8, 4000.0, R_0)), wider)).A - 0.95) < 1e-9


# ---------------------------------------------------------------------- the paper's grid


def test_the_papers_procedure_is_its_grid_search_cell_by_cell() -> None:
    """A brute-force search with curve_fit in every cell finds the same cell."""
    curve = drawn(truth("24gen").value(COMPUTE), seed=2, known=False)
    a_grid, mids = np.linspace(0.55, 0.65, 11), np.linspace(2000.0, 4000.0, 9)
    best = None
    for a in a_grid:
        for mid in mids:

            def value(c: np.ndarray, b: float, a: float = a, mid: float = mid) -> np.ndarray:
                return R_0 + (a - R_0) / (1.0 + (mid / c) ** b)

            (b,), _ = curve_fit(lambda c, b, v=value: v(c, b), curve.compute, curve.pass_rate, p0=[1.0])
            sse = float(((value(curve.compute, b) - curve.pass_rate) ** 2).sum())
            best = min(best or (np.inf,), (sse, a, b, mid))
    assert best is not None
    chosen = FitSettings(
        method="paper", bootstrap=20, a_grid=(0.55, 0.65, 11), c_mid_grid=(2000.0, 4000.0, 9), refine_c_mid=False
    )
    found = accepted(fit(curve, chosen))
    assert (found.A, found.B, found.C_mid) == pytest.approx(best[1:], rel=1e-4)


@pytest.mark.parametrize("hours", [1.0, 50.0, 1.1e3, 1.6e4, 1e5, 1e6])
@pytest.mark.parametrize("unit", ["device_hours", "device_seconds"])
def test_table_1_comes_back_from_runs_of_any_length_by_the_papers_method(hours: float, unit: Unit) -> None:
    scale = hours / COMPUTE[-1] * (3600.0 if unit == "device_seconds" else 1.0)
    for row, (c_mid, b, a) in TABLE_1.items():
        found = accepted(fit(Curve(row, scale * COMPUTE, truth(row).value(COMPUTE), R_0, None, 0.0, unit), PAPER))
        assert abs(found.A - a) < 5e-4 and abs(found.B / b - 1) < 0.01
        assert abs(found.C_mid / (scale * c_mid) - 1) < 0.01


@settings(max_examples=5, deadline=None)
@given(length=st.floats(1.0, 1e6), unit=st.floats(1e-3, 1e9), row=st.sampled_from(sorted(TABLE_1)))
def test_no_unit_changes_what_the_papers_method_finds(length: float, unit: float, row: str) -> None:
    """In a unit that is not hours every run is taken for one of the paper's."""
    compute = length / COMPUTE[-1] * COMPUTE
    rates = drawn(truth(row).value(COMPUTE)).pass_rate
    first, second = (
        accepted(fit(Curve("c", scale * compute, rates, R_0, None, 0.0, "tokens"), PAPER)) for scale in (1.0, unit)
    )
    assert first.A == second.A and abs(first.B / second.B - 1) < 1e-6
    assert abs(second.C_mid / first.C_mid / unit - 1) < 1e-6


def test_the_papers_skip_and_grid_are_gpu_hours_of_its_runs() -> None:
    def chosen(last: float, unit: Unit = "device_hours", **given: float) -> tuple[float, float]:
        compute = np.linspace(0.01, 1.0, 100) * last
        curve = Curve("c", compute, truth().value(compute * 5e4 / last), R_0, None, 0.0, unit)
        found = fit(curve, FitSettings.model_validate({"method": "paper", "bootstrap": 20, **given}))
        assert found.settings.c_mid_grid is not None and found.settings.skip_until is not None
        assert found.used.compute[0] >= found.settings.skip_until > found.used.compute[0] - 0.01 * last
        return found.settings.skip_until, found.settings.c_mid_grid[1]

    assert chosen(16_000.0) == chosen(50_000.0) == chosen(100_000.0) == pytest.approx((1500.0, 40_000.0))
    assert chosen(50_000.0 * 3600, "device_seconds") == pytest.approx((1500.0 * 3600, 40_000.0 * 3600))
    assert chosen(16.0) == pytest.approx((1.5, 40.0)) and chosen(1e6) == pytest.approx((15_000.0, 4e5))
    assert chosen(32.0, "steps") == pytest.approx((3.0, 80.0))
    assert chosen(16_000.0, skip_until=480.0)[0] == 480.0
    assert fit(exact(truth()), QUICK).settings.skip_until == 0.0


def test_the_papers_interval_of_a_is_no_finer_than_its_grid() -> None:
    low, high = fit(drawn(BASE, known=False), PAPER).interval("A")
    assert high - low >= 0.005 - 1e-9 and low <= 0.61 <= high


# ---------------------------------------------------------------------- anything goes


@settings(max_examples=60, deadline=None)
@given(
    rates=st.lists(st.sampled_from([0.0, 0.1, 0.3, 0.31, 0.5, 0.9, 1.0]), min_size=1, max_size=12),
    r0=st.sampled_from([0.0, 0.3, 1.0]),
    unit=st.sampled_from([1e-9, 1.0, 1e15]),
    stderr=st.sampled_from([None, 1e-6, 0.02, 0.5]),
    method=st.sampled_from(["refined", "refined", "paper"]),
)
@example(rates=[0.5, 0.1, 0.0, 0.0, 0.0], r0=0.0, unit=1e-9, stderr=None, method="paper")  # B of curve_fit below 0
@pytest.mark.filterwarnings("error")
def test_whatever_the_points_there_is_a_reason_or_finite_numbers(
    rates: list[float], r0: float, unit: float, stderr: float | None, method: str
) -> None:
    compute = unit * np.geomspace(1.0, 50.0, len(rates))
    errors = None if stderr is None else np.full(len(rates), stderr)
    curve = Curve("any", compute, np.array(rates), r0, errors)
    found = fit(curve, FitSettings.model_validate({"method": method, "bootstrap": 20}))
    if found.sigmoid is None:
        assert found.refused
        return
    assert np.isfinite(found.samples).all() and r0 < found.sigmoid.A <= 1.0
    assert np.isfinite(np.array(found.predict([unit, 1e6 * unit])[1].measured)).all()
