"""What is learned from trajectories of several turns: the sampled tokens and nothing else, each as if alone."""

from __future__ import annotations

import json
import signal
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.environments.players import FORGETFUL, LLAMA_LIKE, QWEN_LIKE
from tests.environments.runs import chatty, dies_in_a_later_turn, injected, record, record_samples, speak
from tests.run.test_run import StopsAfter
from tests.tiny import byte_tokenizer, tiny_qwen3

from strop.algorithms.advantages import GroupRelative
from strop.algorithms.aggregation import Aggregation, PromptMean, SampleMean, TokenMean
from strop.algorithms.losses import PpoClip
from strop.algorithms.objective import Objective
from strop.base.sample import Sample, sample_id
from strop.base.types import Completion, Group, Observation, Problem, Rollout, Verdict, VersionSpan
from strop.base.view import SilentView
from strop.environments.turns import joined
from strop.model.policy import PackedInputs, Policy, load_policy
from strop.model.settings import ModelSettings
from strop.run.folder import RunFolder
from strop.run.run import Interrupted, resume, train
from strop.training.packing import pack
from strop.training.samples import as_samples, make_candidates, make_samples
from strop.training.settings import AdamW
from strop.training.step import Trainer
from strop_verify.verdict import Status

KEY = ("r", 0)


def trajectories(count: int, seed: int = 0, separate: bool = False) -> list[Sample]:
    """Samples of one to four turns with observations of any length between, also at the end of a budget.

    If `separate`, half of the later turns stand behind a prompt of their own.
    """
    chance = np.random.default_rng(seed)
    found: list[Sample] = []
    for number in range(count):
        whole = turn(chance, number)
        for _ in range(int(chance.integers(0, 4))):
            said = chance.integers(0, 256, int(chance.integers(0, 6))).astype(np.int32)
            prompt = chance.integers(0, 256, 7).astype(np.int32) if separate and chance.random() < 0.5 else None
            whole = joined(KEY, whole, Observation(said, "", prompt), turn(chance, number))
        advantage = chance.normal()
        for sample in as_samples(whole, ticket=number // 3):
            found.append(replace(sample, advantages=np.where(sample.trained, advantage, 0).astype(np.float32)))
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
    """The same from the definition: one sequence at a time, with weights and masks by hand.

    Sequences of one completion have its length: the tokens of them all.
    """
    policy.zero_grad()
    trained: Counter[int] = Counter()
    for sample in samples:
        trained[sample.completion] += int(sample.trained.sum())
    group_of = {sample.completion: sample.group for sample in samples}
    total = sum(trained.values())
    groups = {sample.group for sample in samples}
    for sample in samples:
        ids = torch.from_numpy(sample.token_ids.astype(np.int64))
        logprob, _ = policy(PackedInputs.whole([ids.tolist()]), 1.0)
        if isinstance(aggregation, TokenMean):
            weight = 1 / total
        elif isinstance(aggregation, SampleMean):
            weight = 1 / (len(trained) * trained[sample.completion])
        else:
            own = sum(length for other, length in trained.items() if group_of[other] == sample.group)
            weight = 1 / (len(groups) * own)
        mask = torch.from_numpy(sample.trained[1:].astype(np.float32))
        advantage = torch.from_numpy(sample.advantages[1:])
        (-(weight * mask * advantage * logprob).sum()).backward()
    return {name: one.grad.clone() for name, one in policy.named_parameters() if one.grad is not None}


@pytest.mark.parametrize("aggregation", [TokenMean(), SampleMean(), PromptMean()])
@pytest.mark.parametrize("separate", [False, True])
def test_the_gradient_is_that_of_one_sequence_at_a_time(aggregation: Aggregation, separate: bool) -> None:
    policy, samples = tiny_qwen3(), trajectories(18, separate=separate)
    assert (len(samples) > len({sample.completion for sample in samples}) == 18) == separate
    expected, found = reference(policy, samples, aggregation), gradients(policy, samples, aggregation, 128)
    assert_close(found, expected)


def assert_close(found: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]) -> None:
    assert found.keys() == expected.keys()
    scale = max(float(one.abs().max()) for one in expected.values())
    assert all(float((found[name] - expected[name]).abs().max()) <= 2e-5 * scale for name in expected)


