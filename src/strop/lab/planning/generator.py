"""One generator of the simulation: continuous batching in slots, in whole decode steps."""

from __future__ import annotations

import heapq
import math
from collections import deque
from dataclasses import dataclass

from strop.lab.planning.costs import Costs

_EPSILON = 1e-9  # of a decode step: sums of seconds are not exact


@dataclass(frozen=True)
class Finished:
    """A sequence that ended; `version_sum` adds up the weight versions that sampled its tokens."""

    ticket: int
    tokens: int
    version_sum: float


class Generator:
    """Runs sequences. `time` is always the end of a decode step, at which sequences start and weights are swapped."""

    def __init__(self, costs: Costs, slots: int, prompt_tokens: float) -> None:
        self.time = 0.0
        self.busy = 0.0
        self.sequence_seconds = 0.0  # running sequences, integrated over time
        self.version = 0
        self._costs = costs
        self._slots = slots
        self._prompt = prompt_tokens
        self._waiting: deque[tuple[int, int]] = deque()  # ticket, tokens
        self._running: list[tuple[int, int, int, int, float]] = []  # ends at step, order, ticket, tokens, version sum
        self._steps = 0  # decode steps so far
        self._context = 0.0
        self._order = 0  # sequences started
        self._tokens = 0  # decoded, of all sequences
        self._contexts = 0.0  # context tokens that all decode steps have read
        self._versions = 0.0  # sum over all decode steps of the version that they ran under

    @property
    def steps(self) -> int:
        """Decode steps so far."""
        return self._steps

    @property
    def next_end(self) -> float:
        """When the next sequence ends; infinity where none runs."""
        if not self._running:
            return math.inf
        return self.time + self._costs.decoding(self._running[0][0] - self._steps, len(self._running), self._context)

    def least_seconds(self, now: float, at_once: int, whole: bool) -> float:
        """What all that was decoded by `now` takes where `at_once` sequences share every decode step.

        What is under way at `now`, a decode step or the start of sequences, counts if `whole`; else the seconds that it
        still takes are left out, which are no fewer than what it would take so.
        """
        self._advance(now)
        costs = self._costs
        decoding = self._tokens * (costs.decode_step / at_once + costs.decode_sequence)
        whatever = decoding + self._contexts * costs.decode_context + self._order * costs.start_sequence
        return whatever if whole else whatever - max(self.time - now, 0.0)

    def submit(self, now: float, ticket: int, lengths: list[int]) -> None:
        """Queue sequences; those for which there is a slot start at the first boundary of steps that is not past."""
        self._advance(now)
        self._waiting.extend((ticket, tokens) for tokens in lengths)
        self._start()

    def finish(self) -> list[Finished]:
        """Run to `next_end`; what ends there. Free slots are taken at once."""
        self._run(self._running[0][0] - self._steps)
        found: list[Finished] = []
        while self._running and self._running[0][0] == self._steps:
            _, _, ticket, tokens, before = heapq.heappop(self._running)
            self._context -= self._prompt + tokens
            found.append(Finished(ticket, tokens, self._versions - before))
        self._start()
        return found

    def swap(self, now: float, version: int) -> None:
        """Take new weights between two decode steps."""
        self._advance(now)
        self.time += self._costs.swap
        self.version = version

    def stand_still(self, begin: float, end: float) -> None:
        """Something else has the device from `begin` to `end`: a decode step under way ends so much later."""
        self._advance(begin)
        self.time += end - begin

    def _start(self) -> None:
        while self._waiting and len(self._running) < self._slots:
            ticket, tokens = self._waiting.popleft()
            self._order += 1
            heapq.heappush(self._running, (self._steps + tokens, self._order, ticket, tokens, self._versions))
            self._context += self._prompt
            self.time += self._costs.start_sequence
            self.busy += self._costs.start_sequence

    def _advance(self, now: float) -> None:
        """Run on to the first boundary of decode steps at or after `now`; no sequence ends before it."""
        if now <= self.time:
            return
        if not self._running:
            self.time = now
            return
        self._run(min(self._steps_until(now), self._running[0][0] - self._steps))

    def _steps_until(self, now: float) -> int:
        costs, running = self._costs, len(self._running)
        each = costs.decode_step + costs.decode_sequence * running + costs.decode_context * self._context
        growth = costs.decode_context * running / 2
        wanted = now - self.time
        if growth == 0:
            steps = wanted / each if each > 0 else math.inf
        else:  # each·m + growth·m(m − 1) = wanted
            linear = each - growth
            steps = (math.sqrt(linear * linear + 4 * growth * wanted) - linear) / (2 * growth)
        return 1 << 62 if math.isinf(steps) else math.ceil(steps - _EPSILON)

    def _run(self, steps: int) -> None:
        running = len(self._running)
        seconds = self._costs.decoding(steps, running, self._context)
        self.time += seconds
        self.busy += seconds
        self.sequence_seconds += seconds * running
        self._steps += steps
        self._versions += steps * self.version
        self._tokens += steps * running
        self._contexts += steps * self._context + running * steps * (steps - 1) / 2
        self._context += steps * running
