"""Supervised fine-tuning with the same trainer: the stage that makes a base model a starting point for RL.

    tuning = FineTuning(policy, demonstrations, SftSettings(epochs=2))
    for event in tuning.events():
        print(event.step, event.total, event.metrics["loss"].value)
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from torch import Tensor, nn

from strop.algorithms.aggregation import TokenMean
from strop.algorithms.objective import UpdateContext
from strop.algorithms.tokens import Tokens
from strop.base.interrupt import breakable
from strop.base.metrics import Mean, Metrics
from strop.base.sample import Sample
from strop.base.seeds import permutation
from strop.base.types import InputError, IntArray
from strop.training.packing import pack
from strop.training.ranks import ALONE, Ranks
from strop.training.settings import SftSettings
from strop.training.step import Trainer


@dataclass(frozen=True, eq=False)
class Demonstration:
    """A prompt and the completion to learn, as token ids; the completion ends with the EOS token, which is trained."""

    prompt_ids: IntArray
    completion_ids: IntArray

    def __len__(self) -> int:
        return len(self.prompt_ids) + len(self.completion_ids)


@dataclass(frozen=True)
class SupervisedLoss:
    """−Σ_m weight[m] · log π(token m): the objective of supervised fine-tuning, without a hyper-parameter."""

    needs_scores: bool = False

    def prepare(self, tokens: Tokens, context: UpdateContext) -> Tokens:
        """Nothing depends on the whole update."""
        return tokens

    def __call__(
        self, tokens: Tokens, logprob: Tensor, entropy: Tensor, context: UpdateContext
    ) -> tuple[Tensor, Metrics]:
        """The micro-batch's share of the loss, and `nll`: the mean −log π in nats."""
        return -(tokens.weight * logprob).sum(), {"nll": Mean(-logprob.detach().double().sum(), len(logprob))}


class SftEvent(NamedTuple):
    """Update `step` of `total` (from 1) is done."""

    step: int
    total: int
    metrics: Metrics


class SftPlan(NamedTuple):
    """Which demonstrations are learned, in which batches (by their places), and a line on those that are too long."""

    fitting: list[Demonstration]
    batches: list[list[int]]
    overflow: str | None


def planned(demonstrations: Sequence[Demonstration], settings: SftSettings) -> SftPlan:
    """The updates of a fine-tuning run.

    Raises:
        InputError: a demonstration without completion or prompt, or none that fits.
    """
    for index, demonstration in enumerate(demonstrations):
        if not len(demonstration.prompt_ids) or not len(demonstration.completion_ids):
            raise InputError(f"demonstration {index} has an empty prompt or completion")
    fitting = [d for d in demonstrations if len(d) <= settings.max_length]
    overflow: str | None = None
    if len(fitting) < len(demonstrations):
        overflow = (
            f"{len(demonstrations) - len(fitting)} of {len(demonstrations)} demonstrations are longer than "
            f"{settings.max_length} tokens (the longest has {max(map(len, demonstrations))}) and are left out"
        )
    if not fitting:
        raise InputError(overflow or "there are no demonstrations to learn from")
    return SftPlan(fitting, _batches([len(d) for d in fitting], settings), overflow)


class FineTuning:
    """A fine-tuning run over demonstrations; deterministic for its seed.

    To resume, load `trainer`'s state: `events` goes on after the updates it has made.

    Attributes:
        trainer: the trainer, for its state.
        total: updates of the run.
        overflow: a line on demonstrations longer than `max_length`, or None where all fit.
        dropped: how many those are.

    Raises:
        InputError: a demonstration without completion or prompt, or none that fits.
    """

    def __init__(
        self,
        policy: nn.Module,
        demonstrations: Sequence[Demonstration],
        settings: SftSettings,
        ranks: Ranks = ALONE,
    ) -> None:
        """`ranks` hold shards of the policy between them; each makes every call, with the same demonstrations."""
        self._fitting, self._batches, self.overflow = planned(demonstrations, settings)
        self.dropped = len(demonstrations) - len(self._fitting)
        self.settings = settings
        self.total = len(self._batches)
        self.trainer = Trainer(policy, SupervisedLoss(), settings.optimizer, self.total, temperature=1.0, ranks=ranks)

    def update(self) -> Metrics:
        """Train on the batch that is next by the number of updates that `trainer` has made."""
        samples = [_sample(self._fitting[index], index) for index in self._batches[self.trainer.updates]]
        update = pack(samples, TokenMean(), self.settings.tokens_per_microbatch, self.trainer.ranks.size)
        with breakable():
            return self.trainer.update(update)

    def events(self) -> Iterator[SftEvent]:
        """Train, update by update, from where `trainer` stands."""
        while self.trainer.updates < self.total:
            metrics = self.update()
            yield SftEvent(self.trainer.updates, self.total, metrics)


def _sample(demonstration: Demonstration, group: int) -> Sample:
    """The demonstration as a sample whose completion tokens are trained; the fields of RL are empty."""
    prompt, length = len(demonstration.prompt_ids), len(demonstration)
    zeros = np.zeros(length, dtype=np.float32)
    return Sample(
        token_ids=np.concatenate([demonstration.prompt_ids, demonstration.completion_ids]).astype(np.int32),
        trained=np.arange(length) >= prompt,
        logprobs=zeros,
        advantages=zeros,
        versions=np.full(length, -1, dtype=np.int32),
        group=group,
    )


def _batches(lengths: Sequence[int], settings: SftSettings) -> list[list[int]]:
    """The demonstrations of every update: epochs, each shuffled, end to end, cut wherever the batch is full.

    Only the very last batch can be short, so that no demonstration weighs more for standing at the end of an epoch.
    """
    batches: list[list[int]] = []
    batch: list[int] = []
    room, epoch = settings.tokens_per_batch, 0
    while settings.epochs is None or epoch < settings.epochs:
        for index in permutation([settings.seed, epoch], len(lengths)).tolist():
            if batch and lengths[index] > room:
                batches.append(batch)
                batch, room = [], settings.tokens_per_batch
                if len(batches) == settings.steps:
                    return batches
            batch.append(index)
            room -= lengths[index]
        epoch += 1
    return [*batches, batch]
