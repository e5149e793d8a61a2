"""The five papers' objectives in float64, one sequence at a time, written from their equations alone.

Nothing here knows strop's algorithms, its packing or its model code: a Qwen3 forward pass in a page, and below it what
each paper says is minimised, from judged completions. T tokens of a completion, V vocabulary, E hidden size.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

Weights = Mapping[str, Tensor]


@dataclass(frozen=True)
class Answer:
    """A judged completion.

    Attributes:
        prompt, ids: token ids of the prompt and of the completion, T.
        sampled: T, False where a token was forced into the context.
        generator: T, log-probs under the weights that sampled.
        reward: None where the verifier failed.
        truncated: the budget ended it.
    """

    prompt: list[int]
    ids: list[int]
    sampled: list[bool]
    generator: list[float]
    reward: float | None
    truncated: bool


Name = tuple[int, int]  # group, place in the group
Answers = Mapping[Name, Answer]


@dataclass(frozen=True)
class Shape:
    """What the weights of a Qwen3 model do not say."""

    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    theta: float
    eps: float


# ---------------------------------------------------------------------- the model


def _norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    return weight * x / torch.sqrt((x * x).mean(-1, keepdim=True) + eps)


def _rotated(x: Tensor, theta: float) -> Tensor:
    """Rotary positions on [T, heads, head_dim]: the halves of each head are the two coordinates."""
    half = x.shape[-1] // 2
    angles = torch.arange(x.shape[0], dtype=x.dtype)[:, None] * theta ** (-torch.arange(half, dtype=x.dtype) / half)
    cos, sin = angles.cos()[:, None], angles.sin()[:, None]
    first, second = x[..., :half], x[..., half:]
    return torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1)


def hidden_states(weights: Weights, shape: Shape, ids: Sequence[int]) -> Tensor:
    """[T, E] of a causal pass over `ids`, after the last norm."""
    x = weights["embed_tokens.weight"][torch.tensor(ids)]
    total, groups = len(ids), shape.heads // shape.kv_heads
    future = torch.ones(total, total, dtype=torch.bool).triu(1)
    for layer in range(shape.layers):
        w = {name.removeprefix(f"layers.{layer}."): value for name, value in weights.items()}
        y = _norm(x, w["input_layernorm.weight"], shape.eps)
        q, k, v = ((y @ w[f"self_attn.{name}_proj.weight"].T).view(total, -1, shape.head_dim) for name in "qkv")
        q = _rotated(_norm(q, w["self_attn.q_norm.weight"], shape.eps), shape.theta)
        k = _rotated(_norm(k, w["self_attn.k_norm.weight"], shape.eps), shape.theta)
        k, v = k.repeat_interleave(groups, 1), v.repeat_interleave(groups, 1)
        scores = torch.einsum("qhd,khd->hqk", q, k) / math.sqrt(shape.head_dim)
        attended = torch.einsum("hqk,khd->qhd", scores.masked_fill(future, -math.inf).softmax(-1), v)
        x = x + attended.reshape(total, -1) @ w["self_attn.o_proj.weight"].T
        y = _norm(x, w["post_attention_layernorm.weight"], shape.eps)
        gate, up = y @ w["mlp.gate_proj.weight"].T, y @ w["mlp.up_proj.weight"].T
        x = x + (gate * torch.sigmoid(gate) * up) @ w["mlp.down_proj.weight"].T
    return _norm(x, weights["norm.weight"], shape.eps)


@dataclass(frozen=True)
class Model:
    """A language model, or a critic, in float64: `weights` by the names that Hugging Face gives below `model.`."""

    weights: Weights
    shape: Shape

    def look(self, answer: Answer) -> tuple[Tensor, Tensor]:
        """Log-prob and entropy (nats) of each sampled token, in order."""
        sampled = torch.tensor(answer.sampled)
        states = hidden_states(self.weights, self.shape, [*answer.prompt, *answer.ids])[len(answer.prompt) - 1 : -1]
        head = self.weights.get("lm_head.weight", self.weights["embed_tokens.weight"])
        logs = (states @ head.T).log_softmax(-1)
        chosen = logs[torch.arange(len(answer.ids)), torch.tensor(answer.ids)]
        return chosen[sampled], -(logs.exp() * logs).sum(-1)[sampled]

    def next(self, ids: Sequence[int]) -> Tensor:
        """Logits [V] of the token after `ids`."""
        head = self.weights.get("lm_head.weight", self.weights["embed_tokens.weight"])
        return hidden_states(self.weights, self.shape, ids)[-1] @ head.T

    def value(self, answer: Answer) -> Tensor:
        """The critic's value of the state in which each sampled token was chosen."""
        states = hidden_states(self.weights, self.shape, [*answer.prompt, *answer.ids])[len(answer.prompt) - 1 : -1]
        return (states @ self.weights["value_head.weight"].T)[:, 0][torch.tensor(answer.sampled)]


