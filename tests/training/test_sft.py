"""Fine-tuning: it learns, it covers every demonstration, it says what it left out, and it resumes."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
import torch
from pydantic import ValidationError
from tests.training.cases import EOS, VOCABULARY, TinyPolicy, parameters

from strop.base.metrics import values
from strop.base.types import InputError
from strop.training.settings import AdamW, SftSettings
from strop.training.sft import Demonstration, FineTuning, _batches, _sample


def mapping(count: int = 12) -> list[Demonstration]:
    """Prompt [d, d] → completion [(d − 1) mod 7 + 4, EOS]: one of a few answers, fixed by the prompt."""
    digits = [4 + index % 7 for index in range(count)]
    return [
        Demonstration(np.array([d, d], dtype=np.int32), np.array([(d - 1) % 7 + 4, EOS], dtype=np.int32))
        for d in digits
    ]


def settings(**changes: object) -> SftSettings:
    base: dict[str, object] = {"epochs": 1, "tokens_per_batch": 16, "tokens_per_microbatch": 8}
    return SftSettings.model_validate(base | {"optimizer": {"lr": 0.03, "weight_decay": 0.0}} | changes)


def test_a_trivial_mapping_is_learnt_in_a_few_steps():
    policy = TinyPolicy(width=16)
    events = list(FineTuning(policy, mapping(), settings(epochs=None, steps=60, tokens_per_batch=48)).events())
    assert [event.step for event in events] == list(range(1, 61))
    assert {event.total for event in events} == {60}
    first, last = values(events[0].metrics), values(events[-1].metrics)
    assert first["nll"] is not None and last["nll"] is not None
    assert first["nll"] > 1.5 and last["nll"] < 0.2
    assert last["loss"] == pytest.approx(last["nll"], rel=1e-5)


def test_completion_and_eos_are_trained_and_the_prompt_is_not():
    (sample,) = (_sample(one, 0) for one in mapping(1))
    assert sample.trained.tolist() == [False, False, True, True]
    assert sample.token_ids.tolist() == [4, 4, 7, EOS]
    metrics = values(next(FineTuning(TinyPolicy(), mapping(1), settings()).events()).metrics)
    assert (metrics["tokens"], metrics["trained_tokens"]) == (4, 2)


def test_loss_is_the_token_mean_of_the_batch():
    demonstrations = [
        Demonstration(np.array([1], dtype=np.int32), np.array([3, 4, 5, EOS], dtype=np.int32)),
        Demonstration(np.array([7, 7, 7], dtype=np.int32), np.array([EOS], dtype=np.int32)),
    ]
    policy = TinyPolicy()
    total = 0.0
    with torch.no_grad():
        for d in demonstrations:
            ids = torch.from_numpy(np.concatenate([d.prompt_ids, d.completion_ids])).long()
            seen = policy.embedding(ids).cumsum(0) / torch.arange(1, len(ids) + 1)[:, None]
            logp = torch.log_softmax(policy.head(policy.norm(seen)), -1)
            for t in range(len(d.prompt_ids), len(ids)):
                total -= float(logp[t - 1, ids[t]])
    event = next(FineTuning(policy, demonstrations, settings()).events())
    assert values(event.metrics)["loss"] == pytest.approx(total / 5, rel=1e-5)


@pytest.mark.parametrize("epochs", [1, 3])
def test_each_demonstration_is_seen_once_an_epoch_in_batches_within_the_budget(epochs):
    lengths = np.random.default_rng(0).integers(3, 20, 50).tolist()
    plan = _batches(lengths, settings(epochs=epochs, tokens_per_batch=64))
    assert Counter(index for batch in plan for index in batch) == dict.fromkeys(range(50), epochs)
    loads = [sum(lengths[index] for index in batch) for batch in plan]
    assert max(loads) <= 64
    assert min(loads[:-1]) > 64 - 20
    order = [index for batch in plan for index in batch]
    assert sorted(order[:50]) == list(range(50)) and order[:50] != list(range(50))
    if epochs > 1:
        assert order[:50] != order[50:100]
    assert plan == _batches(lengths, settings(epochs=epochs, tokens_per_batch=64))
    assert plan != _batches(lengths, settings(epochs=epochs, tokens_per_batch=64, seed=1))


def test_steps_run_over_as_many_epochs_as_they_take():
    plan = _batches([5] * 10, settings(epochs=None, steps=7, tokens_per_batch=20))
    assert [len(batch) for batch in plan] == [4] * 7
    assert max(Counter(index for batch in plan for index in batch).values()) == 3


def test_demonstrations_that_are_too_long_are_left_out_and_reported():
    long = Demonstration(np.full(6, 5, dtype=np.int32), np.full(7, 5, dtype=np.int32))
    tuning = FineTuning(TinyPolicy(), [*mapping(3), long], settings(max_length=12))
    assert tuning.dropped == 1
    assert tuning.overflow is not None
    assert "1 of 4 demonstrations are longer than 12 tokens (the longest has 13)" in tuning.overflow
    assert sum(float(values(event.metrics)["sequences"] or 0) for event in tuning.events()) == 3
    assert FineTuning(TinyPolicy(), mapping(3), settings()).overflow is None
    with pytest.raises(InputError, match="12"):
        FineTuning(TinyPolicy(), [long], settings(max_length=12))


def test_input_that_cannot_be_learnt_from_is_refused():
    nothing = np.array([], dtype=np.int32)
    some = np.array([3], dtype=np.int32)
    for wrong in (Demonstration(nothing, some), Demonstration(some, nothing)):
        with pytest.raises(InputError, match="demonstration 1"):
            FineTuning(TinyPolicy(), [*mapping(1), wrong], settings())
    with pytest.raises(InputError):
        FineTuning(TinyPolicy(), [], settings())
    for lengths in ({"epochs": 1, "steps": 2}, {"epochs": None}):
        with pytest.raises(ValidationError, match="epochs"):
            settings(**lengths)
    assert SftSettings(epochs=1).optimizer == AdamW(lr=3e-5)
    assert SftSettings(epochs=1).tokens_per_batch == 2_000_000
    assert SftSettings(epochs=1).max_length == 12_288


def test_a_resumed_run_goes_on_where_it_stood():
    whole, half = TinyPolicy(), TinyPolicy()
    list(FineTuning(whole, mapping(), settings(epochs=2)).events())
    tuning = FineTuning(half, mapping(), settings(epochs=2))
    events = tuning.events()
    for _ in range(2):
        next(events)
    resumed_policy = TinyPolicy(seed=8)
    resumed_policy.load_state_dict(half.state_dict())
    resumed = FineTuning(resumed_policy, mapping(), settings(epochs=2))
    resumed.trainer.load_state_dict(*tuning.trainer.state_dict())
    assert [event.step for event in resumed.events()] == list(range(3, resumed.total + 1))
    for name, tensor in parameters(whole).items():
        assert torch.equal(parameters(resumed_policy)[name], tensor)


def test_vocabulary_of_the_cases():
    assert max(int(d.completion_ids.max()) for d in mapping()) < VOCABULARY


def test_the_order_of_demonstrations_is_the_one_that_no_numpy_changes():
    # Of numpy's frozen RandomState: [1 3 2 0] and [2 0 3 1].
    assert _batches([4] * 4, settings(epochs=2, seed=3, tokens_per_batch=8)) == [[1, 3], [2, 0], [2, 0], [3, 1]]
