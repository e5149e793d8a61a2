"""The embedded engine's slots and its scheduler.

Waiting samples get free slots. The last running ones move to the front when the others are done. The state of running
sequences lies on the host, as one array for each field, so that a step is a few array operations whatever the number of
slots: it sends tokens, positions and uniforms to the device, and brings back the drawn tokens and their log-probs.

Shapes: Q slots, C longest sequence in tokens.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Set
from collections.abc import Sequence as Sequence_
from dataclasses import replace
from itertools import islice

import numpy as np
from numpy.typing import NDArray

from strop.engines.base import RunningSequence, SlotEntry
from strop.engines.torch.kv import KeptKeys, PrefillJob, SlotCache

# The row count from which the rows of a float32 matrix product no longer depend on it.
LEAST_ROWS = 16
# Rows that compiled products take together; with fewer they have less to do.
TOGETHER = 8


class Slots:
    """Q slots; every attribute is an array [Q] unless said otherwise.

    Attributes:
        sequences: list [Q], None where free.
        active: bool.
        token, position: int64, the token that the next step feeds, and its position. A free slot keeps its position, so
            that what it goes on writing never falls into the prompt that it may still lend to others.
        first: int64, position of the last prompt token: `position - first` tokens have been drawn.
        phase_end, sampled_from: int64, of the sample's `Chain`: until `sampled_from` tokens are there, the next one is
            injected; at `phase_end` it is asked how to go on.
        key: uint64, the sample's stream of uniforms.
        temperature, top_p: float, top_k: int64 (0: off); greedy, truncated: bool.
        watched: bool, the end of the phase may be a matter of text.
        stop_ids: int64 [Q, E], -1 where there are fewer.
        drawn, logprobs, entropies: int64 and float32 [Q, C], what has been drawn so far.
        prompt_of, prompt_epoch: whose prompt's keys and values the slot holds, of which weights.
    """

    def __init__(self, count: int, longest: int) -> None:
        self.count = count
        self.sequences: list[RunningSequence | None] = [None] * count
        self.prompt_of: list[SlotEntry | None] = [None] * count
        self.active = np.zeros(count, np.bool_)
        self.token, self.position, self.first, self.phase_end, self.sampled_from, self.top_k, self.prompt_epoch = (
            np.zeros(count, np.int64) for _ in range(7)
        )
        self.key = np.zeros(count, np.uint64)
        self.temperature = np.ones(count, np.float32)
        self.top_p = np.ones(count, np.float64)
        self.greedy, self.truncated, self.watched = (np.zeros(count, np.bool_) for _ in range(3))
        self.stop_ids = np.full((count, 1), -1, np.int64)
        # Not touched before it is written, so that a long limit costs no memory.
        self.drawn = np.empty((count, longest), np.int64)
        self.logprobs = np.empty((count, longest), np.float32)
        self.entropies = np.empty((count, longest), np.float32)

    def free(self) -> list[int]:
        """Free slots, lowest first, so that running ones stay together at the front."""
        return [int(slot) for slot in np.flatnonzero(~self.active)]

    def running(self) -> list[int]:
        """Slots that hold a running sequence, in order."""
        return [int(slot) for slot in np.flatnonzero(self.active)]

    def occupy(self, slot: int, sequence: RunningSequence, epoch: int) -> None:
        """Start a sequence in a free slot, whose keys and values of the prompt are of weights `epoch`."""
        entry = sequence.entry
        sampling = entry.request.sampling
        self.sequences[slot] = sequence
        self.prompt_of[slot] = entry
        self.prompt_epoch[slot] = epoch
        self.active[slot] = True
        self.token[slot] = entry.ids[-1]
        self.position[slot] = self.first[slot] = len(entry.ids) - 1
        self.key[slot] = sequence.key
        self.greedy[slot] = sampling.temperature == 0
        self.temperature[slot] = sampling.temperature or 1.0
        self.top_k[slot] = sampling.top_k or 0
        self.top_p[slot] = sampling.top_p
        self.truncated[slot] = sampling.temperature > 0 and sampling.truncates
        self.follow(slot)
        missing = len(entry.stop_ids) - self.stop_ids.shape[1]
        if missing > 0:
            self.stop_ids = np.pad(self.stop_ids, ((0, 0), (0, missing)), constant_values=-1)
        self.stop_ids[slot] = -1
        self.stop_ids[slot, : len(entry.stop_ids)] = entry.stop_ids

    def follow(self, slot: int) -> None:
        """Take over what the chain of the slot's sequence says of its present phase."""
        sequence = self.sequences[slot]
        assert sequence is not None
        chain = sequence.chain
        self.phase_end[slot], self.sampled_from[slot] = chain.phase_end, chain.sampled_from
        self.watched[slot] = chain.phase.marker is not None or bool(sequence.entry.request.sampling.stop)

    def release(self, slot: int) -> None:
        """Free a slot; its options go back to the common case, so that they cost the others nothing."""
        self.sequences[slot] = None
        self.active[slot] = self.greedy[slot] = self.truncated[slot] = self.watched[slot] = False
        self.sampled_from[slot] = 0
        self.temperature[slot] = 1.0

    def lengths(self, width: int) -> NDArray[np.int64]:
        """Tokens that the first `width` slots attend to in the next step, int64 [width]; 1 where free."""
        return np.where(self.active[:width], self.position[:width] + 1, 1)

    def move(self, source: Sequence_[int], target: Sequence_[int]) -> None:
        """Move running sequences, pairwise, to slots that are free or are themselves moved (without keys and values,
        which are in the cache)."""
        of, to = np.array(source), np.array(target)
        done = int((self.position[of] - self.first[of]).max())
        self.drawn[to, :done] = self.drawn[of, :done]
        self.logprobs[to, :done] = self.logprobs[of, :done]
        self.entropies[to, :done] = self.entropies[of, :done]
        for values in (
            self.active, self.token, self.position, self.first, self.phase_end, self.sampled_from, self.key,
            self.temperature, self.top_p, self.top_k, self.greedy, self.truncated, self.watched, self.stop_ids,
            self.prompt_epoch,
        ):  # fmt: skip
            values[to] = values[of]
        moved = [(self.sequences[slot], self.prompt_of[slot]) for slot in source]
        donors = [entry is not None and entry.donor == slot for slot, (_, entry) in zip(source, moved, strict=True)]
        for slot, (sequence, entry), donor in zip(target, moved, donors, strict=True):
            self.sequences[slot], self.prompt_of[slot] = sequence, entry
            if donor and entry is not None:
                entry.donor = slot
        for slot in set(source) - set(target):
            self.release(slot)


