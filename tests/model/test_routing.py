"""Rollout routing replay: experts recorded by the embedded engine, and the trainer's pass through the same ones."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from tests.engines.runs import engine_of, prompts, requests, run
from tests.model.test_mixture_of_experts import ROUTER, mixture, settings_of
from tests.tiny import tiny_qwen3
from tests.training.cases import gradients
from torch import Tensor

from strop.algorithms.aggregation import TokenMean
from strop.base.sample import Sample
from strop.base.types import Completion, InputError
from strop.engines.protocol import Sampling
from strop.model.files import cast_parameters
from strop.model.policy import PackedInputs, Policy
from strop.model.routing import UNKNOWN, RecordedExperts
from strop.training.packing import pack
from strop.training.samples import as_samples


def drawn(policy: Policy, count: int = 3, **settings: object) -> list[Completion]:
    """Completions of an engine on the policy, two for each of some prompts."""
    found = run(engine_of(policy, **settings), requests(prompts(count), Sampling(max_new_tokens=12), n=2))
    return [completion for _, completion in sorted(found.items())]


def samples_of(completions: list[Completion]) -> list[Sample]:
    return [as_samples(completion, ticket)[0] for ticket, completion in enumerate(completions)]


def packed_of(samples: list[Sample]) -> PackedInputs:
    update = pack(samples, TokenMean(), 10_000)
    assert len(update.micro_batches) == 1
    return update.micro_batches[0].packed


@torch.no_grad()
def gaps(policy: Policy, completions: list[Completion], replays: bool = True) -> np.ndarray:
    """|trainer − engine| of every token's log-prob."""
    samples = samples_of(completions)
    if not replays:
        samples = [replace(sample, routed_experts=None) for sample in samples]
    update = pack(samples, TokenMean(), 10_000)
    (batch,) = update.micro_batches
    return (policy(batch.packed, 1.0)[0] - batch.tokens.generator_logprob).abs().numpy()


def stir_routers(policy: Policy, scale: float) -> None:
    torch.manual_seed(1)
    with torch.no_grad():
        for name, parameter in policy.model.named_parameters():
            if name.endswith("mlp.gate.weight"):
                parameter.add_(torch.randn_like(parameter) * scale)


@pytest.mark.parametrize("native", [True, False])
def test_the_engine_records_what_its_routers_chose(native: bool) -> None:
    policy = mixture(replay_routing=True)
    for completion in drawn(policy, native=native):
        ids = [*completion.prompt_ids.tolist(), *completion.token_ids.tolist()]
        experts = completion.routed_experts
        assert experts is not None and experts.shape == (len(ids) - 1, 2, 2)
        with torch.no_grad():
            policy(PackedInputs.whole([ids[:-1]]), 1.0)
        assert policy.routing is not None
        own = torch.stack(policy.routing.chosen, 1).numpy()
        assert np.array_equal(np.sort(experts, -1), np.sort(own, -1))


def test_with_one_expert_a_token_replay_undoes_any_change_of_the_router() -> None:
    """Its weight is 1 then, so that nothing else is left of the router: the log-probs are the engine's own."""
    policy = mixture(per_token=1, replay_routing=True)
    for module in policy.model.modules():
        if "norm_topk_prob" in vars(module):
            module.norm_topk_prob = True
    completions = drawn(policy, share_parameters=False)
    stir_routers(policy, 1.0)
    assert gaps(policy, completions).max() < 1e-5
    assert gaps(policy, completions, replays=False).max() > 0.1


def test_replay_brings_a_bfloat16_engine_and_a_float32_trainer_together() -> None:
    policy = mixture(experts=16, per_token=2, replay_routing=True)
    stir_routers(policy, 0.0)
    completions = drawn(policy, count=12, share_parameters=False, dtype="bfloat16")
    replayed, chosen = gaps(policy, completions), gaps(policy, completions, replays=False)
    assert replayed.mean() < chosen.mean() and replayed.max() < 0.5 * chosen.max(), (replayed.max(), chosen.max())


def test_the_gradient_is_that_of_fixed_choices() -> None:
    policy = mixture(replay_routing=True)
    policy.model.set_experts_implementation("eager")
    packed = packed_of(samples_of(drawn(policy)))
    stir_routers(policy, 0.5)  # the router itself would choose others
    cast_parameters(policy, torch.float64)
    policy(packed, 1.0)[0].sum().backward()
    weight = dict(policy.model.named_parameters())[ROUTER.format(0)]
    assert weight.grad is not None
    place = divmod(int(weight.grad.abs().argmax()), weight.shape[1])
    for row, column in (place, (0, 0), (3, 5)):
        values = []
        for step in (2e-3, -2e-3):  # the softmax of routers is of float32
            with torch.no_grad():
                weight[row, column] += step
                values.append(policy(packed, 1.0)[0].sum().item())
                weight[row, column] -= step
        slope = (values[0] - values[1]) / 4e-3
        assert slope == pytest.approx(weight.grad[row, column].item(), rel=5e-3, abs=1e-4)


