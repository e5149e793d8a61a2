"""The lag gate: bounded staleness for one loop from strict on-policy (k = 0) to PipelineRL-k.

A *version* is one publication of weights, after each training step. A group of completions starts under the version
current at its admission; trained on version v its lag is v − start. The gate guarantees that lag ≤ k for every trained
token, and that training never waits for ever if every admitted group is resolved at some time.

Open = admitted and neither trained nor dropped, buffered ones too. P = prompts_per_step. Two rules, both needed:

1. *Admission*: open < w·P with w ≤ k + 1, so that generators never run further ahead than k + 1 steps' worth of groups.
   `window` finds the least w that keeps the trainer busy, or keeps w at k + 1 (`orchestration.window`).
2. *Training*: a batch is the P oldest resolved groups. Version v is trained only if the groups left open can still be
   trained in time. Sorted by start, the one at rank r is trained at version v + 1 + ⌊r / P⌋ at the earliest, hence
   (v + 1 + ⌊r / P⌋) − start_r ≤ k for every r. For r < P this says that the oldest open group outside the batch is
   not too old; the further ranks matter from k = 2 on: with P = 1 two stragglers of one version can only be trained
   in two different steps, and without them the gate would let both become due at once, then wait for ever.

With refill a dropped group frees its place at once; without refill it keeps its place until its step ends.

The ledger holds the open groups themselves: problem, attempt, and the completions so far. Only the loop writes it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, Literal

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


WAITED = 0.05  # share of the trainer's own time from which it counts as having waited


class Window:
    """The batches' worth of groups that may be open.

    Args:
        max_lag: k.
        adaptive: False keeps it at k + 1: `orchestration.window=full`, and where generation and training take turns on
            the same devices, so that the trainer always waits.
    """

    def __init__(self, max_lag: int, adaptive: bool) -> None:
        self.most = max_lag + 1.0
        self.least = min(2.0, self.most) if adaptive else self.most
        self.batches = self.least
        self._surplus: list[float] = []
        self._began: float | None = None  # when the trainer took its last batch
        self._free: float | None = None  # when it finished that batch
        self._lacking = False  # groups, when it last looked
        self._short = 0.0  # when it last lacked groups

    def begins(self, now: float, surplus: float) -> None:
        """The trainer takes a batch; `surplus` more batches' worth of resolved groups are ready."""
        self.looks(now, lacking=False)
        if self._began is not None and self._free is not None:
            self._adapt(self._short - self._free > WAITED * (self._free - self._began), surplus)
        self._began, self._free = now, None

    def looks(self, now: float, lacking: bool) -> None:
        """The trainer looks for a batch; `lacking`: there are too few resolved groups for one."""
        if self._lacking:
            self._short = now
        self._lacking = lacking

    def done(self, now: float) -> None:
        """The trainer is done with its batch, and looks for the next."""
        self._free = now

    def _adapt(self, waited: bool, surplus: float) -> None:
        if waited:
            self.batches = min(self.batches + 1, self.most)
            self._surplus = []
            return
        self._surplus.append(surplus)
        if len(self._surplus) >= self.most:
            self.batches = max(self.batches - min(self._surplus) / 2, self.least)
            self._surplus = []

    def state(self) -> dict[str, Any]:
        """JSON-able."""
        return {"batches": self.batches}

    def load(self, state: dict[str, Any]) -> None:
        """Go on from `state()`, before a first step: the wait for its batch says nothing about the window."""
        self.batches = min(max(state["batches"], self.least), self.most)


Fate = Literal["running", "kept", "dropped"]


@dataclass
class OpenGroup:
    """A group that was admitted and is neither trained nor dropped for good."""

    start: int
    fate: Fate = "running"


@dataclass(frozen=True)
class BatchTickets:
    """The groups of a training step: `kept` are trained, `dropped` only held a place."""

    kept: tuple[int, ...]
    dropped: tuple[int, ...]


