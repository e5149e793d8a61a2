"""Results of a learner: how large it is, and what training on a batch gave."""

from __future__ import annotations

from dataclasses import dataclass

from strop.base.metrics import Metrics
from strop.base.sample import Sample


@dataclass(frozen=True)
class Sizes:
    """The policy's parameters, those of them that a token is multiplied with, and the devices that train it.

    Devices are GPUs, or cores on a machine without.
    """

    parameters: int
    computing_parameters: int
    devices: int


@dataclass(frozen=True)
class TrainResult:
    """The samples that were trained on, with their advantages, and the metrics of the updates."""

    samples: tuple[Sample, ...]
    metrics: Metrics
