"""Groups dropped because they could no longer be trained within max_lag, and the length bias that this brings.

A group is late because a completion of it is long: what is dropped is longer than what is trained on, and the policy
never learns from it. A group's tokens are counted once all of them are known: those of completions that were in, and
those of running ones, the longest, which their generator reports when it has cancelled them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from strop.base.types import Completion, Group
from strop.base.view import counted
from strop.orchestration.ledger import OpenGroup

_COUNTS = ("groups", "samples", "tokens", "groups_trained", "samples_trained", "tokens_trained")


@dataclass
class _Dropped:
    """A dropped group: what is known of it, and how many completions of which requests may still be reported."""

    samples: int
    tokens: int
    awaited: dict[str, int]


class StaleGroups:
    """Counts over the whole run. JSON-able by `state`."""

    def __init__(self) -> None:
        self._counts = dict.fromkeys(_COUNTS, 0)
        self._awaited: dict[str, _Dropped] = {}  # by the requests that may still be reported
        self._new = {"tokens/generated": 0, "tokens/injected": 0}  # that no step has counted yet

    def dropped(self, entry: OpenGroup) -> None:
        """A group is dropped; its completions count once `aborted` has heard of those that are not in."""
        self._counts["groups"] += 1
        begun = {*entry.completions, *(sample for sample, _ in entry.turns.values())}
        left = entry.samples - len(begun)
        awaited = {**({entry.request_id: left} if left else {}), **dict.fromkeys(entry.turns, 1)}
        tokens = sum(map(self._drawn, entry.completions.values()))
        group = _Dropped(entry.samples, tokens, awaited)
        self._awaited |= dict.fromkeys(awaited, group)
        self._settle(group)

    def aborted(self, completion: Completion) -> bool:
        """Whether this is of a dropped group; then it is counted."""
        group = self._awaited.get(completion.request_id)
        if group is None:
            return False
        group.tokens += self._drawn(completion)
        group.awaited[completion.request_id] -= 1
        if not group.awaited[completion.request_id]:
            del group.awaited[completion.request_id], self._awaited[completion.request_id]
        self._settle(group)
        return True

    def _settle(self, group: _Dropped) -> None:
        """Count a group of which all is known."""
        if not group.awaited:
            self._counts["samples"] += group.samples
            self._counts["tokens"] += group.tokens

    def trained(self, groups: Sequence[Group]) -> dict[str, float | None]:
        """Count the groups that a finished step trained on; the metrics so far."""
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
            lengths = f"{length:.0f} tokens a completion by then, those trained on {trained:.0f}"
            bias = f"; those dropped so far had {lengths}"
        return f"{counted(groups, 'groups')} dropped that could not be trained within max_lag{bias}"

    def state(self) -> dict[str, Any]:
        """JSON-able."""
        return dict(self._counts)

    def load(self, state: Mapping[str, Any]) -> None:
        """Go on from `state()`."""
        self._counts |= state
        self._awaited.clear()

    def _drawn(self, completion: Completion) -> int:
        """The tokens of a completion, which the next step counts among its own."""
        self._new["tokens/generated"] += completion.sampled_tokens
        self._new["tokens/injected"] += len(completion.token_ids) - completion.sampled_tokens
        return len(completion.token_ids)

    def _mean(self, tokens: str, samples: str) -> float | None:
        return self._counts[tokens] / self._counts[samples] if self._counts[samples] else None
