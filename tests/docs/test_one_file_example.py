"""The one-file example as an oracle: the same weights and the same groups give the same loss, gradients and step."""

from __future__ import annotations

import importlib.util
import random
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from tests.tiny import byte_tokenizer
from transformers import Qwen3Config, Qwen3ForCausalLM

from strop.algorithms.advantages import GroupRelative
from strop.algorithms.aggregation import PromptMean
from strop.algorithms.losses import Cispo
from strop.algorithms.objective import Objective, UpdateContext
from strop.base.types import Completion, Group, Problem, Rollout, Verdict, VersionSpan
from strop.engines.protocol import Request, Sampling
from strop.engines.settings import EngineSettings
from strop.engines.torch.engine import TorchEngine
from strop.model.attention import NAME
from strop.model.policy import PackedInputs, Policy
from strop.model.settings import FreshModel, ModelSettings
from strop.training.packing import pack
from strop.training.samples import make_candidates, make_samples
from strop.training.settings import AdamW
from strop.training.sft import SupervisedLoss
from strop.training.step import Trainer
from strop_verify.verdict import Status

FILE = Path(__file__).parents[2] / "examples" / "one_file_grpo.py"


@pytest.fixture(scope="module")
def example() -> ModuleType:
    spec = importlib.util.spec_from_file_location("one_file_grpo", FILE)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["one_file_grpo"] = module
    spec.loader.exec_module(module)
    return module


def small(example: ModuleType, seed: int = 0) -> tuple[Any, Policy]:
    """The example's model, small, and a strop policy with the same weights."""
    torch.manual_seed(seed)
    config = example.Config(hidden=32, layers=2, heads=4, kv_heads=2, head_dim=8, intermediate=48, max_length=64)
    theirs = example.Model(config)
    hf = Qwen3Config(
        vocab_size=example.VOCABULARY, hidden_size=32, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, head_dim=8, intermediate_size=48, max_position_embeddings=64,
        tie_word_embeddings=False, attn_implementation=NAME, eos_token_id=example.EOS,
        rope_parameters={"rope_type": "default", "rope_theta": config.rope_theta},
    )  # fmt: skip
    model = Qwen3ForCausalLM(hf)
    model.load_state_dict(theirs.state_dict())
    return theirs, Policy(model, ModelSettings(fresh=FreshModel(), chunk_tokens=13))


def groups_of(example: ModuleType, theirs: Any) -> tuple[list[list[Any]], torch.Tensor]:
    """Four prompts × 3 sampled completions with made-up rewards; the last group is uniform."""
    rng = random.Random(1)
    problems = [example.make_problem(rng) for _ in range(4)]
    prompts = [example.encode(problem) for problem in problems for _ in range(3)]
    completions = list(example.generate(theirs, prompts, slots=16, rng=torch.Generator().manual_seed(5)))
    rewards = torch.tensor([[1.0, -1, -1], [1, 1, -1], [-1, 1, -1], [1, 1, 1]])
    return [completions[3 * g : 3 * g + 3] for g in range(4)], rewards


def as_groups(groups: list[list[Any]], rewards: torch.Tensor) -> list[Group]:
    """The example's completions as strop's."""
    found = []
    for ticket, completions in enumerate(groups):
        problem = Problem(f"p{ticket}", "x", "y")
        rollouts = []
        for index, c in enumerate(completions):
            n = len(c.tokens)
            ours = Completion(
                f"{ticket}", index,
                np.array(c.prompt, dtype=np.int32),
                np.array(c.tokens, dtype=np.int32),
                c.logprobs.numpy().astype(np.float32),
                (VersionSpan(0, 0, n),), np.zeros(n, dtype=np.bool_), "", "stop",
            )  # fmt: skip
            reward = float(rewards[ticket, index])
            verdict = Verdict(float(reward > 0), Status.CORRECT if reward > 0 else Status.WRONG)
            rollouts.append(Rollout(problem, ours, verdict, reward))
        found.append(Group(ticket, problem, tuple(rollouts)))
    return found


def test_logits_and_logprobs_agree(example: ModuleType) -> None:
    theirs, policy = small(example)
    groups, _ = groups_of(example, theirs)
    for completions in groups:
        for c in completions:
            ids = c.prompt + c.tokens
            expected = example.token_logprobs(theirs, torch.tensor([ids]))[0, 1:]
            with torch.no_grad():
                found, _ = policy(PackedInputs.whole([ids]), 1.0)
            torch.testing.assert_close(found, expected, atol=1e-5, rtol=0)
            start = len(c.prompt)
            torch.testing.assert_close(found[start - 1 :], c.logprobs, atol=1e-4, rtol=0)


