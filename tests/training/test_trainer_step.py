"""The step: the split changes nothing, scores come first, and what is not finite stops before the parameters move."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch
from tests.training.cases import TinyPolicy, WeightedNegative, gradients, loss_and_gradient, make_samples, parameters
from torch import Tensor

from strop.algorithms.aggregation import Aggregation, PromptMean, SampleMean, TokenMean
from strop.algorithms.objective import UpdateContext
from strop.algorithms.tokens import Tokens
from strop.base.metrics import Mean, Metrics, values
from strop.base.sample import Sample
from strop.training.packing import Update, pack
from strop.training.settings import AdamW, Cosine, LinearDecay
from strop.training.step import NonFiniteLoss, Trainer

SGD_LIKE = AdamW(lr=1e-3, weight_decay=0.0)


@pytest.mark.parametrize("aggregation", [TokenMean(), SampleMean(), PromptMean()])
@pytest.mark.parametrize("dtype, tolerance", [(torch.float64, 1e-12), (torch.float32, 2e-6)])
def test_loss_and_gradient_do_not_change_with_budget_or_order(aggregation: Aggregation, dtype, tolerance):
    samples = [replace(one, group=int(index**0.5)) for index, one in enumerate(make_samples(14))]  # of 1 to 5
    policy = TinyPolicy(dtype=dtype)
    expected, reference = loss_and_gradient(policy, pack(samples, aggregation, 10_000))
    scale = max(float(g.abs().max()) for g in reference.values())
    orders = [list(range(14)), list(range(13, -1, -1)), torch.randperm(14).tolist()]
    for budget in (1, 7, 19, 33, 64, 10_000):
        for order in orders:
            loss, found = loss_and_gradient(policy, pack([samples[i] for i in order], aggregation, budget))
            assert loss == pytest.approx(expected, rel=tolerance * 10)
            assert found.keys() == reference.keys()
            for name, gradient in found.items():
                assert float((gradient - reference[name]).abs().max()) <= tolerance * scale, (budget, name)


def test_a_whole_training_run_does_not_change_with_the_budget():
    def train(budget: int) -> tuple[list[dict[str, float | None]], dict[str, Tensor]]:
        policy = TinyPolicy(dtype=torch.float64)
        trainer = Trainer(policy, WeightedNegative(), SGD_LIKE, total_updates=5, temperature=0.7)
        logs = [values(trainer.update(pack(make_samples(8, seed=s), TokenMean(), budget))) for s in range(5)]
        return logs, parameters(policy)

    logs, reference = train(10_000)
    for budget in (1, 23):
        other_logs, other = train(budget)
        for name in reference:
            torch.testing.assert_close(other[name], reference[name], rtol=1e-9, atol=1e-12)
        for one, two in zip(logs, other_logs, strict=True):
            for key in ("loss", "grad_norm", "entropy", "logprob", "lr", "tokens", "trained_tokens", "sequences"):
                assert one[key] == pytest.approx(two[key], rel=1e-6), key


def test_metrics_of_an_update_by_value():
    samples = make_samples(9)
    policy = TinyPolicy()
    trainer = Trainer(policy, WeightedNegative(), AdamW(lr=1e-2, schedule=Cosine()), total_updates=2)
    update = pack(samples, TokenMean(), 25)
    loss, found = loss_and_gradient(policy, update)
    entropy = torch.cat([entropy for _, entropy in trainer.score(update)])
    metrics = values(trainer.update(update))
    norm = torch.cat([g.flatten() for g in backward_temperature_one(update).values()]).norm()
    assert metrics["grad_norm"] == pytest.approx(float(norm), rel=1e-5)
    assert metrics["entropy"] == pytest.approx(float(entropy.mean()), rel=1e-6)
    assert metrics["lr"] == 1e-2
    assert metrics["sequences"] == 9
    assert metrics["tokens"] == sum(map(len, samples))
    assert metrics["trained_tokens"] == sum(s.trained_tokens for s in samples)
    assert metrics["packing_efficiency"] == pytest.approx(update.efficiency)
    assert metrics["micro_batches"] == len(update.micro_batches)
    assert values(trainer.update(update))["lr"] == pytest.approx(0.5e-2)
    assert trainer.updates == 2


def backward_temperature_one(update: Update) -> dict[str, Tensor]:
    policy = TinyPolicy()
    for batch in update.micro_batches:
        logprob, entropy = policy(batch.packed, 1.0)
        WeightedNegative()(batch.tokens, logprob, entropy, UpdateContext())[0].backward()
    return gradients(policy)


def test_scores_are_of_the_policy_before_the_update_and_without_gradient():
    policy = TinyPolicy()
    update = pack(make_samples(), TokenMean(), 30)
    trainer = Trainer(policy, WeightedNegative(), SGD_LIKE, 10, temperature=0.5)
    scores = trainer.score(update)
    for (logprob, entropy), batch in zip(scores, update.micro_batches, strict=True):
        assert not logprob.requires_grad and not entropy.requires_grad
        torch.testing.assert_close(logprob, policy(batch.packed, 0.5)[0].detach())
        assert len(logprob) == len(entropy) == len(batch.tokens)
    assert all(p.grad is None for p in policy.parameters())


@dataclass(frozen=True)
class Global:
    """A loss with a quantity of the whole update: λ = mean over all tokens of the scored entropy."""

    calls: list[Tokens]
    needs_scores: bool = True

    def prepare(self, tokens: Tokens, context: UpdateContext) -> Tokens:
        assert tokens.scored_entropy is not None and tokens.scored_logprob is not None
        self.calls.append(tokens)
        return replace(tokens, advantage=tokens.scored_entropy.mean().expand(len(tokens)).float())

    def __call__(
        self, tokens: Tokens, logprob: Tensor, entropy: Tensor, context: UpdateContext
    ) -> tuple[Tensor, Metrics]:
        assert tokens.scored_logprob is not None
        drift = (logprob.detach() - tokens.scored_logprob).abs().sum()
        return -(tokens.weight * tokens.advantage * logprob).sum(), {"drift": Mean(drift, len(tokens))}


@pytest.mark.parametrize("budget", [1, 20, 1000])
def test_prepare_sees_the_whole_update_once_with_its_scores(budget):
    policy = TinyPolicy()
    objective = Global([])
    trainer = Trainer(policy, objective, SGD_LIKE, 10)
    update = pack(make_samples(), TokenMean(), budget)
    mean = float(torch.cat([entropy for _, entropy in trainer.score(update)]).mean())
    expected = -mean * float(torch.cat([logprob for logprob, _ in trainer.score(update)]).mean())
    metrics = values(trainer.update(update))
    assert len(objective.calls) == 1
    assert len(objective.calls[0]) == update.trained_tokens
    assert metrics["loss"] == pytest.approx(expected, rel=1e-5)
    assert metrics["drift"] == pytest.approx(0, abs=1e-6)


@pytest.mark.parametrize("budget", [1, 30, 1000])
def test_what_a_sample_carries_reaches_its_own_tokens(budget):
    samples = [
        replace(sample, id=100 + index, reference_logprobs=np.arange(len(sample), dtype=np.float32) + 1000 * index)
        for index, sample in enumerate(make_samples())
    ]
    seen = 0
    for batch in pack(samples, TokenMean(), budget).micro_batches:
        tokens = batch.tokens
        assert tokens.reference_logprob is not None and tokens.correction is None
        assert torch.equal(tokens.reference_logprob, (tokens.position + 1000 * tokens.sequence).float())
        assert torch.equal(tokens.sample, 100 + tokens.sequence)
        assert torch.equal(tokens.anchor_logprob, tokens.generator_logprob)
        seen += len(tokens)
    assert seen == sum(sample.trained_tokens for sample in samples)


def test_an_anchor_of_its_own_replaces_the_generators():
    samples = [replace(sample, anchors=sample.logprobs - 0.5) for sample in make_samples()]
    for batch in pack(samples, TokenMean(), 30).micro_batches:
        assert torch.equal(batch.tokens.anchor_logprob, batch.tokens.generator_logprob - 0.5)


def test_a_column_that_only_some_samples_have_is_refused():
    samples = make_samples(3)
    samples[1] = replace(samples[1], old_entropies=samples[1].logprobs)
    with pytest.raises(ValueError, match="old_entropies"):
        pack(samples, TokenMean(), 1000)


@dataclass(frozen=True)
class Poisoned(WeightedNegative):
    """A loss that is not finite, or whose gradient is not, where a sequence's index is `sequence`."""

    sequence: int = 0
    gradient_only: bool = False

    def __call__(
        self, tokens: Tokens, logprob: Tensor, entropy: Tensor, context: UpdateContext
    ) -> tuple[Tensor, Metrics]:
        loss, metrics = super().__call__(tokens, logprob, entropy, context)
        if bool((tokens.sequence == self.sequence).any()):
            loss = loss + (logprob.sum() * 0).sqrt() if self.gradient_only else loss * float("nan")
        return loss, metrics


