"""Who runs where: waiting samples get free slots, and the last running ones move to the front when the rest is done."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Set
from collections.abc import Sequence as Sequence_
from dataclasses import replace
from itertools import islice

import numpy as np

from strop.engines.slots import RunningSequence, SlotEntry, Slots
from strop.engines.torch.kv import BLOCK, KeptKeys, PrefillJob, SlotCache, keys_read, spans

# The row count from which the rows of a float32 matrix product no longer depend on it.
LEAST_ROWS = 16
# Rows that compiled products take together, where a row never depends on the others.
ROWS_APART = 8
# What copying a key and its value costs, in keys and values that attention reads.
_COPY = 4


class Scheduler:
    """The queue of requests and their way into slots.

    `epoch` counts weight changes: a prompt's keys and values are lent only to samples of the same request and epoch.
    """

    def __init__(
        self, slots: Slots, cache: SlotCache, kept: KeptKeys, shrink: bool, unit: int = LEAST_ROWS
    ) -> None:
        """Decode whole `unit`s of rows: `LEAST_ROWS`, or fewer where a row does not depend on their number."""
        self.slots = slots
        self.cache = cache
        self.kept = kept
        self.waiting: deque[SlotEntry] = deque()
        self.epoch = 0
        self._may_shrink = shrink
        self._unit = unit
        self._read_in_vain = 0

    def enqueue(self, entry: SlotEntry) -> None:
        """Let an entry wait: last; or, where it continues a trajectory, before all that have not begun, so that few
        are under way at once."""
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
        return -(-rows // self._unit) * self._unit

    def shrink(self, pending: Set[int]) -> None:
        """When nothing waits and a unit of rows idles, move the last sequences to the front: fewer rows to decode.

        A move costs what a row costs in two or three steps, so it soon pays. Slots whose prompts are `pending`, yet to
        be computed, stay where they are until the next step.
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
        self._move(high, low)

    def sort(self) -> None:
        """Move the longest sequences to the front once the keys that rows have read in vain since the last time would
        have paid for it.

        Called before sequences are admitted, whose prompts are yet to be written into their slots.
        """
        width = self.width()
        if not width:
            self._read_in_vain = 0  # what happens to a batch must not depend on those before: a resumed run has none
        if not width or not self.cache.by_length:
            return
        lengths = self.slots.lengths(width)
        best = keys_read(spans(np.sort(lengths)[::-1]))
        self._read_in_vain += keys_read(spans(lengths)) - best
        if self._read_in_vain < best:  # no move of many sequences is as cheap as that
            return
        running = np.flatnonzero(self.slots.active)
        wanted = running[np.argsort(-(lengths[running] // BLOCK), kind="stable")]
        moving = wanted != running
        if self._read_in_vain >= _COPY * int(lengths[wanted[moving]].sum()):
            self._move(wanted[moving].tolist(), running[moving].tolist())
            self._read_in_vain = 0

    def _move(self, source: Sequence_[int], target: Sequence_[int]) -> None:
        if source:
            self.cache.copy(source, target, int(self.slots.position[source].max()))
            self.slots.move(source, target)