@pytest.mark.parametrize("budget", [40, 100, 10_000])
def test_cispo_loss_and_gradients_agree(example: ModuleType, budget: int) -> None:
    theirs, policy = small(example)
    groups, rewards = groups_of(example, theirs)
    # Weights that moved since sampling, so that ratios differ from 1.
    with torch.no_grad():
        for mine, his in zip(policy.model.state_dict().values(), theirs.state_dict().values(), strict=True):
            noise = 0.02 * torch.randn(his.shape, generator=torch.Generator().manual_seed(his.numel()))
            mine += noise
            his += noise
    total = 0.0
    theirs_update = example.prompt_average([c for group in groups for c in group], rewards)
    for ids, sampled, advantage, weight in example.micro_batches(theirs_update, 5):
        loss = example.cispo_loss(example.token_logprobs(theirs, ids), sampled, advantage, weight)
        loss.backward()
        total += loss.item()
    samples = make_samples(
        make_candidates(as_groups(groups, rewards), {0, 1, 2}, "none"),
        GroupRelative(normalization="batch_std", ddof=0, eps=0),
    )
    found = 0.0
    for batch in pack(samples, PromptMean(), budget).micro_batches:
        logprob, entropy = policy(batch.packed, 1.0)
        loss, _ = Objective(loss=Cispo(max_ratio=5.0))(batch.tokens, logprob, entropy, UpdateContext())
        loss.backward()
        found += loss.item()
    assert found == pytest.approx(total, rel=1e-5)
    expected = dict(theirs.named_parameters())
    for name, parameter in policy.model.named_parameters():
        torch.testing.assert_close(parameter.grad, expected[name].grad, atol=1e-6, rtol=1e-4)


@pytest.mark.parametrize("imitate", [False, True])
def test_an_optimizer_step_agrees(example: ModuleType, imitate: bool) -> None:
    """On imitation too, of the completions of the surviving prompts."""
    theirs, policy = small(example)
    groups, rewards = groups_of(example, theirs)
    optimizer = torch.optim.AdamW(theirs.parameters(), lr=1e-3, eps=1e-8, weight_decay=0.01)
    samples = example.prompt_average([c for group in groups for c in group], rewards)
    example.update(theirs, optimizer, samples, imitate)
    ours = make_samples(
        make_candidates(as_groups(groups, rewards), {0, 1, 2}, "none"),
        GroupRelative(normalization="batch_std", ddof=0, eps=0),
    )
    objective = SupervisedLoss() if imitate else Objective(loss=Cispo(max_ratio=5.0))
    trainer = Trainer(policy, objective, AdamW(lr=1e-3, eps=1e-8, weight_decay=0.01), 10)
    trainer.update(pack(ours, PromptMean(), 64))
    expected = theirs.state_dict()
    for name, value in policy.model.named_parameters():
        # Adam divides by the root of the second moment: where a gradient is near zero its sign decides, up to 2 lr.
        gap = (value - expected[name]).abs()
        assert gap.max() < 2.1e-3 and gap.mean() < 2e-6, name


def test_the_engine_samples_from_the_examples_model(example: ModuleType) -> None:
    theirs, policy = small(example)
    engine = TorchEngine(policy, byte_tokenizer(), EngineSettings(slots=16, max_tokens=64))
    prompt = np.array(example.encode("3+5-2="), dtype=np.int32)
    engine.submit(Request("r", prompt, Sampling(max_new_tokens=12), seed=3, n=8))
    found: list[Completion] = []
    while engine.unfinished:
        found += engine.step()
    for c in found:
        ids = torch.tensor([[*prompt.tolist(), *c.token_ids.tolist()]])
        expected = example.token_logprobs(theirs, ids)[0, len(prompt) :].detach()
        torch.testing.assert_close(torch.from_numpy(c.logprobs), expected, atol=1e-4, rtol=0)


def test_the_example_learns_a_little_in_a_few_steps(example: ModuleType) -> None:
    """The whole file runs: imitation lowers the loss, an RL step changes the weights and nothing is NaN."""
    torch.manual_seed(0)
    rng = random.Random(0)
    model = example.Model(example.Config(hidden=64, layers=2))
    held_out = frozenset(example.make_problems(rng, 8))
    question = example.encode("1+1+1+1+1+1=")
    answer = example.encode("\\boxed{6}")
    ids = torch.tensor([[*question, *answer]])
    before = example.token_logprobs(model, ids)[0, len(question) :].mean()
    example.train_sft(model, rng, held_out, 30)
    after = example.token_logprobs(model, ids)[0, len(question) :].mean()
    assert after > before + 1
    weights = [p.clone() for p in model.parameters()]
    completions, rewards = example.roll_out(model, sorted(held_out), 4)
    assert len(completions) == 32 and rewards.shape == (8, 4)
    rewards[:, 0] = 1.0  # so that some groups differ whatever was sampled
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    example.update(model, optimizer, example.prompt_average(completions, rewards))
    assert all(torch.isfinite(p).all() for p in model.parameters())
    assert any((p - old).abs().max() > 0 for p, old in zip(model.parameters(), weights, strict=True))


@pytest.mark.slow
def test_the_example_learns(capsys: pytest.CaptureFixture[str], example: ModuleType) -> None:
    """From a pass rate below a half to above three quarters; about two minutes on two cores."""
    argv = sys.argv
    sys.argv = ["one_file_grpo.py", "--threads", "1"]
    try:
        example.main()
    finally:
        sys.argv = argv
    before, after = (float(word) for word in capsys.readouterr().out.splitlines()[-1].split()[3:6:2])
    assert before < 0.5 and after > 0.75
