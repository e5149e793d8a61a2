"""One optimizer step: score if asked → forward and backward per micro-batch → check → clip → AdamW.

    trainer = Trainer(policy, Objective(loss=Cispo()), AdamW(lr=5e-7), total_updates=1000, temperature=1.0)
    metrics = trainer.update(update)

A critic is a second `Trainer`: its module gives (value, zeros) instead of (log-prob, entropy), its objective the loss.
M trained tokens of a micro-batch.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
from torch import Tensor, nn

from strop.algorithms.aggregation import TokenMean
from strop.algorithms.objective import UpdateContext
from strop.algorithms.tokens import Tokens, concatenate
from strop.base import progress
from strop.base.interrupt import hold
from strop.base.metrics import Mean, Metrics, Total, merge
from strop.base.sample import Sample
from strop.base.types import StropError
from strop.training.optimizer import MasterAdamW
from strop.training.packing import EMPTY, MicroBatch, Update, pack
from strop.training.ranks import ALONE, Ranks, Share
from strop.training.settings import AdamW

Scores = list[tuple[Tensor, ...]]
Outputs = tuple[Tensor, Tensor]  # log-prob [M] and entropy [M], without gradient
Backward = tuple[Tensor, Metrics, Outputs]  # of a micro-batch: its share of the loss, its metrics
NO_CONTEXT = UpdateContext()


class NonFiniteLoss(StropError):
    """A loss or gradient that is not finite, found before the optimizer step: no parameter was changed."""


class TrainingObjective(Protocol):
    """The objective of a `Trainer`."""

    @property
    def needs_scores(self) -> bool:
        """Whether `prepare` wants `scored_logprob` and `scored_entropy` of the whole update."""
        ...

    def prepare(self, tokens: Tokens, context: UpdateContext) -> Tokens:
        """All tokens of the update → the same rows with what depends on all of them filled in."""
        ...

    def __call__(
        self, tokens: Tokens, logprob: Tensor, entropy: Tensor, context: UpdateContext, /
    ) -> tuple[Tensor, Metrics]:
        """The scalar Σ_m weight[m] · loss[m] of a micro-batch, and metrics that merge over micro-batches."""
        ...


@runtime_checkable
class WantsCollision(Protocol):
    """An objective that may also want `scored_collision`; others need not say that they do not."""

    @property
    def needs_collision(self) -> bool: ...


@runtime_checkable
class Vanishes(Protocol):
    """An objective that knows without the policy where it is 0; others need not say that they do not."""

    def vanishes(self, tokens: Tokens) -> bool:
        """Whether the loss of these tokens and its gradient are 0, whatever the policy."""
        ...


@runtime_checkable
class Merges(Protocol):
    """A policy whose weights follow from what the optimizer changes (LoRA): it is updated after every step."""

    def merge(self) -> None: ...


def score(
    policy: nn.Module, update: Update, temperature: float, collision: bool = False, ranks: Ranks = ALONE, top: int = 0
) -> Scores:
    """Log-prob [M] and full-vocabulary entropy [M] (nats) of each micro-batch under `policy`, without gradient.

    With `collision`, `head.collision` [M] as a third; with `top`, ids and log-probs [M, top] of the most probable
    tokens as the last two. Each of `ranks` computes its share and has all scores.
    """
    more = ({"with_collision": True} if collision else {}) | ({"top": top} if top else {})
    share, device = Share(update, ranks), _device(policy)
    own: Scores = []
    mine = share.take(update.micro_batches)
    progress.part("scored micro-batches", 0, len(mine))
    with torch.no_grad():
        for batch in mine:
            own.append(policy(replace(batch.packed, candidates=None).to(device), temperature, **more))
            progress.part("scored micro-batches", len(own), len(mine))
    return share.collect(own)


_SCORE_COLUMNS = ("scored_logprob", "scored_entropy", "scored_collision")


def with_scores(update: Update, scores: Scores) -> Update:
    """The update with `scored_logprob` and `scored_entropy` filled, and `scored_collision` where it was computed."""
    scored = []
    for batch, found in zip(update.micro_batches, scores, strict=True):
        columns = dict(zip(_SCORE_COLUMNS, found, strict=False))
        scored.append(replace(batch, tokens=replace(_on(batch, found[0].device).tokens, **columns)))
    return replace(update, micro_batches=tuple(scored))


class Trainer:
    """A module, what it minimises and its optimizer.

    Args:
        policy: `policy(packed, temperature) -> (logprob [M], entropy [M])` with gradients.
        objective: the loss, see `TrainingObjective`.
        optimizer: settings of the optimizer; its state is built here.
        total_updates: length of the run in updates, for the schedule.
        temperature: that of sampling; log-probs and entropies are of logits / temperature.
        ranks: that hold shards of the module between them and call everything here together.

    Attributes:
        outputs: of the last update, what the policy gave for the trained tokens of each micro-batch.
    """

    def __init__(
        self,
        policy: nn.Module,
        objective: TrainingObjective,
        optimizer: AdamW,
        total_updates: int,
        temperature: float = 1.0,
        ranks: Ranks = ALONE,
    ) -> None:
        self.policy = policy
        self.ranks = ranks
        self.objective = objective
        self.settings = optimizer
        self.total_updates = total_updates
        self.temperature = temperature
        self.updates = 0
        self.outputs: tuple[Outputs, ...] = ()
        self.schedule_start = 0
        self.optimizer = MasterAdamW(optimizer, policy.named_parameters())

    @property
    def device(self) -> torch.device:
        """Where the policy's parameters are."""
        return _device(self.policy)

    def begin_schedule(self, optimizer: AdamW, total_updates: int) -> None:
        """From the next update on follow the learning rate of `optimizer` from its beginning, for `total_updates`.

        Its other settings are those the trainer was made with.
        """
        self.settings, self.total_updates, self.schedule_start = optimizer, total_updates, self.updates

    def replan(self, updates_left: int) -> None:
        """The schedule that is being followed ends after so many more updates."""
        self.total_updates = self.updates - self.schedule_start + updates_left

    def score(self, update: Update) -> Scores:
        """Log-prob [M] and entropy [M] of each micro-batch under the policy as it is now, without gradient."""
        return score(self.policy, update, self.temperature, ranks=self.ranks)

    def update(self, update: Update, context: UpdateContext = NO_CONTEXT) -> Metrics:
        """Train on the update: one optimizer step, whatever the number of micro-batches.

        Returns:
            The metrics of `gradient`, and: `lr`, `packing_efficiency`, `tokens`, `trained_tokens`, `sequences`,
            `micro_batches`.

        Raises:
            NonFiniteLoss: the loss or the gradient is not finite; parameters and optimizer are as they were.
        """
        metrics, norm = self.gradient(update, context)
        lr = self.settings.learning_rate(self.updates - self.schedule_start, self.total_updates)
        hold()
        self.optimizer.step(lr, norm)
        if isinstance(self.policy, Merges):
            self.policy.merge()
        self.updates += 1
        return metrics | {
            "lr": Mean(lr, 1),
            "packing_efficiency": Mean(update.tokens, update.room),
            "tokens": Total(update.tokens),
            "pairs": Total(update.pairs),
            "trained_tokens": Total(update.trained_tokens),
            "sequences": Total(update.sequences),
            "micro_batches": Total(len(update.micro_batches)),
        }

    def gradient(self, update: Update, context: UpdateContext = NO_CONTEXT) -> tuple[Metrics, Tensor]:
        """Compute the gradient of the update, which the optimizer then holds, and its norm before clipping.

        Scores first where the objective asks for it. A micro-batch whose gradient is known to be 0 has no backward
        pass; the gradient is the same.

        Returns:
            The objective's metrics with `loss`, `grad_norm` and `entropy` (full vocabulary, nats, mean over trained
            tokens); and the norm.

        Raises:
            NonFiniteLoss: the loss or the gradient is not finite; parameters and optimizer are as they were.
        """
        share = Share(update, self.ranks)
        vanishes = self.objective.vanishes if isinstance(self.objective, Vanishes) else lambda tokens: False
        zeros = share.rounds([vanishes(batch.tokens) for batch in update.micro_batches])
        batches = self._prepared(update, share, context)
        self.optimizer.zero_grad()
        own = self._backward_all(batches, zeros, context)
        if self.ranks.size > 1:
            self.ranks.average(self.optimizer.unsharded_gradients())
        found = share.collect(own)
        losses, parts, self.outputs = zip(*found, strict=True)
        loss, norm = torch.stack(losses), self.optimizer.grad_norm()
        if not (torch.isfinite(loss).all() and torch.isfinite(norm)):
            self.optimizer.zero_grad()
            raise NonFiniteLoss(f"update {self.updates}, {_broken(loss, norm)}; no parameter was changed")
        return merge(parts) | {"loss": Mean(loss.double().sum(), 1), "grad_norm": Mean(norm, 1)}, norm

    @contextmanager
    def gradients_dropped(self) -> Iterator[None]:
        """Inside, one backward may run whose gradients are forgotten: to measure it."""
        try:
            with self.optimizer.accumulating():
                yield
        finally:
            self.optimizer.zero_grad()

    def _prepared(self, update: Update, share: Share, context: UpdateContext) -> list[MicroBatch]:
        """This rank's micro-batches on its device, with what the objective computes over all tokens of the update."""
        if self.objective.needs_scores:
            collision = isinstance(self.objective, WantsCollision) and self.objective.needs_collision
            update = with_scores(update, score(self.policy, update, self.temperature, collision, self.ranks))
        tokens = [batch.tokens.to(self.device) for batch in update.micro_batches]
        prepared = self.objective.prepare(concatenate(tokens), context)
        parts = _split(prepared, [len(part) for part in tokens])
        pairs = zip(update.micro_batches, parts, strict=True)
        own = share.take([replace(batch, tokens=part) for batch, part in pairs])
        return [_on(batch, self.device) for batch in own]

    def _backward_all(
        self, batches: Sequence[MicroBatch], zeros: Sequence[bool], context: UpdateContext
    ) -> list[Backward]:
        """Forward and, except where the gradient is 0 on all ranks, backward of each micro-batch."""
        found: list[Backward] = []
        progress.part("micro-batches", 0, len(batches))
        for batch, zero in zip(batches, zeros, strict=True):
            found.append(self._backward(batch, context, zero))
            progress.part("micro-batches", len(found), len(batches))
        if all(zeros):
            self._backward(_on(EMPTY, self.device), context)  # or the optimizer would not step: there is no gradient
        return found

    def _backward(self, batch: MicroBatch, context: UpdateContext, zero: bool = False) -> Backward:
        """Forward and backward of one micro-batch; with `zero` only forward, for its metrics and log-probs."""
        with torch.set_grad_enabled(not zero):
            logprob, entropy, *more = self.policy(batch.packed, self.temperature)
            tokens = replace(batch.tokens, top_logprob=more[0]) if more else batch.tokens
            if len(tokens):
                loss, metrics = self.objective(tokens, logprob, entropy, context)
            else:  # a zero that the gradient exchange of the other ranks can go through
                loss, metrics = logprob.sum() + entropy.sum(), {}
        if "entropy" in metrics:
            raise ValueError("an objective must not report `entropy`: the trainer does")
        if not zero:
            # Sharded modules average gradients over ranks; token weights are of the whole update: their sum is wanted.
            with self.optimizer.accumulating():
                (loss * self.ranks.size).backward()
        metrics = metrics | {"entropy": Mean(entropy.detach().double().sum(), len(entropy))}
        return loss.detach(), metrics, (logprob.detach(), entropy.detach())

    def state_dict(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Optimizer tensors by flat name (see `MasterAdamW.state_dict`) and counters that JSON can hold.

        The module's parameters are not in it; save them too.
        """
        counters = {"updates": self.updates, "schedule_start": self.schedule_start, "total_updates": self.total_updates}
        return self.optimizer.state_dict(), counters

    def load_state_dict(self, tensors: Mapping[str, Tensor], state: Mapping[str, Any]) -> None:
        """Take back what `state_dict` gave; load the module's parameters before.

        Raises:
            StropError: the state does not belong to this module.
        """
        self.optimizer.load_state_dict(tensors)
        self.updates = int(state["updates"])
        self.schedule_start, self.total_updates = int(state["schedule_start"]), int(state["total_updates"])


def _broken(loss: Tensor, norm: Tensor) -> str:
    """What is not finite: the loss [B] of a micro-batch, or only the norm of the gradient."""
    bad = torch.nonzero(~torch.isfinite(loss)).flatten()
    if not len(bad):
        return f"the gradient is not finite, its norm is {float(norm)}"
    first = int(bad[0])
    return f"micro-batch {first} of {len(loss)}: the loss is {float(loss[first])}"


def _device(policy: nn.Module) -> torch.device:
    return next((parameter.device for parameter in policy.parameters()), torch.device("cpu"))


def _on(batch: MicroBatch, device: torch.device) -> MicroBatch:
    """The micro-batch with its tensors on `device`."""
    if batch.packed.token_ids.device == device and batch.tokens.weight.device == device:
        return batch
    return MicroBatch(batch.packed.to(device), batch.tokens.to(device))


def _split(tokens: Tokens, sizes: Sequence[int]) -> list[Tokens]:
    """Undo `concatenate`."""
    if len(tokens) != sum(sizes):
        raise ValueError(f"prepare() returned {len(tokens)} tokens for {sum(sizes)}")
    parts: list[Tokens] = []
    start = 0
    for size in sizes:
        rows = {name: column[start : start + size] for name, column in vars(tokens).items() if column is not None}
        parts.append(replace(tokens, **rows))
        start += size
    return parts


def score_samples(
    module: nn.Module,
    samples: Sequence[Sample],
    temperature: float,
    tokens_per_microbatch: int,
    ranks: Ranks = ALONE,
    top: int = 0,
) -> tuple[list[Any], ...]:
    """The module's outputs for every trained token of every sample, [L] or [L, K] each, 0 elsewhere; see `score`.

    Each of `ranks` computes its share and has everything.

    Raises:
        NothingToTrain: no sample has a trained token.
    """
    update = pack(samples, TokenMean(), tokens_per_microbatch, ranks.teams)
    outputs = zip(*score(module, update, temperature, ranks=ranks, top=top), strict=True)
    return tuple(by_sample(update, output, samples) for output in outputs)


def by_sample(update: Update, values: Sequence[Tensor], samples: Sequence[Sample]) -> list[Any]:
    """Values [M] or [M, K] of each micro-batch of an update of these samples, laid out by sample: [L] or [L, K].

    They are float32, or int32 for integers, and 0 elsewhere.
    """
    kind = np.float32 if values[0].is_floating_point() else np.int32
    found = [np.zeros((len(sample), *values[0].shape[1:]), dtype=kind) for sample in samples]
    for batch, column in zip(update.micro_batches, values, strict=True):
        given = column.to(torch.float32 if kind is np.float32 else torch.int32).cpu().numpy()
        sequence, position = batch.tokens.sequence.numpy(), batch.tokens.position.numpy()
        for index in np.unique(sequence):
            rows = np.flatnonzero(sequence == index)
            found[index][position[rows]] = given[rows]
    return found
