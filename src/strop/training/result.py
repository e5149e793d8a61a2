"""What training on a batch gives back."""

from __future__ import annotations

from dataclasses import dataclass

from strop.base.metrics import Metrics
from strop.base.types import Sample


@dataclass(frozen=True)
class TrainResult:
    """The samples that were trained on, with their advantages, and the metrics of the updates."""

    samples: tuple[Sample, ...]
    metrics: Metrics
