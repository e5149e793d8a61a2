"""Hugging Face folders as files: what they say of a model, a head of its own, and weights for others to load."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from tests.tiny import byte_tokenizer, tiny_qwen3

from strop.base.types import InputError, StropError
from strop.engines.vllm.engine import EMBEDDING, HEAD, ModelFolder, written
from strop.model.files import export
from strop.model.policy import Policy
from strop.model.settings import FreshModel
from strop.model.tensor_file import Mapped
from strop.orchestration.weight_store import WeightFile


def exported(policy: Policy, folder: Path) -> ModelFolder:
    export(policy.model, byte_tokenizer(), folder)
    return ModelFolder.read(folder)


@pytest.mark.parametrize("tie", [True, False])
def test_a_folder_says_what_the_policy_is(tmp_path: Path, tie: bool) -> None:
    policy = tiny_qwen3(tie=tie)
    folder = exported(policy, tmp_path / "model")
    assert folder.shapes == {name: weight.shape for name, weight in policy.weights().items()}
    assert folder.tied == ({HEAD: EMBEDDING} if tie else {})
    assert folder.dtypes == {torch.float32} and folder.config["max_position_embeddings"] == 512
    for file in (tmp_path / "model").glob("*.safetensors"):
        file.write_bytes(b"\xff" * 20)
    with pytest.raises(InputError):
        ModelFolder.read(tmp_path / "model")


def test_a_tied_head_becomes_a_weight_of_its_own(tmp_path: Path) -> None:
    policy = tiny_qwen3(tie=True)
    folder = exported(policy, tmp_path / "model")
    with folder.with_head(tmp_path) as served:
        files = set(json.loads((served / "model.safetensors.index.json").read_text())["weight_map"].values())
        stored = {name: tensor for file in files for name, tensor in load_file(served / file).items()}
        weights = policy.weights()
        assert torch.equal(stored[HEAD], weights[EMBEDDING]) and stored.keys() == weights.keys() | {HEAD}
        assert json.loads((served / "config.json").read_text())["tie_word_embeddings"]  # who loads it says otherwise
    assert not served.exists() and (tmp_path / "model" / "model.safetensors").is_file()
    with exported(tiny_qwen3(tie=False), tmp_path / "untied").with_head(None) as served:
        assert served == tmp_path / "untied"


def test_fused_experts_come_apart_into_what_the_files_hold(tmp_path: Path) -> None:
    fresh = FreshModel(
        hidden_size=32, layers=2, heads=4, kv_heads=2, head_dim=32, intermediate_size=64, tie_embeddings=False,
        max_positions=512, initializer_range=0.3, experts=4, experts_per_token=2,
    )  # fmt: skip
    policy = tiny_qwen3(0, fresh=fresh)
    folder = exported(policy, tmp_path / "model")
    stored = load_file(tmp_path / "model" / "model.safetensors")
    found = folder.in_files(policy.weights())
    assert found.keys() == stored.keys() == folder.shapes.keys() != policy.weights().keys()
    assert all(torch.equal(found[name], tensor) for name, tensor in stored.items())


def test_what_is_stored_and_not_of_the_model_is_not_asked_for(tmp_path: Path) -> None:
    """A layer for speculative decoding, frequencies that older versions wrote: no update has them."""
    policy = tiny_qwen3(tie=False)
    export(policy.model, byte_tokenizer(), tmp_path / "model")
    further = ("model.layers.9.mlp.experts.0.up_proj.weight", "model.layers.0.self_attn.rotary_emb.inv_freq")
    save_file({name: torch.ones(3) for name in further}, tmp_path / "model" / "more.safetensors")
    folder = ModelFolder.read(tmp_path / "model")
    assert folder.shapes.keys() == policy.weights().keys() and folder.stored_in[further[0]] == "more.safetensors"
    assert not folder.buffers and not folder.layers_with_experts


def test_a_model_that_transformers_does_not_know_is_read_as_it_is(tmp_path: Path) -> None:
    policy = tiny_qwen3(tie=False)
    known = exported(policy, tmp_path / "model")
    (tmp_path / "model" / "config.json").write_text(json.dumps({**known.config, "model_type": "of nobody"}))
    folder, weights = ModelFolder.read(tmp_path / "model"), policy.weights()
    assert folder.shapes == known.shapes and folder.in_files(weights) is weights


@pytest.mark.parametrize("in_memory", [True, False])
def test_weights_are_there_while_they_are_read_and_no_longer(tmp_path: Path, in_memory: bool) -> None:
    weights = tiny_qwen3().weights()
    place = None if in_memory else tmp_path
    with written(weights, place) as folder:
        found = load_file(folder / "model.safetensors")
        assert found.keys() == weights.keys() and all(torch.equal(found[name], weights[name]) for name in weights)
        assert (folder / "model.safetensors").is_symlink() == in_memory and (folder.parent == tmp_path) != in_memory
    assert not folder.exists()


@pytest.mark.parametrize("tie", [True, False])
def test_finding_8_a_stored_version_is_not_copied_for_the_server(tmp_path: Path, tie: bool) -> None:
    given = tiny_qwen3(tie=tie).weights()
    stored = Mapped(Path(WeightFile(tmp_path / "stored").write(1, given.items()).path))
    head = {"lm_head.weight": stored["model.embed_tokens.weight"]} if tie else {}
    with written({**stored, **head}, None, stored) as folder:
        assert (folder / "stored.safetensors").resolve() == tmp_path / "stored"
        others = [load_file(other) for other in folder.iterdir() if other.name != "stored.safetensors"]
        assert [other.keys() for other in others] == ([head.keys()] if tie else [])  # nothing else is written again
    changed = {**stored, "model.norm.weight": stored["model.norm.weight"].bfloat16()}
    with written(changed, None, stored) as folder:
        assert load_file(folder / "model.safetensors").keys() == changed.keys() and len(list(folder.iterdir())) == 1
    with written(stored, tmp_path, stored) as folder:  # another machine sees this folder only
        assert load_file(folder / "model.safetensors").keys() == stored.keys()


def test_a_place_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(StropError, match="nowhere"), written({}, tmp_path / "nowhere"):
        pass
