"""The forecast of entropy collapse: by value, silent where it does not know, and with the weights of its bank."""

from __future__ import annotations

import json
import math

import pytest
from bench.forecast import fitted, said, score, stored

from strop.algorithms.alerts import BANK, AlertLimits, Coefficients, alerts, least_share, shape

FAST = [0.3 * 0.7**step for step in range(8)]
STEADY = [0.3 - 0.005 * step for step in range(8)]


def test_a_straight_fall_has_no_bend_and_one_that_slows_down_has():
    fall, bend = shape([math.exp(-0.1 * step) for step in range(9)])
    assert (fall, bend) == pytest.approx((-0.6, 0.0))
    fall, bend = shape([math.exp(-each) for each in (0.0, 0.0, 0.6, 0.6, 0.8, 0.8)])
    assert (fall, bend) == pytest.approx((-0.8, 0.4))


def test_the_interval_by_value():
    weights = Coefficients(fall=2.0, bend=1.0, constant=-0.5, low=-0.4, high=0.6)
    found = least_share([math.exp(-each) for each in (0.0, 0.0, 0.6, 0.6, 0.8, 0.8)], weights)
    assert found == pytest.approx((math.exp(-1.7 - 0.4), math.exp(-1.7 + 0.6)))
    assert least_share(FAST[:2]) is None  # they have no bend


def test_the_weights_are_those_of_the_bank():
    bank = stored()["bank"]
    assert fitted(bank) == pytest.approx(BANK, abs=6e-4)
    weights = {arm: fitted([run for run in bank if run.arm != arm]) for arm in {run.arm for run in bank}}
    left_out = score("forecast", 0.2, bank, lambda run: said(run, weights[run.arm], 0.2))
    others = score("forecast", 0.2, stored()["others"], lambda run: said(run, BANK, 0.2))
    counts = ("alarms", "false", "denials", "missed")
    assert [left_out[name] for name in counts] == [9, 1, 10, 0]
    assert [others[name] for name in counts] == [15, 2, 20, 0]


@pytest.mark.parametrize(
    ("entropies", "limit", "lines"),
    [(FAST, 0.2, 1), (FAST, 0.01, 0), (STEADY, 0.2, 0), ([0.3, None] * 4, 0.2, 0)],
)
def test_a_run_is_told_once_at_the_end_of_its_first_quarter(entropies: list[float | None], limit: float, lines: int):
    memory: dict[str, object] = {}
    heard = []
    for step, entropy in enumerate([*entropies, *[0.02] * 24], start=1):
        row = {"entropy": entropy, "pass_rate": 0.4}
        found, memory = alerts(row, json.loads(json.dumps(memory)), AlertLimits(collapse=limit), step / 32)
        heard += [(step, line) for line in found]
    assert [step for step, _ in heard] == [8] * lines
    assert all("0.0247 nats a token after a quarter" in line and "% of its start" in line for _, line in heard)