def place_of(update: Update, sequence: int) -> int:
    found = [bool((batch.tokens.sequence == sequence).any()) for batch in update.micro_batches]
    return found.index(True)


@pytest.mark.parametrize("gradient_only", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_what_is_not_finite_raises_and_leaves_everything_as_it_was(gradient_only, dtype):
    policy = TinyPolicy(dtype=dtype)
    update = pack(make_samples(), TokenMean(), 25)
    trainer = Trainer(policy, WeightedNegative(), SGD_LIKE, 10)
    trainer.update(update)
    before = parameters(policy)
    state = {name: tensor.clone() for name, tensor in trainer.state_dict()[0].items()}
    trainer.objective = Poisoned(sequence=7, gradient_only=gradient_only)
    place = "gradient" if gradient_only else f"micro-batch {place_of(update, 7)} of {len(update.micro_batches)}"
    with pytest.raises(NonFiniteLoss, match=f"update 1, .*{place}") as raised:
        trainer.update(update)
    assert "\n" not in str(raised.value)
    assert all(torch.equal(tensor, before[name]) for name, tensor in parameters(policy).items())
    after, counters = trainer.state_dict()
    assert all(torch.equal(tensor, state[name]) for name, tensor in after.items())
    assert counters == {"updates": 1, "schedule_start": 0, "total_updates": 10}
    # The run can go on: nothing of the bad gradient is left.
    clean = TinyPolicy(dtype=dtype)
    twin = Trainer(clean, WeightedNegative(), SGD_LIKE, 10)
    twin.update(update)
    twin.update(update)
    trainer.objective = WeightedNegative()
    trainer.update(update)
    assert all(torch.equal(tensor, parameters(clean)[name]) for name, tensor in parameters(policy).items())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_trainer_resumed_from_its_state_goes_on_bit_equal(dtype):
    updates = [pack(make_samples(8, seed=s), TokenMean(), 30) for s in range(6)]
    settings = AdamW(lr=1e-2, warmup_steps=2, schedule=Cosine())
    whole = Trainer(TinyPolicy(dtype=dtype), WeightedNegative(), settings, 6)
    part = Trainer(TinyPolicy(dtype=dtype), WeightedNegative(), settings, 6)
    for update in updates:
        whole.update(update)
    for update in updates[:4]:
        part.update(update)
    resumed_policy = TinyPolicy(dtype=dtype, seed=9)
    resumed = Trainer(resumed_policy, WeightedNegative(), settings, 6)
    resumed_policy.load_state_dict(part.policy.state_dict())
    resumed.load_state_dict(*part.state_dict())
    for update in updates[4:]:
        resumed.update(update)
    for name, tensor in parameters(whole.policy).items():
        assert torch.equal(parameters(resumed_policy)[name], tensor)


def test_the_mode_of_a_shared_module_is_put_back():
    policy = TinyPolicy().eval()
    Trainer(policy, WeightedNegative(), SGD_LIKE, 10).update(pack(make_samples(), TokenMean(), 30))
    assert not policy.training


def test_an_update_moves_the_policy_towards_what_had_an_advantage():
    samples = [positive(sample) for sample in make_samples()]
    policy = TinyPolicy()
    trainer = Trainer(policy, WeightedNegative(), AdamW(lr=1e-2), 30)
    update = pack(samples, TokenMean(), 40)
    before = torch.cat([logprob for logprob, _ in trainer.score(update)]).mean()
    for _ in range(30):
        trainer.update(update)
    after = torch.cat([logprob for logprob, _ in trainer.score(update)]).mean()
    assert float(after) > float(before) + 0.2


def positive(sample: Sample) -> Sample:
    return replace(sample, advantages=sample.trained.astype("float32"))


def test_a_schedule_begun_anew_and_planned_anew_counts_from_its_beginning():
    line = AdamW(lr=1e-3, weight_decay=0.0, schedule=LinearDecay())
    trainer = Trainer(TinyPolicy(), WeightedNegative(), line, total_updates=10)

    def rate() -> float:
        return values(trainer.update(pack(make_samples(4), TokenMean(), 100)))["lr"] or 0.0

    assert [rate() for _ in range(3)] == pytest.approx([1e-3, 9e-4, 8e-4])
    trainer.begin_schedule(line, 4)
    assert rate() == pytest.approx(1e-3)
    trainer.replan(1)  # one of its updates is done, one is left
    assert trainer.total_updates == 2 and rate() == pytest.approx(5e-4)
    counters = trainer.state_dict()[1]
    assert counters == {"updates": 5, "schedule_start": 3, "total_updates": 2}
