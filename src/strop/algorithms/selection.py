"""Selection: which groups of completions are worth training on."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Literal

from pydantic import Field, model_validator

from strop.base.pieces import Settings
from strop.base.types import Rollout


class Selection(Settings):
    """Which groups enter the loss.

    Fields:
        zero_variance: `keep` trains on every group; `drop` leaves out those whose rollouts all came to the same
            (effective batch, ScaleRL; rejection, Skywork-OR1).
        of: whether "the same" is said of the verifier's score (or the value of the user's own reward functions), or of
            the shaped reward; scores of single turns must be the same besides.
        refill: a dropped group is replaced by a new prompt within the step (DAPO's dynamic sampling); otherwise
            the step trains on what is left.
        no_positive_resampling: a prompt whose group came to this pass rate or more is never asked again (ScaleRL: .9).
    """

    zero_variance: Literal["keep", "drop"] = "drop"
    of: Literal["score", "reward"] = "score"
    refill: bool = False
    no_positive_resampling: Annotated[float, Field(gt=0, le=1)] | None = None

    @model_validator(mode="after")
    def _refill_what_is_dropped(self) -> Selection:
        if self.refill and self.zero_variance == "keep":
            raise ValueError("refill=true replaces dropped groups, and zero_variance='keep' drops none; set 'drop'")
        return self

    def keeps(self, rollouts: Sequence[Rollout]) -> bool:
        """Whether a group is trained on whose countable rollouts are these. Without any it never is."""
        if not rollouts:
            return False
        return self.zero_variance == "keep" or not self.is_uniform(rollouts)

    def is_uniform(self, rollouts: Sequence[Rollout]) -> bool:
        """Whether all of them came to the same."""
        outcomes = {(r.verdict.value if self.of == "score" else r.reward, r.verdict.turn_scores) for r in rollouts}
        return len(outcomes) <= 1
