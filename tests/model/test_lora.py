"""LoRA: gradients by value, merged weights without drift, a reference without a copy, and peft's own reading of it."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from tests.tiny import byte_tokenizer, tiny_qwen3, tiny_settings
from tests.training.cases import make_samples
from torch import Tensor
from torch.func import functional_call

from strop.algorithms.aggregation import TokenMean
from strop.algorithms.losses import Reinforce
from strop.algorithms.objective import Objective
from strop.base.types import InputError
from strop.engines.settings import EngineSettings
from strop.engines.torch.engine import TorchEngine
from strop.model.critic import Critic
from strop.model.files import export
from strop.model.lora import AdaptedLinear, Adapter, Adapters, export_adapter
from strop.model.policy import PackedInputs, Policy, WithoutAdapters, load_policy
from strop.model.settings import FreshModel, Lora, ModelSettings
from strop.training.packing import pack
from strop.training.settings import AdamW
from strop.training.step import Trainer

LORA = {"rank": 4, "alpha": 8.0}
HEAD = {**LORA, "target_modules": ["q_proj", "mlp.down_proj", "lm_head"]}
PACKED = PackedInputs.whole([[5, 9, 17, 33, 2, 8], [70, 71, 72, 73], [1, 200, 30]])


def adapted(seed: int = 0, tie: bool = False, lora: dict[str, object] | None = None, **changes: object) -> Policy:
    return tiny_qwen3(seed, tie, lora=LORA if lora is None else lora, **changes)


def adapters_of(policy: Policy) -> Adapters:
    assert policy.adapters is not None
    return policy.adapters


@torch.no_grad()
def stir(policy: Policy, seed: int = 0, size: float = 0.1) -> Policy:
    """The policy with adapters that do something."""
    draw = torch.Generator().manual_seed(seed)
    for parameter in adapters_of(policy).parameters():
        parameter.copy_(size * torch.randn(parameter.shape, generator=draw))
    policy.merge()
    return policy


def products(policy: Policy) -> dict[str, Tensor]:
    """scale · B A of each adapted layer's weight, by name, from the parameters' own names, with their gradient."""
    own = dict(adapters_of(policy).named_parameters())
    return {f"{n}.weight": 2.0 * own[f"{n}.lora_B"] @ own[f"{n}.lora_A"] for n in adapters_of(policy).names}


# ---------------------------------------------------------------------- values and gradients


def test_a_fresh_adapter_changes_nothing() -> None:
    plain, policy = tiny_qwen3(0, False), adapted()
    assert all(torch.equal(value, plain.weights()[name]) for name, value in policy.weights().items())
    for ours, theirs in zip(policy(PACKED, 1.0), plain(PACKED, 1.0), strict=True):
        assert torch.equal(ours, theirs)


@pytest.mark.parametrize("lora", [LORA, HEAD], ids=["body", "head"])
@pytest.mark.parametrize("checkpointing", [False, True])
def test_values_and_gradients_are_those_of_the_sum(lora: dict[str, object], checkpointing: bool) -> None:
    policy = stir(adapted(lora=lora, gradient_checkpointing=checkpointing))
    plain = tiny_qwen3(0, False)
    frozen = {f"model.{name}": value for name, value in plain.weights().items()}
    more = {f"model.{name}": value for name, value in products(policy).items()}
    summed = frozen | {name: frozen[name] + value for name, value in more.items()}
    pull = torch.linspace(-1, 1, len(PACKED.targets))

    def both(found: tuple[Tensor, Tensor]) -> Tensor:
        return (found[0] * pull).sum() + (found[1] * pull.flip(0)).sum()

    ours, theirs = policy(PACKED, 0.7), functional_call(plain, summed, (PACKED, 0.7))
    for left, right in zip(ours, theirs, strict=True):
        torch.testing.assert_close(left, right, atol=2e-5, rtol=1e-5)
    parameters = list(adapters_of(policy).parameters())
    for mine, whole in zip(
        torch.autograd.grad(both(ours), parameters), torch.autograd.grad(both(theirs), parameters), strict=True
    ):
        torch.testing.assert_close(mine, whole, atol=2e-4, rtol=1e-3)
        assert mine.abs().max() > 1e-3


def test_a_layer_with_a_bias() -> None:
    adapters = adapters_of(stir(adapted()))
    layer = adapters.get_submodule("model.layers.0.mlp.up_proj").double()
    assert isinstance(layer, Adapter)
    weight = torch.nn.Parameter(layer.merged(), requires_grad=False)
    plain = torch.nn.Linear(32, 48).double().requires_grad_(False)
    plain.weight = weight
    linear = AdaptedLinear.of(plain, layer)
    x = torch.randn(2, 3, 32, dtype=torch.float64, requires_grad=True)
    a, b = layer.lora_A, layer.lora_B
    by_hand = torch.nn.functional.linear(x, layer.base + 2.0 * b @ a, plain.bias)
    assert layer.scale == 2.0
    pull = torch.randn(2, 3, 48, dtype=torch.float64)
    for mine, whole in zip(
        torch.autograd.grad((linear(x) * pull).sum(), [x, a, b]),
        torch.autograd.grad((by_hand * pull).sum(), [x, a, b]),
        strict=True,
    ):
        torch.testing.assert_close(mine, whole)
    with torch.no_grad():
        assert torch.equal(linear(x), plain(x))


# ---------------------------------------------------------------------- what is trained, and what is published


def trainer_of(policy: Policy, lr: float = 1e-2) -> Trainer:
    return Trainer(policy, Objective(loss=Reinforce()), AdamW(lr=lr, weight_decay=0.0), total_updates=1000)


def updates(trainer: Trainer, count: int) -> None:
    for number in range(count):
        trainer.update(pack(make_samples(2, 1, seed=number), TokenMean(), 64))


def test_only_adapters_are_trained_and_their_optimizer_is_small() -> None:
    policy = adapted()
    before = {name: value.clone() for name, value in policy.weights().items()}
    trainer = trainer_of(policy)
    updates(trainer, 3)
    assert set(trainer.optimizer.parameters) == {f"adapters.{n}" for n, _ in adapters_of(policy).named_parameters()}
    state = sum(tensor.numel() for tensor in trainer.optimizer.state_dict().values())
    whole = sum(tensor.numel() for tensor in policy.weights().values())
    assert state < 2.2 * sum(parameter.numel() for parameter in adapters_of(policy).parameters()) < whole
    changed = {name for name, value in policy.weights().items() if not torch.equal(value, before[name])}
    assert changed == {f"{name}.weight" for name in adapters_of(policy).names} and len(changed) == 14


def test_a_hundred_publications_leave_no_trace() -> None:
    policy = adapted(dtype="bfloat16")
    base = {name: value.clone() for name, value in policy.weights().items()}
    trainer = trainer_of(policy)
    updates(trainer, 100)
    for name, more in products(policy).items():
        # Once rounded, whatever was published before.
        assert torch.equal(policy.weights()[name], (base[name].float() + more.detach()).to(base[name].dtype)), name
    with torch.no_grad():
        for parameter in adapters_of(policy).parameters():
            parameter.zero_()
    policy.merge()
    assert all(torch.equal(value, base[name]) for name, value in policy.weights().items())


@pytest.mark.parametrize(("dtype", "lora"), [("float32", LORA), ("bfloat16", LORA), ("bfloat16", HEAD)])
@pytest.mark.parametrize("share", [True, False])
def test_an_engine_computes_what_the_trainer_does(dtype: str, lora: dict[str, object], share: bool) -> None:
    policy = adapted(lora=lora, dtype=dtype)
    engine = TorchEngine(policy, byte_tokenizer(), EngineSettings(slots=16, share_parameters=share))
    updates(trainer_of(policy), 5)
    engine.update_weights(policy.weights().items(), 1)
    probe = [5, 9, 17, 33, 2, 8, 99, 100, 101]
    with torch.no_grad():
        trained, _ = policy(PackedInputs.whole([probe]), 1.0)
    recorded = torch.from_numpy(engine.verify_weights(torch.tensor(probe, dtype=torch.int32).numpy()))
    # As close as a model without adapters comes.
    plain = policy.frozen_copy()
    with torch.no_grad():
        own, _ = plain(PackedInputs.whole([probe]), 1.0)
    assert torch.equal(own, trained)
    assert (recorded[-len(trained) :] - trained).abs().max() < 1e-5
    trained_with_gradient, _ = policy(PackedInputs.whole([probe]), 1.0)
    assert torch.equal(trained_with_gradient, trained)


def test_a_copy_is_a_plain_model() -> None:
    policy = stir(adapted())
    copied = policy.frozen_copy()
    assert not any(isinstance(module, AdaptedLinear) for module in copied.modules())
    assert any(isinstance(module, AdaptedLinear) for module in policy.modules())
    assert all(torch.equal(value, policy.weights()[name]) for name, value in copied.weights().items())
    assert not any(parameter.requires_grad for parameter in copied.parameters())
    critic = Critic.from_policy(policy, seed=0)
    assert not any(isinstance(module, AdaptedLinear) for module in critic.modules())
    assert all(parameter.requires_grad for parameter in critic.parameters())


# ---------------------------------------------------------------------- the reference


@pytest.mark.parametrize("lora", [LORA, HEAD], ids=["body", "head"])
def test_the_reference_is_the_base_and_costs_no_copy(lora: dict[str, object]) -> None:
    policy = stir(adapted(lora=lora))
    reference = WithoutAdapters(policy)
    with torch.no_grad():
        expected, held, moved = tiny_qwen3(0, False)(PACKED, 1.0), reference(PACKED, 1.0), policy(PACKED, 1.0)
    assert torch.equal(held[0], expected[0]) and torch.equal(held[1], expected[1])
    assert not torch.equal(moved[0], expected[0])
    assert {id(parameter) for parameter in reference.parameters()} == {id(p) for p in policy.parameters()}
    with pytest.raises(ValueError):
        WithoutAdapters(tiny_qwen3())(PACKED, 1.0)


# ---------------------------------------------------------------------- saved and exported


def test_adapters_are_saved_alone_and_loaded_onto_their_own_base_only() -> None:
    policy = stir(adapted())
    kept = {name: value.clone() for name, value in policy.saved_weights().items()}
    assert sum(value.numel() for value in kept.values()) < 0.2 * sum(v.numel() for v in policy.weights().values())
    again = adapted()
    again.load_weights(kept)
    assert all(torch.equal(value, policy.weights()[name]) for name, value in again.weights().items())
    with pytest.raises(InputError, match=r"model\.path"):
        adapted(seed=1).load_weights(kept)
    with pytest.raises(InputError):
        adapted(lora={**LORA, "rank": 3}).load_weights(kept)
    with pytest.raises(InputError, match=r"model\.lora"):
        adapted().load_weights(tiny_qwen3(0, False).weights())


@pytest.mark.parametrize(("tie", "lora"), [(True, LORA), (False, HEAD)], ids=["tied", "head"])
def test_exported_merged_and_as_an_adapter_it_is_the_same_model(
    tmp_path: Path, tie: bool, lora: dict[str, object]
) -> None:
    peft = pytest.importorskip("peft", reason="needs peft, which reads adapters: pip install peft")
    from transformers import AutoModelForCausalLM

    export(tiny_qwen3(0, tie).model, byte_tokenizer(), tmp_path / "base")
    policy = load_policy(ModelSettings(path=str(tmp_path / "base"), lora=Lora.model_validate(lora)))[0]
    stir(policy)
    export(policy.model, byte_tokenizer(), tmp_path / "merged")
    export_adapter(adapters_of(policy), str(tmp_path / "base"), byte_tokenizer(), tmp_path / "adapter")
    ids = torch.tensor([[5, 9, 17, 33, 2, 8]])
    with torch.no_grad():
        merged = AutoModelForCausalLM.from_pretrained(tmp_path / "merged")(ids).logits.log_softmax(-1)
        base = AutoModelForCausalLM.from_pretrained(tmp_path / "base")
        started = base(ids).logits.log_softmax(-1)
        loaded = peft.PeftModel.from_pretrained(base, str(tmp_path / "adapter"))
        sums = loaded(ids).logits.log_softmax(-1)
        own, _ = policy(PackedInputs.whole(ids.tolist()), 1.0)
    chosen = ids[0, 1:, None]
    for found in (merged, sums):
        torch.testing.assert_close(found[0, :-1].gather(1, chosen)[:, 0], own, atol=2e-5, rtol=1e-5)
    assert (started - sums).abs().max() > 0.05
    assert loaded.peft_config["default"].base_model_name_or_path == str(tmp_path / "base")


# ---------------------------------------------------------------------- refusals

EXPERTS = FreshModel(hidden_size=32, layers=2, heads=4, kv_heads=2, head_dim=8, intermediate_size=48, experts=2)


def test_experts_are_left_alone_where_other_layers_are_named() -> None:
    attention = Lora(rank=2, target_modules=("q_proj", "v_proj"))
    policy = stir(load_policy(ModelSettings(fresh=EXPERTS, lora=attention))[0])
    assert len(adapters_of(policy).names) == 4
    assert policy(PACKED, 1.0)[0].requires_grad
    everything = load_policy(ModelSettings(fresh=EXPERTS, lora=Lora(rank=2)))[0]
    ends = {name.rpartition(".")[2] for name in adapters_of(everything).names}
    assert ends == {"q_proj", "k_proj", "v_proj", "o_proj"}


@pytest.mark.parametrize(
    ("tie", "lora", "message"),
    [
        (True, HEAD, "the head of Qwen3ForCausalLM is its embedding"),
        (False, {"target_modules": ["q_prj"]}, "has no linear layer q_prj; choose from q_proj, k_proj"),
        (False, {"target_modules": ["embed_tokens"]}, "no linear layer embed_tokens"),
        (False, {"rank": 33}, "model.lora.rank=33 exceeds a layer of 32"),
    ],
)
def test_what_cannot_be_adapted_is_refused(tie: bool, lora: dict[str, object], message: str) -> None:
    with pytest.raises(InputError, match=message):
        adapted(tie=tie, lora=lora)


def test_which_layers() -> None:
    assert len(adapters_of(adapted()).names) == 2 * 7
    one = adapters_of(adapted(lora={**LORA, "target_modules": "layers.1.self_attn.q_proj"}))
    assert one.names == ["model.layers.1.self_attn.q_proj"]
    assert tiny_settings(lora={"target_modules": "all-linear"}).lora == Lora()
    first, again, other = (
        adapters_of(adapted(seed)).get_parameter("model.layers.0.self_attn.q_proj.lora_A") for seed in (0, 0, 1)
    )
    assert torch.equal(first, again) and not torch.equal(first, other)
    assert first.detach().abs().max() <= 32**-0.5
    assert first.detach().std().item() == pytest.approx(32**-0.5 / 3**0.5, rel=0.2)
