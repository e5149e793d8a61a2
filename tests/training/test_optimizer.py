"""Schedules by hand; AdamW against torch's; fp32 masters of bf16 parameters."""

from __future__ import annotations

import math

import pytest
import torch
from pydantic import BaseModel, SerializeAsAny, ValidationError
from torch import nn

from strop.base.types import StropError
from strop.training.optimizer import MasterAdamW
from strop.training.settings import AdamW, Constant, Cosine, LinearDecay, Schedule


def rates(settings: AdamW, total: int) -> list[float]:
    return [settings.learning_rate(step, total) for step in range(total + 1)]


def test_what_adamw_is_where_nothing_is_said() -> None:
    found = AdamW()
    assert (found.betas, found.eps, found.weight_decay, found.max_grad_norm) == ((0.9, 0.999), 1e-8, 0.01, 1.0)


def test_constant_with_warm_up_by_hand():
    settings = AdamW(lr=1e-6, warmup_steps=4)
    assert rates(settings, 6) == pytest.approx([0.25e-6, 0.5e-6, 0.75e-6, 1e-6, 1e-6, 1e-6, 1e-6])
    assert AdamW(lr=2.0).learning_rate(0, 10) == 2.0


def test_cosine_by_hand():
    settings = AdamW(lr=2.0, warmup_steps=2, schedule=Cosine(final_fraction=0.1))
    half = math.sqrt(0.5)
    expected = [1, 2, 2, 2 * (0.1 + 0.45 * (1 + half)), 2 * 0.55, 2 * (0.1 + 0.45 * (1 - half)), 0.2]
    assert rates(settings, 6) == pytest.approx(expected)
    assert settings.learning_rate(50, 6) == pytest.approx(0.2)


def test_linear_decay_by_hand():
    assert rates(AdamW(lr=1.0, schedule=LinearDecay()), 4) == pytest.approx([1, 0.75, 0.5, 0.25, 0])
    annealed = AdamW(lr=1e-6, schedule=LinearDecay(final_fraction=0.3, steps=100))
    assert annealed.learning_rate(1100, 1200) == pytest.approx(1e-6)
    assert annealed.learning_rate(1150, 1200) == pytest.approx(0.65e-6)
    assert annealed.learning_rate(1200, 1200) == pytest.approx(3e-7)
    assert annealed.learning_rate(3, 1200) == pytest.approx(1e-6)


@pytest.mark.parametrize("schedule", [Constant(), Cosine(), LinearDecay(), LinearDecay(steps=100)])
def test_a_run_of_warm_up_only_has_a_rate(schedule):
    settings = AdamW(lr=1.0, warmup_steps=10, schedule=schedule)
    assert settings.learning_rate(4, 5) == 0.5
    assert 0 <= settings.learning_rate(10, 5) <= 1


def test_settings_survive_json_and_refuse_nonsense():
    class Holder(BaseModel):
        schedule: SerializeAsAny[Schedule]
        optim: AdamW

    holder = Holder(schedule=Cosine(), optim=AdamW(schedule=LinearDecay(steps=7), max_grad_norm=None))
    assert Holder.model_validate_json(holder.model_dump_json()) == holder
    assert AdamW.model_validate({"schedule": "Cosine"}).schedule == Cosine()
    for wrong in ({"lr": 0}, {"betas": (0.9, 1.0)}, {"eps": -1e-8}, {"max_grad_norm": 0}, {"schedule": "Cosin"}):
        with pytest.raises(ValidationError):
            AdamW.model_validate(wrong)


