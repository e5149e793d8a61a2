"""Every diagnostic of a training step that follows from its groups and samples."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from strop.algorithms.diagnostics.credit import credit_metrics
from strop.algorithms.diagnostics.groups import (
    effective_metrics,
    environment_metrics,
    group_metrics,
    interruption_metrics,
    solved_metrics,
)
from strop.algorithms.diagnostics.texts import length_metrics, reflection_metrics, repetition_metrics
from strop.base.metrics import Metrics
from strop.base.sample import Sample
from strop.base.types import Group


def step_diagnostics(groups: Sequence[Group], samples: Sequence[Sample], survivors: Collection[int]) -> Metrics:
    """Every diagnostic of a step that follows from its groups and samples (docs/metrics.md names them).

    Args:
        groups: all that the step looked at, dropped ones included.
        samples: what is trained on, made of these groups, with the advantages of the update.
        survivors: tickets of the groups that selection kept.

    Returns:
        Mergeable statistics by name; those of two steps merged are those of both together.
    """
    return {
        **group_metrics(groups, survivors),
        **solved_metrics(groups),
        **effective_metrics(groups, samples),
        **interruption_metrics(groups),
        **environment_metrics(groups),
        **length_metrics(groups),
        **reflection_metrics(groups),
        **repetition_metrics(groups),
        **credit_metrics(groups, samples),
    }