# ---------------------------------------------------------------------- what all of them share


def groups_of(answers: Answers) -> dict[int, dict[int, Answer]]:
    """The answers of each prompt that were judged; a failure of the verifier leaves its group's statistics."""
    found: dict[int, dict[int, Answer]] = {}
    for (group, place), answer in answers.items():
        members = found.setdefault(group, {})
        if answer.reward is not None:
            members[place] = answer
    return found


def rewards_of(members: Mapping[int, Answer]) -> list[float]:
    return [answer.reward for answer in members.values() if answer.reward is not None]


def differ(members: Mapping[int, Answer]) -> bool:
    """Whether a group has answers of different reward."""
    return len(set(rewards_of(members))) > 1


def group_advantage(reward: float, rewards: Sequence[float]) -> float:
    """(r − mean) / std of the group, the variance divided by n − 1."""
    mean = sum(rewards) / len(rewards)
    return (reward - mean) / (math.sqrt(sum((r - mean) ** 2 for r in rewards) / (len(rewards) - 1)) + 1e-6)


def grpo_advantages(answers: Answers, mask: str = "none", drop: bool = True) -> dict[Name, float]:
    """Eq. 2.5 of Skywork-OR1 for every answer that is trained on, with the masks of its Ablation 3.

    Args:
        mask: `none`; `after` sets the advantage of truncated answers to 0 once the group's are known; `before` leaves
            them out of the group's statistics as well.
        drop: leave out groups whose answers all came to the same.
    """
    found: dict[Name, float] = {}
    for group, members in groups_of(answers).items():
        counted = {p: a for p, a in members.items() if mask != "before" or not a.truncated}
        if len(counted) < 2 or (drop and not differ(counted)):
            continue
        for place, answer in members.items():
            silent = mask != "none" and answer.truncated
            assert answer.reward is not None
            found[group, place] = 0.0 if silent else group_advantage(answer.reward, rewards_of(counted))
    return found


def surrogate(ratio: Tensor, advantage: Tensor | float, low: Tensor | float, high: Tensor | float) -> Tensor:
    """min(ρ A, clip(ρ, 1 − low, 1 + high) A)."""
    clipped = torch.minimum(torch.maximum(ratio, torch.as_tensor(1.0 - low)), torch.as_tensor(1.0 + high))
    return torch.minimum(ratio * advantage, clipped * advantage)


# ---------------------------------------------------------------------- Skywork-OR1, Eq. 3.1


def skywork(
    policy: Model, old: Model, answers: Answers, advantages: Mapping[Name, float], update: Sequence[Name], alpha: float
) -> Tensor:
    """−1/T_k Σ [min(ρ A, clip(ρ, 1 ± 0.2) A) + α H] over the update's answers."""
    total, tokens = torch.zeros((), dtype=torch.float64), 0
    for name in update:
        logprob, entropy = policy.look(answers[name])
        ratio = torch.exp(logprob - old.look(answers[name])[0].detach())
        total = total + (surrogate(ratio, advantages[name], 0.2, 0.2) + alpha * entropy).sum()
        tokens += len(logprob)
    return -total / tokens