def test_layers_computed_again_in_backward_go_through_the_same_experts() -> None:
    completions = drawn(mixture(replay_routing=True))
    found: list[dict[str, Tensor]] = []
    for checkpointing in (False, True):
        policy = mixture(replay_routing=True, gradient_checkpointing=checkpointing)
        stir_routers(policy, 0.5)
        policy(packed_of(samples_of(completions)), 1.0)[0].sum().backward()
        found.append(gradients(policy))
    for name, gradient in found[0].items():
        torch.testing.assert_close(found[1][name], gradient, msg=name)


def test_neither_packing_nor_what_comes_later_changes_a_log_prob() -> None:
    policy = mixture(replay_routing=True)
    samples = samples_of(drawn(policy))
    stir_routers(policy, 0.5)
    with torch.no_grad():
        together = policy(packed_of(samples), 1.0)[0]
        alone = {sample.id: policy(packed_of([sample]), 1.0)[0] for sample in samples}
        (batch,) = pack(samples, TokenMean(), 10_000).micro_batches
        for sample in samples:
            torch.testing.assert_close(together[batch.tokens.sample == sample.id], alone[sample.id], atol=1e-5, rtol=0)
        first = samples[0]
        cut = len(first) - 3
        arrays = {name: value for name, value in vars(first).items() if isinstance(value, np.ndarray)}
        columns: dict[str, Any] = {name: value[:cut] for name, value in arrays.items()}
        shorter = policy(packed_of([replace(first, **columns)]), 1.0)[0]
    torch.testing.assert_close(shorter, alone[first.id][: len(shorter)], atol=1e-5, rtol=0)


def experts_of(sample: Sample) -> np.ndarray:
    """Those that it is packed with."""
    experts = packed_of([sample]).experts
    assert experts is not None
    return experts.to(torch.device("cpu")).numpy()


def test_finding_13_experts_take_a_byte_each_and_two_where_they_are_many() -> None:
    (completion, *_) = drawn(mixture(replay_routing=True))
    assert completion.routed_experts is not None and completion.routed_experts.dtype == np.uint8
    for most, kind in ((254, np.uint8), (255, np.int16)):
        routes = np.full((4, 2, 2), most, kind)
        packed = RecordedExperts.of([None, routes], (3, 5))
        assert packed is not None
        found = packed.to(torch.device("cpu"))
        assert found.dtype == {np.uint8: torch.uint8, np.int16: torch.int16}[kind]
        assert (found[3:7] == most + 1).all() and (found[:3] == UNKNOWN).all() and (found[7] == UNKNOWN).all()


def test_unknown_experts_are_chosen_anew() -> None:
    policy = mixture(replay_routing=True)
    (sample, *_) = samples_of(drawn(policy))
    assert sample.routed_experts is not None and len(sample.routed_experts) == len(sample) - 1
    unknown = replace(sample, routed_experts=sample.routed_experts[:0])
    assert (experts_of(unknown) == UNKNOWN).all() and (experts_of(sample)[-1] == UNKNOWN).all()
    assert np.array_equal(experts_of(sample)[:-1], sample.routed_experts + 1)
    plain = replace(sample, routed_experts=None)
    with torch.no_grad():
        found = [policy(packed_of([one]), 1.0)[0] for one in (unknown, plain)]
    torch.testing.assert_close(found[0], found[1], atol=1e-5, rtol=0)
    assert packed_of([plain]).experts is None


def test_weights_swapped_in_the_middle_leave_what_was_recorded() -> None:
    policy = mixture(replay_routing=True)
    engine = engine_of(policy, share_parameters=False)
    (request,) = requests(prompts(1), Sampling(max_new_tokens=12))
    engine.submit(request)
    for _ in range(4):
        assert not engine.step()
    stir_routers(policy, 1.0)
    engine.update_weights(policy.weights(), 1)
    found: list[Completion] = []
    while engine.unfinished:
        found += engine.step()
    experts = found[0].routed_experts
    assert experts is not None and experts.min() >= 0
    with torch.no_grad():
        policy(packed_of([replace(samples_of(found)[0], routed_experts=None)]), 1.0)
    assert policy.routing is not None
    now = torch.stack(policy.routing.chosen, 1).numpy()[: len(experts)]
    same = (np.sort(experts, -1) == np.sort(now, -1)).all((1, 2))
    assert not same.all()  # those of the old weights are kept


def test_a_model_without_experts_is_refused() -> None:
    with pytest.raises(InputError, match=r"model\.replay_routing"):
        tiny_qwen3(replay_routing=True)
    assert settings_of().replay_routing is False
