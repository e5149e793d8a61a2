"""The critic: its head, its loss by value, what it learns, its folder."""

from __future__ import annotations

import copy
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import save_file
from tests.tiny import byte_tokenizer, tiny_qwen3, tiny_settings
from tests.training.cases import gradients, make_samples, parameters
from torch import Tensor
from transformers import AutoModel, Qwen3Model

from strop.algorithms.aggregation import TokenMean
from strop.algorithms.objective import UpdateContext
from strop.algorithms.tokens import Tokens
from strop.algorithms.value import ValueLoss
from strop.base.metrics import ExplainedVariance, Variance, values
from strop.base.sample import Sample
from strop.base.types import InputError
from strop.model.critic import Critic
from strop.model.policy import PackedInputs
from strop.training.packing import Update, pack
from strop.training.settings import AdamW
from strop.training.step import Trainer

CONTEXT = UpdateContext()
ROWS = [[5, 9, 17, 4, 2], [5, 2, 8]]


def critic_of(seed: int = 0, **changes: object) -> Critic:
    return Critic.from_policy(tiny_qwen3(0, True, **changes), seed)


def with_values(samples: list[Sample], old: float | None, seed: int = 0) -> list[Sample]:
    """Random returns where trained, and the critic's old values."""
    random = np.random.default_rng(seed)
    filled = []
    for sample in samples:
        returns = random.standard_normal(len(sample)).astype(np.float32) * sample.trained
        values = None if old is None else np.full(len(sample), old, np.float32)
        filled.append(replace(sample, returns=returns, values=values))
    return filled


def tokens_of(weight: list[float], old: list[float] | None, target: list[float]) -> Tokens:
    count = len(weight)
    zeros, whole = torch.zeros(count), torch.zeros(count, dtype=torch.int64)
    return Tokens(
        whole, whole, whole, whole, zeros, zeros, zeros, torch.tensor(weight),
        value=None if old is None else torch.tensor(old), value_target=torch.tensor(target),
    )  # fmt: skip


def test_the_head_starts_normal_with_the_code_s_deviation_and_depends_on_the_seed_alone():
    policy = tiny_qwen3()
    torch.manual_seed(0)
    before = torch.get_rng_state()
    weight = torch.cat([Critic.from_policy(policy, seed).weights()["value_head.weight"] for seed in range(60)])
    assert torch.equal(torch.get_rng_state(), before)
    assert weight.shape == (60, 32) and weight.dtype == torch.float32
    assert float(weight.std()) == pytest.approx(1 / 33, rel=0.05)
    assert abs(float(weight.mean())) < 4 / 33 / weight.numel() ** 0.5
    assert torch.equal(critic_of(3).value_head.weight, critic_of(3).value_head.weight)
    assert critic_of().value_head.bias is None


def test_values_are_of_the_state_before_each_target():
    policy = tiny_qwen3()
    critic = Critic.from_policy(policy, seed=1)
    value, zeros = critic(PackedInputs.whole(ROWS), temperature=0.3)
    model = copy.deepcopy(policy.model.base_model)
    model.set_attn_implementation("eager")
    states = torch.cat([model(torch.tensor([ids])).last_hidden_state[0, :-1] for ids in ROWS])
    torch.testing.assert_close(value, states @ critic.value_head.weight[0], atol=1e-5, rtol=1e-5)
    assert value.shape == (6,) and value.dtype == torch.float32 and not zeros.any()
    again, _ = critic(PackedInputs.whole([[*ROWS[0][:-1], 77], ROWS[1]]), temperature=1.0)
    torch.testing.assert_close(again, value)  # the last target is no part of the state that it is chosen from


def test_the_gradient_of_the_head_by_hand():
    critic = critic_of()
    packed = PackedInputs.whole(ROWS)
    target, weight = torch.tensor([1.0, 0.0, 2.0, -1.0, 0.5, 1.0]), torch.tensor([0.1, 0.2, 0.3, 0.1, 0.2, 0.1])
    tokens = tokens_of(weight.tolist(), None, target.tolist())
    value, zeros = critic(packed, 1.0)
    loss, _ = ValueLoss(clip=None)(tokens, value, zeros, CONTEXT)
    loss.backward()
    hidden = critic.model(
        input_ids=packed.token_ids[None], position_ids=packed.positions[None], use_cache=False,
        strop_context=_context(packed),
    ).last_hidden_state[0][packed.rows]  # fmt: skip
    expected = ((weight * (value - target))[:, None] * hidden).sum(0)  # ½ · 2 · w · (V − R) · h
    found = gradients(critic)
    torch.testing.assert_close(found["value_head.weight"][0], expected.detach(), atol=1e-5, rtol=1e-4)
    assert found.keys() == critic.weights().keys()
    assert all(torch.isfinite(gradient).all() and gradient.any() for gradient in found.values())