@pytest.mark.parametrize("separate", [False, True])
def test_finite_differences_of_sampled_tokens_are_the_gradient(separate: bool) -> None:
    """Those of a loss in which injected tokens count are others."""
    policy, samples = tiny_qwen3().double(), trajectories(6, separate=separate)
    found = gradients(policy, samples, TokenMean(), 128)
    weights = dict(policy.named_parameters())
    total = sum(int(sample.trained.sum()) for sample in samples)

    def loss(every: bool) -> float:
        value = 0.0
        for sample in samples:
            with torch.no_grad():
                logprob, _ = policy(PackedInputs.whole([sample.token_ids.tolist()]), 1.0)
            said = np.arange(len(sample)) >= int(np.argmax(sample.trained)) if every else sample.trained
            advantage = float(sample.advantages[sample.trained][0])
            value -= advantage * float(logprob.double().numpy()[said[1:]].sum()) / total
        return value

    def slope(direction: dict[str, torch.Tensor], every: bool) -> float:
        def moved(by: float) -> float:
            with torch.no_grad():
                for name, one in direction.items():
                    weights[name].add_(one, alpha=by)
            return loss(every)

        step = 1e-4
        above, below = moved(step), moved(-2 * step)
        moved(step)
        return (above - below) / (2 * step)

    generator = torch.Generator().manual_seed(0)
    for _ in range(3):
        direction = {n: torch.randn(one.shape, generator=generator, dtype=torch.float64) for n, one in found.items()}
        expected = sum(float((found[name] * one).sum()) for name, one in direction.items())
        assert slope(direction, every=False) == pytest.approx(expected, rel=2e-3, abs=2e-3)  # norms compute in float32
        assert separate or abs(slope(direction, every=True) - expected) > 2e-2


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


def test_sequences_of_a_completion_share_its_advantage_and_count_once_in_its_group() -> None:
    chance = np.random.default_rng(2)
    anew = Observation(np.array([7, 7], np.int32), "", np.array([5, 5, 5], np.int32))
    one, other = turn(chance, 0), turn(chance, 1)
    for _ in range(2):
        other = joined(KEY, other, anew, turn(chance, 1))
    problem = Problem("p", "?", "!")
    rollouts = (
        Rollout(problem, one, Verdict(1.0, Status.CORRECT), 1.0),
        Rollout(problem, other, Verdict(0.0, Status.WRONG), 0.0),
    )
    candidates = make_candidates([Group(4, problem, rollouts)], {4}, "none")
    samples = make_samples(candidates, GroupRelative(ddof=0, eps=0))
    assert [sample.completion for sample in samples] == [sample_id(4, 0)] + 3 * [sample_id(4, 1)]
    assert len({sample.id for sample in samples}) == 4
    assert [set(sample.advantages[sample.trained]) for sample in samples] == [{1.0}, {-1.0}, {-1.0}, {-1.0}]
    assert [set(sample.advantages[~sample.trained]) for sample in samples] == [{0.0}] * 4
    assert [sample.token_ids[:-own].tolist() for sample, own in zip(samples[1:], lengths(other), strict=True)] == [
        other.prompt_ids.tolist(), [5, 5, 5], [5, 5, 5],
    ]  # fmt: skip
    sampled = np.concatenate([sample.token_ids[sample.trained] for sample in samples[1:]])
    assert np.array_equal(sampled, other.token_ids[~other.injected])
    logprobs = np.concatenate([sample.logprobs[sample.trained] for sample in samples[1:]])
    assert np.array_equal(logprobs, other.logprobs[~other.injected])


def lengths(completion: Completion) -> list[int]:
    return [one.end - one.start for one in completion.sequences]


