"""The end of a run that finds nothing to learn from, and what its user can do about it."""

from __future__ import annotations

from collections.abc import Sequence

from strop.algorithms.diagnostics.groups import group_metrics
from strop.base.metrics import values
from strop.base.types import Group, StropError
from strop.config.schema import RunConfig


class NothingToLearn(StropError):
    """Step after step no group has rollouts of different outcome, or none that is trained on; `groups` are those looked
    at in vain."""

    def __init__(self, message: str, groups: Sequence[Group]) -> None:
        super().__init__(message)
        self.groups = tuple(groups)


def nothing_to_learn(config: RunConfig, step: int, groups: Sequence[Group], batches: int) -> NothingToLearn:
    """The error for `batches` batches' worth of `groups`; `step` steps of the run are done."""
    said = f"step {step + 1}: {batches} batches' worth of groups in a row"
    mask, selection = config.algorithm.truncation_mask, config.algorithm.selection
    if mask.startswith("drop") and all(one.completion.truncated for group in groups for one in group.usable):
        budget = config.sampling.max_new_tokens
        return NothingToLearn(
            f"{said} had cut-off completions alone, which algorithm.truncation_mask={mask} leaves out; raise "
            f"sampling.max_new_tokens (it is {budget}), or train on them with algorithm.truncation_mask=none",
            groups,
        )
    rate = values(group_metrics(groups, ()))["pass_rate"]
    passed = "unknown" if rate is None else f"{rate:.1%}"
    broken = ", or training has broken it (optim.lr too high?)" if step else ""
    refill = "algorithm.selection.refill=false and " if selection.refill else ""
    return NothingToLearn(
        f"{said} had no rollouts of different outcome (pass rate of the last ones: {passed}): the problems are too "
        f"hard or too easy for this model{broken}; take others or a better starting model, or train on all groups with "
        f"{refill}algorithm.selection.zero_variance=keep",
        groups,
    )
