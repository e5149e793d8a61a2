"""A run by discrete events: the loop's own lag gate, generators that decode, a trainer that updates.

The controller follows `loop.py` step by step: it admits the groups that the gate allows, takes in resolved groups,
trains the batch that the gate names, publishes the weights and writes the metrics. While it trains it receives nothing.
Generators go on, unless they share the trainer's devices.
"""

from __future__ import annotations

import heapq
import math
from collections import deque
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from strop.base.seeds import derive
from strop.base.types import StropError
from strop.lab.planning.costs import Costs, Lengths, Setup
from strop.orchestration.lag_gate import BatchTickets, LagGate

_EPSILON = 1e-9  # of a decode step: sums of seconds are not exact


@dataclass(frozen=True)
class FinishedSequence:
    """A sequence that ended; `version_sum` adds up the weight versions that sampled its tokens."""

    ticket: int
    tokens: int
    version_sum: float


class Generator:
    """A simulated generator. `time` is the end of a decode step, when sequences start and weights are swapped."""

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
        """The least seconds for everything decoded by `now`, if `at_once` sequences shared every decode step.

        The decode step or the starts in progress at `now` count whole if `whole`; otherwise the seconds that they still
        take are subtracted.
        """
        self._advance(now)
        costs = self._costs
        decoding = self._tokens * (costs.decode_step / at_once + costs.decode_sequence)
        whatever = decoding + self._contexts * costs.decode_context + self._order * costs.start_sequence
        return whatever if whole else whatever - max(self.time - now, 0.0)

    def submit(self, now: float, ticket: int, lengths: list[int]) -> None:
        """Queue sequences; those with a free slot start at the next end of a decode step."""
        self._advance(now)
        self._waiting.extend((ticket, tokens) for tokens in lengths)
        self._start()

    def finish(self) -> list[FinishedSequence]:
        """Run to `next_end`; what ends there. Free slots are taken at once."""
        self._run(self._running[0][0] - self._steps)
        found: list[FinishedSequence] = []
        while self._running and self._running[0][0] == self._steps:
            _, _, ticket, tokens, before = heapq.heappop(self._running)
            self._context -= self._prompt + tokens
            found.append(FinishedSequence(ticket, tokens, self._versions - before))
        self._start()
        return found

    def swap(self, now: float, version: int) -> None:
        """Load new weights between two decode steps."""
        self._advance(now)
        self.time += self._costs.swap
        self.version = version

    def stand_still(self, begin: float, end: float) -> None:
        """Pause from `begin` to `end`, while the trainer uses the device; a running decode step ends so much later."""
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
        """Decode up to the first end of a step at or after `now`; no sequence ends before it."""
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


MAX_EMPTY_BATCHES = 1000


class Decoded(NamedTuple):
    """Seconds that all generators need for what they have decoded, as many sequences at once as there can be.

    `least` leaves out the seconds that what is under way still takes, `most` has all of it.
    """

    least: float
    most: float


@dataclass(frozen=True)
class Simulation:
    """The outcome of a simulated run. Seconds by step; shares are of the whole time.

    Attributes:
        step_seconds: of each training step, from the end of the one before.
        trainer_busy: seconds of all updates.
        generators_busy: seconds that generators decoded, summed over them.
        running: sequences that ran at once, summed over generators, mean over time.
        tokens: generated tokens of the groups that were trained on.
        generated: those of all groups, dropped ones too.
        lags: mean lag of the trained tokens of each step, in versions.
        max_lag: the largest lag of a trained group's first token.
        trained: tickets, in the order of training.
        dropped: groups that were not kept.
        training: seconds of update, publication and recording of each step.
        generation: what was decoded by the end of each step.
        longest: tokens of the longest completion of each step.
    """

    setup: Setup
    step_seconds: tuple[float, ...]
    trainer_busy: float
    generators_busy: float
    running: float
    tokens: int
    generated: int
    lags: tuple[float, ...]
    max_lag: int
    trained: tuple[int, ...]
    dropped: int
    training: tuple[float, ...]
    generation: tuple[Decoded, ...]
    longest: tuple[int, ...]

    @property
    def total(self) -> float:
        """Seconds of the whole run."""
        return sum(self.step_seconds)

    @property
    def settled_steps(self) -> slice:
        """Steps between the filling of the pipeline at the start, while its window opens, and its running dry."""
        if not self.setup.max_lag:
            return slice(0, len(self.step_seconds))
        edge, third = self.setup.max_lag + 1, (len(self.step_seconds) - 1) // 3
        return slice(min(2 * edge, third), len(self.step_seconds) - min(edge, third))

    @property
    def settled(self) -> tuple[float, ...]:
        """Seconds of the settled steps."""
        return self.step_seconds[self.settled_steps]

    @property
    def mean(self) -> float:
        """Mean seconds of a settled step."""
        return float(np.mean(self.settled))

    def quantile(self, share: float) -> float:
        """Seconds that a share of the settled steps does not exceed, linear between neighbours."""
        return float(np.quantile(self.settled, share))

    @property
    def update_seconds(self) -> float:
        """Mean seconds per optimizer update: what PPO-off-policy-k and PipelineRL-k are compared by."""
        return self.mean / (self.setup.updates_per_step * self.setup.passes_per_batch)

    @property
    def trainer_idle(self) -> float:
        """Share of the time in which the trainer does not update."""
        return 1 - self.trainer_busy / self.total

    @property
    def generators_idle(self) -> float:
        """Share of their time in which generators decode nothing."""
        return 1 - self.generators_busy / (self.total * self.setup.generators)

    @property
    def tokens_per_second(self) -> float:
        """Generated tokens a second."""
        return self.generated / self.total

    @property
    def mean_lag(self) -> float:
        """Mean over steps of the trained tokens' mean lag, in versions, of which a step makes one."""
        return float(np.mean(self.lags)) if self.lags else 0.0

    @property
    def updates_behind(self) -> float:
        """Mean number of updates between the weights that sampled a token and the update that it is trained in.

        A version is the updates of a step further than the one before, and of these the first is behind by none more,
        the last by all the others: PPO-off-policy-k, whose lag is 0, is (k - 1) / 2 updates behind.
        """
        updates = self.setup.updates_per_step * self.setup.passes_per_batch
        return self.mean_lag * updates + (updates - 1) / 2