class Scheduler:
    """The queue of requests and their way into slots.

    `epoch` counts weight changes: a prompt's keys and values are lent only to samples of the same request and epoch.
    """

    def __init__(self, slots: Slots, cache: SlotCache, kept: KeptKeys, shrink: bool, apart: bool = False) -> None:
        """`apart`: a row does not depend on how many there are, so that fewer than `LEAST_ROWS` may be decoded."""
        self.slots = slots
        self.cache = cache
        self.kept = kept
        self.waiting: deque[SlotEntry] = deque()
        self.epoch = 0
        self._may_shrink = shrink
        self._apart = apart

    def enqueue(self, entry: SlotEntry) -> None:
        """Queue an entry: last, or before all that have not begun if it continues a trajectory."""
        if entry.request.continues is None:
            self.waiting.append(entry)
        elif self.waiting and self.waiting[0].next_index:
            self.waiting.insert(1, entry)
        else:
            self.waiting.appendleft(entry)

    def admit(self) -> list[PrefillJob]:
        """Give free slots to waiting samples, first come first served; the prompts that must be computed for it.

        A prompt is computed once for all its samples, those of other requests that are admitted with them included.
        """
        jobs: list[PrefillJob] = []
        places: dict[bytes, int] = {}  # of a whole prompt among the jobs
        free = dict.fromkeys(sorted(self.slots.free(), key=self.kept.holds) if self.waiting else [])
        while free and self.waiting:
            entry = self.waiting[0]
            taken = self._chosen(entry, free)
            donor = self._donor(entry)
            for slot in taken:
                del free[slot]
                self.slots.occupy(slot, RunningSequence(entry, entry.next_index), self.epoch)
                entry.next_index += 1
            if donor is not None:
                self.cache.copy([donor], [slot for slot in taken if slot != donor], len(entry.prefix))
            else:
                entry.donor = taken[0]
                name = entry.request.continues
                past = 0 if name is None else self.kept.resume(name, taken[0], entry.ids)
                if len(entry.prefix) > past:
                    self._join(jobs, places, PrefillJob(entry.prefix[past:], tuple(taken), past))
            if not entry.waiting:
                self.waiting.popleft()
        return jobs

    @staticmethod
    def _join(jobs: list[PrefillJob], places: dict[bytes, int], job: PrefillJob) -> None:
        """Add a job, or its slots to the one that computes the same whole prompt."""
        place = len(jobs) if job.past else places.setdefault(job.token_ids.tobytes(), len(jobs))
        if place < len(jobs):
            jobs[place] = replace(job, slots=(*jobs[place].slots, *job.slots))
        else:
            jobs.append(job)

    def _chosen(self, entry: SlotEntry, free: Iterable[int]) -> list[int]:
        """The free slots that an entry gets: the one that holds what it continues, else the first ones, vacated."""
        name = entry.request.continues
        home = None if name is None else self.kept.slot_of(name, entry.ids)
        if home is not None:
            return [home]
        found = list(islice(free, entry.waiting))
        for slot in found:
            self.kept.vacate(slot)
        return found

    def _donor(self, entry: SlotEntry) -> int | None:
        """A slot that holds the entry's prompt, computed with the present weights."""
        slot = entry.donor
        if slot is None or self.slots.prompt_of[slot] is not entry or self.slots.prompt_epoch[slot] != self.epoch:
            return None
        return slot

    def width(self) -> int:
        """Rows to decode: whole units up to the last running slot, or all slots; 0 if none runs."""
        running = np.flatnonzero(self.slots.active)
        if not len(running):
            return 0
        if not self._may_shrink:
            return self.slots.count
        return min(self._whole_units(int(running[-1]) + 1), self.slots.count)

    def _whole_units(self, rows: int) -> int:
        unit = LEAST_ROWS if not self._apart else TOGETHER if rows > TOGETHER else 1
        return -(-rows // unit) * unit

    def shrink(self, pending: Set[int]) -> None:
        """When nothing waits and a unit of rows idles, move the last sequences to the front: fewer rows to decode.

        A move costs as much as a row in two or three steps, so it soon pays. Slots whose prompts are `pending`, that is
        not computed yet, stay where they are until the next step.
        """
        slots = self.slots
        running = slots.running()
        least = self._whole_units(len(running))
        if self.waiting or not self._may_shrink or not running or self.width() <= least:
            return
        high = [slot for slot in running if slot >= least and slot not in pending]
        low = sorted((slot for slot in slots.free() if slot < least), key=self.kept.holds)[: len(high)]
        for slot in low:
            self.kept.vacate(slot)
        if high:
            self.cache.copy(high, low, int(self.slots.position[high].max()))
            self.slots.move(high, low)
