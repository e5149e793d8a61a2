"""Windows, chunks, caps and sinks: log-probs and gradients of transformers, packing, engines, folders, refusals."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.engines.runs import drain
from tests.kit.bring import FAMILIES, SIZES, WINDOWED, bring, tokenizer
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForImageTextToText, PreTrainedModel

from strop.base.types import Completion, InputError
from strop.engines.protocol import Request, Sampling
from strop.engines.settings import EngineSettings
from strop.engines.torch.engine import TorchEngine
from strop.engines.vllm.engine import ModelFolder
from strop.model import attention
from strop.model.attention import PackedContext
from strop.model.attention_kinds import KNOWN, AttentionKind, Reach
from strop.model.critic import Critic
from strop.model.files import export
from strop.model.policy import PackedInputs, Policy, load_policy
from strop.model.settings import ModelSettings

ALTERED = (*WINDOWED, "cohere with scaled logits", "granite with scaled logits")
LENGTHS = (1, 40, 3, 17, 2, 90, 8, 41)
OTHER = {**SIZES, "vocab_size": 300, "pad_token_id": 0, "eos_token_id": 1}
LOGITS, GRADIENTS = 1e-4, 1e-3  # what every family is held to, in float32


def sequences(seed: int = 0) -> list[list[int]]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randint(256, (length,), generator=generator).tolist() for length in LENGTHS]


def eager(model: PreTrainedModel, rows: list[list[int]], temperature: float) -> Tensor:
    """Log-probs of every token but the first, one sequence at a time, by transformers' own eager attention."""
    found = []
    for ids in rows:
        tokens = torch.tensor(ids)
        log_p = (model(tokens[None]).logits[0, :-1] / temperature).log_softmax(-1)
        found.append(log_p.gather(1, tokens[1:, None])[:, 0])
    return torch.cat(found)


def both(folder: Path, **settings: Any) -> tuple[Policy, PreTrainedModel]:
    """The policy of a folder, and transformers' own model."""
    plain = AutoModelForCausalLM.from_pretrained(folder, attn_implementation="eager", dtype=torch.float32).eval()
    return load_policy(ModelSettings(path=str(folder), chunk_tokens=7, **settings))[0], plain


def test_every_known_family_is_tried() -> None:
    assert {FAMILIES[name][0] for name in WINDOWED} == KNOWN


@pytest.mark.parametrize("rows", [16, 512])
@pytest.mark.parametrize(
    ("family", "checkpointing"),
    [*((family, False) for family in ALTERED), *((family, True) for family in ("gpt_oss", "gemma2", "llama4_text"))],
)
def test_log_probs_and_gradients_are_transformers(
    family: str, checkpointing: bool, rows: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attention, "_ROWS", rows)
    policy, plain = both(bring(family, "qwen3", tmp_path / "model"), gradient_checkpointing=checkpointing)
    ids = sequences()
    found, wanted = policy.train()(PackedInputs.whole(ids), 0.8)[0], eager(plain, ids, 0.8)
    torch.testing.assert_close(found, wanted, atol=LOGITS, rtol=0)
    weights = torch.randn(found.shape, generator=torch.Generator().manual_seed(1))
    (found * weights).sum().backward()
    (wanted * weights).sum().backward()
    for (name, ours), theirs in zip(policy.model.named_parameters(), plain.parameters(), strict=True):
        assert ours.grad is not None and theirs.grad is not None, name
        assert (ours.grad - theirs.grad).norm() <= GRADIENTS * theirs.grad.norm() + 1e-7, name


@pytest.mark.parametrize("family", WINDOWED)
@torch.no_grad()
def test_the_limit_matters_and_packing_does_not(family: str, tmp_path: Path) -> None:
    """A token beyond every window still reaches later ones through the layers between, but changes them otherwise."""
    policy, _ = both(bring(family, "qwen3", tmp_path / "model"))
    rows = sequences()
    whole = policy(PackedInputs.whole(rows), 1.0)[0].split([length - 1 for length in LENGTHS])
    for order in ([5], [6, 0, 1], [3, 0, 7, 5, 1, 2, 6, 4]):
        found = policy(PackedInputs.whole([rows[i] for i in order]), 1.0)[0]
        torch.testing.assert_close(found, torch.cat([whole[i] for i in order]), atol=5e-6, rtol=1e-5)
    config = policy.model.config
    config.sliding_window = config.max_position_embeddings
    config.attention_chunk_size = config.max_position_embeddings
    for module in policy.model.modules():
        if vars(module).get("sliding_window") is not None:
            module.sliding_window = config.max_position_embeddings
    wide = policy(PackedInputs.whole([rows[5]]), 1.0)[0]
    torch.testing.assert_close(wide[:7], whole[5][:7], atol=5e-6, rtol=1e-5)
    assert (wide[8:] - whole[5][8:]).abs().max() > 1e-2