def _context(packed: PackedInputs) -> object:
    from strop.model.attention import PackedContext

    return PackedContext(packed.lengths, packed.token_ids.device)


def test_the_clipped_loss_by_value():
    # V - old = .5, .1, -.5, .5; clipped at .2: V' = .2, .1, -.2, .2; R = 1, 1, 1, 0
    value = torch.tensor([0.5, 0.1, -0.5, 0.5], requires_grad=True)
    tokens = tokens_of([1.0, 1.0, 1.0, 2.0], [0.0] * 4, [1.0, 1.0, 1.0, 0.0])
    loss, metrics = ValueLoss()(tokens, value, torch.zeros(4), CONTEXT)
    loss.backward()
    assert loss.item() == pytest.approx(0.5 * (0.64 + 0.81 + 2.25 + 2 * 0.25))
    # Only the first has the clipped square for its larger one, and so no gradient.
    torch.testing.assert_close(value.grad, torch.tensor([0.0, -0.9, -1.5, 1.0]))
    parts = [part for stat in metrics.values() for part in vars(stat).values() if isinstance(part, torch.Tensor)]
    assert parts and not any(part.requires_grad for part in parts)  # or they would hold every micro-batch's graph
    found = values(metrics)
    assert found["value/clipped_share"] == 0.25
    assert found["value/mean"] == pytest.approx(0.15) and found["value/target"] == 0.75
    assert found["value/error"] == pytest.approx((0.25 + 0.81 + 2.25 + 0.25) / 4)
    residual, target = [0.5, 0.9, 1.5, -0.5], [1.0, 1.0, 1.0, 0.0]
    assert found["value/explained_variance"] == pytest.approx(1 - np.var(residual) / np.var(target))
    plain, _ = ValueLoss(clip=None, scale=1.0)(tokens, value, torch.zeros(4), CONTEXT)
    assert plain.item() == pytest.approx(0.25 + 0.81 + 2.25 + 2 * 0.25)


def test_old_values_are_demanded_only_where_something_is_clipped():
    tokens = tokens_of([1.0], None, [1.0])
    loss, _ = ValueLoss(clip=None)(tokens, torch.zeros(1), torch.zeros(1), CONTEXT)
    assert loss.item() == 0.5
    with pytest.raises(ValueError, match=r"Tokens\.value is read"):
        ValueLoss()(tokens, torch.zeros(1), torch.zeros(1), CONTEXT)
    with pytest.raises(ValueError, match=r"Tokens\.value_target is read"):
        ValueLoss(clip=None)(replace(tokens, value_target=None), torch.zeros(1), torch.zeros(1), CONTEXT)


@given(st.lists(st.tuples(st.floats(-3, 3), st.floats(-3, 3)), min_size=2, max_size=12), st.integers(0, 12))
def test_explained_variance_merges_exactly(pairs: list[tuple[float, float]], cut: int):
    def stat(part: list[tuple[float, float]]) -> ExplainedVariance:
        value, target = np.array(part).reshape(-1, 2).T
        return ExplainedVariance(*(Variance(len(x), x.sum(), (x * x).sum()) for x in (target - value, target)))

    whole, split = stat(pairs), stat(pairs[:cut]).merge(stat(pairs[cut:]))
    value, target = np.array(pairs).T
    assert split.target.value == pytest.approx(np.var(target), abs=1e-9)
    if np.var(target) < 1e-3:
        return
    assert whole.value == pytest.approx(1 - np.var(target - value) / np.var(target), abs=1e-6)
    assert split.value == pytest.approx(whole.value, abs=1e-6)


def test_targets_that_do_not_vary_explain_nothing():
    equal = Variance(3, 0.3, 3 * 0.1 * 0.1)
    assert equal.value == 0.0 and Variance(0, 0, 0).value is None
    assert ExplainedVariance(Variance(3, 1.0, 2.0), equal).value is None


def loss_and_gradient(critic: Critic, update: Update) -> tuple[float, dict[str, Tensor], dict[str, float | None]]:
    critic.zero_grad()
    trainer = Trainer(critic, ValueLoss(), AdamW(lr=1e-12), 1)
    metrics = values(trainer.update(update))
    return float(metrics["loss"] or 0), gradients(critic), metrics


