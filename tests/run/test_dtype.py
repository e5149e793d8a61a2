"""A model is trained and exported in the type in which it was stored, with float32 masters in the optimizer."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from tests.runs import small_config
from tests.tiny import byte_tokenizer, tiny_settings

from strop.base.view import SilentView
from strop.config.parse import edit
from strop.model.files import export
from strop.model.policy import load_policy
from strop.model.settings import ModelSettings
from strop.run.run import train
from strop.training import checkpoint


def stored(folder: Path, dtype: torch.dtype) -> Path:
    """A tiny model in a folder, its weights and its configuration of that type."""
    policy, tokenizer = load_policy(tiny_settings(), byte_tokenizer())
    export(policy.model.to(dtype), tokenizer, folder)
    return folder


@pytest.mark.parametrize(
    ("given", "wanted"),
    [(torch.bfloat16, torch.bfloat16), (torch.float32, torch.float32), (torch.float16, torch.float32)],
)
def test_the_type_of_the_stored_weights(tmp_path: Path, given: torch.dtype, wanted: torch.dtype) -> None:
    model = stored(tmp_path / "model", given)
    assert load_policy(ModelSettings(path=str(model)))[0].head_weight.dtype == wanted
    assert load_policy(ModelSettings(path=str(model), dtype="float32"))[0].head_weight.dtype == torch.float32


def test_a_bfloat16_model_stays_one_and_learns_in_float32(tmp_path: Path) -> None:
    model = stored(tmp_path / "model", torch.bfloat16)
    config = edit(small_config("steps=2", "evaluation.every=none"), [f"model.path={model}", "optim.lr=1e-5"])
    train(config, tmp_path / "run", SilentView())
    exported = load_file(tmp_path / "run" / "model" / "model.safetensors")
    assert {weight.dtype for weight in exported.values()} == {torch.bfloat16}
    optimizer = checkpoint.load(tmp_path / "run" / "checkpoints", 2).tensors["optimizer"]
    assert {tensor.dtype for tensor in optimizer.values() if tensor.is_floating_point()} == {torch.float32}
    assert '"dtype": "bfloat16"' in (tmp_path / "run" / "model" / "config.json").read_text()
