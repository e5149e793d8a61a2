"""The policy: packed log-probs against plain transformers models, gradients, refusals, folders."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.tiny import byte_tokenizer, tiny_qwen3, tiny_settings
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    GPT2Config,
    GPTNeoXConfig,
    LlamaConfig,
    MistralConfig,
    PreTrainedModel,
    Qwen2Config,
    Qwen3Config,
    Qwen3MoeConfig,
)

from strop.base.types import InputError
from strop.engines.protocol import Request, Sampling
from strop.engines.settings import EngineSettings
from strop.engines.torch.engine import TorchEngine
from strop.model.files import export, fresh_model
from strop.model.policy import PackedInputs, Policy, load_policy
from strop.model.settings import FreshModel, ModelSettings

V = 258
SIZES: dict[str, Any] = {
    "vocab_size": V,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "initializer_range": 0.3,
    "pad_token_id": 257,
    "bos_token_id": None,
    "eos_token_id": 256,
}
MOE: dict[str, Any] = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 24, "head_dim": 8}
CONFIGS = {
    "qwen2": lambda tie: Qwen2Config(**SIZES, tie_word_embeddings=tie),
    "qwen3": lambda tie: Qwen3Config(**SIZES, head_dim=8, tie_word_embeddings=tie),
    "llama": lambda tie: LlamaConfig(**SIZES, tie_word_embeddings=tie),
    "mistral": lambda tie: MistralConfig(**SIZES, sliding_window=None, tie_word_embeddings=tie),
    "qwen3_moe": lambda tie: Qwen3MoeConfig(**SIZES, **MOE, tie_word_embeddings=tie),
}
LENGTHS = [1, 40, 3, 17, 2, 90, 8, 41]


def model_of(config: object, seed: int = 0) -> PreTrainedModel:
    torch.manual_seed(seed)
    return AutoModelForCausalLM.from_config(config).eval()


def sequences(lengths: list[int] = LENGTHS, seed: int = 0) -> list[list[int]]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randint(256, (length,), generator=generator).tolist() for length in lengths]


def eager(model: PreTrainedModel, rows: list[list[int]], temperature: float) -> tuple[Tensor, Tensor]:
    """Log-probs and entropies of every token but the first, one sequence at a time, by the plain model."""
    model.set_attn_implementation("eager")
    logprobs, entropies = [], []
    for ids in rows:
        tokens = torch.tensor(ids)
        log_p = (model(tokens[None]).logits[0, :-1] / temperature).log_softmax(-1)
        logprobs.append(log_p.gather(1, tokens[1:, None])[:, 0])
        entropies.append(-(log_p.exp() * log_p).sum(-1))
    return torch.cat(logprobs), torch.cat(entropies)


@pytest.mark.parametrize("tie", [True, False])
@pytest.mark.parametrize("name", CONFIGS)
def test_five_architectures_agree_with_the_plain_model(name: str, tie: bool):
    model = model_of(CONFIGS[name](tie))
    policy = Policy(copy.deepcopy(model), tiny_settings())
    rows = sequences()
    logprob, entropy = policy(PackedInputs.whole(rows), 0.8)
    expected_logprob, expected_entropy = eager(model, rows, 0.8)
    torch.testing.assert_close(logprob, expected_logprob, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(entropy, expected_entropy, atol=1e-5, rtol=1e-5)
    (logprob.sum() + entropy.sum()).backward()
    (expected_logprob.sum() + expected_entropy.sum()).backward()
    for (key, ours), (_, theirs) in zip(policy.model.named_parameters(), model.named_parameters(), strict=True):
        assert ours.grad is not None and theirs.grad is not None, key
        assert (ours.grad - theirs.grad).norm() <= 2e-5 * theirs.grad.norm() + 1e-6, key


def test_order_and_split_of_the_packing_do_not_matter():
    policy = tiny_qwen3()
    rows = sequences()
    whole = policy(PackedInputs.whole(rows), 1.0)[0].split([max(0, n - 1) for n in LENGTHS])
    order = [3, 0, 7, 5, 1, 2, 6, 4]
    for part in (order[:4], order[4:], order):
        found = policy(PackedInputs.whole([rows[i] for i in part]), 1.0)[0]
        torch.testing.assert_close(found, torch.cat([whole[i] for i in part]), atol=2e-6, rtol=1e-5)


def test_only_asked_rows_are_scored_and_none_is_fine():
    policy = tiny_qwen3()
    packed = PackedInputs.whole(sequences([5, 9]))
    full = policy(packed, 1.0)[0]
    some = PackedInputs(packed.token_ids, packed.positions, packed.lengths, packed.rows[2:5], packed.targets[2:5])
    torch.testing.assert_close(policy(some, 1.0)[0], full[2:5])
    none = PackedInputs(packed.token_ids, packed.positions, packed.lengths, packed.rows[:0], packed.targets[:0])
    policy(none, 1.0)[0].sum().backward()
    assert all(p.grad is not None and not p.grad.any() for p in policy.parameters())


def test_sequences_do_not_see_each_other():
    policy = tiny_qwen3()
    rows = sequences([12, 30, 12])
    before = policy(PackedInputs.whole(rows), 1.0)[0]
    changed = [rows[0], [(t + 1) % 256 for t in rows[1]], rows[2]]
    after = policy(PackedInputs.whole(changed), 1.0)[0]
    assert torch.equal(before[:11], after[:11]) and torch.equal(before[-11:], after[-11:])


def test_gradient_checkpointing_changes_nothing():
    gradients = []
    for checkpointing in (False, True):
        policy = tiny_qwen3(gradient_checkpointing=checkpointing)
        policy(PackedInputs.whole(sequences()), 1.0)[0].sum().backward()
        gradients.append({name: p.grad for name, p in policy.named_parameters()})
    for name, grad in gradients[0].items():
        torch.testing.assert_close(grad, gradients[1][name], atol=1e-6, rtol=1e-5)


def test_packed_fields_must_agree():
    ids = torch.arange(4)
    with pytest.raises(ValueError):
        PackedInputs(ids, ids, (3,), ids[:1], ids[:1])
    with pytest.raises(ValueError):
        PackedInputs(ids, ids, (4, 0), ids[:1], ids[:1])


# What a family has by default, or as it was pretrained, and what changes nothing of a policy.
TAKEN = {
    "dropout": lambda: Qwen3Config(**SIZES, head_dim=8, attention_dropout=0.1),
    "gpt_neox": lambda: GPTNeoXConfig(**SIZES, hidden_dropout=0.1, attention_dropout=0.1),
    "gpt2": lambda: GPT2Config(vocab_size=258, n_embd=32, n_layer=2, n_head=4, n_positions=64, bos_token_id=256,
                               eos_token_id=256),
    "whole window": lambda: MistralConfig(**SIZES, sliding_window=256),
}  # fmt: skip


@pytest.mark.parametrize("family", TAKEN)
def test_what_changes_nothing_is_taken(family: str):
    """Log-probs, in training mode too, are those of transformers' own eager attention; completions are sampled."""
    torch.manual_seed(0)
    plain = AutoModelForCausalLM.from_config(TAKEN[family](), attn_implementation="eager").eval()
    model = model_of(TAKEN[family]())
    model.load_state_dict(plain.state_dict())
    policy = Policy(model, tiny_settings())
    ids = torch.arange(20) * 7 % 250
    packed = PackedInputs.whole([ids.tolist()])
    with torch.no_grad():
        expected = plain(ids[None]).logits[0, :-1].log_softmax(-1).gather(-1, ids[1:, None])[:, 0]
        for training in (False, True):
            torch.testing.assert_close(policy.train(training)(packed, 1.0)[0], expected, atol=1e-5, rtol=0)
    engine = TorchEngine(policy.eval(), byte_tokenizer(), EngineSettings(slots=16))
    assert engine.capabilities.max_tokens == policy.model.config.max_position_embeddings
    engine.submit(Request("a", ids[:5].numpy().astype(np.int32), Sampling(max_new_tokens=6), seed=1, n=2))
    found = []
    while engine.unfinished:
        found += engine.step()
    assert len(found) == 2
    for completion in found:
        whole = [*completion.prompt_ids.tolist(), *completion.token_ids.tolist()]
        scored = policy(PackedInputs.whole([whole]), 1.0)[0][4:].detach().numpy()
        np.testing.assert_allclose(completion.logprobs, scored, atol=1e-4)


