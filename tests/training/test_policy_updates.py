"""The trainer on the real policy: a random Qwen3 of two layers with tied head, packed attention and chunked head."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from tests.tiny import byte_tokenizer, tiny_qwen3
from tests.training.cases import WeightedNegative, loss_and_gradient, make_samples, parameters
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from strop.algorithms.aggregation import PromptMean, SampleMean, TokenMean
from strop.algorithms.losses import Cispo, PolicyLoss, PpoClip, Reinforce
from strop.algorithms.objective import Objective, UpdateContext
from strop.algorithms.tokens import Tokens
from strop.base.metrics import values
from strop.base.sample import Sample
from strop.model.policy import PackedInputs, Policy, load_policy
from strop.model.settings import FreshModel, Lora, ModelSettings
from strop.training.checkpoint import CheckpointEntry, load, save
from strop.training.packing import MicroBatch, pack
from strop.training.settings import AdamW, SftSettings
from strop.training.sft import Demonstration, FineTuning
from strop.training.step import Backward, Trainer

SETTINGS = AdamW(lr=1e-3, betas=(0.9, 0.95), weight_decay=0.1)


def closeness(found: dict[str, Tensor], reference: dict[str, Tensor]) -> float:
    """Largest ‖found − reference‖ / ‖reference‖ over the whole gradient."""
    assert found.keys() == reference.keys()
    gap = sum(float((found[name] - reference[name]).double().pow(2).sum()) for name in reference)
    size = sum(float(reference[name].double().pow(2).sum()) for name in reference)
    return (gap / size) ** 0.5


@pytest.mark.parametrize("aggregation", [TokenMean(), SampleMean(), PromptMean()])
def test_loss_and_gradient_do_not_change_with_budget_or_order(aggregation):
    samples = make_samples(12)
    policy = tiny_qwen3()
    expected, reference = loss_and_gradient(policy, pack(samples, aggregation, 10_000))
    for budget in (1, 20, 45, 10_000):
        for ordered in (samples, samples[::-1], samples[5:] + samples[:5]):
            loss, found = loss_and_gradient(policy, pack(ordered, aggregation, budget))
            assert loss == pytest.approx(expected, rel=2e-6, abs=1e-7)
            assert closeness(found, reference) < 2e-6


def test_the_loss_is_that_of_each_sequence_run_alone():
    samples = make_samples(6)
    policy = tiny_qwen3()
    update = pack(samples, TokenMean(), 40)
    loss, _ = loss_and_gradient(policy, update)
    total = 0.0
    for sample in samples:
        logprob, _ = policy(PackedInputs.whole([sample.token_ids.tolist()]), 0.9)
        trained = torch.from_numpy(sample.trained[1:])
        total -= float((torch.from_numpy(sample.advantages[1:]) * logprob.detach())[trained].sum())
    assert loss == pytest.approx(total / update.trained_tokens, rel=1e-5)


def test_the_eos_is_trained_where_pad_is_eos():
    eos = byte_tokenizer().eos_token_id
    sample = make_samples(1)[0]
    ids = sample.token_ids.copy()
    ids[-3:] = eos
    update = pack([replace(sample, token_ids=ids)], TokenMean(), 100)
    assert update.trained_tokens == sample.trained_tokens
    assert update.micro_batches[0].packed.targets.tolist()[-2:] == [eos, eos]


def test_a_bf16_policy_trains_on_fp32_masters():
    policy = tiny_qwen3(dtype="bfloat16")
    samples = [replace(s, advantages=s.trained.astype(np.float32)) for s in make_samples(8)]
    trainer = Trainer(policy, WeightedNegative(), AdamW(lr=1e-5, weight_decay=0.0), 60)
    update = pack(samples, TokenMean(), 60)
    before = parameters(policy)
    losses = [values(trainer.update(update))["loss"] for _ in range(60)]
    assert losses[0] is not None and losses[-1] is not None and losses[-1] < losses[0]
    for name, parameter in policy.named_parameters():
        master = trainer.optimizer.masters[name]
        assert parameter.dtype == torch.bfloat16 and master.dtype == torch.float32
        assert torch.equal(parameter, master.bfloat16())
        # About 60 steps of 1e-5 in one direction at most, all of them kept by the master.
        assert 0 < float((master.detach() - before[name].float()).abs().max()) < 100e-5


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("checkpointing", [False, True])
def test_a_run_resumed_from_a_checkpoint_is_bit_equal(tmp_path, dtype, checkpointing):
    def trainer_of(seed: int) -> tuple[Policy, Trainer]:
        policy = tiny_qwen3(seed, dtype=dtype, gradient_checkpointing=checkpointing)
        return policy, Trainer(policy, WeightedNegative(), SETTINGS, 6)

    updates = [pack(make_samples(6, seed=s), TokenMean(), 50) for s in range(5)]
    whole, whole_trainer = trainer_of(0)
    for update in updates:
        whole_trainer.update(update)
    part, part_trainer = trainer_of(0)
    for update in updates[:3]:
        part_trainer.update(update)
    tensors, state = part_trainer.state_dict()
    save(CheckpointEntry(tmp_path, 3, state), {"policy": part.weights(), "optimizer": tensors})

    found = load(tmp_path)
    resumed, trainer = trainer_of(9)
    resumed.model.load_state_dict(found.tensors["policy"], strict=False)
    trainer.load_state_dict(found.tensors["optimizer"], found.state)
    for update in updates[3:]:
        trainer.update(update)
    for name, tensor in parameters(whole).items():
        assert torch.equal(parameters(resumed)[name], tensor), name


@pytest.mark.parametrize("loss", [Reinforce(), PpoClip(), Cispo()])
def test_policy_losses_have_the_same_gradient_where_the_generator_was_the_policy(loss):
    policy = tiny_qwen3()
    samples = make_samples(8)
    scores = Trainer(policy, Objective(loss), SETTINGS, 1).score(pack(samples, PromptMean(), 10_000))
    logprob = scores[0][0].numpy()
    exact, start = [], 0
    for sample in sorted(samples, key=len, reverse=True):
        recorded = np.zeros(len(sample), dtype=np.float32)
        recorded[sample.trained] = logprob[start : start + sample.trained_tokens]
        start += sample.trained_tokens
        exact.append(replace(sample, logprobs=recorded))
    update = pack(exact, PromptMean(), 40)
    plain = values(Trainer(tiny_qwen3(), WeightedNegative(), SETTINGS, 1).update(update))
    metrics = values(Trainer(tiny_qwen3(), Objective(loss), SETTINGS, 1).update(update))
    assert metrics["mismatch/max"] == pytest.approx(0, abs=1e-5)
    assert metrics["grad_norm"] == pytest.approx(plain["grad_norm"], rel=1e-4)


def test_fine_tuning_learns_a_mapping():
    tokenizer = byte_tokenizer()

    def demonstration(prompt: str, answer: str) -> Demonstration:
        ids = tokenizer(prompt)["input_ids"], [*tokenizer(answer)["input_ids"], tokenizer.eos_token_id]
        return Demonstration(*(np.array(part, dtype=np.int32) for part in ids))

    pairs = [demonstration(f"{a}+{b}=", str(a + b)) for a in range(4) for b in range(4)]
    settings = SftSettings(
        steps=40, tokens_per_batch=120, tokens_per_microbatch=64, optimizer=AdamW(lr=5e-3, weight_decay=0.0)
    )
    policy = tiny_qwen3()
    losses = [values(event.metrics)["loss"] or 0.0 for event in FineTuning(policy, pairs, settings).events()]
    assert losses[0] > 3 and losses[-1] < 0.5


def test_a_sample_that_is_a_prompt_only_costs_nothing():
    sample: Sample = make_samples(1)[0]
    idle = replace(sample, trained=np.zeros_like(sample.trained), group=5)
    assert pack([sample, idle], PromptMean(), 100).tokens == len(sample)


@pytest.mark.parametrize("lora", [None, Lora(rank=2)])
@pytest.mark.parametrize("silent", ["all", "some"])
def test_micro_batches_without_a_signal_have_no_backward_pass_and_change_no_bit(
    silent: str, lora: Lora | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    samples = make_samples(8)
    quiet = [replace(sample, advantages=np.zeros_like(sample.advantages)) for sample in samples]
    steps = [samples, quiet if silent == "all" else [*quiet[:5], *samples[5:]], samples]
    passes = 0
    backward = torch.Tensor.backward

    def counted(self: Tensor) -> None:
        nonlocal passes
        passes += 1
        backward(self)

    monkeypatch.setattr(torch.Tensor, "backward", counted)
    found: dict[str, tuple[dict[str, Tensor], list[dict[str, float | None]], int]] = {}
    for way, objective in {"skipped": Objective(Cispo()), "computed": Always(Cispo())}.items():
        policy, passes = tiny_qwen3(), 0
        if lora is not None:
            policy.adapt(lora, seed=3)
        trainer = Trainer(policy, objective, SETTINGS, 10)
        metrics = [values(trainer.update(pack(each, TokenMean(), 12))) for each in steps]
        found[way] = trainer.optimizer.state_dict() | policy.weights(), metrics, passes
    (one, metrics, few), (other, expected, all_of_them) = found["skipped"], found["computed"]
    assert metrics == expected and metrics[1]["entropy"] is not None
    assert one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in other)
    batches = [batch.tokens.advantage.any() for batch in pack(steps[1], TokenMean(), 12).micro_batches]
    assert few == all_of_them - sum(not each for each in batches) + (silent == "all") < all_of_them


class Always(Objective):
    """An objective that never says that it is 0."""

    def vanishes(self, tokens: Tokens) -> bool:
        return False


# ---------------------------------------------------------------------- a GPU is never waited for in a micro-batch

READS_BACK = {
    "_local_scalar_dense", "nonzero", "_unique2", "unique_dim", "unique_consecutive", "masked_select", "equal",
}  # fmt: skip


class ReadBack(TorchDispatchMode):
    """Notes operators whose result's value or shape must come back from the device to the host."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []
        self.seen = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.seen += 1
        name = func.overloadpacket.__name__
        by_mask = name == "index" and any(part is not None and part.dtype == torch.bool for part in args[1])
        if name in READS_BACK or by_mask:
            self.found.append(name)
        return func(*args, **(kwargs or {}))


