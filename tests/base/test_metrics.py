"""Metrics merge exactly: never a mean of means."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.made import group, rollout

from strop.algorithms.step_diagnostics import lag_metrics, step_diagnostics, verifier_failures
from strop.base.metrics import Maximum, Mean, Minimum, Stat, Total, merge, values
from strop.base.sample import Sample
from strop.base.seeds import derive
from strop.run.loop import Clock
from strop_verify.verdict import Status


@given(st.lists(st.floats(-5, 5), min_size=1, max_size=12), st.integers(1, 11))
def test_any_split_gives_the_same(numbers: list[float], cut: int) -> None:
    def describe(part: list[float]) -> dict[str, Stat]:
        return {
            "mean": Mean(sum(part), len(part)),
            "total": Total(sum(part)),
            "max": Maximum(max(part, default=None)),
            "min": Minimum(min(part, default=None)),
        }

    whole, split = values(describe(numbers)), values(merge([describe(numbers[:cut]), describe(numbers[cut:])]))
    assert split == {name: pytest.approx(value) for name, value in whole.items()}


def test_tensors_are_read_at_the_end() -> None:
    merged = merge([{"a": Mean(torch.tensor(3.0), 4)}, {"a": Mean(1.0, torch.tensor(1))}, {"b": Total(2)}])
    assert values(merged) == {"a": 0.8, "b": 2.0}


def test_nothing_counted_is_none() -> None:
    assert values({"a": Mean(0, 0), "b": Maximum(None)}) == {"a": None, "b": None}


def test_what_a_steps_groups_say() -> None:
    groups = [
        group(0, rollout(1, length=2), rollout(0, length=6, finish="length")),
        group(1, rollout(0, Status.UNPARSED), rollout(0, Status.TIMEOUT)),
    ]
    found = values(step_diagnostics(groups, (), (0,)))
    assert found["pass_rate"] == pytest.approx(1 / 3)
    assert found["pass_rate/whole"] == pytest.approx(1 / 2)
    assert found["length/mean"] == pytest.approx((2 + 6 + 3 + 3) / 4)
    assert found["length/max"] == 6 and found["length/correct"] == 2
    assert found["truncation_rate"] == 0.25 and found["unparsed_rate"] == 0.25
    assert found["verifier/failures"] == 1
    assert found["groups/zero_variance_share"] == 0.5 and found["groups/trained"] == 1
    assert verifier_failures(groups) == ["verifier timeout: problem p: "]


def test_lag_is_counted_by_trained_token() -> None:
    zeros = np.zeros(4, dtype=np.float32)
    trained = np.array([False, True, True, False])
    versions = np.array([-1, 2, 4, 0], dtype=np.int32)
    sample = Sample(np.arange(4, dtype=np.int32), trained, zeros, zeros, versions, group=0)
    assert values(lag_metrics([sample], version=5)) == {"lag/mean": 2.0, "lag/max": 3.0}


def test_a_lap_adds_up() -> None:
    clock = Clock()
    with clock.section("rollout"):
        pass
    lap = clock.lap()
    assert lap["step"] == pytest.approx(lap["rollout"] + lap["verify"] + lap["update"] + lap["other"])
    assert clock.lap()["rollout"] == 0


def test_seeds_differ_by_name() -> None:
    assert derive(1, "a") == derive(1, "a") < 2**63
    assert len({derive(1, "a"), derive(2, "a"), derive(1, "b"), derive(1, "a", 0), derive(1, "a", "0")}) == 5