def test_altered_logits_are_caught_by_their_values():
    model = model_of(CONFIGS["qwen3"](True))
    forward = model.forward

    def scaled(*args, **kwargs):
        output = forward(*args, **kwargs)
        output.logits = output.logits * 0.9
        return output

    model.forward = scaled
    with pytest.raises(InputError):
        Policy(model, tiny_settings())


def test_the_attention_needs_its_context():
    policy = tiny_qwen3()
    with pytest.raises(ValueError, match="strop_context"):
        policy.model(torch.tensor([[1, 2, 3]]))


def test_fresh_models_depend_on_their_seed_alone():
    tokenizer = byte_tokenizer()
    torch.manual_seed(5)
    state = torch.get_rng_state()
    first, second, other = (fresh_model(FreshModel(layers=1), tokenizer, seed) for seed in (1, 1, 2))
    assert torch.equal(torch.get_rng_state(), state)
    weights = [model.get_output_embeddings().weight for model in (first, second, other)]
    assert torch.equal(weights[0], weights[1]) and not torch.equal(weights[0], weights[2])
    assert weights[0].shape[0] == len(tokenizer)


@pytest.mark.parametrize("tie", [True, False])
def test_export_loads_in_transformers_and_here(tmp_path: Path, tie: bool):
    policy, tokenizer = tiny_qwen3(tie=tie), byte_tokenizer()
    export(policy.model, tokenizer, tmp_path / "model")
    plain = AutoModelForCausalLM.from_pretrained(tmp_path / "model")
    rows = sequences()
    torch.testing.assert_close(policy(PackedInputs.whole(rows), 1.0), eager(plain, rows, 1.0), atol=1e-5, rtol=1e-5)
    again = AutoTokenizer.from_pretrained(tmp_path / "model")
    text = "3 + 5 = 8, é"
    assert again(text).input_ids == tokenizer(text).input_ids and again.eos_token_id == tokenizer.eos_token_id
    loaded, _ = load_policy(ModelSettings(path=str(tmp_path / "model")))
    assert torch.equal(loaded(PackedInputs.whole(rows), 1.0)[0], policy(PackedInputs.whole(rows), 1.0)[0])
    half, _ = load_policy(ModelSettings(path=str(tmp_path / "model"), dtype="bfloat16"))
    logprob, entropy = half(PackedInputs.whole(rows), 1.0)
    assert half.head_weight.dtype == torch.bfloat16 and logprob.dtype == entropy.dtype == torch.float32


