"""From judged groups to the gradient of every update, each flagship recipe against `by_hand`.

The batch holds what a real one does: truncated, interrupted and doubly versioned completions, failures of the verifier,
groups without variance and a group of which a single completion could be judged. What goes in are groups; what is
compared is the gradient that the optimizer was given, at the weights that it was given at, for every update.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
import torch
from tests.recipes import by_hand
from tests.recipes.by_hand import Answer, Model, Name, Shape
from tests.tiny import tiny_qwen3
from torch import Tensor, nn

from strop.base.types import Completion, Group, Problem, Rollout, Verdict, VersionSpan
from strop.config.parse import edit
from strop.config.schema import RunConfig
from strop.model.critic import Critic
from strop.model.policy import Policy
from strop.recipes.resolve import resolve
from strop.training.learner import Learner, objective_of
from strop.training.packing import Update
from strop.training.samples import is_trained_on
from strop.training.step import Trainer
from strop_verify.verdict import Status

TOLERANCE = 2e-5
SAMPLES = 4
SHARPNESS = 2.0
COEFFICIENT = 3e-3  # of Skywork's entropy bonus


@dataclass
class Watched:
    """The updates of a trainer: the weights before each, whose samples it was of, and the gradient."""

    weights: list[dict[str, Tensor]] = field(default_factory=list)
    sizes: list[list[int]] = field(default_factory=list)  # tokens of each micro-batch
    names: list[list[Name]] = field(default_factory=list)
    gradients: list[dict[str, Tensor]] = field(default_factory=list)

    def follow(self, trainer: Trainer) -> None:
        """Note every update of `trainer` from now on."""
        update, step = trainer.update, trainer.optimizer.step

        def noted_update(given: Update, *context: Any) -> Any:
            self.weights.append(doubles(trainer.policy))
            self.sizes.append([len(batch.packed.token_ids) for batch in given.micro_batches])
            ids = torch.cat([batch.tokens.sample for batch in given.micro_batches]).unique().tolist()
            self.names.append([(identity >> 20, identity & (1 << 20) - 1) for identity in ids])
            return update(given, *context)

        def noted_step(*given: Any) -> None:
            found = {name: p.grad for name, p in trainer.policy.named_parameters() if p.grad is not None}
            self.gradients.append({plain(name): grad.double().clone() for name, grad in found.items()})
            step(*given)

        trainer.update = noted_update  # type: ignore[method-assign, assignment]
        trainer.optimizer.step = noted_step  # type: ignore[method-assign, assignment]


def plain(name: str) -> str:
    return name.removeprefix("model.").removeprefix("model.")


def doubles(module: nn.Module) -> dict[str, Tensor]:
    return {plain(name): parameter.detach().double().clone() for name, parameter in module.named_parameters()}


def shape_of(policy: Policy) -> Shape:
    config = policy.model.config
    theta = config.rope_parameters["rope_theta"]
    return Shape(config.num_hidden_layers, config.num_attention_heads, config.num_key_value_heads, config.head_dim,
                 theta, config.rms_norm_eps)  # fmt: skip


# ---------------------------------------------------------------------- the batch


def sharp_policy() -> Policy:
    """A small random Qwen3 that is surer than random weights are: half of the tokens it samples have p > 0.2."""
    policy = tiny_qwen3(seed=3)
    with torch.no_grad():
        policy.model.model.norm.weight.mul_(SHARPNESS)
    return policy


def sampled(policy: Model, prompt: list[int], length: int, draw: np.random.Generator) -> list[int]:
    ids: list[int] = []
    for _ in range(length):
        shares = policy.next([*prompt, *ids]).softmax(-1).detach().numpy()
        ids.append(int(draw.choice(len(shares), p=shares)))
    return ids


@functools.cache
@torch.no_grad()
def completions() -> dict[Name, Completion]:
    """Ten groups of four sampled by hand; the generator's log-probs are the policy's with noise, some far below it."""
    policy = Model(doubles(sharp := sharp_policy()), shape_of(sharp))
    draw = np.random.default_rng(7)
    found: dict[Name, Completion] = {}
    for group in range(10):
        prompt = draw.integers(0, 256, size=draw.integers(3, 9))
        for place in range(SAMPLES):
            length = int(draw.integers(6, 60))
            ids = np.array(sampled(policy, prompt.tolist(), length, draw))
            injected = np.zeros(length, dtype=bool)
            cut = place == 2 and group in (2, 8)  # thinking that was interrupted: a phrase of four tokens
            if cut:
                injected[length // 2 : length // 2 + 4] = True
            whole = Answer(prompt.tolist(), ids.tolist(), [True] * length, [], None, False)
            logprobs = policy.look(whole)[0].detach().numpy() + draw.normal(0, 0.3, length)
            logprobs = np.minimum(logprobs - 2.5 * (draw.random(length) < 0.1), -1e-3)  # ratios beyond ScaleRL's cap
            half = length // 2
            spans = [VersionSpan(4, 0, length)]
            if group in (6, 8):
                spans = [VersionSpan(3, 0, half), VersionSpan(4, half, length)]
            found[group, place] = Completion(
                request_id=f"g{group}", index=place, prompt_ids=prompt.astype(np.int32), token_ids=ids.astype(np.int32),
                logprobs=np.where(injected, 0.0, logprobs).astype(np.float32), versions=tuple(spans), injected=injected,
                text="", finish_reason="length" if (group, place) in TRUNCATED else "stop",
                interrupted_at=length // 2 if cut else None,
            )  # fmt: skip
    return found


TRUNCATED = {(1, 3), (2, 0), (8, 2), (8, 1), (9, 0), (9, 3)}
RIGHT = {0: (0,), 1: (0, 1, 3), 2: (2,), 3: (1, 2), 4: (0, 1, 2, 3), 5: (), 6: (1, 3), 7: (0,), 8: (0, 3), 9: (1, 2)}
FAILED = {(3, 0): Status.ERROR, (0, 2): Status.TIMEOUT, (7, 1): Status.ERROR, (7, 2): Status.ERROR,
          (7, 3): Status.TIMEOUT}  # fmt: skip


def judged(config: RunConfig, found: Mapping[Name, Completion]) -> tuple[list[Group], dict[Name, Answer]]:
    """The same completions for strop, rewarded by the recipe, and for `by_hand`, by the paper's two numbers."""
    right, wrong = (1.0, -1.0) if config.recipe.startswith("scalerl") else (1.0, 0.0)
    rollouts: dict[int, list[Rollout]] = {}
    answers: dict[Name, Answer] = {}
    for (group, place), completion in found.items():
        status = FAILED.get((group, place), Status.CORRECT if place in RIGHT[group] else Status.WRONG)
        verdict = Verdict(1.0 if status is Status.CORRECT else 0.0, status)
        reward = config.algorithm.reward(completion, verdict) if verdict.usable else 0.0
        assert not config.algorithm.shaping
        problem = Problem(f"p{group}", f"question {group}", "1")
        rollouts.setdefault(group, []).append(Rollout(problem, completion, verdict, reward))
        answers[group, place] = Answer(
            completion.prompt_ids.tolist(), completion.token_ids.tolist(), (~completion.injected).tolist(),
            completion.logprobs.astype(float).tolist(),
            (right if status is Status.CORRECT else wrong) if verdict.usable else None, completion.truncated,
        )  # fmt: skip
    groups = [Group(group, members[0].problem, tuple(members)) for group, members in rollouts.items()]
    return groups, answers


