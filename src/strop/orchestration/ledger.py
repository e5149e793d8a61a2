"""The ledger of open groups: which problem, which attempt, what has come in. Only the controller writes it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from strop.base.text import counted
from strop.base.types import Completion, Group, Observation, Problem, Rollout, Verdict
from strop.environments.turns import joined


@dataclass
class LedgerGroup:
    """An open group and what is known of its completions so far, by sample index.

    Of samples in an environment `completions` hold the turns that are in, and `turns` those that are being sampled: by
    the turn's request, the sample and what the environment said before.
    """

    ticket: int
    index: int
    problem: Problem
    samples: int
    attempt: int
    completions: dict[int, Completion] = field(default_factory=dict)
    rollouts: dict[int, Rollout] = field(default_factory=dict)
    turns: dict[str, tuple[int, Observation]] = field(default_factory=dict)

    @property
    def request_id(self) -> str:
        """The engine's name for this attempt; completions of an earlier one no longer match."""
        return f"{self.ticket}.{self.attempt}"

    @property
    def request_ids(self) -> tuple[str, ...]:
        """The requests of this attempt that may be unfinished: its own, and those of later turns."""
        return (self.request_id, *self.turns)


class Ledger:
    """Groups from admission to training."""

    def __init__(self) -> None:
        self._entries: dict[int, LedgerGroup] = {}
        self._by_request: dict[str, int] = {}

    def admit(self, ticket: int, index: int, problem: Problem, samples: int, attempt: int = 0) -> LedgerGroup:
        """Write down a new group of `samples` completions; `index` is the problem's place in the data set."""
        entry = LedgerGroup(ticket, index, problem, samples, attempt)
        self._entries[ticket] = entry
        self._by_request[entry.request_id] = ticket
        return entry

    def retry(self, request_id: str) -> LedgerGroup:
        """Start a lost group over: attempt + 1, nothing known."""
        old = self.forget(self._by_request[request_id])
        return self.admit(old.ticket, old.index, old.problem, old.samples, old.attempt + 1)

    def find(self, request_id: str) -> LedgerGroup | None:
        """The group a completion belongs to; None where it belongs to an attempt given up."""
        ticket = self._by_request.get(request_id)
        return None if ticket is None else self._entries[ticket]

    def take_turn(self, entry: LedgerGroup, request_id: str, sample: int, observation: Observation) -> None:
        """Write down that a later turn of a sample is being sampled, behind `observation`."""
        entry.turns[request_id] = sample, observation
        self._by_request[request_id] = entry.ticket

    def record(self, entry: LedgerGroup, completion: Completion) -> int:
        """Write down a completion, joined to the turns before it where it is a later one; its sample index."""
        if completion.request_id not in entry.turns:
            entry.completions[completion.index] = completion
            return completion.index
        del self._by_request[completion.request_id]
        sample, observation = entry.turns.pop(completion.request_id)
        key = (entry.request_id, sample)
        entry.completions[sample] = joined(key, entry.completions.get(sample), observation, completion)
        return sample

    def judge(self, entry: LedgerGroup, sample: int, verdict: Verdict, reward: float) -> Group | None:
        """Write down a verdict; the whole group once it was the last one missing."""
        entry.rollouts[sample] = Rollout(entry.problem, entry.completions[sample], verdict, reward)
        if len(entry.rollouts) < entry.samples:
            return None
        return Group(entry.ticket, entry.problem, tuple(entry.rollouts[i] for i in sorted(entry.rollouts)))

    @property
    def completions(self) -> tuple[int, int]:
        """How many completions of the open groups there are, and how many there will be."""
        entries = self._entries.values()
        return sum(len(entry.completions) for entry in entries), sum(entry.samples for entry in entries)

    @property
    def open(self) -> list[int]:
        """Tickets of the open groups."""
        return list(self._entries)

    def forget(self, ticket: int) -> LedgerGroup:
        """The group was trained, dropped or given up; what was known of it."""
        entry = self._entries.pop(ticket)
        for request_id in entry.request_ids:
            del self._by_request[request_id]
        return entry

    def state(self) -> list[dict[str, Any]]:
        """JSON-able: the open groups, to be generated again after a resume."""
        return [
            {"ticket": e.ticket, "index": e.index, "samples": e.samples, "attempt": e.attempt}
            for e in self._entries.values()
        ]


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

    def dropped(self, entry: LedgerGroup) -> None:
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