def test_a_missing_or_pickled_model_is_one_clear_line(tmp_path: Path):
    with pytest.raises(InputError):
        load_policy(ModelSettings(path=str(tmp_path / "nothing")))
    policy = tiny_qwen3()
    export(policy.model, byte_tokenizer(), tmp_path)
    (tmp_path / "model.safetensors").unlink()
    torch.save(policy.model.state_dict(), tmp_path / "pytorch_model.bin")
    with pytest.raises(InputError, match="safetensors") as caught:
        load_policy(ModelSettings(path=str(tmp_path)))
    assert "\n" not in str(caught.value)


def test_settings_want_one_source():
    with pytest.raises(InputError, match=r"model\.path"):
        load_policy(ModelSettings())
    with pytest.raises(ValueError):
        ModelSettings(path="a/b", fresh=FreshModel())


def test_what_layers_that_are_computed_again_begin_with_can_wait_in_the_host_s_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    kept: list[tuple[int, ...]] = []

    def noted(pin_memory: bool) -> saved_tensors_hooks:
        def keep(tensor: torch.Tensor) -> torch.Tensor:
            kept.append(tuple(tensor.shape))
            return tensor

        return saved_tensors_hooks(keep, lambda tensor: tensor)

    monkeypatch.setattr("strop.model.policy.save_on_cpu", noted)
    packed = PackedInputs.whole([[1, 2, 3, 4, 5]])
    found = []
    for where in (False, True):
        settings = {"gradient_checkpointing": True, "offload_activations": where, "cpu_kernels": False}
        policy = tiny_qwen3(**settings)
        policy(packed, 1.0)[0].sum().backward()
        found.append([parameter.grad for parameter in policy.parameters()])
        config = policy.model.config
        assert kept.count((1, 5, config.hidden_size)) >= where * config.num_hidden_layers and bool(kept) == where
    assert all(torch.equal(here, there) for here, there in zip(*found, strict=True))