# ---------------------------------------------------------------------- a step of strop's


@dataclass(frozen=True)
class Step:
    """What a step did: its policy and critic before it, its reference, its updates, and the answers."""

    policy: Model
    critic: Model | None
    reference: Model | None
    policy_updates: Watched
    critic_updates: Watched
    answers: dict[Name, Answer]
    survivors: set[int]


def step_of(name: str, budget: int, *sets: str) -> Step:
    """A training step of a recipe on a small random Qwen3, in micro-batches of at most `budget` tokens."""
    fast = [f"batch.tokens_per_microbatch={budget}", "optim.lr=4e-3", "optim.warmup_steps=0", *sets]
    config = resolve(name)
    if config.critic is not None:
        fast += ["critic.optim.lr=4e-3", "critic.optim.warmup_steps=0"]
    config = edit(config.model_copy(update={"stages": ()}), fast)
    policy = sharp_policy()
    shape, before = shape_of(policy), doubles(policy)
    trainer = Trainer(policy, objective_of(config.algorithm), config.optim, 100)
    critic = reference = None
    if config.critic is not None:
        critic = Trainer(Critic.from_policy(policy, seed=5), config.critic.loss, config.critic.optim, 100)
    if config.algorithm.needs_reference:
        reference = sharp_policy()
        torch.manual_seed(11)
        with torch.no_grad():
            for parameter in reference.parameters():
                parameter.add_(0.02 * torch.randn_like(parameter))
    references: dict[str | None, Policy] = {} if reference is None else {None: reference}
    learner = Learner(config.learner, trainer, critic, references)
    model = Model(before, shape)
    groups, answers = judged(config, completions())
    survivors = {group.ticket for group in groups if is_trained_on(group, config.algorithm)}
    step = Step(
        model, Model(doubles(critic.policy), shape) if critic is not None else None,
        Model(doubles(reference), shape) if reference is not None else None, Watched(), Watched(), answers, survivors,
    )  # fmt: skip
    step.policy_updates.follow(trainer)
    if critic is not None:
        step.critic_updates.follow(critic)
    state = {"coefficient": COEFFICIENT, "active": True, "entropy": 0.1}
    states = {f"algorithm.regularizers.{place}": state for place in range(len(config.algorithm.regularizers))}
    assert learner.learn(groups, survivors, 0, states) is not None
    return step


