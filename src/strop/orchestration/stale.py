"""Groups dropped because they could no longer be trained within max_lag, and the length bias that this brings.

A group is late because a completion of it is long: what is dropped is longer than what is trained on, and the policy
never learns from it. The tally counts tokens as far as they are known: those of completions that were in, and of
running ones when their generator had cancelled them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from strop.base.types import Completion, Group
from strop.base.view import counted
from strop.orchestration.ledger import OpenGroup

_COUNTS = ("groups", "samples", "tokens", "groups_trained", "samples_trained", "tokens_trained")


class StaleGroups:
    """Counts over the whole run. JSON-able by `state`."""

    def __init__(self) -> None:
        self._counts = dict.fromkeys(_COUNTS, 0)
        self._awaited: dict[str, int] = {}  # samples of a dropped request that may still be reported
        self._new = {"tokens/generated": 0, "tokens/injected": 0}  # that no step has counted yet

    def dropped(self, entry: OpenGroup) -> None:
        """A group is dropped; its completions that are in count now, the others when `aborted` hears of them."""
        self._counts["groups"] += 1
        for completion in entry.completions.values():
            self._count(completion)
        if left := entry.samples - len(entry.completions):
            self._awaited[entry.request_id] = left

    def aborted(self, completion: Completion) -> bool:
        """Whether this is of a dropped group; then it is counted."""
        left = self._awaited.get(completion.request_id)
        if left is None:
            return False
        self._count(completion)
        self._awaited[completion.request_id] = left - 1
        if left <= 1:
            del self._awaited[completion.request_id]
        return True

    def trained(self, groups: Sequence[Group]) -> dict[str, float | None]:
        """Count the groups of a finished step; the metrics so far."""
        completions = [rollout.completion for group in groups for rollout in group.rollouts]
        self._counts["groups_trained"] += len(groups)
        self._counts["samples_trained"] += len(completions)
        self._counts["tokens_trained"] += sum(len(completion.token_ids) for completion in completions)
        return {
            "stale/groups": float(self._counts["groups"]),
            "stale/share": self._counts["groups"] / (self._counts["groups"] + self._counts["groups_trained"]),
            "stale/length": self._mean("tokens", "samples"),
            "stale/length_trained": self._mean("tokens_trained", "samples_trained"),
        }

    def tokens(self) -> dict[str, int]:
        """Tokens of dropped groups since the last call, by the metric of a step that they belong to."""
        found, self._new = self._new, dict.fromkeys(self._new, 0)
        return found

    def line(self, groups: int) -> str:
        """The line for the user about `groups` that were just dropped."""
        length, trained = self._mean("tokens", "samples"), self._mean("tokens_trained", "samples_trained")
        bias = ""
        if length is not None and trained is not None:
            bias = f"; all dropped so far had {length:.0f} tokens a completion by then, those trained on {trained:.0f}"
        return f"{counted(groups, 'groups')} dropped that could not be trained within max_lag{bias}"

    def state(self) -> dict[str, Any]:
        """JSON-able."""
        return dict(self._counts)

    def load(self, state: Mapping[str, Any]) -> None:
        """Go on from `state()`."""
        self._counts |= state
        self._awaited.clear()

    def _count(self, completion: Completion) -> None:
        self._counts["samples"] += 1
        self._counts["tokens"] += len(completion.token_ids)
        self._new["tokens/generated"] += completion.sampled_tokens
        self._new["tokens/injected"] += len(completion.token_ids) - completion.sampled_tokens

    def _mean(self, tokens: str, samples: str) -> float | None:
        return self._counts[tokens] / self._counts[samples] if self._counts[samples] else None