def completions(policy: Policy, words: Any, **settings: Any) -> list[Completion]:
    engine = TorchEngine(policy.eval(), words, EngineSettings(slots=16, **settings))
    rng = np.random.default_rng(0)
    for i, length in enumerate((1, 30, 9, 50)):
        ids = rng.integers(0, 256, length).astype(np.int32)
        engine.submit(Request(str(i), ids, Sampling(max_new_tokens=24), seed=i, n=2))
    return sorted(drain(engine), key=lambda one: (one.request_id, one.index))


@pytest.mark.parametrize("family", WINDOWED)
@torch.no_grad()
def test_engines_sample_with_the_policys_log_probs(family: str, tmp_path: Path) -> None:
    """With compiled decoding and without, prompts in one portion and in several."""
    policy, _ = both(bring(family, "qwen3", tmp_path / "model"))
    words = tokenizer("qwen3")
    for settings in ({}, {"native": False}, {"prefill_tokens": 16}):
        for one in completions(policy, words, **settings):
            ids = [*one.prompt_ids.tolist(), *one.token_ids.tolist()]
            scored = policy(PackedInputs.whole([ids]), 1.0)[0][len(one.prompt_ids) - 1 :]
            np.testing.assert_allclose(one.logprobs, scored.numpy(), atol=2e-5, rtol=0)


@pytest.mark.parametrize("family", ALTERED)
@torch.no_grad()
def test_a_folder_there_and_back(family: str, tmp_path: Path) -> None:
    policy, _ = both(bring(family, "qwen3", tmp_path / "model"))
    for parameter in policy.model.parameters():
        parameter.mul_(1.01)
    export(policy.model, tokenizer("qwen3"), tmp_path / "export")
    again, plain = both(tmp_path / "export")
    rows = sequences()
    assert all(torch.equal(again.weights()[name], weight) for name, weight in policy.weights().items())
    found = policy(PackedInputs.whole(rows), 1.0)[0]
    assert torch.equal(again(PackedInputs.whole(rows), 1.0)[0], found)
    torch.testing.assert_close(found, eager(plain, rows, 1.0), atol=LOGITS, rtol=0)


@pytest.mark.parametrize("family", ["gemma2", "llama4_text"])
@torch.no_grad()
def test_a_critic_of_such_a_model(family: str, tmp_path: Path) -> None:
    policy, plain = both(bring(family, "qwen3", tmp_path / "model"))
    critic = Critic.from_policy(policy, seed=0)
    critic.export(tokenizer("qwen3"), tmp_path / "critic")
    packed = PackedInputs.whole(sequences())
    values = critic(packed, 1.0)[0]
    assert torch.equal(Critic.load(tmp_path / "critic", policy.settings)(packed, 1.0)[0], values)
    hidden = [plain(torch.tensor([ids]), output_hidden_states=True).hidden_states[-1][0, :-1] for ids in sequences()]
    wanted = torch.cat(hidden) @ critic.value_head.weight[0]
    torch.testing.assert_close(values, wanted, atol=LOGITS, rtol=0)


PICTURES = {
    "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 1, "num_attention_heads": 2, "image_size": 28,
    "patch_size": 14,
}  # fmt: skip
AROUND: dict[str, tuple[str, dict[str, Any]]] = {
    "gemma3": ("gemma3_text with a window", {"vision_config": PICTURES, "mm_tokens_per_image": 4}),
    "llama4": (
        "llama4_text",
        {"vision_config": {**PICTURES, "vision_output_dim": 32, "projector_input_dim": 32, "projector_output_dim": 32}},
    ),
}


