"""The estimated memory of an update that is sharded, held against torch's own tracker at the shapes of real models."""

from __future__ import annotations

from typing import Literal

import pytest
from tests.run.tracked import peak_of_update, shape

from strop.model.files import empty_model
from strop.model.policy import Policy
from strop.model.settings import ModelSettings
from strop.run.update_memory import BatchSizes, update_need


def near_the_tracked(
    name: str, layers: int | None, ranks: int, again: bool, dtype: Literal["bfloat16", "float32"] = "bfloat16"
) -> None:
    lengths = [4096] * 2
    settings = ModelSettings(cpu_kernels=False, dtype=dtype, gradient_checkpointing=again, trainer_fp32_head=True)
    policy = Policy(empty_model(shape(name, layers), settings), settings)
    estimate = sum(update_need(policy, BatchSizes.of(lengths), "cuda", ranks).values())
    assert estimate == pytest.approx(peak_of_update(shape(name, layers), settings, ranks, lengths), rel=0.1)


@pytest.mark.parametrize(
    ("name", "ranks", "again"),
    [
        ("Qwen3-0.6B", 1, False),
        ("Qwen3-8B", 4, False),
        ("Qwen3-30B-A3B", 8, True),
    ],
)
def test_finding_7_memory_of_a_rank_is_what_torch_tracks(name: str, ranks: int, again: bool) -> None:
    near_the_tracked(name, 3, ranks, again)


def test_finding_7_in_float32() -> None:
    near_the_tracked("Qwen3-8B", 3, 16, True, "float32")


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize(("name", "ranks"), [("Qwen3-8B", 8), ("Qwen3-32B", 16), ("Qwen3-30B-A3B", 8)])
def test_finding_7_with_all_layers(name: str, ranks: int) -> None:
    near_the_tracked(name, None, ranks, True)