def test_loss_gradient_and_metrics_do_not_change_with_the_split():
    samples = with_values(make_samples(12), old=0.3)
    critic = critic_of()
    loss, reference, metrics = loss_and_gradient(critic, pack(samples, TokenMean(), 10_000))
    assert 0 < (metrics["value/clipped_share"] or 0) < 1
    for budget in (1, 30):
        update = pack(samples[::-1], TokenMean(), budget)
        assert len(update.micro_batches) > 2
        other, found, more = loss_and_gradient(critic, update)
        assert other == pytest.approx(loss, rel=1e-5)
        for name in ("mean", "target", "error", "explained_variance", "clipped_share"):
            assert more[f"value/{name}"] == pytest.approx(metrics[f"value/{name}"], rel=1e-5, abs=1e-6)
        for name, gradient in reference.items():
            torch.testing.assert_close(found[name], gradient, atol=2e-6, rtol=1e-3)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_it_learns_constant_returns(dtype: str):
    critic = critic_of(dtype=dtype)
    constant = [replace(s, returns=np.where(s.trained, 0.75, 0).astype(np.float32)) for s in make_samples(8)]
    update = pack(constant, TokenMean(), 200)
    trainer = Trainer(critic, ValueLoss(clip=None), AdamW(lr=3e-3, warmup_steps=0), 60)
    errors = [values(trainer.update(update))["value/error"] or 0 for _ in range(60)]
    assert errors[0] > 0.1 and errors[-1] < 2e-3
    learned = torch.cat([value for value, _ in trainer.score(update)])
    torch.testing.assert_close(learned, torch.full_like(learned, 0.75), atol=0.15, rtol=0)
    assert critic.value_head.weight.dtype == torch.float32


def test_it_shares_nothing_with_the_policy():
    policy = tiny_qwen3()
    before = parameters(policy)
    critic = Critic.from_policy(policy, seed=0)
    update = pack(with_values(make_samples(6), old=0.0), TokenMean(), 200)
    Trainer(critic, ValueLoss(), AdamW(lr=1e-2, warmup_steps=0), 1).update(update)
    assert all(torch.equal(before[name], tensor) for name, tensor in parameters(policy).items())
    name = "model.layers.0.mlp.up_proj.weight"
    assert not torch.equal(critic.weights()[name], policy.weights()[name])


def test_gradient_checkpointing_changes_no_gradient():
    update = pack(with_values(make_samples(6), old=0.0), TokenMean(), 200)
    _, plain, _ = loss_and_gradient(critic_of(), update)
    checkpointed = critic_of(gradient_checkpointing=True)
    calls: list[int] = []
    checkpointed.model.layers[0].mlp.register_forward_pre_hook(lambda *_: calls.append(1))
    _, found, _ = loss_and_gradient(checkpointed, update)
    assert len(calls) == 2 * len(update.micro_batches)  # forward, and again in backward
    for name, gradient in plain.items():
        torch.testing.assert_close(found[name], gradient, atol=1e-6, rtol=1e-4)


def test_weights_there_and_back():
    critic, other = critic_of(0), Critic.from_policy(tiny_qwen3(5), seed=9)
    packed = PackedInputs.whole(ROWS)
    assert not torch.equal(critic(packed, 1.0)[0], other(packed, 1.0)[0])
    other.load_weights({name: tensor.clone() for name, tensor in critic.weights().items()})
    assert torch.equal(critic(packed, 1.0)[0], other(packed, 1.0)[0])
    assert "value_head.weight" in critic.weights()
    with pytest.raises(InputError):
        critic.load_weights(tiny_qwen3().weights())


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_folder_there_and_back(tmp_path: Path, dtype: str):
    settings = tiny_settings(dtype=dtype)
    critic = Critic.from_policy(tiny_qwen3(dtype=dtype), seed=4)
    critic.export(byte_tokenizer(), tmp_path / "critic")
    critic.export(byte_tokenizer(), tmp_path / "critic")  # over the former one
    assert [path.name for path in tmp_path.iterdir()] == ["critic"]
    loaded = Critic.load(tmp_path / "critic", settings)
    packed = PackedInputs.whole(ROWS)
    assert torch.equal(loaded(packed, 1.0)[0], critic(packed, 1.0)[0])
    assert {p.dtype for p in loaded.model.parameters()} == {p.dtype for p in critic.model.parameters()}
    assert isinstance(AutoModel.from_pretrained(tmp_path / "critic"), Qwen3Model)
    assert json.loads((tmp_path / "critic" / "config.json").read_text())["architectures"] == ["Qwen3Model"]


def test_folders_that_hold_no_whole_critic_are_refused(tmp_path: Path):
    settings = tiny_settings()
    with pytest.raises(InputError, match=r"value_head\.safetensors"):
        Critic.load(tmp_path / "none", settings)
    folder = tmp_path / "critic"
    critic_of().export(byte_tokenizer(), folder)
    save_file({"weight": torch.zeros(1, 31)}, folder / "value_head.safetensors")
    with pytest.raises(InputError, match="31"):
        Critic.load(folder, settings)
    (folder / "value_head.safetensors").write_bytes(b"no tensors")
    with pytest.raises(InputError):
        Critic.load(folder, settings)