@pytest.mark.parametrize("kind", AROUND)
@torch.no_grad()
def test_the_text_model_within_one_for_pictures(kind: str, tmp_path: Path) -> None:
    words = tokenizer("qwen3")
    family, more = AROUND[kind]
    ids = {"vocab_size": len(words), "pad_token_id": words.pad_token_id, "eos_token_id": words.eos_token_id}
    config = AutoConfig.for_model(kind, text_config={**SIZES, **ids, **FAMILIES[family][1]}, **more)
    torch.manual_seed(0)
    whole = AutoModelForImageTextToText.from_config(config, attn_implementation="eager").eval()
    whole.save_pretrained(tmp_path / "model")
    words.save_pretrained(tmp_path / "model")
    policy = load_policy(ModelSettings(path=str(tmp_path / "model")))[0]
    assert policy.model.config.model_type == f"{kind}_text"
    rows = sequences()
    torch.testing.assert_close(policy(PackedInputs.whole(rows), 1.0)[0], eager(whole, rows, 1.0), atol=LOGITS, rtol=0)
    export(policy.model, words, tmp_path / "export")
    held = ModelFolder.read(tmp_path / "export")  # by whose names an engine is given the weights
    assert held.in_files(dict(policy.model.named_parameters())).keys() <= held.shapes.keys() | held.tied.keys()
    again = both(tmp_path / "export")[0]
    assert torch.equal(again(PackedInputs.whole(rows), 1.0)[0], policy(PackedInputs.whole(rows), 1.0)[0])


@pytest.mark.parametrize("reach", [Reach(), Reach(window=5), Reach(chunk=5), Reach(window=200), Reach(chunk=64)])
@pytest.mark.parametrize("sinks", [False, True])
@pytest.mark.parametrize("cap", [None, 1.5])
@pytest.mark.parametrize("rows", [16, 512])
def test_packed_attention_is_its_definition(
    rows: int, reach: Reach, sinks: bool, cap: float | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attention, "_ROWS", rows)
    lengths, generator = (3, 70, 1, 5, 220, 16), torch.Generator().manual_seed(0)
    query, key, value = (torch.randn(sum(lengths), heads, 8, generator=generator) for heads in (4, 2, 2))
    sink = torch.randn(4, generator=generator) if sinks else None
    found = PackedContext(lengths, torch.device("cpu")).attend(
        0, query, key, value, 0.7, AttentionKind(reach, cap, sink)
    )
    start = 0
    for length in lengths:
        for t in {0, length // 2, length - 1}:
            first = 0 if reach.window is None else max(0, t - reach.window + 1)
            first = first if reach.chunk is None else t - t % reach.chunk
            for head in range(4):
                keys = key[start + first : start + t + 1, head // 2]
                scores = keys @ query[start + t, head] * 0.7
                scores = scores if cap is None else cap * torch.tanh(scores / cap)
                weights = scores.exp() / (scores.exp().sum() + (0 if sink is None else sink[head].exp()))
                wanted = weights @ value[start + first : start + t + 1, head // 2]
                torch.testing.assert_close(found[start + t, head], wanted, atol=2e-6, rtol=1e-5)
        start += length


def test_layers_that_see_what_comes_are_refused() -> None:
    config = AutoConfig.for_model("gemma2", **OTHER, head_dim=16, use_bidirectional_attention=True)
    with pytest.raises(InputError, match="is_causal False"):
        Policy(AutoModelForCausalLM.from_config(config), ModelSettings())


def test_layers_that_are_no_attention_are_refused() -> None:
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model("gemma2", **OTHER, head_dim=16))
    model.config.layer_types = ["conv", "full_attention"]
    with pytest.raises(InputError, match="conv layers"):
        Policy(model, ModelSettings())


@pytest.mark.parametrize(
    ("layers", "message"), [("sliding_attention", "vaultgemma has sliding_attention"), ("full_attention", "knows caps")]
)
def test_windows_and_caps_of_a_family_that_nobody_tried_are_refused(layers: str, message: str) -> None:
    config = AutoConfig.for_model(
        "vaultgemma", **OTHER, head_dim=16, sliding_window=8, layer_types=["full_attention", layers]
    )
    with pytest.raises(InputError, match=message):
        Policy(AutoModelForCausalLM.from_config(config), ModelSettings())
