"""Who does what in a planned run: batch, lag, generators and trainers."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from strop.base.types import InputError
from strop.config.schema import RunConfig
from strop.orchestration.settings import WindowMode


@dataclass(frozen=True)
class Setup:
    """The shape of a run.

    Attributes:
        prompts_per_step, samples_per_prompt, max_lag, updates_per_step, passes_per_batch: as in a recipe.
        refill: whether a dropped group is replaced at once.
        drop: share of groups that selection drops, whatever their lengths.
        generators: engines that generate.
        trainers: ranks that train together.
        slots: sequences that run at once in each generator.
        devices_per_generator: devices (GPUs) of one engine.
        colocated: generators and trainer take turns on the same devices, as in one process.
        window: `adaptive` lets generators run ahead as far as keeps the trainer from waiting; `full`, as far as the lag
            allows. Where generators and trainer take turns it is always full.
        assign: `group` gives a prompt's samples to generators in ticket order, as the loop does; `sample` spreads them.
        prompt_tokens: mean length of a prompt; it is context when decoding, and trained through.
        masked_from: completions of so many tokens or more were truncated and are not trained on; None trains on all.
    """

    prompts_per_step: int
    samples_per_prompt: int
    max_lag: int = 0
    updates_per_step: int = 1
    passes_per_batch: int = 1
    refill: bool = False
    drop: float = 0.0
    generators: int = 1
    trainers: int = 1
    slots: int = 1 << 20
    devices_per_generator: int = 1
    colocated: bool = False
    window: WindowMode = "adaptive"
    assign: Literal["group", "sample"] = "group"
    prompt_tokens: float = 0.0
    masked_from: int | None = None

    def __post_init__(self) -> None:
        least = {
            "prompts_per_step": self.prompts_per_step, "samples_per_prompt": self.samples_per_prompt,
            "updates_per_step": self.updates_per_step, "passes_per_batch": self.passes_per_batch,
            "generators": self.generators, "trainers": self.trainers, "slots": self.slots,
            "devices_per_generator": self.devices_per_generator,
        }  # fmt: skip
        for name, value in least.items():
            if value < 1:
                raise InputError(f"{name}={value}: at least 1")
        if self.max_lag < 0 or not 0 <= self.drop < 1:
            raise InputError(f"max_lag={self.max_lag}, drop={self.drop}: not below 0, and drop below 1")

    @property
    def devices(self) -> int:
        """Devices in all."""
        generating = self.generators * self.devices_per_generator
        return max(generating, self.trainers) if self.colocated else generating + self.trainers

    @property
    def at_once(self) -> int:
        """The most sequences that a generator can share a decode step among."""
        open_sequences = (self.max_lag + 1) * self.prompts_per_step * self.samples_per_prompt
        return min(self.slots, -(-open_sequences // self.generators))

    def trained(self, tokens: int) -> float:
        """Tokens, its prompt's included, that a completion of `tokens` tokens gives the trainer to compute."""
        masked = self.masked_from is not None and tokens >= self.masked_from
        return 0.0 if masked else tokens + self.prompt_tokens

    @property
    def name(self) -> str:
        """Its name in papers."""
        if self.max_lag:
            return f"PipelineRL-{self.max_lag}"
        return "synchronous" if self.updates_per_step == 1 else f"PPO-off-policy-{self.updates_per_step}"

    def pipeline(self, k: int) -> Setup:
        """The same work as PipelineRL-k: generators up to k steps ahead."""
        return replace(self, max_lag=k)

    def alternating(self, k: int) -> Setup:
        """The same work as PPO-off-policy-k: phases of k updates on a batch k times as large."""
        prompts = self.prompts_per_step * k
        return replace(self, max_lag=0, prompts_per_step=prompts, updates_per_step=self.updates_per_step * k)


def setup_of(config: RunConfig) -> Setup:
    """The batch, lag, generators, trainers and slots of a configuration."""
    batch = config.batch
    return Setup(
        prompts_per_step=batch.prompts_per_step,
        samples_per_prompt=batch.samples_per_prompt,
        max_lag=config.orchestration.max_lag,
        window=config.orchestration.window,
        updates_per_step=batch.updates_per_step,
        passes_per_batch=batch.passes_per_batch,
        refill=config.algorithm.selection.refill,
        generators=config.orchestration.generators,
        trainers=config.orchestration.trainers,
        slots=config.engine.slots,
        colocated=config.orchestration.in_process,
        masked_from=config.sampling.max_new_tokens if config.algorithm.truncation_mask.startswith("drop") else None,
    )
