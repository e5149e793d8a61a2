"""What is learned from trajectories of several turns: the sampled tokens and nothing else, each as if alone."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.environments.test_environment_runs import chatty, injected
from tests.tiny import byte_tokenizer, tiny_qwen3

from strop.algorithms.aggregation import Aggregation, PromptMean, SampleMean, TokenMean
from strop.algorithms.losses import PpoClip
from strop.algorithms.objective import Objective
from strop.base.types import Completion, Observation, Sample, VersionSpan
from strop.base.view import SilentView
from strop.environments.turns import joined
from strop.model.policy import Packed, Policy
from strop.run.folder import RunFolder
from strop.run.run import train
from strop.training.packing import pack
from strop.training.samples import after_prompt, as_sample
from strop.training.settings import AdamW
from strop.training.step import Trainer


def trajectories(count: int, seed: int = 0) -> list[Sample]:
    """Samples of one to four turns with observations of any length between, also at the end of a budget."""
    chance = np.random.default_rng(seed)
    found = []
    for number in range(count):
        whole = turn(chance, number)
        for _ in range(int(chance.integers(0, 4))):
            said = chance.integers(0, 256, int(chance.integers(0, 6))).astype(np.int32)
            whole = joined(whole, Observation(said, ""), turn(chance, number))
        sample = as_sample(whole, ticket=number // 3)
        advantage = np.full(len(whole.token_ids), chance.normal(), np.float32)
        found.append(replace(sample, advantages=after_prompt(advantage, len(sample)), group=number // 3))
    return found


def turn(chance: np.random.Generator, number: int) -> Completion:
    size = int(chance.integers(1, 9))
    return Completion(
        "r", number % 3, chance.integers(0, 256, 5).astype(np.int32), chance.integers(0, 256, size).astype(np.int32),
        -chance.random(size, np.float32) * 5, (VersionSpan(0, 0, size),), np.zeros(size, np.bool_), "", "stop",
    )  # fmt: skip


def gradients(policy: Policy, samples: list[Sample], aggregation: Aggregation, budget: int) -> dict[str, torch.Tensor]:
    """Of a plain policy gradient, −Σ weight · advantage · log π, packed by `budget`."""
    policy.zero_grad()
    for batch in pack(samples, aggregation, budget).micro_batches:
        logprob, _ = policy(batch.packed, 1.0)
        (-(batch.tokens.weight * batch.tokens.advantage * logprob).sum()).backward()
    return {name: one.grad.clone() for name, one in policy.named_parameters() if one.grad is not None}


def reference(policy: Policy, samples: list[Sample], aggregation: Aggregation) -> dict[str, torch.Tensor]:
    """The same from the definition: one sequence at a time, a softmax over whole logits, weights by hand."""
    policy.zero_grad()
    trained = {id(sample): int(sample.trained.sum()) for sample in samples}
    total = sum(trained.values())
    groups = {sample.group for sample in samples}
    for sample in samples:
        ids = torch.from_numpy(sample.token_ids.astype(np.int64))
        logits = policy.model(ids[None]).logits[0].float()
        logprob = logits[:-1].log_softmax(-1).gather(1, ids[1:, None])[:, 0]
        if isinstance(aggregation, TokenMean):
            weight = 1 / total
        elif isinstance(aggregation, SampleMean):
            weight = 1 / (len(samples) * trained[id(sample)])
        else:
            own = sum(trained[id(other)] for other in samples if other.group == sample.group)
            weight = 1 / (len(groups) * own)
        mask = torch.from_numpy(sample.trained[1:].astype(np.float32))
        advantage = torch.from_numpy(sample.advantages[1:])
        (-(weight * mask * advantage * logprob).sum()).backward()
    return {name: one.grad.clone() for name, one in policy.named_parameters() if one.grad is not None}


@pytest.mark.parametrize("aggregation", [TokenMean(), SampleMean(), PromptMean()])
def test_the_gradient_is_that_of_one_sequence_at_a_time(aggregation: Aggregation) -> None:
    policy, samples = tiny_qwen3(), trajectories(18)
    expected, found = reference(policy, samples, aggregation), gradients(policy, samples, aggregation, 128)
    assert found.keys() == expected.keys()
    scale = max(float(one.abs().max()) for one in expected.values())
    assert all(float((found[name] - expected[name]).abs().max()) <= 2e-5 * scale for name in expected)


def test_injected_tokens_have_no_gradient() -> None:
    """Their advantage, log-prob and whatever else stands beside them can be anything: the update is the same."""
    samples = trajectories(18)

    def updated(samples: list[Sample]) -> dict[str, torch.Tensor]:
        policy = tiny_qwen3()
        objective = Objective(loss=PpoClip())
        Trainer(policy, objective, AdamW(lr=1e-2), total_updates=1).update(pack(samples, TokenMean(), 200))
        return {name: one.detach().clone() for name, one in policy.named_parameters()}

    noise = np.random.default_rng(1)
    changed = [
        replace(
            sample,
            advantages=np.where(sample.trained, sample.advantages, noise.normal(size=len(sample))).astype(np.float32),
            logprobs=np.where(sample.trained, sample.logprobs, -noise.random(len(sample))).astype(np.float32),
        )
        for sample in samples
    ]
    assert sum((~sample.trained[5:]).sum() for sample in samples) > 20
    one, other = updated(samples), updated(changed)
    assert all(torch.equal(one[name], other[name]) for name in one)


@pytest.mark.parametrize("template", [None])
def test_recorded_log_probs_are_those_of_the_policy_that_read_the_whole(template: None, tmp_path: Path) -> None:
    """Of a real run: the trainer's log-probs of a trajectory are the generator's, over all turns."""
    train(chatty("steps=1", "optim.lr=1e-12", "evaluation.every=none"), tmp_path / "run", SilentView())
    folder = RunFolder.open(tmp_path / "run")
    from strop.model.policy import load_policy
    from strop.model.settings import ModelSettings

    policy, _ = load_policy(ModelSettings(path=str(folder.model)), byte_tokenizer())
    rows = folder.read_rollouts(1)
    assert max(len(row["injected"]) for row in rows) >= 2
    for row in rows:
        whole = [*row["prompt_ids"], *row["token_ids"]]
        with torch.no_grad():
            logprob, _ = policy(Packed.whole([whole]), 1.0)
        own = logprob[len(row["prompt_ids"]) - 1 :].numpy()
        kept = ~injected(row)
        assert np.abs(own[kept] - np.array(row["logprobs"], np.float32)[kept]).max() < 1e-3
