"""What the settings of orchestration mean and which contradict each other; lag told as a histogram."""

from __future__ import annotations

import numpy as np
import pytest
from tests.runs import small_config

from strop.algorithms.step_diagnostics import lag_metrics
from strop.base.metrics import values
from strop.base.sample import Sample
from strop.base.types import InputError


@pytest.mark.parametrize(
    ("sets", "in_process"),
    [
        ((), True),
        (("orchestration.max_lag=2",), False),
        (("orchestration.generators=2",), False),
        (("orchestration.executor=embedded",), False),
        (("orchestration.max_lag=2", "orchestration.executor=in_process"), True),
    ],
)
def test_auto_is_one_process_where_nothing_runs_beside_anything(sets: tuple[str, ...], in_process: bool) -> None:
    assert small_config(*sets).orchestration.in_process == in_process


@pytest.mark.parametrize(
    ("sets", "message"),
    [
        (("executor=in_process", "generators=2"), "executor=embedded.* generators=1"),
        (("stall_seconds=10", "silence_seconds=20"), "stall_seconds=10 .*silence_seconds=20"),
        (("executor=threads",), "orchestration.executor"),
        (("ray.cpus=2",), "ray.cpus=2.0 .*orchestration.executor=auto"),
        (("executor=ray", "ray.train_in_cluster=true"), "trainers=1"),
    ],
)
def test_settings_that_contradict_each_other_are_refused(sets: tuple[str, ...], message: str) -> None:
    with pytest.raises(InputError, match=message):
        small_config(*(f"orchestration.{text}" for text in sets))


def sample(*versions: int) -> Sample:
    """A token of the prompt, then one of each version; the last is not trained."""
    length = len(versions) + 1
    zeros = np.zeros(length, np.float32)
    trained = np.array([False, *[True] * (length - 2), False])
    columns = np.array([-1, *versions], np.int32)
    return Sample(np.zeros(length, np.int32), trained, zeros, zeros, columns, group=0)


def test_the_histogram_of_lag_counts_trained_tokens() -> None:
    found = values(lag_metrics([sample(3, 3, 4, 0), sample(5, 1)], version=5, max_lag=2))
    # Lags 2, 2, 1 and 0; the tokens that are not trained do not count.
    assert found == {"lag/mean": 1.25, "lag/max": 2.0, "lag/share_0": 0.25, "lag/share_1": 0.25, "lag/share_2": 0.5}
    assert values(lag_metrics([sample(3, 3)], version=3)).keys() == {"lag/mean", "lag/max"}
    wide = values(lag_metrics([sample(0, 10, 11, 0)], version=12, max_lag=16))
    assert wide["lag/share_more"] == pytest.approx(1 / 3) and wide["lag/share_2"] == pytest.approx(1 / 3)
    assert sum(share or 0.0 for name, share in wide.items() if "share" in name) == pytest.approx(1.0)
