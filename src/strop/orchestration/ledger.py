"""The ledger of open groups: problem, attempt, and the completions so far. Only the controller writes it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from strop.base.types import Completion, Group, Observation, Problem, Rollout, Verdict
from strop.environments.turns import joined


@dataclass
class LedgerGroup:
    """An open group and its completions so far, by sample index.

    For samples in an environment, `completions` hold the turns that are finished. `turns` holds those that are being
    sampled: by the turn's request, the sample and the observation before it.
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
        """Record a new group of `samples` completions; `index` is the problem's place in the data set."""
        entry = LedgerGroup(ticket, index, problem, samples, attempt)
        self._entries[ticket] = entry
        self._by_request[entry.request_id] = ticket
        return entry

    def retry(self, request_id: str) -> LedgerGroup:
        """Start a lost group again, with attempt + 1 and without completions."""
        old = self.forget(self._by_request[request_id])
        return self.admit(old.ticket, old.index, old.problem, old.samples, old.attempt + 1)

    def find(self, request_id: str) -> LedgerGroup | None:
        """The group of a completion; None if it belongs to an attempt that was given up."""
        ticket = self._by_request.get(request_id)
        return None if ticket is None else self._entries[ticket]

    def take_turn(self, entry: LedgerGroup, request_id: str, sample: int, observation: Observation) -> None:
        """Record that a later turn of a sample is being sampled, after `observation`."""
        entry.turns[request_id] = sample, observation
        self._by_request[request_id] = entry.ticket

    def record(self, entry: LedgerGroup, completion: Completion) -> int:
        """Record a completion, joined to the turns before it; returns its sample index."""
        if completion.request_id not in entry.turns:
            entry.completions[completion.index] = completion
            return completion.index
        del self._by_request[completion.request_id]
        sample, observation = entry.turns.pop(completion.request_id)
        key = (entry.request_id, sample)
        entry.completions[sample] = joined(key, entry.completions.get(sample), observation, completion)
        return sample

    def judge(self, entry: LedgerGroup, sample: int, verdict: Verdict, reward: float) -> Group | None:
        """Record a verdict; returns the group once all its verdicts are in."""
        entry.rollouts[sample] = Rollout(entry.problem, entry.completions[sample], verdict, reward)
        if len(entry.rollouts) < entry.samples:
            return None
        return Group(entry.ticket, entry.problem, tuple(entry.rollouts[i] for i in sorted(entry.rollouts)))

    @property
    def completions(self) -> tuple[int, int]:
        """How many completions of the open groups are in, and how many there will be."""
        entries = self._entries.values()
        return sum(len(entry.completions) for entry in entries), sum(entry.samples for entry in entries)

    def forget(self, ticket: int) -> LedgerGroup:
        """Remove a group that was trained or dropped, and return it."""
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