# ---------------------------------------------------------------------- Archer, Eq. 4 to 7


def _quantile(values: Tensor, share: float) -> Tensor:
    """Linear between neighbours."""
    ordered = values.sort().values
    place = share * (len(values) - 1)
    low = math.floor(place)
    return ordered[low] + (place - low) * (ordered[min(low + 1, len(values) - 1)] - ordered[low])


def archer(
    policy: Model, old: Model, reference: Model, answers: Answers, advantages: Mapping[Name, float],
    update: Sequence[Name],
) -> Tensor:  # fmt: skip
    """The dual-token objective."""
    total, tokens = torch.zeros((), dtype=torch.float64), 0
    for name in update:
        logprob, _ = policy.look(answers[name])
        before, entropy = (column.detach() for column in old.look(answers[name]))
        reasons = entropy >= _quantile(entropy, 0.8)
        reach = torch.where(reasons, 0.5, 0.2)
        advantage = advantages[name]
        gain = surrogate(torch.exp(logprob - before), advantage, reach, reach)
        gap = reference.look(answers[name])[0].detach() - logprob
        kl = torch.exp(gap) - gap - 1
        total = total + (gain - torch.where(reasons, 0.0, 0.001) * kl).sum()
        tokens += len(logprob)
    return -total / tokens


def dapo(
    policy: Model, old: Model, answers: Answers, advantages: Mapping[Name, float], update: Sequence[Name]
) -> Tensor:
    """DAPO in Archer's setup: clip 0.2 / 0.28."""
    total, tokens = torch.zeros((), dtype=torch.float64), 0
    for name in update:
        logprob, _ = policy.look(answers[name])
        gain = surrogate(torch.exp(logprob - old.look(answers[name])[0].detach()), advantages[name], 0.2, 0.28)
        total, tokens = total + gain.sum(), tokens + len(logprob)
    return -total / tokens


# ---------------------------------------------------------------------- OPEFO, Eq. 6 to 9


def opefo(policy: Model, answers: Answers, advantages: Mapping[Name, float], update: Sequence[Name]) -> Tensor:
    """−mean of w A log π, w = 1 + λ where the first-order entropy change is positive, 1 − λ where it is negative."""
    flows: dict[Name, Tensor] = {}
    for name in update:
        logprob, entropy = (column.detach() for column in policy.look(answers[name]))
        flows[name] = -advantages[name] * (1 - logprob.exp()) ** 2 * (logprob + entropy)
    up = sum(float(flow[flow > 0].sum()) for flow in flows.values())
    down = sum(float(-flow[flow < 0].sum()) for flow in flows.values())
    balance = (down - up) / (down + up)
    total, tokens = torch.zeros((), dtype=torch.float64), 0
    for name in update:
        logprob, _ = policy.look(answers[name])
        weight = 1 + balance * flows[name].sign()
        total, tokens = total + (weight * advantages[name] * logprob).sum(), tokens + len(logprob)
    return -total / tokens


# ---------------------------------------------------------------------- ScaleRL, Section 4


def scalerl_advantages(answers: Answers, survivors: bool = False) -> dict[Name, float]:
    """Â / Â_std of prompts with 0 < mean < 1, the std over all prompts, or over `survivors`.

    Truncated answers count in mean and std, and are then left out of the loss.
    """
    centred: dict[Name, float] = {}
    kept: set[Name] = set()
    for group, members in groups_of(answers).items():
        rewards = rewards_of(members)
        if survivors and not differ(members):
            continue
        for place, answer in members.items():
            assert answer.reward is not None
            centred[group, place] = answer.reward - sum(rewards) / len(rewards)
            kept |= {(group, place)} if differ(members) and not answer.truncated else set()
    mean = sum(centred.values()) / len(centred)
    spread = math.sqrt(sum((a - mean) ** 2 for a in centred.values()) / len(centred))
    return {name: centred[name] / (spread + 1e-6) for name in kept}