class Watched(Trainer):
    """A trainer whose micro-batches are watched."""

    def _backward(self, batch: MicroBatch, context: UpdateContext, zero: bool = False) -> Backward:
        self.watch = ReadBack()
        with self.watch:
            return super()._backward(batch, context, zero)


@pytest.mark.parametrize("loss", [PpoClip(), Cispo()])
def test_nothing_is_read_back_in_a_micro_batch(loss: PolicyLoss):
    length = 32  # all alike and whole vectors: then attention on a CPU needs no gathering, as a GPU's never does
    policy, _ = load_policy(ModelSettings(fresh=FreshModel(hidden_size=32, layers=1, intermediate_size=32)))
    rng = np.random.default_rng(0)
    trained = np.arange(length) >= 4
    samples = [
        Sample(
            token_ids=rng.integers(0, 100, length).astype(np.int32), trained=trained,
            logprobs=np.where(trained, -4.0, 0.0).astype(np.float32),
            advantages=np.where(trained, rng.normal(), 0.0).astype(np.float32),
            versions=np.where(trained, 0, -1).astype(np.int32), group=place // 2, id=place,
        )
        for place in range(4)
    ]  # fmt: skip
    trainer = Watched(policy, Objective(loss), SETTINGS, 10)
    trainer.update(pack(samples, TokenMean(), 2 * length))
    assert trainer.watch.seen > 100 and trainer.watch.found == []


def test_the_watch_sees_what_is_read_back():
    with ReadBack() as watch:
        numbers = torch.arange(4.0)
        numbers.sum().item()
        numbers[numbers > 1].sum()
    assert watch.found == ["_local_scalar_dense", "index"]
