"""Trained tokens of a tabular softmax policy, and what an objective makes of them in one piece and in several."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import torch
from torch import Tensor

from strop.algorithms.objective import Objective, UpdateContext
from strop.algorithms.tokens import Tokens
from strop.base.metrics import Metrics, merge, values

VOCABULARY = 5
TOP = 3  # tokens of which the reference gives log-probs


def tokens_of(
    advantage: Sequence[float] | Tensor, anchor: Sequence[float] | Tensor | None = None, **columns: Any
) -> Tokens:
    """float64 tokens of one sequence each unless `sequence` says otherwise, weight 1 / M, generator = anchor."""
    a = torch.as_tensor(advantage, dtype=torch.float64)
    index = torch.arange(len(a))
    start = torch.zeros_like(a) if anchor is None else torch.as_tensor(anchor, dtype=torch.float64)
    named = {name: torch.as_tensor(value) for name, value in columns.items()}
    base = Tokens(index, index, index, index, start, start, a, torch.full_like(a, 1 / max(len(a), 1)))
    return replace(base, **named)


def rows(tokens: Tokens, order: Tensor) -> Tokens:
    """The tokens at `order`."""
    columns = {f.name: vars(tokens)[f.name] for f in fields(tokens)}
    return replace(tokens, **{name: column[order] for name, column in columns.items() if column is not None})


@dataclass(frozen=True, eq=False)
class Table:
    """Logits [M, V] of an independent softmax a token, the token chosen from each, and its fields."""

    logits: Tensor
    chosen: Tensor
    tokens: Tokens


def table(seed: int, lengths: Sequence[int], spread: float = 1.0) -> Table:
    """A random update of sequences of these lengths whose anchor is `spread` · noise away from the policy."""
    random = torch.Generator().manual_seed(seed)
    count = sum(lengths)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=random, dtype=torch.float64)

    logits = 2 * normal(count, VOCABULARY)
    chosen = torch.multinomial(logits.softmax(-1), 1, generator=random)[:, 0]
    logprob, entropy = scores(logits, chosen)
    sequence = torch.repeat_interleave(torch.arange(len(lengths)), torch.tensor(lengths))
    position = torch.cat([torch.arange(n) for n in lengths])
    anchor = logprob - spread * normal(count)
    advantage = torch.repeat_interleave(normal(len(lengths)), torch.tensor(lengths))
    columns = {"old_entropy": entropy + 0.1 * normal(count).abs(), "reference_logprob": logprob - 0.3 * normal(count)}
    reference_top = (logits + normal(count, VOCABULARY)).log_softmax(-1)[:, :TOP]
    weight = torch.rand(count, generator=random, dtype=torch.float64) / count
    tokens = Tokens(sequence, position, sequence + 1000, sequence, anchor, anchor, advantage, weight, **columns)
    tokens = replace(tokens, reference_top=reference_top)
    return Table(logits, chosen, tokens)


def scores(logits: Tensor, chosen: Tensor) -> tuple[Tensor, Tensor]:
    """Log-prob of the chosen tokens and entropy, [M] each."""
    log_p = logits.log_softmax(-1)
    return log_p.gather(-1, chosen[:, None])[:, 0], -(log_p.exp() * log_p).sum(-1)


def collisions(logits: Tensor) -> Tensor:
    """Σ_j p_j² (log p_j + H), [M]."""
    log_p = logits.log_softmax(-1)
    p = log_p.exp()
    return (p * p * (log_p - (p * log_p).sum(-1, keepdim=True))).sum(-1)


@dataclass(frozen=True, eq=False)
class Outcome:
    """Loss, gradient by (sequence, position) and metrics of an update."""

    loss: float
    gradient: dict[tuple[int, int], list[float]]
    metrics: Mapping[str, float | None]


def run(objective: Objective, data: Table, parts: Sequence[Sequence[int]], context: UpdateContext) -> Outcome:
    """Train on the update in micro-batches of these sequences, in this order."""
    batches = [torch.cat([torch.nonzero(data.tokens.sequence == s)[:, 0] for s in part]) for part in parts]
    everything = torch.cat(batches)
    logprob, entropy = scores(data.logits, data.chosen)
    scored = replace(
        data.tokens, scored_logprob=logprob, scored_entropy=entropy, scored_collision=collisions(data.logits)
    )
    prepared = objective.prepare(rows(scored, everything), context)
    total, found, gradient, start = 0.0, list[Metrics](), dict[tuple[int, int], list[float]](), 0
    for batch in batches:
        part = rows(prepared, torch.arange(start, start + len(batch)))
        start += len(batch)
        logits = data.logits[batch].clone().requires_grad_()
        part = replace(part, top_logprob=logits.log_softmax(-1)[:, :TOP])
        loss, metrics = objective(part, *scores(logits, data.chosen[batch]), context)
        loss.backward()
        assert logits.grad is not None
        total += loss.item()
        found.append(metrics)
        names = zip(part.sequence.tolist(), part.position.tolist(), strict=True)
        gradient |= dict(zip(names, logits.grad.tolist(), strict=True))
    return Outcome(total, gradient, values(merge(found)))