def scalerl(policy: Model, answers: Answers, advantages: Mapping[Name, float], update: Sequence[Name]) -> Tensor:
    """The mean over prompts of the mean over its tokens of −sg(min(ρ, 5)) Â log π, ρ to the generator's log-probs."""
    prompts = sorted({group for group, _ in update})
    total = torch.zeros((), dtype=torch.float64)
    for prompt in prompts:
        gain, tokens = torch.zeros((), dtype=torch.float64), 0
        for name in (name for name in update if name[0] == prompt):
            answer = answers[name]
            logprob, _ = policy.look(answer)
            generator = torch.tensor(answer.generator, dtype=torch.float64)[torch.tensor(answer.sampled)]
            weight = torch.exp(logprob - generator).clamp(max=5.0).detach()
            gain, tokens = gain + (weight * advantages[name] * logprob).sum(), tokens + len(logprob)
        total = total + gain / tokens
    return -total / len(prompts)


# ---------------------------------------------------------------------- Open-Reasoner-Zero, Section 2 and Appendix B


def orz_advantages(answers: Answers, base: Callable[[Answer], Tensor]) -> dict[Name, Tensor]:
    """A_t = R − `base`_t of every judged answer, normalised over all sampled tokens (biased variance)."""
    raw = {name: a.reward - base(a) for name, a in answers.items() if a.reward is not None}
    every = torch.cat(list(raw.values()))
    mean, variance = every.mean(), every.var(unbiased=False)
    return {name: (column - mean) / torch.sqrt(variance + 1e-8) for name, column in raw.items()}


def orz_grpo_advantages(answers: Answers) -> dict[Name, Tensor]:
    """Appendix C.1 as released: the group's mean in place of the critic; a lone answer has none and leaves."""
    judged = {group: members for group, members in groups_of(answers).items() if len(members) > 1}
    means = {group: sum(rewards_of(members)) / len(members) for group, members in judged.items()}
    kept = {(group, place): a for group, members in judged.items() for place, a in members.items()}
    group_of = {id(answer): group for (group, _), answer in kept.items()}
    return orz_advantages(kept, lambda a: torch.full((sum(a.sampled),), means[group_of[id(a)]], dtype=torch.float64))


def ppo(
    policy: Model, old: Model, answers: Answers, advantages: Mapping[Name, Tensor], update: Sequence[Name]
) -> Tensor:
    """The mean over tokens of −min(ρ A_t, clip(ρ, 1 ± 0.2) A_t)."""
    total, tokens = torch.zeros((), dtype=torch.float64), 0
    for name in update:
        logprob, _ = policy.look(answers[name])
        ratio = torch.exp(logprob - old.look(answers[name])[0].detach())
        total, tokens = total + surrogate(ratio, advantages[name], 0.2, 0.2).sum(), tokens + len(logprob)
    return -total / tokens


def orz_critic(critic: Model, old: Model, answers: Answers, update: Sequence[Name], released: bool) -> Tensor:
    """The mean over tokens of (V − R)²; released: ½ · that of max((V − R)², (V_old + clip(V − V_old, ±0.2) − R)²)."""
    total, tokens = torch.zeros((), dtype=torch.float64), 0
    for name in update:
        answer = answers[name]
        assert answer.reward is not None
        value, before = critic.value(answer), old.value(answer).detach()
        held = before + (value - before).clamp(-0.2, 0.2)
        plain = (value - answer.reward) ** 2
        total = total + (0.5 * torch.maximum(plain, (held - answer.reward) ** 2) if released else plain).sum()
        tokens += len(value)
    return total / tokens