@pytest.mark.parametrize("history", ["keep", "separate"])
def test_recorded_log_probs_are_those_of_the_policy_that_read_the_whole(
    history: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a real run: the trainer's log-probs of a trajectory are the generator's, over all turns."""
    speak(monkeypatch, FORGETFUL)
    still = chatty("steps=1", "optim.lr=1e-12", "evaluation.every=none", f"environment.history={history}")
    train(still, tmp_path / "run", SilentView())
    folder = RunFolder.open(tmp_path / "run")
    policy, _ = load_policy(ModelSettings(path=str(folder.model)), byte_tokenizer())
    rows = folder.read_rollouts(1)
    assert max(len(row["injected"]) for row in rows) >= 2
    assert (max(len(row["restarts"]) for row in rows) >= 2) == (history == "separate")
    for row in rows:
        kept = ~injected(row)
        prompts = [row["prompt_ids"], *(one["prompt_ids"] for one in row["restarts"])]
        edges = [0, *(one["start"] for one in row["restarts"]), len(kept)]
        found = np.zeros(len(kept), np.float32)
        for prompt, start, end in zip(prompts, edges, edges[1:], strict=False):
            with torch.no_grad():
                logprob, _ = policy(PackedInputs.whole([[*prompt, *row["token_ids"][start:end]]]), 1.0)
            found[start:end] = logprob[len(prompt) - 1 :].numpy()
        assert np.abs(found[kept] - np.array(row["logprobs"], np.float32)[kept]).max() < 1e-3


CALL = '<tool_call>{"name": "calculator", "arguments": {"expression": "6*7"}}'
# An interruption's phrase is the call that an untrained model would not make: of an open one, the rest is random text,
# and the budget ends some in their midst.
TOOLS = ("environment=Calculator", "data.max_prompt_tokens=600", f"sampling.stop_token_ids={list(range(100, 256, 7))}")
WHOLE_CALLS = (
    *TOOLS, f"sampling.interruption.phrase={json.dumps(CALL + '</tool_call>')}", "sampling.max_new_tokens=400",
)  # fmt: skip
OPEN_CALLS = (*TOOLS, f"sampling.interruption.phrase={json.dumps(CALL)}", "sampling.max_new_tokens=330")


@pytest.mark.parametrize(
    ("template", "steps", "sets", "heard"),
    [
        (QWEN_LIKE, 6, (), "user\n"),
        (LLAMA_LIKE, 6, (), "user<|end_header_id|>"),
        (LLAMA_LIKE, 2, WHOLE_CALLS, "42"),
        (QWEN_LIKE, 2, OPEN_CALLS, "error: <tool_call> without </tool_call>"),
        (None, 3, ("sampling.max_new_tokens=60",), ""),
    ],
)
def test_what_is_trained_is_what_was_sampled(
    template: str | None, steps: int, sets: tuple[str, ...], heard: str, tmp_path: Path, forked: None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """456 random trajectories, interruptions among their tokens; a generator dies, and the run is cut and resumed."""
    speak(monkeypatch, template)
    turns, samples = record(monkeypatch, tmp_path), record_samples(monkeypatch)
    dies_in_a_later_turn(monkeypatch, tmp_path / "died")
    config = chatty(
        f"steps={steps}", "evaluation.every=none", "orchestration.executor=embedded", "orchestration.generators=2",
        "sampling.interruption.after=[1,9]", "sampling.interruption.phrase=stop", "model.fresh.max_positions=1024",
        *sets,
    )  # fmt: skip
    with pytest.raises(Interrupted):
        train(config, tmp_path / "run", StopsAfter(steps // 2, signal.SIGINT))
    resume(tmp_path / "run", SilentView())
    assert (tmp_path / "died").exists()
    folder = RunFolder.open(tmp_path / "run")
    rows = [row for step in folder.rollout_steps() for row in folder.read_rollouts(step)]
    played_of = turns()
    assert len(rows) == steps * 24 and any(row["turns"] for row in rows)
    assert any(heard in row["completion"] for row in rows if row["turns"])
    assert {row["finish_reason"] for row in rows} == {"stop", "length"}
    budget = config.sampling.max_new_tokens
    for row in rows:
        played = played_of[row["ticket"], row["sample"]]
        ids, forced = np.array(row["token_ids"]), injected(row)
        sampled = np.concatenate([turn.token_ids[~turn.injected] for turn in played])
        assert np.array_equal(ids[~forced], sampled)
        logprobs = np.concatenate([turn.logprobs[~turn.injected] for turn in played])
        assert np.array_equal(np.array(row["logprobs"], np.float32)[~forced], logprobs)
        assert not np.array(row["logprobs"])[forced].any()
        whole = np.array([*row["prompt_ids"], *ids])
        for turn in played:  # what the policy read at each turn is the beginning of what is trained
            read = np.concatenate([turn.prompt_ids, turn.token_ids])
            assert np.array_equal(read, whole[: len(read)])
        assert len(ids) <= budget
    trained = {sample.id: sample for sample in samples}
    for row in rows:
        sample = trained.get(sample_id(row["ticket"], row["sample"]))
        assert (sample is None) == injected(row).all()
        if sample is not None:
            assert sample.token_ids.tolist() == [*row["prompt_ids"], *row["token_ids"]]
            assert np.array_equal(sample.trained[len(row["prompt_ids"]) :], ~injected(row))
            assert not sample.trained[: len(row["prompt_ids"])].any()
    policy, _ = load_policy(ModelSettings(path=str(folder.model)), byte_tokenizer())
    every = sorted(trained.values(), key=lambda sample: sample.id)
    for start in range(0, len(every), 24):
        batch = every[start : start + 24]
        assert_close(gradients(policy, batch, PromptMean(), 2048), reference(policy, batch, PromptMean()))
