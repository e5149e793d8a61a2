"""Sharded loading: each rank its rows alone, buffers that no file holds as they should be, and models whole again."""

from __future__ import annotations

import json
import weakref
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.runs import small_config
from tests.training.several import together
from tests.training.test_sharded_trainer import MODEL, single
from torch import nn
from torch.distributed.tensor import DTensor
from transformers import AutoModelForCausalLM, Qwen3Config, Qwen3ForCausalLM

from strop.base.types import InputError
from strop.model.files import byte_tokenizer, export, fresh_model
from strop.model.policy import Policy
from strop.model.settings import FreshModel
from strop.orchestration.weight_store import WeightFile, read
from strop.run.learners import handlers
from strop.training import sharding
from strop.training.checkpoint import DiskFull
from strop.training.learner import Learner
from strop.training.optimizer import own_part
from strop.training.packing import even_bins
from strop.training.ranks import deal

SHAPE: dict[str, Any] = {
    "hidden_size": 36, "layers": 2, "heads": 4, "kv_heads": 2, "head_dim": 8, "intermediate_size": 48,
    "rope_theta": 137.0,
}  # fmt: skip
PROBE = np.arange(10, 40, dtype=np.int32)


def stored(folder: Path, **changes: Any) -> Path:
    """A small model's folder."""
    tokenizer = byte_tokenizer()
    model = fresh_model(FreshModel(**{**SHAPE, **changes}), tokenizer, seed=5, dtype="float32")
    model.generation_config.max_length = 77
    export(model, tokenizer, folder)
    return folder


def looked_at(learner: Learner, rank: int) -> dict[str, Any]:
    policy = learner.policy
    assert learner.critic is not None and learner.reference is not None
    critic = learner.critic.policy
    assert isinstance(learner.reference, Policy)
    return {
        "held": sum(own_part(p).numel() for p in policy.parameters()),
        "weights": dict(learner.weights()),
        "critic": learner.storage.whole(dict(critic.named_parameters())),
        "reference": learner.storage.whole(learner.reference.weights()),
        "buffers": {name: buffer.clone() for name, buffer in policy.named_buffers()},
        "probe": learner.probe(PROBE),
        "frozen": not any(p.requires_grad for p in learner.reference.parameters()),
    }