class LagGate:
    """Decides when a group may be admitted and when a step may be trained. Knows tickets and versions, nothing else."""

    def __init__(self, prompts_per_step: int, max_lag: int, refill: bool, adaptive: bool = False) -> None:
        self.prompts_per_step = prompts_per_step
        self.max_lag = max_lag
        self.refill = refill
        self.window = Window(max_lag, adaptive)
        self.version = 0
        self.next_ticket = 0
        self._open: dict[int, OpenGroup] = {}

    @property
    def open(self) -> int:
        """Groups admitted and neither trained nor dropped for good."""
        return len(self._open)

    def admits(self, steps_left: int) -> bool:
        """Whether one more group may start, given how many steps are still to be trained."""
        return self.open < math.ceil(min(self.window.batches, steps_left) * self.prompts_per_step)

    def admit(self) -> int:
        """Open a group under the current version; its ticket."""
        ticket = self.next_ticket
        self.next_ticket += 1
        self._open[ticket] = OpenGroup(self.version)
        return ticket

    def restart(self, ticket: int) -> None:
        """Start a group again under the current version: it was lost, or an earlier process left it open."""
        self._open[ticket] = OpenGroup(self.version)

    def start(self, ticket: int) -> int:
        """The version an open group started under."""
        return self._open[ticket].start

    def resolve(self, ticket: int, keep: bool) -> None:
        """All completions of a group are in and judged; `keep` says whether it passed selection."""
        group = self._open[ticket]
        if group.fate != "running":
            raise ValueError(f"group {ticket} was resolved before")
        if not keep and self.refill:
            del self._open[ticket]
        else:
            group.fate = "kept" if keep else "dropped"

    @property
    def resolved(self) -> int:
        """Open groups that are resolved."""
        return sum(group.fate != "running" for group in self._open.values())

    def batch(self) -> BatchTickets | None:
        """The groups to train on now, or None where the step must wait."""
        if self.resolved < self.prompts_per_step:
            return None
        resolved = sorted((g.start, ticket) for ticket, g in self._open.items() if g.fate != "running")
        chosen = [ticket for _, ticket in resolved[: self.prompts_per_step]]
        rest = sorted(group.start for ticket, group in self._open.items() if ticket not in chosen)
        due = self.version + 1
        if any(due + rank // self.prompts_per_step - start > self.max_lag for rank, start in enumerate(rest)):
            return None
        kept = tuple(sorted(t for t in chosen if self._open[t].fate == "kept"))
        return BatchTickets(kept, tuple(sorted(set(chosen) - set(kept))))

    def close(self, batch: BatchTickets, trained: bool) -> None:
        """The step is over: its groups leave, and where anything was trained a new version begins."""
        for ticket in (*batch.kept, *batch.dropped):
            del self._open[ticket]
        if trained:
            self.version += 1

    def waits(self, now: float) -> None:
        """There is no batch at `now`, by any clock; more groups would help only where too few are resolved."""
        self.window.looks(now, lacking=self.resolved < self.prompts_per_step)

    def trains(self, batch: BatchTickets, now: float) -> None:
        """The batch is taken, and training begins; one of which nothing was kept is a part of the wait for the next."""
        if batch.kept:
            self.window.begins(now, self.resolved / self.prompts_per_step - 1)

    def trained(self, now: float) -> None:
        """All that a step does is done, and the next batch may be looked for."""
        self.window.done(now)

    def state(self) -> dict[str, Any]:
        """JSON-able: version, next ticket, window. Open groups are the ledger's to write down, and to `restart`."""
        return {"version": self.version, "next_ticket": self.next_ticket, "window": self.window.state()}

    def load(self, state: dict[str, Any]) -> None:
        """Go on from `state()`, with no group open."""
        self.version, self.next_ticket = state["version"], state["next_ticket"]
        self.window.load(state["window"])
        self._open.clear()