class Small(nn.Module):
    def __init__(self, dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.first = nn.Linear(5, 7)
        self.norm = nn.LayerNorm(7)
        self.idle = nn.Linear(2, 2)
        self.to(dtype)

    def loss(self, step: int) -> torch.Tensor:
        x = torch.randn(6, 5, generator=torch.Generator().manual_seed(step)).to(self.first.weight.dtype)
        return self.norm(self.first(x)).float().pow(3).mean()


@pytest.mark.parametrize("eps", [1e-8, 1e-15])
@pytest.mark.parametrize("decay", ["all", "matrices"])
@pytest.mark.parametrize("clip", [None, 0.05])
def test_steps_equal_those_of_torch(eps, decay, clip):
    mine, theirs = Small(), Small()
    settings = AdamW(lr=1e-2, betas=(0.9, 0.95), eps=eps, weight_decay=0.1, decay=decay, max_grad_norm=clip)
    optimizer = MasterAdamW(settings, mine.named_parameters())
    matrices = [p for p in theirs.parameters() if p.dim() > 1]
    vectors = [p for p in theirs.parameters() if p.dim() < 2]
    spared = 0.1 if decay == "all" else 0.0
    reference = torch.optim.AdamW(
        [{"params": matrices, "weight_decay": 0.1}, {"params": vectors, "weight_decay": spared}],
        lr=1e-2, betas=(0.9, 0.95), eps=eps, foreach=False,
    )  # fmt: skip
    for step in range(10):
        mine.loss(step).backward()
        optimizer.accumulate()
        optimizer.step(1e-2, optimizer.grad_norm())
        reference.zero_grad()
        theirs.loss(step).backward()
        if clip is not None:
            nn.utils.clip_grad_norm_(theirs.parameters(), clip)
        reference.step()
    for one, two in zip(mine.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(one, two, rtol=2e-6, atol=1e-7)


def test_the_norm_is_that_of_all_gradients_and_ignores_idle_parameters():
    module = Small()
    optimizer = MasterAdamW(AdamW(), module.named_parameters())
    assert float(optimizer.grad_norm()) == 0
    module.loss(0).backward()
    squares = sum(float(p.grad.double().pow(2).sum()) for p in module.parameters() if p.grad is not None)
    assert float(optimizer.grad_norm()) == pytest.approx(math.sqrt(squares), rel=1e-6)
    assert "idle.weight" not in optimizer.gradients()


def test_tiny_steps_of_a_bf16_parameter_accumulate_in_its_master():
    module = nn.Module()
    module.weight = nn.Parameter(torch.ones(4, dtype=torch.bfloat16))
    optimizer = MasterAdamW(AdamW(weight_decay=0.0, max_grad_norm=None), module.named_parameters())
    for _ in range(100):
        module.weight.grad = torch.ones_like(module.weight)
        optimizer.accumulate()
        optimizer.step(1e-4, optimizer.grad_norm())
    # Adam moves by lr a step; bf16 alone (spacing 2^-8 below 1) would never have left 1.0.
    torch.testing.assert_close(optimizer.masters["weight"], torch.full((4,), 0.99), rtol=1e-4, atol=0)
    assert module.weight.dtype == torch.bfloat16
    assert torch.equal(module.weight, optimizer.masters["weight"].bfloat16())
    assert module.weight.tolist() == [0.98828125] * 4


def test_gradients_of_bf16_parameters_are_summed_in_fp32():
    weight = nn.Parameter(torch.zeros(1, dtype=torch.bfloat16))
    optimizer = MasterAdamW(AdamW(), [("weight", weight)])
    for value in (256.0, *[1.0] * 100):  # in bf16, 256 + 1 = 256
        weight.grad = torch.tensor([value], dtype=torch.bfloat16)
        optimizer.accumulate()
        assert weight.grad is None
    assert float(optimizer.gradients()["weight"]) == 356


def test_gradients_go_to_their_masters_during_the_backward_into_memory_that_stays():
    module, plain = Small(torch.bfloat16), Small(torch.bfloat16)
    optimizer, afterwards = (MasterAdamW(AdamW(), one.named_parameters()) for one in (module, plain))
    places: list[dict[str, int]] = []
    for step in range(2):
        for _ in range(2):  # micro-batches
            with optimizer.accumulating():
                module.loss(step).backward()
                assert all(parameter.grad is None for parameter in module.parameters())
            plain.loss(step).backward()
            afterwards.accumulate()
        found, wanted = optimizer.gradients(), afterwards.gradients()
        assert found.keys() == wanted.keys() and all(torch.equal(found[name], wanted[name]) for name in wanted)
        places.append({name: gradient.data_ptr() for name, gradient in found.items()})
        for one in (optimizer, afterwards):
            one.step(1e-2, one.grad_norm())
            assert not one.gradients()
    assert places[0] == places[1]
    module.loss(0).backward()  # outside nothing is moved
    assert any(parameter.grad is not None for parameter in module.parameters()) and not optimizer.gradients()


def test_masters_follow_weights_loaded_later_or_say_that_they_are_stale():
    module = Small(torch.bfloat16)
    optimizer = MasterAdamW(AdamW(), module.named_parameters())
    module.load_state_dict(Small(torch.bfloat16).state_dict())
    module.loss(0).backward()
    optimizer.accumulate()
    with pytest.raises(StropError, match=r"first\.weight"):
        optimizer.step(1e-3, optimizer.grad_norm())
    optimizer.read_parameters()
    optimizer.step(1e-3, optimizer.grad_norm())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_run_resumed_from_state_is_bit_equal(dtype):
    def train(module: Small, optimizer: MasterAdamW, steps: range) -> None:
        for step in steps:
            module.loss(step).backward()
            optimizer.accumulate()
            optimizer.step(1e-3, optimizer.grad_norm())

    whole, part = Small(dtype), Small(dtype)
    first = MasterAdamW(AdamW(), whole.named_parameters())
    train(whole, first, range(8))
    second = MasterAdamW(AdamW(), part.named_parameters())
    train(part, second, range(5))
    saved = {name: tensor.clone() for name, tensor in second.state_dict().items()}
    resumed = Small(dtype)
    resumed.load_state_dict(part.state_dict())
    third = MasterAdamW(AdamW(), resumed.named_parameters())
    third.load_state_dict(saved)
    train(resumed, third, range(5, 8))
    assert all(torch.equal(tensor, saved[name]) for name, tensor in second.state_dict().items())  # copied, not shared
    for one, two in zip(whole.parameters(), resumed.parameters(), strict=True):
        assert torch.equal(one, two)
    assert not any(name.endswith("idle.weight") for name in saved if not name.startswith("master"))


def test_a_state_that_does_not_fit_is_refused():
    optimizer = MasterAdamW(AdamW(), Small().named_parameters())
    with pytest.raises(StropError, match=r"exp_avg\.other"):
        optimizer.load_state_dict({"exp_avg.other": torch.zeros(1)})
    with pytest.raises(StropError):
        optimizer.load_state_dict({"exp_avg.first.bias": torch.zeros(1)})
    lowered = MasterAdamW(AdamW(), Small(torch.bfloat16).named_parameters())
    with pytest.raises(StropError, match=r"first\.bias"):
        lowered.load_state_dict({})


def test_frozen_parameters_are_left_alone():
    module = Small()
    module.requires_grad_(False)
    with pytest.raises(StropError):
        MasterAdamW(AdamW(), module.named_parameters())
    module.norm.requires_grad_(True)
    optimizer = MasterAdamW(AdamW(), module.named_parameters())
    assert sorted(optimizer.parameters) == ["norm.bias", "norm.weight"]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_an_optimizer_in_the_host_s_memory_takes_the_same_steps_and_states(dtype):
    def run(parameter, optimizer, steps):
        for _ in range(steps):
            with optimizer.accumulating():
                (parameter.float() ** 2).sum().backward()
            optimizer.step(1e-2, optimizer.grad_norm())

    start = torch.linspace(-1, 1, 12).reshape(3, 4).to(dtype)
    here, there, later = (nn.Parameter(start.clone()) for _ in range(3))
    plain, offloaded = (MasterAdamW(AdamW(offload=where), [("w", p)]) for where, p in ((False, here), (True, there)))
    run(here, plain, 3)
    run(there, offloaded, 3)
    assert torch.equal(here, there)
    assert offloaded.masters["w"].data_ptr() != there.data_ptr() and offloaded.masters["w"].dtype == torch.float32
    assert plain.state_dict().keys() == offloaded.state_dict().keys()  # so that either resumes the other
    resumed = MasterAdamW(AdamW(offload=True), [("w", later)])
    with torch.no_grad():
        later.copy_(here)
    resumed.load_state_dict(plain.state_dict())
    run(here, plain, 2)
    run(later, resumed, 2)
    assert torch.equal(here, later)
