"""The pieces in real runs of a tiny model: not only present, but seen to have acted."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.runs import metrics, small_config

from strop.base.view import SilentView
from strop.run.run import train

OFF_POLICY = ("batch.updates_per_step=2", "batch.passes_per_batch=2", "optim.lr=1e-2")
# A random model is never right: its completions differ in length, and shaping makes a reward of that.
SHAPED = (
    "algorithm.selection.zero_variance=keep", "algorithm.advantage.normalization=none",
    'algorithm.shaping=[{piece="OverlongShaping", max_tokens=12, buffer_tokens=12}]',
)  # fmt: skip
pytestmark = pytest.mark.slow


def rows(folder: Path, *sets: str) -> list[dict[str, Any]]:
    config = small_config("steps=2", "evaluation.every=none", "checkpoint.every=2", *SHAPED, *sets)
    train(config, folder / "run", SilentView())
    return [row for row in metrics(folder / "run") if "loss" in row]


def test_archer(tmp_path: Path) -> None:
    found = rows(
        tmp_path, *OFF_POLICY, "algorithm.loss=ArcherClip", "algorithm.token_types=EntropyQuantile",
        'algorithm.regularizers=[{piece="KlPenalty", beta=0.001, beta_reasoning=0.0, normalization="type"}]',
    )  # fmt: skip
    for row in found:
        assert 0.15 < row["token_types/reasoning_share"] < 0.5  # short responses: at least one token of each
        assert row["ratio/clipped_share"] > 0 and row["kl/knowledge"] > 0 and row["kl/reference"] > 0
        assert row["entropy_flow/clipped_high"] != 0 or row["entropy_flow/clipped_low"] != 0


@pytest.mark.parametrize("exact", ["true", "false"])
def test_opefo(tmp_path: Path, exact: str) -> None:
    found = rows(tmp_path, "algorithm.loss=Opefo", f"algorithm.loss.exact={exact}")
    assert found[0]["opefo/negative"] < 0 < found[0]["opefo/positive"]
    for row in found:  # completions of a later step may all be as long, and nothing flows
        total = row["opefo/positive"] - row["opefo/negative"]
        net = row["opefo/positive"] + row["opefo/negative"]
        assert row["opefo/lambda"] == pytest.approx(-net / total if total else 0.0)
        if exact == "false":
            assert row["opefo/lambda"] == pytest.approx(row["entropy_flow/lambda"], abs=1e-4)


@pytest.mark.parametrize("loss", ["ClipCov", "KlCov"])
def test_covariance(tmp_path: Path, loss: str) -> None:
    bounds = ("algorithm.loss.low=-9", "algorithm.loss.high=9") if loss == "ClipCov" else ()
    for row in rows(tmp_path, *OFF_POLICY, f"algorithm.loss={loss}", *bounds):
        # one token of each of four updates
        assert row["covariance/chosen_share"] * row["trained_tokens"] == pytest.approx(4)


def test_gspo_on_recomputed_anchors_with_corrections(tmp_path: Path) -> None:
    found = rows(
        tmp_path, *OFF_POLICY, "algorithm.loss=Gspo", "algorithm.anchor=recomputed", "algorithm.correction=TokenTis",
        "algorithm.aggregation=SampleMean",
    )  # fmt: skip
    assert any(row["ratio/clipped_share"] > 0 for row in found)


def test_masking_shaping_and_adaptive_entropy(tmp_path: Path) -> None:
    found = rows(
        tmp_path, "algorithm.loss=LowEntropyMask", "algorithm.token_types=EntropyQuantile",
        "algorithm.token_types.scope=batch", "algorithm.token_types.when=update",
        'algorithm.regularizers=[{piece="AdaptiveEntropy", target=9.0}]',
        "algorithm.advantage.baseline=leave_one_out",
    )  # fmt: skip
    assert [row["state/algorithm.regularizers.0.coefficient"] for row in found] == pytest.approx([1e-4, 2e-4])
    assert found[0]["token_types/reasoning_share"] == pytest.approx(0.2, abs=0.05)
    assert found[0]["token_types/clipped_knowledge"] == 1
    assert found[0]["reward/mean"] < found[0]["pass_rate"]
    assert found[0]["advantage/std"] > 0
