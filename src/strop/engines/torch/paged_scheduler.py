"""Who runs where, and on which pages: admission by what is free, and sequences set aside when pages run out.

Pages are taken as sequences grow, so that many run at once although few reach their longest; when none is left, the
sequence that came last is set aside with what it drew, and computed again when there is room. A sequence alone always
fits, so that somebody always goes on.

The samples of a group share the full pages of their prompt. A prompt whose samples still wait keeps its pages, until
they are needed or the weights change: pages never serve samples that start with other weights.

Shapes: Q slots, W pages of the longest sequence, S tokens of a page.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence as Sequence_
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from strop.base.types import FloatArray
from strop.engines.slots import Entry, Sequence, Slots
from strop.engines.torch.kv import Ids
from strop.engines.torch.pages import PagedCache, PagedJob, PagePool


@dataclass(eq=False)
class Parked:
    """A sequence that was set aside: what it drew, and what of its slot the request alone does not say."""

    sequence: Sequence
    drawn: Ids
    logprobs: FloatArray
    budget: int
    inject_at: int
    thinks: bool


@dataclass(eq=False)
class _Prompt:
    """Pages of a prompt whose samples still wait: full ones to share, and one to copy with the tokens after them."""

    full: list[int]
    tail: int | None

    @property
    def pages(self) -> list[int]:
        return self.full if self.tail is None else [*self.full, self.tail]


class PagedScheduler:
    """Slots, pages and queues of a paged engine; `waiting` is the engine's own queue of requests.

    Attributes:
        table: int32 [Q, W], the pages of each slot in order, 0 where it has none.
        sent: int64 [Q], the position that the device's next step feeds, if the row has not ended there.
        parked: sequences set aside, the oldest first.
    """

    def __init__(self, slots: Slots, waiting: deque[Entry], cache: PagedCache, longest: int) -> None:
        self.slots = slots
        self.waiting = waiting
        self.cache = cache
        self.page = cache.page
        self.pool = PagePool(cache.pages)
        self.parked: deque[Parked] = deque()
        self.table = np.zeros((slots.count, self.pages_of(longest)), np.int32)
        self.sent = np.zeros(slots.count, np.int64)
        self._owned: list[list[int]] = [[] for _ in range(slots.count)]
        self._came = np.zeros(slots.count, np.int64)
        self._arrivals = 0
        self._prompts: dict[Entry, _Prompt] = {}

    def pages_of(self, tokens: int) -> int:
        """Pages that hold `tokens` tokens."""
        return -(-tokens // self.page)

    # ------------------------------------------------------------------ in

    def admit(self, version: int) -> tuple[list[int], list[PagedJob]]:
        """Give free slots to sequences that were set aside, then to waiting samples; these slots, and what must be
        computed for them."""
        jobs: list[PagedJob] = []
        taken: list[int] = []
        free = self.slots.free() if self.parked or self.waiting else []
        while self.parked and len(taken) < len(free):
            job = self._resume(self.parked[0], free[len(taken)], version)
            if job is None:
                return taken, jobs  # those who wait may not overtake
            taken.append(free[len(taken)])
            jobs.append(job)
            self.parked.popleft()
        while self.waiting and len(taken) < len(free):
            entry = self.waiting[0]
            started = self._start(entry, free[len(taken) :], version, jobs)
            taken += started
            if entry.waiting:
                break
            self.waiting.popleft()
        return taken, jobs

    def _start(self, entry: Entry, free: list[int], version: int, jobs: list[PagedJob]) -> list[int]:
        """Start samples of `entry` in slots of `free`, as many as there is room for; those slots."""
        tokens = len(entry.prefix)
        full, rest = divmod(tokens, self.page)
        prompt = self._prompts.get(entry)
        fixed = 0 if prompt is not None else full
        room = self._room(fixed + 2, entry) - fixed
        count = min(entry.waiting, len(free), room)
        # What nobody will copy must not be computed: its page could go to another in this very step.
        tail = prompt is None and rest > 0 and count < entry.waiting
        count = min(count, room - 1) if tail else count
        if count <= 0:
            return []
        job: PagedJob | None = None
        if prompt is None:
            prompt = _Prompt(self.pool.take(full), self.pool.take(1)[0] if tail else None)
            if tokens:
                job = PagedJob(entry.prefix)
                job.write(prompt.full, self.page)
                jobs.append(job)
        started = free[:count]
        tails = self.pool.take(count)
        for slot, own in zip(started, tails, strict=True):
            self._occupy(slot, Sequence(entry, entry.next_index, [(version, 0)]), [*prompt.full, own])
            self.pool.share(prompt.full)
            entry.next_index += 1
        if job is not None:
            for page in (*tails, *prompt.pages[full:]):
                job.write([page], self.page, full * self.page)
        elif prompt.tail is not None:
            self.cache.copy(prompt.tail, tails)
        self._prompts[entry] = prompt
        if not entry.waiting:
            self.forget(entry)
        return started

    def _resume(self, parked: Parked, slot: int, version: int) -> PagedJob | None:
        """Go on with a sequence that was set aside, in a free slot; what must be computed, or None for want of room."""
        sequence, done = parked.sequence, len(parked.drawn)
        ids = np.concatenate((sequence.entry.ids, parked.drawn))[:-1]
        need = self.pages_of(len(ids) + 1)
        if self._room(need) < need:
            return None
        sequence.versions.append((version, done))
        pages = self.pool.take(need)
        self._occupy(slot, sequence, pages)
        slots = self.slots
        slots.drawn[slot, :done], slots.logprobs[slot, :done] = parked.drawn, parked.logprobs
        slots.position[slot] += done
        self.sent[slot] = slots.position[slot]
        if done:
            slots.token[slot] = parked.drawn[-1]
        slots.budget[slot], slots.inject_at[slot], slots.thinks[slot] = parked.budget, parked.inject_at, parked.thinks
        job = PagedJob(ids)
        job.write(pages, self.page)
        return job

    def _occupy(self, slot: int, sequence: Sequence, pages: list[int]) -> None:
        self.slots.occupy(slot, sequence, 0)
        self.sent[slot] = self.slots.position[slot]
        self._own(slot, pages)
        self._arrivals += 1
        self._came[slot] = self._arrivals

    def _room(self, wanted: int, entry: Entry | None = None) -> int:
        """Pages that may be given to newcomers (of `entry`): a page stays free for each running sequence to grow.

        Prompts kept for others are given up where there are fewer than `wanted`.
        """
        running = int(self.slots.active.sum())
        if self.pool.available - running < wanted:
            self._reclaim(entry)
        return self.pool.available - running

    def _reclaim(self, but: Entry | None = None) -> None:
        """Give up prompts that are kept for waiting samples, except that of `but`."""
        for entry in [entry for entry in self._prompts if entry is not but]:
            self.forget(entry)

    def forget(self, entry: Entry) -> None:
        """Give up the prompt that is kept for the entry's waiting samples, if there is one."""
        prompt = self._prompts.pop(entry, None)
        if prompt is not None:
            self.pool.drop(prompt.pages)

    def weights_changed(self) -> None:
        """Prompts computed so far serve no more samples."""
        self._reclaim()

    # ------------------------------------------------------------------ while they run

    def running(self) -> NDArray[np.intp]:
        """Slots whose sequences may draw another token, as far as the host knows."""
        slots = self.slots
        return np.flatnonzero(slots.active & (self.sent < slots.first + slots.budget))

    def cover(self, rows: NDArray[np.intp]) -> list[int] | None:
        """See to it that `rows` have a page for the token that each feeds next, and, while there are pages enough, for
        those of the next S steps; the rows that got pages, or None if there are not even the first."""
        needed = self.sent[rows] + 1
        have = np.array([len(self._owned[row]) for row in rows], np.int64)
        if (needed <= have * self.page).all():
            return []
        limit = self.slots.first[rows] + self.slots.budget[rows]
        for goal in (np.minimum(needed + self.page, limit), needed):
            missing = np.maximum(-(-goal // self.page) - have, 0)
            if missing.sum() > self.pool.available:
                self._reclaim()
            if missing.sum() <= self.pool.available:
                grown = np.flatnonzero(missing)
                for place in grown.tolist():
                    row = int(rows[place])
                    self._own(row, [*self._owned[row], *self.pool.take(int(missing[place]))])
                return [int(row) for row in rows[grown]]
        return None

    def park(self) -> int:
        """Set the sequence that came last aside, and free its slot: that slot. All its tokens are on the host."""
        slots = self.slots
        slot = max(slots.running(), key=lambda row: int(self._came[row]))
        sequence = slots.sequences[slot]
        assert sequence is not None
        done = int(slots.position[slot] - slots.first[slot])
        self.parked.append(
            Parked(
                sequence, slots.drawn[slot, :done].copy(), slots.logprobs[slot, :done].copy(),
                int(slots.budget[slot]), int(slots.inject_at[slot]), bool(slots.thinks[slot]),
            )
        )  # fmt: skip
        slots.release(slot)
        self.release(slot)
        return slot

    def gather(self, least: int) -> list[int]:
        """Move running sequences from slots `least` and above to free ones below; all slots concerned."""
        slots = self.slots
        high = [slot for slot in slots.running() if slot >= least]
        low = [slot for slot in slots.free() if slot < least][: len(high)]
        if not high:
            return []
        for source, target in zip(high, low, strict=True):
            self._own(target, self._owned[source])
            self._own(source, [])
            self.sent[target] = self.sent[source]
            self._came[target] = self._came[source]
        slots.move(high, low)
        return [*high, *low]

    def release(self, slot: int) -> None:
        """Give back the pages of a slot."""
        self.pool.drop(self._owned[slot])
        self._own(slot, [])

    def recompute(self) -> list[PagedJob]:
        """Jobs that compute the keys and values of all running sequences again, shared pages once."""
        slots = self.slots
        jobs: list[PagedJob] = []
        written: set[int] = set()
        for slot in slots.running():
            sequence = slots.sequences[slot]
            assert sequence is not None
            done = int(slots.position[slot] - slots.first[slot])
            job = PagedJob(np.concatenate((sequence.entry.ids, slots.drawn[slot, :done]))[:-1])
            for place, page in enumerate(self._owned[slot]):
                if page not in written:
                    job.write([page], self.page, place * self.page)
            written.update(self._owned[slot])
            if len(job.token_ids):
                jobs.append(job)
        return jobs

    def _own(self, slot: int, pages: Sequence_[int]) -> None:
        self._owned[slot] = list(pages)
        self.table[slot] = 0
        self.table[slot, : len(pages)] = pages