# ---------------------------------------------------------------------- the comparison


def gradient(weights: dict[str, Tensor], shape: Shape, loss: Callable[[Model], Tensor]) -> dict[str, Tensor]:
    leaves = {name: value.clone().requires_grad_() for name, value in weights.items()}
    value = loss(Model(leaves, shape))
    found = torch.autograd.grad(value, list(leaves.values()), allow_unused=True)
    return {n: g if g is not None else torch.zeros_like(leaves[n]) for n, g in zip(leaves, found, strict=True)}


def assert_same(watched: Watched, shape: Shape, updates: int, loss: Callable[[Model, Sequence[Name]], Tensor]) -> None:
    """Every update's gradient is that of `loss`, as a whole and in its largest parts."""
    assert len(watched.gradients) == updates
    for number, (weights, names, found) in enumerate(
        zip(watched.weights, watched.names, watched.gradients, strict=True)
    ):
        right = gradient(weights, shape, lambda model, names=names: loss(model, names))  # type: ignore[misc]
        length = torch.sqrt(sum((g.square().sum() for g in right.values()), torch.zeros((), dtype=torch.float64)))
        assert length > 1e-4 and found.keys() == right.keys()
        gap = torch.sqrt(sum(((found[n] - g).square().sum() for n, g in right.items()), torch.zeros(())))
        assert gap <= TOLERANCE * length, f"update {number}: {float(gap / length):.1e}"


def assert_partition(watched: Watched, passes: int, trained: set[Name]) -> None:
    """Each pass goes once over every answer that is trained on, whole groups together."""
    per_pass = len(watched.names) // passes
    for number in range(passes):
        updates = watched.names[number * per_pass : (number + 1) * per_pass]
        assert sorted(name for names in updates for name in names) == sorted(trained)
        prompts = [{group for group, _ in names} for names in updates]
        assert sum(map(len, prompts)) == len(set().union(*prompts))
        assert max(map(len, prompts)) - min(map(len, prompts)) <= 1


BUDGETS = (150, 100_000)
VARIED = {0, 1, 2, 3, 6, 8, 9}  # groups with different verdicts of which two or more could be judged


