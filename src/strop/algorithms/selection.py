"""Selection: which groups of completions are worth training on."""

from __future__ import annotations

from typing import Literal

from strop.pieces import Settings
from strop.types import Group


class Selection(Settings):
    """Which groups enter the loss.

    Fields:
        zero_variance: `keep` trains on every group; `drop` leaves out those whose rollouts all came to the same
            (effective batch, ScaleRL; rejection, Skywork-OR1).
        of: whether "the same" is said of the verifier's score or of the shaped reward.
        refill: a dropped group is replaced by a new prompt within the step (DAPO's dynamic sampling); otherwise
            the step trains on what is left.
    """

    zero_variance: Literal["keep", "drop"] = "drop"
    of: Literal["score", "reward"] = "score"
    refill: bool = False

    def keeps(self, group: Group) -> bool:
        """Whether the group is trained on. A group without a usable rollout never is."""
        usable = group.usable
        if not usable:
            return False
        return self.zero_variance == "keep" or not self.is_uniform(group)

    def is_uniform(self, group: Group) -> bool:
        """Whether all usable rollouts came to the same."""
        values = {r.verdict.score if self.of == "score" else r.reward for r in group.usable}
        return len(values) <= 1
