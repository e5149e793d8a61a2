"""Settings of training: batch, optimizer, critic and checkpoints; imports neither torch nor transformers."""

from __future__ import annotations

import math
from abc import abstractmethod
from typing import Annotated, ClassVar, Literal, Self

from pydantic import Field, SerializeAsAny, model_validator

from strop.algorithms.settings import AlgorithmSettings
from strop.algorithms.value import ValueLoss
from strop.base.pieces import Piece, Settings
from strop.base.types import MAX_SAMPLES

Count = Annotated[int, Field(ge=1)]
Fraction = Annotated[float, Field(ge=0, le=1)]
Beta = Annotated[float, Field(ge=0, lt=1)]


class Schedule(Piece):
    """The learning rate after warm-up, as a fraction of its peak."""

    @abstractmethod
    def __call__(self, step: int, total_steps: int) -> float:
        """The fraction of the peak at update `step` of `total_steps`, both counted after warm-up, `step` from 0."""


class Constant(Schedule):
    """The peak throughout."""

    def __call__(self, step: int, total_steps: int) -> float:
        return 1.0


class Cosine(Schedule):
    """f + (1 − f) · (1 + cos(π · step / total)) / 2, where f = `final_fraction` is reached after the last update."""

    final_fraction: Fraction = 0.0

    def __call__(self, step: int, total_steps: int) -> float:
        progress = min(step / total_steps, 1.0) if total_steps else 1.0
        return self.final_fraction + (1 - self.final_fraction) * (1 + math.cos(math.pi * progress)) / 2


class LinearDecay(Schedule):
    """The peak, then over the last `steps` updates (None: all of them) a straight line to `final_fraction` of it.

    The final fraction is reached after the last update. Open-Reasoner-Zero's annealing, 1e-6 to 3e-7 over 100 steps:
    `LinearDecay(final_fraction=0.3, steps=100)`.
    """

    final_fraction: Fraction = 0.0
    steps: Annotated[int, Field(ge=1)] | None = None

    def __call__(self, step: int, total_steps: int) -> float:
        span = total_steps if self.steps is None else min(self.steps, total_steps)
        progress = min(max(step - (total_steps - span), 0) / span, 1.0) if span else 1.0
        return 1.0 - (1.0 - self.final_fraction) * progress


class AdamW(Settings):
    """AdamW as torch defines it, gradients clipped by their global norm, the learning rate warmed up linearly.

    Attributes:
        lr: the peak learning rate.
        betas: decay rates of the two moments.
        eps: added to the root of the second moment (ScaleRL: 1e-15).
        weight_decay: decoupled; a parameter shrinks by lr · weight_decay an update.
        decay: `all` decays every parameter, norms and biases too, as verl and Open-Reasoner-Zero do (they hand
            `parameters()` to torch); `matrices` spares parameters of fewer than two dimensions.
        max_grad_norm: the global norm gradients are scaled down to; None leaves them.
        warmup_steps: update s < warmup_steps runs at lr · (s + 1) / warmup_steps.
        schedule: the course after warm-up.
        offload: keep masters, moments and summed gradients in the host's memory and take the step there; `auto` does so
            where a GPU would not hold them (not in `strop sft`).
    """

    lr: Annotated[float, Field(gt=0)] = 1e-6
    betas: tuple[Beta, Beta] = (0.9, 0.999)
    eps: Annotated[float, Field(gt=0)] = 1e-8
    weight_decay: Annotated[float, Field(ge=0)] = 0.01
    decay: Literal["all", "matrices"] = "all"
    max_grad_norm: Annotated[float, Field(gt=0)] | None = 1.0
    warmup_steps: Annotated[int, Field(ge=0)] = 0
    schedule: SerializeAsAny[Schedule] = Constant()
    offload: bool | Literal["auto"] = "auto"

    def learning_rate(self, step: int, total_steps: int) -> float:
        """The learning rate of update `step` (from 0) of a run of `total_steps` updates, warm-up included.

        Beyond `total_steps` the schedule's last value holds.
        """
        if step < self.warmup_steps:
            return self.lr * (step + 1) / self.warmup_steps
        return self.lr * self.schedule(step - self.warmup_steps, max(total_steps - self.warmup_steps, 0))


class BatchSettings(Settings):
    """The size of a training step.

    Fields:
        prompts_per_step: prompt groups of one step (one weight version).
        samples_per_prompt: completions of each prompt, G; with `algorithm.allocation` their mean.
        updates_per_step: optimizer steps a pass over the batch is split into; k for PPO-off-policy-k.
        passes_per_batch: how often the batch is gone through.
        tokens_per_microbatch: packed tokens of one forward-backward pass; a longer sequence gets a pass to itself.
    """

    prompts_per_step: Count = 48
    samples_per_prompt: Annotated[int, Field(ge=1, le=MAX_SAMPLES)] = 16
    updates_per_step: Count = 1
    passes_per_batch: Count = 1
    tokens_per_microbatch: Count = 16_384


class CriticSettings(Settings):
    """The value network of actor-critic recipes: the starting model with a value head and a separate optimizer.

    Fields:
        updates_per_step: optimizer steps on each batch, the batch split by sequences and shuffled (ORZ: 12).
        passes_per_batch: how often the batch is gone through.
        loss: the value loss.
        optim: AdamW of the critic.
        warmup_steps: training steps at the start in which only the critic learns.
        path: a model to start from, or an exported critic with its head; None takes the policy as it starts.
    """

    updates_per_step: Count = 12
    passes_per_batch: Count = 1
    loss: ValueLoss = ValueLoss()
    optim: AdamW = AdamW(lr=5e-6, betas=(0.9, 0.95), weight_decay=0.0)
    warmup_steps: Annotated[int, Field(ge=0)] = 0
    path: str | None = None


class CheckpointSettings(Settings):
    """A checkpoint every `every` steps and at the end; the last `keep` stay, and the best by held-out pass rate."""

    every: Count = 10
    keep: Count = 2
    keep_best: bool = True


class LearnerSettings(Settings):
    """The part of a run's configuration that a learner receives; a stage may change all but the seed and the critic.

    Fields:
        seed: of the run; how a batch is split into updates follows from it.
        temperature: at which completions are sampled, and log-probs and entropies computed.
    """

    seed: int
    temperature: float
    batch: BatchSettings
    algorithm: AlgorithmSettings
    optim: AdamW
    critic: CriticSettings | None


class SftSettings(Settings):
    """How to fine-tune; the defaults are ScaleRL's.

    Attributes:
        tokens_per_batch: tokens of an update, prompts included; it ends before the demonstration that would exceed it.
        max_length: longest prompt + completion; longer demonstrations are left out, and reported.
        epochs: how often each demonstration is seen; exactly one of `epochs` and `steps` is given.
        steps: how many updates to make, in as many epochs as that takes.
        tokens_per_microbatch: tokens of one forward and backward.
        seed: of the shuffle of each epoch.
        optimizer: AdamW, learning rate 3e-5.
    """

    alternatives: ClassVar[tuple[str, ...]] = ("epochs", "steps")

    tokens_per_batch: Count = 2_000_000
    max_length: Count = 12_288
    epochs: Count | None = None
    steps: Count | None = None
    tokens_per_microbatch: Count = 32_768
    seed: Annotated[int, Field(ge=0)] = 0
    optimizer: SerializeAsAny[AdamW] = AdamW(lr=3e-5)

    @model_validator(mode="after")
    def _check_length_of_run(self) -> Self:
        if (self.epochs is None) == (self.steps is None):
            raise ValueError("give either epochs or steps")
        return self