@pytest.mark.parametrize("budget", BUDGETS)
@pytest.mark.parametrize(
    ("mask", "paper"), [("none", "none"), ("zero", "after"), ("zero_before", "before")], ids=lambda value: str(value)
)
def test_skywork_or1(budget: int, mask: str, paper: str) -> None:
    step = step_of("skywork_or1.math_7b.released", budget, f"algorithm.truncation_mask={mask}")
    advantages = by_hand.grpo_advantages(step.answers, paper)
    # Of groups 8 and 9 the truncated answers are the wrong ones: without them nothing there differs.
    expected = VARIED - {8, 9} if mask == "zero_before" else VARIED
    assert step.survivors == {group for group, _ in advantages} == expected
    assert_partition(step.policy_updates, 1, set(advantages))
    assert_same(
        step.policy_updates, step.policy.shape, 2,
        lambda model, names: by_hand.skywork(model, step.policy, step.answers, advantages, names, COEFFICIENT),
    )  # fmt: skip


@pytest.mark.parametrize(("above", "alpha"), [(1e-3, COEFFICIENT), (-1e-3, 0.0)], ids=["below target", "above"])
def test_skywork_or1_opens_its_gate_for_a_whole_step(above: float, alpha: float) -> None:
    """By the entropy of both updates together, which lies between theirs."""
    _, answers = judged(resolve("skywork_or1.math_7b"), completions())
    advantages = by_hand.grpo_advantages(answers)
    drawn = np.concatenate([np.array(answers[name].generator)[answers[name].sampled] for name in advantages])
    gate = f'{{piece="AdaptiveEntropy", gate="own", at_target="hold", target={above - drawn.mean()}}}'
    step = step_of("skywork_or1.math_7b", 150, f"algorithm.regularizers=[{gate}]")
    assert_same(
        step.policy_updates, step.policy.shape, 2,
        lambda model, names: by_hand.skywork(model, step.policy, step.answers, advantages, names, alpha),
    )  # fmt: skip


@pytest.mark.parametrize("budget", BUDGETS)
def test_archer(budget: int) -> None:
    step = step_of("archer.math", budget)
    advantages = by_hand.grpo_advantages(step.answers)
    assert step.survivors == {group for group, _ in advantages} == VARIED
    assert_partition(step.policy_updates, 1, set(advantages))
    reference = step.reference
    assert reference is not None
    assert_same(
        step.policy_updates, step.policy.shape, 2,
        lambda model, names: by_hand.archer(model, step.policy, reference, step.answers, advantages, names),
    )  # fmt: skip


def test_dapo_beside_archer() -> None:
    step = step_of("archer.dapo_math", 150, "algorithm.shaping=[]")
    advantages = by_hand.grpo_advantages(step.answers)
    assert_same(
        step.policy_updates, step.policy.shape, 2,
        lambda model, names: by_hand.dapo(model, step.policy, step.answers, advantages, names),
    )  # fmt: skip


@pytest.mark.parametrize("budget", BUDGETS)
def test_opefo(budget: int) -> None:
    step = step_of("opefo.qwen25_math_7b", budget)
    advantages = by_hand.grpo_advantages(step.answers, drop=False)
    assert step.survivors == {group for group, _ in advantages} == set(range(10)) - {7}  # which has no baseline
    assert_partition(step.policy_updates, 1, set(advantages))
    assert_same(
        step.policy_updates, step.policy.shape, 1,
        lambda model, names: by_hand.opefo(model, step.answers, advantages, names),
    )  # fmt: skip