@pytest.mark.parametrize(
    "shape", [{"tie_embeddings": True}, {"tie_embeddings": False}, {"experts": 12}], ids=["tied", "untied", "experts"]
)
def test_ranks_read_their_rows_and_compute_what_a_whole_model_does(
    shape: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = stored(tmp_path / "model", **shape)
    sets = ("algorithm.advantage=Gae", "critic.updates_per_step=1", "algorithm.kl_in_reward={beta=0.1}")
    config = small_config(*MODEL[2:], *sets, "model.fresh=none", f'model.path="{folder}"')
    alone = single(config)
    monkeypatch.setattr(sharding, "load_policy", None)  # no rank may load it whole
    first, second = together(config, 2, tmp_path / "ranks", looked_at)
    assert alone.critic is not None and isinstance(alone.reference, Policy)
    for name, expected in (
        ("weights", alone.weights()),
        ("critic", dict(alone.critic.policy.named_parameters())),
        ("reference", alone.reference.weights()),
    ):
        assert first[name].keys() == expected.keys()
        assert all(torch.equal(first[name][key], value) for key, value in expected.items())
    total = sum(weight.numel() for weight in alone.weights().values())
    assert first["held"] + second["held"] == total and abs(first["held"] - second["held"]) < 0.05 * total
    rotary = {name: buffer for name, buffer in alone.policy.named_buffers() if name.endswith("inv_freq")}
    assert len(rotary) == 2 and first["frozen"]
    for name, buffer in rotary.items():
        frequencies = 137.0 ** -(torch.arange(0, 8, 2) / 8)
        torch.testing.assert_close(buffer, frequencies)
        assert torch.equal(first["buffers"][name], buffer) and torch.equal(second["buffers"][name], buffer)
    np.testing.assert_allclose(first["probe"], alone.probe(PROBE), atol=2e-6)


def test_an_export_of_ranks_is_the_folder_they_were_loaded_from(tmp_path: Path) -> None:
    folder = stored(tmp_path / "model")
    config = small_config(*MODEL[2:], "model.fresh=none", f'model.path="{folder}"')

    def work(learner: Learner, rank: int) -> None:
        learner.export(byte_tokenizer(), tmp_path / "out", tmp_path / "critic")

    together(config, 2, tmp_path / "ranks", work)
    one, two = (AutoModelForCausalLM.from_pretrained(tmp_path / name) for name in ("model", "out"))
    assert two.config.to_dict() | {"_name_or_path": ""} == one.config.to_dict() | {"_name_or_path": ""}
    assert two.generation_config.max_length == 77
    assert all(torch.equal(a, b) for a, b in zip(one.state_dict().values(), two.state_dict().values(), strict=True))


@pytest.mark.parametrize(
    "rope",
    [
        {"rope_type": "default", "rope_theta": 500.0},
        {"rope_type": "yarn", "rope_theta": 500.0, "factor": 4.0, "original_max_position_embeddings": 64},
        {"rope_type": "llama3", "rope_theta": 500.0, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
         "original_max_position_embeddings": 64},
    ],
)  # fmt: skip
def test_buffers_that_no_file_holds_are_computed_anew(rope: dict[str, Any]) -> None:
    config = Qwen3Config(
        vocab_size=50, hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2,
        num_key_value_heads=1, head_dim=8, max_position_embeddings=256, rope_parameters=rope,
    )  # fmt: skip
    expected = dict(Qwen3ForCausalLM(config).named_buffers())
    with torch.device("meta"):
        model = Qwen3ForCausalLM(config)
    model.to_empty(device="cpu")
    for buffer in model.buffers():
        buffer.fill_(torch.nan)
    sharding.restore_buffers(model)
    assert expected and all(torch.equal(dict(model.named_buffers())[name], value) for name, value in expected.items())


def test_buffers_that_cannot_be_computed_are_refused() -> None:
    model = Qwen3ForCausalLM(
        Qwen3Config(
            vocab_size=50, hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2,
            num_key_value_heads=1, head_dim=8,
        )
    )  # fmt: skip
    odd = nn.Module()
    odd.register_buffer("slopes", torch.ones(3), persistent=False)
    model.model.layers[0].odd = odd
    with pytest.raises(InputError, match=r"model\.layers\.0\.odd"):
        sharding.restore_buffers(model)


def test_micro_batches_are_dealt_by_size_and_counts_are_equal() -> None:
    assert deal([5, 9, 7], 2) == [[1, None], [2, 0]]
    assert deal([3, 1, 2], 1) == [[0, 1, 2]]
    assert deal([4], 3) == [[0], [None], [None]]


@given(st.lists(st.integers(1, 60), min_size=1, max_size=40), st.integers(1, 80), st.integers(2, 5))
def test_bins_for_ranks_hold_everything_within_the_budget(lengths: list[int], budget: int, ranks: int) -> None:
    bins = even_bins(lengths, budget, ranks)
    assert sorted(index for members in bins for index in members) == list(range(len(lengths)))
    assert all(sum(lengths[i] for i in members) <= budget or len(members) == 1 for members in bins)
    hands = deal([sum(lengths[i] for i in members) for members in bins], ranks)
    assert len({len(hand) for hand in hands}) == 1
    assert sorted(i for hand in hands for i in hand if i is not None) == list(range(len(bins)))
    assert sum(index is None for hand in hands for index in hand) < ranks


def test_a_model_may_lie_in_several_files(tmp_path: Path) -> None:
    assert sharding.StoredTensors.of(tmp_path) is None
    index = {"weight_map": {"a.weight": "one.safetensors", "b.weight": "two.safetensors"}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    found = sharding.StoredTensors.of(tmp_path)
    assert found is not None and found.names == {"a.weight", "b.weight"}


def test_finding_12_gpus_of_two_kinds_may_round_the_probe_otherwise(monkeypatch: pytest.MonkeyPatch) -> None:
    learner = single(small_config(*MODEL))
    kinds = []
    for off in (0.0, 1e-6):
        monkeypatch.setattr(learner.policy, "probe", lambda ids, off=off: np.full(len(ids) - 1, off, np.float32))
        kinds.append(handlers(learner)["probe"](PROBE))
    (one, agreed), (other, also) = kinds
    assert one[0] != other[0] and agreed == also


def test_finding_8_a_version_is_written_tensor_by_tensor_and_a_full_disk_leaves_no_rank_waiting(
    tmp_path: Path,
) -> None:
    config = small_config(*MODEL)
    alive: list[weakref.ref[torch.Tensor]] = []
    most: list[int] = []
    gather = DTensor.full_tensor

    def counting(self: DTensor) -> torch.Tensor:
        whole = gather(self)
        alive.append(weakref.ref(whole))
        most.append(sum(one() is not None for one in alive))
        return whole

    def work(learner: Learner, rank: int) -> Any:
        publish = handlers(learner)["publish"]
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(WeightFile, "write", full)
            with pytest.raises(DiskFull) if rank == 0 else nullcontext():
                publish(str(tmp_path / "full"), 0)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(DTensor, "full_tensor", counting)
            stored, _ = publish(str(tmp_path / "whole"), 1)
        return stored, max(most), len(most)

    def full(self: WeightFile, version: int, weights: Any, whole: Any) -> None:
        next(whole)
        raise DiskFull("no space")

    (stored, at_once, count), (nothing, _, _) = together(config, 2, tmp_path / "ranks", work)
    assert nothing is None and count > 10 and at_once <= 2  # the last one, and that which replaces it
    found, expected = read(stored), single(config).weights()
    assert found.keys() == expected.keys() and all(torch.equal(found[name], expected[name]) for name in found)
