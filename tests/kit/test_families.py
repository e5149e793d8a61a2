"""Models of every family that users bring: prompts are transformers' own, and log-probs those of the plain model."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from tests.kit.bring import FAMILIES, HEAD, SIZES, TEMPLATES, bring
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, PreTrainedModel

from strop.base.types import Problem
from strop.data.dataset import make_example
from strop.data.templates import BOXED, Auto
from strop.engines.protocol import Request, Sampling
from strop.engines.settings import EngineSettings
from strop.engines.torch.engine import TorchEngine
from strop.engines.vllm.engine import ModelFolder
from strop.model.attention_kinds import longest_sequence
from strop.model.policy import PackedInputs, load_policy
from strop.model.settings import ModelSettings

PROBLEM = Problem("a", "What is 7*6?", "42")
WITHIN = 1e-5


def plainly(model: PreTrainedModel, ids: list[int]) -> Tensor:
    """Log-probs of every token but the first, by transformers' own eager attention on this sequence alone."""
    tokens = torch.tensor(ids)
    return model(tokens[None]).logits[0, :-1].float().log_softmax(-1).gather(-1, tokens[1:, None])[:, 0]


@pytest.mark.parametrize("family", FAMILIES)
@torch.no_grad()
def test_a_family(family: str, tmp_path: Path) -> None:
    template = TEMPLATES[list(FAMILIES).index(family) % len(TEMPLATES)]
    folder = bring(family, template, tmp_path / "model")
    plain = AutoModelForCausalLM.from_pretrained(folder, attn_implementation="eager", dtype=torch.float32).eval()
    words = AutoTokenizer.from_pretrained(folder)
    policy, tokenizer = load_policy(ModelSettings(path=str(folder)))

    example = make_example(PROBLEM, Auto(), tokenizer, BOXED)
    chat = [{"role": "user", "content": f"What is 7*6?\n{BOXED.text}"}]
    assert example.prompt_ids.tolist() == list(words.apply_chat_template(chat, add_generation_prompt=True)["input_ids"])

    engine = TorchEngine(policy.eval(), tokenizer, EngineSettings(slots=16))
    engine.submit(Request("r", example.prompt_ids, Sampling(max_new_tokens=12), seed=1, n=3))
    found = []
    while engine.unfinished:
        found += engine.step()
    begin = len(example.prompt_ids)
    rows = [[*completion.prompt_ids.tolist(), *completion.token_ids.tolist()] for completion in found]
    wanted = [plainly(plain, row)[begin - 1 :].numpy() for row in rows]
    for completion, expected in zip(found, wanted, strict=True):
        np.testing.assert_allclose(completion.logprobs, expected, atol=WITHIN, rtol=0)
    # As they are trained, packed with others.
    other = words.encode("A sequence of another length beside them, which none of them may see." * 2)
    scored = policy.train()(PackedInputs.whole([*rows, other]), 1.0)[0].split([len(row) - 1 for row in [*rows, other]])
    for ours, expected in zip(scored, wanted, strict=False):
        np.testing.assert_allclose(ours[begin - 1 :].numpy(), expected, atol=WITHIN, rtol=0)


@pytest.mark.parametrize("family", FAMILIES)
def test_weights_are_published_as_transformers_saves_them(family: str, tmp_path: Path) -> None:
    """By name and by value: what a server reloads is what `save_pretrained` writes, long after that folder is gone."""
    folder = bring(family, TEMPLATES[0], tmp_path / "model")
    policy, _ = load_policy(ModelSettings(path=str(folder)))
    saved = {name: tensor for file in folder.glob("*.safetensors") for name, tensor in load_file(file).items()}
    read = ModelFolder.read(folder)
    shutil.rmtree(folder)
    given = dict(read.in_files(policy.weights())) | read.buffers
    assert given.keys() == read.shapes.keys()
    given |= {name: given[original] for name, original in read.tied.items() if name in saved}
    assert given.keys() == saved.keys()
    assert all(torch.equal(given[name], tensor) for name, tensor in saved.items())


def test_two_rotary_embeddings_are_never_mixed() -> None:
    """Phi-3's `longrope` gives a short sequence other log-probs beside a long one; the longer ones are refused."""
    rope = {"rope_type": "longrope", "rope_theta": 1e4, "short_factor": [1.0] * 4, "long_factor": [8.0] * 4}
    sizes = {**SIZES, "vocab_size": 300, "pad_token_id": 0, "original_max_position_embeddings": 64}
    config = AutoConfig.for_model("phi3", **sizes, rope_parameters=rope)
    assert longest_sequence(config.to_dict()) == 64
    stored = {"max_position_embeddings": 512, "original_max_position_embeddings": 64, "rope_scaling": {"type": "su"}}
    assert longest_sequence(stored) == 64
    assert longest_sequence(AutoConfig.for_model("qwen3", **SIZES, **HEAD).to_dict()) == 512