@pytest.mark.parametrize("budget", BUDGETS)
@pytest.mark.parametrize("name", ["scalerl", "scalerl.released"])
def test_scalerl(budget: int, name: str) -> None:
    step = step_of(name, budget)
    advantages = by_hand.scalerl_advantages(step.answers, survivors=name != "scalerl")
    assert step.survivors == {group for group, _ in advantages} == VARIED
    assert TRUNCATED.isdisjoint(advantages)
    assert_partition(step.policy_updates, 1, set(advantages))
    assert_same(
        step.policy_updates, step.policy.shape, 1,
        lambda model, names: by_hand.scalerl(model, step.answers, advantages, names),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("budget", "name"), [(150, "7b"), (100_000, "7b"), (150, "7b.released")], ids=lambda value: str(value)
)
def test_open_reasoner_zero(budget: int, name: str) -> None:
    step = step_of(f"open_reasoner_zero.{name}", budget)
    critic = step.critic
    assert critic is not None
    advantages = by_hand.orz_advantages(step.answers, critic.value)
    assert step.survivors == set(range(10))  # a critic is a baseline for a lone answer too
    assert_partition(step.policy_updates, 1, set(advantages))
    assert_same(
        step.policy_updates, step.policy.shape, 1,
        lambda model, names: by_hand.ppo(model, step.policy, step.answers, advantages, names),
    )  # fmt: skip
    assert sorted(name for names in step.critic_updates.names for name in names) == sorted(advantages)
    assert_same(
        step.critic_updates, step.policy.shape, 12,
        lambda model, names: by_hand.orz_critic(model, critic, step.answers, names, name != "7b"),
    )  # fmt: skip


def test_grpo_of_open_reasoner_zero() -> None:
    step = step_of("open_reasoner_zero.7b_grpo.released", 150)
    advantages = by_hand.orz_grpo_advantages(step.answers)
    assert step.survivors == {group for group, _ in advantages} == set(range(10)) - {7}
    assert_same(
        step.policy_updates, step.policy.shape, 1,
        lambda model, names: by_hand.ppo(model, step.policy, step.answers, advantages, names),
    )  # fmt: skip


FLAGSHIPS = ("skywork_or1.math_7b", "archer.math", "opefo.qwen25_math_7b", "scalerl", "open_reasoner_zero.7b")


def kinds() -> dict[str, set[Name]]:
    """The completions of the batch by what is the matter with them."""
    found = completions()
    return {
        "truncated": {name for name, completion in found.items() if completion.truncated},
        "interrupted": {name for name, completion in found.items() if completion.interrupted_at is not None},
        "of two versions": {name for name, completion in found.items() if len(completion.versions) > 1},
        "failed": set(FAILED),
        "in a group without variance": {(group, place) for group in (4, 5) for place in range(SAMPLES)},
    }


@pytest.mark.parametrize("name", FLAGSHIPS)
def test_the_batch_holds_what_a_real_one_does(name: str) -> None:
    """Each kind is there, is trained on where the recipe does so, in several small micro-batches an update."""
    step = step_of(name, 150)
    trained = {identity for names in step.policy_updates.names for identity in names}
    there = {kind: bool(members & trained) for kind, members in kinds().items()}
    keeps_all = name in ("opefo.qwen25_math_7b", "open_reasoner_zero.7b")
    assert there == {
        "truncated": name != "scalerl", "interrupted": True, "of two versions": True, "failed": False,
        "in a group without variance": keeps_all,
    }  # fmt: skip
    assert all(kinds().values())
    assert all(len(sizes) > 1 and max(sizes) <= 150 for sizes in step.policy_updates.sizes)


def test_the_batch_reaches_every_branch() -> None:
    """Ratios are clipped above and below, some capped, some values held: else a gradient without them would pass."""
    step = step_of("archer.math.released", 100_000)
    moved = Model(step.policy_updates.weights[-1], step.policy.shape)
    ratios = torch.cat([torch.exp(moved.look(a)[0] - step.policy.look(a)[0]).detach() for a in step.answers.values()])
    assert ratios.min() < 0.5 and ratios.max() > 1.5
    first = step.policy
    gaps = [
        first.look(a)[0].detach() - torch.tensor(a.generator, dtype=torch.float64)[torch.tensor(a.sampled)]
        for a in step.answers.values()
    ]
    assert float((torch.cat(gaps).exp() > 5).double().mean()) > 0.02
    trained = step_of("open_reasoner_zero.7b", 100_000)
    assert trained.critic is not None
    late = Model(trained.critic_updates.weights[-1], trained.policy.shape)
    shifts = torch.cat([late.value(a) - trained.critic.value(a) for a in trained.answers.values()]).detach().abs()
    assert float((shifts > 0.2).double().mean()) > 0.1
