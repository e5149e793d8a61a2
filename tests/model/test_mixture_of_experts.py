"""A fresh mixture of experts: its shape, its routers' gradient, decoding, training, folders."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from tests.engines.runs import engine_of, policy_logprobs, prompts, requests, run
from tests.kit.bring import FAMILIES, bring
from tests.model.test_policy import eager, sequences
from tests.tiny import byte_tokenizer, tiny_settings
from tests.training.cases import make_samples
from transformers import AutoModelForCausalLM, Qwen3MoeForCausalLM

from strop.algorithms.aggregation import TokenMean
from strop.algorithms.losses import Cispo
from strop.algorithms.objective import Objective
from strop.base.metrics import values
from strop.base.types import InputError
from strop.config.parse import edit
from strop.engines.protocol import Sampling
from strop.model.critic import Critic
from strop.model.files import export, fresh_model
from strop.model.policy import PackedInputs, Policy, load_policy
from strop.model.settings import FreshModel, ModelSettings
from strop.recipes.resolve import resolve
from strop.training.packing import pack
from strop.training.settings import AdamW
from strop.training.step import Trainer

ROUTER = "model.layers.{}.mlp.gate.weight"


def settings_of(experts: int = 8, per_token: int = 2, **changes: object) -> ModelSettings:
    settings = tiny_settings(True, **changes)
    assert settings.fresh is not None
    fresh = settings.fresh.model_copy(update={"experts": experts, "experts_per_token": per_token})
    return settings.model_copy(update={"fresh": fresh})


def mixture(experts: int = 8, per_token: int = 2, **changes: object) -> Policy:
    return load_policy(settings_of(experts, per_token, **changes), byte_tokenizer(), seed=0)[0]


def test_a_token_costs_what_it_would_in_the_dense_model():
    model = fresh_model(FreshModel(intermediate_size=48, experts=8, experts_per_token=3), byte_tokenizer(), seed=0)
    assert isinstance(model, Qwen3MoeForCausalLM)
    config = model.config
    assert (config.num_experts, config.num_experts_per_tok, config.moe_intermediate_size) == (8, 3, 16)
    weights = dict(model.named_parameters())
    assert weights["model.layers.3.mlp.experts.down_proj"].shape == (8, 128, 16)
    assert weights[ROUTER.format(3)].shape == (8, 128)
    again = fresh_model(FreshModel(intermediate_size=48, experts=8, experts_per_token=3), byte_tokenizer(), seed=0)
    assert all(torch.equal(tensor, weights[name]) for name, tensor in again.named_parameters())


MIXTURES = [name for name, (_, sizes) in FAMILIES.items() if any("experts" in key for key in sizes)]


@pytest.mark.parametrize("name", MIXTURES)
def test_parameters_that_compute_are_those_that_one_token_gives_a_gradient(name: str, tmp_path: Path) -> None:
    """All of them but the embedding, which is looked up; of experts not chosen there is none."""
    policy = load_policy(ModelSettings(path=str(bring(name, "qwen3", tmp_path))))[0]
    policy(PackedInputs.whole([[7, 8]]), 1.0)[0].sum().backward()  # 7 is asked what comes next
    count = 0
    for module_name, module in policy.model.named_modules():
        for parameter in module.parameters(recurse=False):
            if parameter is policy.model.get_input_embeddings().weight and parameter is not policy.head_weight:
                continue
            reached = parameter
            if module_name.endswith(".experts"):
                assert parameter.grad is not None
                reached = parameter[parameter.grad.flatten(1).any(1)]
            count += reached.numel()
    assert policy.computing_parameters == count


def test_settings_that_cannot_be():
    with pytest.raises(ValueError, match="experts_per_token=3"):
        FreshModel(experts=2, experts_per_token=3)
    with pytest.raises(ValueError, match="intermediate_size=4"):
        FreshModel(experts=8, experts_per_token=5, intermediate_size=4)
    chosen = edit(resolve("grpo"), ["model.fresh.experts=8", "model.fresh.experts_per_token=4"]).model.fresh
    assert chosen is not None and (chosen.experts, chosen.experts_per_token) == (8, 4)
    with pytest.raises(InputError, match=r"model\.fresh"):
        edit(resolve("grpo"), ["model.fresh.experts=2", "model.fresh.experts_per_token=4"])


@pytest.mark.parametrize("per_token", [1, 2])
def test_the_gradient_reaches_routers_and_experts(per_token: int):
    policy = mixture(experts=4, per_token=per_token)
    logprob, _ = policy(PackedInputs.whole(sequences()), 1.0)
    logprob.mean().backward()
    for name, parameter in policy.model.named_parameters():
        assert parameter.grad is not None and torch.isfinite(parameter.grad).all(), name
    for layer in range(2):
        router = dict(policy.model.named_parameters())[ROUTER.format(layer)]
        assert (router.grad.abs().sum(-1) > 1e-6).all()


def test_decoding_agrees_with_the_policy_and_with_itself():
    policy = mixture()
    todo = requests(prompts(12), Sampling(max_new_tokens=16), n=3)
    found, fewer = run(engine_of(policy, slots=48), todo), run(engine_of(policy), todo[::-1])
    for key, completion in found.items():
        np.testing.assert_allclose(completion.logprobs, policy_logprobs(policy, completion), atol=1e-4)
        assert completion.token_ids.tolist() == fewer[key].token_ids.tolist()


def test_an_update_trains_routers_and_the_engine_takes_them():
    policy = mixture()
    engine = engine_of(policy, share_parameters=False)
    probe = np.array(sequences()[3], np.int32)
    before, routers = engine.verify_weights(probe), policy.weights()[ROUTER.format(0)].clone()
    trainer = Trainer(policy, Objective(loss=Cispo()), AdamW(lr=1e-3, warmup_steps=0), 2)
    metrics = values(trainer.update(pack(make_samples(8), TokenMean(), 60)))
    assert metrics["grad_norm"] and not torch.equal(policy.weights()[ROUTER.format(0)], routers)
    engine.update_weights(policy.weights(), 1)
    expected = policy(PackedInputs.whole([probe.tolist()]), 1.0)[0].detach().numpy()
    np.testing.assert_allclose(engine.verify_weights(probe), expected, atol=1e-5)
    assert not np.allclose(before, expected, atol=1e-3)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_folder_there_and_back(tmp_path: Path, dtype: str):
    policy = mixture(dtype=dtype)
    export(policy.model, byte_tokenizer(), tmp_path / "model")
    loaded, _ = load_policy(ModelSettings.model_validate({"path": str(tmp_path / "model"), "dtype": dtype}))
    rows = sequences()
    assert torch.equal(loaded(PackedInputs.whole(rows), 1.0)[0], policy(PackedInputs.whole(rows), 1.0)[0])
    assert loaded.weights().keys() == policy.weights().keys()
    if dtype == "float32":
        plain = AutoModelForCausalLM.from_pretrained(tmp_path / "model")
        torch.testing.assert_close(policy(PackedInputs.whole(rows), 1.0), eager(plain, rows, 1.0), atol=1e-4, rtol=1e-4)


def test_a_critic_of_experts(tmp_path: Path):
    critic = Critic.from_policy(mixture(), seed=0)
    critic.export(byte_tokenizer(), tmp_path / "critic")
    packed = PackedInputs.whole(sequences())
    assert torch.equal(Critic.load(tmp_path / "critic", settings_of())(packed, 1.0)[0], critic(packed, 1.0)[0])
