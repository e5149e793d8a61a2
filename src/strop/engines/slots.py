"""The slots of an engine: the state of running sequences as one array a field, and who sits where.

All of it lives on the host, so that the work of a step is a few array operations whatever the number of slots; a step
sends tokens, positions and uniforms to the device and brings the drawn tokens and their log-probs back.

Shapes: Q slots, C longest sequence in tokens.
"""

from __future__ import annotations

from collections.abc import Sequence as Sequence_
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from strop.engines.continuation import Chain, ContinuationPlan, StopWatch
from strop.engines.protocol import Request
from strop.engines.sampling import stream_key


@dataclass(eq=False)
class SlotEntry:
    """A submitted request: its next samples wait, `donor` is the slot that last held its prompt."""

    request: Request
    ids: NDArray[np.int64]
    stop_ids: tuple[int, ...]
    plan: ContinuationPlan
    watch: StopWatch
    next_index: int = 0
    donor: int | None = None

    @property
    def waiting(self) -> int:
        """Samples that have not been given a slot yet."""
        return self.request.n - self.next_index

    @property
    def prefix(self) -> NDArray[np.int64]:
        """The prompt but its last token, which the first decoding step feeds."""
        return self.ids[:-1]


class RunningSequence:
    """One running sample."""

    def __init__(self, entry: SlotEntry, index: int) -> None:
        self.entry = entry
        self.index = index
        self.key = stream_key(entry.request.seed, index)
        self.chain = Chain(entry.plan.continuation(self.key), entry.watch)


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
        """Move running sequences, pairwise, to slots that are free or are moved away from here (their keys and values
        are the cache's affair)."""
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
