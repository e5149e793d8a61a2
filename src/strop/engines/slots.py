"""The slots of an engine: the state of running sequences as one array a field, and who sits where.

All of it lives on the host, so that the work of a step is a few array operations whatever the number of slots; a step
sends tokens, positions and uniforms to the device and brings the drawn tokens and their log-probs back.

Shapes: Q slots, C longest sequence in tokens.
"""

from __future__ import annotations

from collections.abc import Sequence as Sequence_
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from strop.base.types import BoolArray, VersionSpan
from strop.engines.protocol import Request
from strop.engines.sampling import stream_key
from strop.engines.thinking import Thinking

NEVER = np.iinfo(np.int64).max


@dataclass(eq=False)
class Entry:
    """A submitted request: its next samples wait, `donor` is the slot that last held its prompt."""

    request: Request
    ids: NDArray[np.int64]
    stop_ids: tuple[int, ...]
    thinking: Thinking | None = None
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


@dataclass(eq=False)
class Sequence:
    """One running sample; `versions` are (version, first token that carries it).

    `interrupted_at` is the first token of an interruption's phrase, once there is one.
    """

    entry: Entry
    index: int
    versions: list[tuple[int, int]] = field(default_factory=list)
    interrupted_at: int | None = None

    @property
    def resumed_at(self) -> int:
        """The first token after an interruption, or of the completion."""
        if self.interrupted_at is None or self.entry.thinking is None:
            return 0
        return self.interrupted_at + len(self.entry.thinking.phrase)

    def injected(self, length: int) -> BoolArray:
        """Which tokens of a completion of `length` tokens were forced, bool [length]."""
        mask = np.zeros(length, np.bool_)
        if self.interrupted_at is not None:
            mask[self.interrupted_at : self.resumed_at] = True
        return mask

    def spans(self, length: int) -> tuple[VersionSpan, ...]:
        """The version spans of a completion of `length` tokens; a version that sampled nothing has none."""
        ends = [start for _, start in self.versions[1:]] + [length]
        pairs = zip(self.versions, ends, strict=True)
        merged: list[VersionSpan] = []
        for (version, start), end in pairs:
            if end <= start:
                continue
            if merged and merged[-1].version == version:
                merged[-1] = VersionSpan(version, merged[-1].start, end)
            else:
                merged.append(VersionSpan(version, start, end))
        return tuple(merged)


class Slots:
    """Q slots; every attribute is an array [Q] unless said otherwise.

    Attributes:
        sequences: list [Q], None where free.
        active: bool.
        token, position: int64, the token that the next step feeds, and its position. A free slot keeps its position, so
            that what it goes on writing never falls into the prompt that it may still lend to others.
        first: int64, position of the last prompt token: `position - first` tokens have been drawn.
        budget: int64, most tokens to draw, as far as is known: the end of thinking may change it.
        inject_at: int64, after how many tokens an interruption's phrase comes, or `NEVER`.
        thinks: bool, its end of thinking is looked for.
        key: uint64, the sample's stream of uniforms.
        temperature, top_p: float, top_k: int64 (0: off); greedy, truncated, has_strings: bool.
        stop_ids: int64 [Q, E], -1 where there are fewer.
        drawn, logprobs, entropies: int64 and float32 [Q, C], what has been drawn so far.
        prompt_of, prompt_epoch: whose prompt's keys and values the slot holds, of which weights.
    """

    def __init__(self, count: int, longest: int) -> None:
        self.count = count
        self.sequences: list[Sequence | None] = [None] * count
        self.prompt_of: list[Entry | None] = [None] * count
        self.active = np.zeros(count, np.bool_)
        self.token, self.position, self.first, self.budget, self.top_k, self.prompt_epoch = (
            np.zeros(count, np.int64) for _ in range(6)
        )
        self.inject_at = np.full(count, NEVER, np.int64)
        self.key = np.zeros(count, np.uint64)
        self.temperature = np.ones(count, np.float32)
        self.top_p = np.ones(count, np.float64)
        self.greedy, self.truncated, self.has_strings, self.thinks = (np.zeros(count, np.bool_) for _ in range(4))
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

    def occupy(self, slot: int, sequence: Sequence, epoch: int) -> None:
        """Start a sequence in a free slot, whose keys and values of the prompt are of weights `epoch`."""
        entry = sequence.entry
        sampling = entry.request.sampling
        self.sequences[slot] = sequence
        self.prompt_of[slot] = entry
        self.prompt_epoch[slot] = epoch
        self.active[slot] = True
        self.token[slot] = entry.ids[-1]
        self.position[slot] = self.first[slot] = len(entry.ids) - 1
        self.budget[slot] = sampling.max_new_tokens
        self.key[slot] = stream_key(entry.request.seed, sequence.index)
        self.greedy[slot] = sampling.temperature == 0
        self.temperature[slot] = sampling.temperature or 1.0
        self.top_k[slot] = sampling.top_k or 0
        self.top_p[slot] = sampling.top_p
        self.truncated[slot] = sampling.temperature > 0 and sampling.truncates
        self.has_strings[slot] = bool(sampling.stop)
        if entry.thinking is not None:
            position = entry.thinking.position(int(self.key[slot]))
            self.thinks[slot] = True
            self.budget[slot] = entry.thinking.budget
            self.inject_at[slot] = NEVER if position is None else position
        missing = len(entry.stop_ids) - self.stop_ids.shape[1]
        if missing > 0:
            self.stop_ids = np.pad(self.stop_ids, ((0, 0), (0, missing)), constant_values=-1)
        self.stop_ids[slot] = -1
        self.stop_ids[slot, : len(entry.stop_ids)] = entry.stop_ids

    def release(self, slot: int) -> None:
        """Free a slot; its options go back to the common case, so that they cost the others nothing."""
        self.sequences[slot] = None
        self.active[slot] = self.greedy[slot] = self.truncated[slot] = self.has_strings[slot] = False
        self.temperature[slot] = 1.0
        self.end_thinking(slot)

    def end_thinking(self, slot: int) -> None:
        """Neither look for its end nor interrupt it any more."""
        self.thinks[slot] = False
        self.inject_at[slot] = NEVER

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
            self.active, self.token, self.position, self.first, self.budget, self.key, self.temperature, self.top_p,
            self.top_k, self.greedy, self.truncated, self.has_strings, self.stop_ids, self.prompt_epoch, self.inject_at,
            self.thinks,
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
