"""The split that is found is the best there is."""

from __future__ import annotations

from dataclasses import replace

import pytest

from strop.base.types import InputError
from strop.lab.planning import ConstantLength, Costs, LogNormal, Setup, simulate
from strop.lab.planning.question import alternatives, best_split, splits


def test_splits_use_every_device() -> None:
    assert splits(4, 1) == [(1, 3), (2, 2), (3, 1)]
    assert splits(9, 4) == [(1, 5), (2, 1)]
    with pytest.raises(InputError, match="4 devices are too few for a generator of 4"):
        splits(4, 4)


def test_work_is_split_by_its_weight() -> None:
    # 240 sequences of 10 tokens, a second each: 2400 s of generation, 800 s of updating. On 16 devices 12 generators
    # take 200 s, as 4 trainers do; any other split makes one of them longer.
    costs = Costs(decode_sequence=1, train_token=800 / 2400)
    found = best_split(Setup(24, 10, max_lag=2, assign="sample"), costs, ConstantLength(10), devices=16, steps=20)
    assert (found.setup.generators, found.setup.trainers) == (12, 4)
    assert found.mean == pytest.approx(200, rel=0.02)


def test_it_is_as_good_as_trying_all() -> None:
    costs = Costs(decode_step=0.5, decode_sequence=0.02, train_update=2, train_token=0.01)
    setup, lengths = Setup(8, 4, max_lag=1), LogNormal(60, 0.7, 400)
    found = best_split(setup, costs, lengths, devices=10, steps=12)
    every = [
        simulate(replace(setup, generators=count, trainers=rest), costs, lengths, 12).update_seconds
        for count, rest in splits(10, 1)
    ]
    assert found.update_seconds == pytest.approx(min(every))


def test_alternatives_pair_each_lag_with_its_off_policy_twin() -> None:
    names = [setup.name for setup in alternatives(Setup(4, 2), (0, 1, 4))]
    assert names == ["synchronous", "PipelineRL-1", "PipelineRL-4", "PPO-off-policy-4"]