@dataclass
class _Group:
    """An open group: sequences missing, tokens of the longest, tokens so far, tokens to train on, sum of versions."""

    missing: int
    longest: int
    tokens: int = 0
    trained: float = 0.0
    version_sum: float = 0.0


def simulate(setup: Setup, costs: Costs, lengths: Lengths, steps: int, seed: int = 0) -> Simulation:
    """Simulate `steps` training steps.

    The lengths of a group depend only on seed and ticket: two setups are compared on the same completions.

    Raises:
        StropError: no batch is ever kept, for `setup.drop` is too near to 1.
    """
    return _Run(setup, costs, lengths, steps, seed).go()


class _Run:
    def __init__(self, setup: Setup, costs: Costs, lengths: Lengths, steps: int, seed: int) -> None:
        self.setup, self.costs, self.lengths, self.steps, self.seed = setup, costs, lengths, steps, seed
        adaptive = setup.window == "adaptive" and not setup.colocated
        self.gate = LagGate(setup.prompts_per_step, setup.max_lag, setup.refill, adaptive=adaptive)
        self.generators = [Generator(costs, setup.slots, setup.prompt_tokens) for _ in range(setup.generators)]
        self.now = 0.0
        self.step = 0
        self.groups: dict[int, _Group] = {}
        self.verdicts: list[tuple[float, int]] = []  # when, ticket
        self.ends: list[tuple[float, int, int]] = []  # when, generator, its stamp: outdated where it is not the latest
        self.stamps = [0] * setup.generators
        self.updating = 0.0  # seconds
        self.step_ends: list[float] = []
        self.training: list[float] = []
        self.generation: list[Decoded] = []
        self.longest: list[int] = []
        self.controlled = 0.0  # seconds of the present step that the controller was busy
        self.waited = 0  # tokens of the longest completion that it has waited for
        self.lags: list[float] = []
        self.trained: list[int] = []
        self.tokens = self.generated = self.max_lag = self.dropped = self.spread = 0
        self.recorded = 0  # of the generated tokens, those of the steps before

    def go(self) -> Simulation:
        empty = 0
        while self.step < self.steps:
            self._admit()
            batch = self.gate.batch()
            if batch is None:
                self.gate.waits(self.now)
                self._hear(self._next_event())
                continue
            self.gate.trains(batch, self.now)
            empty = 0 if batch.kept else empty + 1
            if empty >= MAX_EMPTY_BATCHES:
                raise StropError(f"{empty} batches in a row kept no group: drop={self.setup.drop} is too near to 1")
            self._train(batch)
            if batch.kept:
                self.gate.trained(self.now)
        for generator in self.generators:
            generator.stand_still(self.now, self.now)
        return self._result()

    def _result(self) -> Simulation:
        return Simulation(
            setup=self.setup,
            step_seconds=tuple(np.diff(self.step_ends, prepend=0.0).tolist()),
            trainer_busy=self.updating,
            generators_busy=sum(generator.busy for generator in self.generators),
            running=sum(generator.sequence_seconds for generator in self.generators) / self.now,
            tokens=self.tokens,
            generated=self.generated,
            lags=tuple(self.lags),
            max_lag=self.max_lag,
            trained=tuple(self.trained),
            dropped=self.dropped,
            training=tuple(self.training),
            generation=tuple(self.generation),
            longest=tuple(self.longest),
        )

    # ------------------------------------------------------------------ generation

    def _admit(self) -> None:
        while self.gate.admits(self.steps - self.step):
            ticket = self.gate.admit()
            rng = np.random.default_rng([self.seed, ticket])
            lengths = self.lengths.draw(rng, self.setup.samples_per_prompt).tolist()
            self.groups[ticket] = _Group(len(lengths), max(lengths))
            if self.setup.assign == "group":
                self._submit(ticket % self.setup.generators, ticket, lengths)
                continue
            for length in lengths:
                self._submit(self.spread % self.setup.generators, ticket, [length])
                self.spread += 1

    def _submit(self, number: int, ticket: int, lengths: list[int]) -> None:
        self.generators[number].submit(self.now, ticket, lengths)
        self._changed(number)

    def _changed(self, number: int) -> None:
        """Record that the next end of a generator has changed."""
        self.stamps[number] += 1
        end = self.generators[number].next_end
        if math.isfinite(end):
            heapq.heappush(self.ends, (end, number, self.stamps[number]))

    def _next_event(self) -> float:
        while self.ends and self.ends[0][2] != self.stamps[self.ends[0][1]]:
            heapq.heappop(self.ends)
        generated = self.ends[0][0] if self.ends else math.inf
        judged = self.verdicts[0][0] if self.verdicts else math.inf
        assert math.isfinite(min(generated, judged)), "the gate waits and nothing is under way"
        return max(min(generated, judged), self.now)

    def _hear(self, until: float) -> None:
        """Advance the time to `until` and take in every verdict up to then."""
        while self.ends and self.ends[0][0] <= until:
            end, number, stamp = heapq.heappop(self.ends)
            if stamp == self.stamps[number]:
                for finished in self.generators[number].finish():
                    self._note(finished, end)
                self._changed(number)
        self.now = max(self.now, until)
        while self.verdicts and self.verdicts[0][0] <= until:
            _, ticket = heapq.heappop(self.verdicts)
            keep = self.setup.drop == 0 or self._draw(ticket) >= self.setup.drop
            self.dropped += not keep
            self.gate.resolve(ticket, keep)
            if not keep and self.setup.refill:  # it is in no batch
                self.generated += self.groups.pop(ticket).tokens

    def _draw(self, ticket: int) -> float:
        return derive(self.seed, "drop", ticket) % 2**32 / 2**32

    def _note(self, finished: FinishedSequence, end: float) -> None:
        group = self.groups[finished.ticket]
        group.missing -= 1
        group.tokens += finished.tokens
        group.trained += self.setup.trained(finished.tokens)
        group.version_sum += finished.version_sum
        if group.missing == 0:
            heapq.heappush(self.verdicts, (end + self.costs.verdict, finished.ticket))

    # ------------------------------------------------------------------ training

    def _train(self, batch: BatchTickets) -> None:
        version = self.gate.version
        groups = [self.groups[ticket] for ticket in batch.kept]
        tokens = sum(group.tokens for group in groups)
        if batch.kept:
            self.lags.append(sum(version * group.tokens - group.version_sum for group in groups) / tokens)
            self.max_lag = max(self.max_lag, *(version - self.gate.start(ticket) for ticket in batch.kept))
            self.trained += batch.kept
            self.tokens += tokens
            seconds = self._update_seconds(sum(group.trained for group in groups))
            self.updating += seconds
            self._spend(seconds)
        self.gate.close(batch, trained=bool(batch.kept))
        for group in [self.groups.pop(ticket) for ticket in (*batch.kept, *batch.dropped)]:
            self.waited = max(self.waited, group.longest)
            self.generated += group.tokens
        if not batch.kept:
            return
        self._spend(self.costs.publish)
        for number, generator in enumerate(self.generators):
            generator.swap(self.now, self.gate.version)
            self._changed(number)
        tokens, self.recorded = self.generated - self.recorded, self.generated
        self._spend(self.costs.recording(tokens))
        self.step += 1
        self.step_ends.append(self.now)
        self.training.append(self.controlled)
        self.generation.append(Decoded(*(self._decoded(whole) for whole in (False, True))))
        self.longest.append(self.waited)
        self.controlled, self.waited = 0.0, 0

    def _decoded(self, whole: bool) -> float:
        return sum(each.least_seconds(self.now, self.setup.at_once, whole) for each in self.generators)

    def _update_seconds(self, tokens: float) -> float:
        setup = self.setup
        updates = setup.updates_per_step * setup.passes_per_batch
        return self.costs.updating(tokens * setup.passes_per_batch, updates, setup.trainers)

    def _spend(self, seconds: float) -> None:
        """Keep the controller busy for `seconds`; generators on shared devices wait."""
        end = self.now + seconds
        if self.setup.colocated:
            for number, generator in enumerate(self.generators):
                generator.stand_still(self.now, end)
                self._changed(number)
        self.controlled += seconds
        self._hear(end)
