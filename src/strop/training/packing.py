"""Samples of an update → micro-batches of whole sequences, every trained token with its final loss weight.

    for samples in split_into_updates(step_samples, updates_per_step=4, passes_per_batch=1, seed=step):
        update = pack(samples, TokenMean(), tokens_per_microbatch=16_384)
        metrics = trainer.update(update)

S sequences of an update, L tokens of a sequence, N packed tokens and M trained tokens of a micro-batch.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left, insort
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray

from strop.algorithms.aggregation import Aggregation
from strop.algorithms.tokens import Tokens
from strop.base.sample import Sample, completions_of
from strop.base.seeds import permutation
from strop.base.types import FloatArray, InputError, StropError
from strop.model.policy import PackedInputs
from strop.model.routing import RecordedExperts


class NothingToTrain(StropError):
    """No sample of the update has a trained token; a loop that filters samples skips such an update."""


class TooFewGroups(StropError):
    """A step's trained prompt groups cannot fill its updates."""


@dataclass(frozen=True, eq=False)
class MicroBatch:
    """The input of one forward and backward: `packed` feeds the policy, `tokens` the objective; their M rows align."""

    packed: PackedInputs
    tokens: Tokens


@dataclass(frozen=True, eq=False)
class Update:
    """The micro-batches of one optimizer step.

    Attributes:
        micro_batches: at least one; `Tokens.sequence` is unique over all of them.
        sequences: S, sequences with a trained token.
        tokens: packed tokens, prompts included.
        trained_tokens: tokens that carry loss.
        pairs: of a token and one that it attends to, itself among them, as if each layer attended to all before.
        room: tokens the micro-batches could hold: the budget of each, or the length of a sequence beyond the budget.
    """

    micro_batches: tuple[MicroBatch, ...]
    sequences: int
    tokens: int
    trained_tokens: int
    pairs: int
    room: int

    @property
    def efficiency(self) -> float:
        """How full the micro-batches are, in (0, 1]."""
        return self.tokens / self.room


def pack(samples: Sequence[Sample], aggregation: Aggregation, tokens_per_microbatch: int, ranks: int = 1) -> Update:
    """Pack an update's samples into as few micro-batches as best-fit-decreasing finds; see `even_bins` for `ranks` > 1.

    A sequence is never split: one longer than the budget has a micro-batch to itself. Samples without a trained token
    are left out, and do not count in the aggregation's denominators. The weights come from the whole update, so
    neither the budget nor the order of the samples changes Σ weight · loss. The sequences of one completion
    (`Sample.whole`) count as one, with all of its tokens.

    Args:
        samples: of one update; `Tokens.sequence` is the index into it.
        aggregation: gives a token of sequence s its weight from all trained counts and groups.
        tokens_per_microbatch: the budget in tokens, prompts included.
        ranks: how many there are to compute the micro-batches side by side.

    Raises:
        NothingToTrain: no sample has a trained token.
    """
    if tokens_per_microbatch < 1:
        raise InputError(f"tokens_per_microbatch is {tokens_per_microbatch}; it must be at least 1")
    kept = [index for index, sample in enumerate(samples) if sample.trained_tokens]
    if not kept:
        raise NothingToTrain(f"none of the update's {len(samples)} samples has a trained token")
    trained = np.array([samples[index].trained_tokens for index in kept], dtype=np.int32)
    whole = completions_of([samples[index] for index in kept])
    of_whole = np.bincount(whole, weights=trained).astype(np.int32)
    groups = np.zeros_like(of_whole)
    groups[whole] = [samples[index].group for index in kept]
    weights: FloatArray = np.zeros(len(samples), dtype=np.float32)
    weights[kept] = aggregation(of_whole, groups)[whole]
    lengths = [len(samples[index]) for index in kept]
    bins = fill_bins(lengths, tokens_per_microbatch) if ranks == 1 else even_bins(lengths, tokens_per_microbatch, ranks)
    batches = tuple(_micro_batch(samples, weights, [kept[place] for place in members]) for members in bins)
    room = sum(max(tokens_per_microbatch, len(batch.packed.token_ids)) for batch in batches)
    pairs = sum(length * (length + 1) // 2 for length in lengths)
    return Update(batches, len(kept), sum(lengths), int(trained.sum()), pairs, room)


def fill_bins(lengths: Sequence[int], budget: int) -> list[list[int]]:
    """Best-fit-decreasing bin packing in O(S log S) comparisons; a length over the budget gets a bin to itself.

    Longest first, equal lengths in the order given; each goes where it leaves the least room. Within a bin the order
    is longest first too, so that attention which buckets by length wastes least.

    Returns:
        For each bin the indices into `lengths`.
    """
    order = sorted(range(len(lengths)), key=lambda index: (-lengths[index], index))
    bins: list[list[int]] = []
    free: list[tuple[int, int]] = []  # (room left, bin), sorted
    for index in order:
        length = lengths[index]
        place = bisect_left(free, (length, -1))
        if place < len(free):
            room, chosen = free.pop(place)
        else:
            room, chosen = budget, len(bins)
            bins.append([])
        bins[chosen].append(index)
        if room > length:
            insort(free, (room - length, chosen))
    return bins


def even_bins(lengths: Sequence[int], budget: int, ranks: int) -> list[list[int]]:
    """Bins for ranks that wait for each other: as few rounds of `ranks` bins as the budget allows, filled alike.

    Longest first, each into the emptiest bin. A length over the budget gets a bin to itself, and no bin is empty: the
    last round may have fewer than `ranks`.

    Returns:
        For each bin the indices into `lengths`.
    """
    order = sorted(range(len(lengths)), key=lambda index: (-lengths[index], index))
    rounds = max(1, -(-sum(lengths) // (budget * ranks)))
    while True:
        filled = [(0, place) for place in range(rounds * ranks)]
        bins: list[list[int]] = [[] for _ in filled]
        for index in order:
            tokens, place = heapq.heappop(filled)
            bins[place].append(index)
            heapq.heappush(filled, (tokens + lengths[index], place))
        if all(tokens <= budget or len(bins[place]) == 1 for tokens, place in filled):
            return [members for members in bins if members]
        rounds += 1


def _micro_batch(samples: Sequence[Sample], weights: FloatArray, members: Sequence[int]) -> MicroBatch:
    """Lay the sequences `members` end to end; the target at position t is predicted by the row of position t - 1."""
    chosen = [samples[index] for index in members]
    lengths = tuple(len(sample) for sample in chosen)
    positions = np.concatenate([np.arange(length) for length in lengths])
    token_ids = np.concatenate([sample.token_ids for sample in chosen])
    # Never 0: the first token of a sequence is not trained (Sample checks it).
    at = np.flatnonzero(np.concatenate([sample.trained for sample in chosen]))
    sequence = np.repeat(np.asarray(members), lengths)[at]
    generator = np.concatenate([sample.logprobs for sample in chosen])[at]
    anchors = _column(chosen, "anchors", at)
    experts = RecordedExperts.of([sample.routed_experts for sample in chosen], lengths)
    packed = PackedInputs(
        token_ids=_int64(token_ids), positions=_int64(positions), lengths=lengths,
        rows=_int64(at - 1), targets=_int64(token_ids[at]), experts=experts,
        candidates=_column(chosen, "reference_top_ids", at),
    )  # fmt: skip
    tokens = Tokens(
        sequence=_int64(sequence),
        position=_int64(positions[at]),
        sample=_int64(np.repeat([sample.id for sample in chosen], lengths)[at]),
        version=_int64(np.concatenate([sample.versions for sample in chosen])[at]),
        generator_logprob=_float32(generator),
        anchor_logprob=_float32(generator) if anchors is None else anchors,
        advantage=_float32(np.concatenate([sample.advantages for sample in chosen])[at]),
        weight=_float32(weights[sequence]),
        correction=_column(chosen, "corrections", at),
        old_entropy=_column(chosen, "old_entropies", at),
        reference_logprob=_column(chosen, "reference_logprobs", at),
        reference_top=_column(chosen, "reference_top_logprobs", at),
        value=_column(chosen, "values", at),
        value_target=_column(chosen, "returns", at),
    )
    return MicroBatch(packed, tokens)


def _column(
    samples: Sequence[Sample],
    name: Literal[
        "anchors", "corrections", "old_entropies", "reference_logprobs", "reference_top_ids", "reference_top_logprobs",
        "values", "returns",
    ],
    at: NDArray[np.intp],
) -> torch.Tensor | None:
    """An optional column of the samples at the trained places; all of them have it, or none."""
    columns = [vars(sample)[name] for sample in samples]
    present = [column for column in columns if column is not None]
    if not present:
        return None
    if len(present) < len(columns):
        raise ValueError(f"Sample.{name} is filled in only {len(present)} of {len(columns)} samples")
    joined = np.concatenate(present)[at]
    return _int64(joined) if joined.dtype.kind == "i" else _float32(joined)


def _int64(values: np.ndarray) -> torch.Tensor:
    return torch.from_numpy(values.astype(np.int64))


def _float32(values: np.ndarray) -> torch.Tensor:
    return torch.from_numpy(values.astype(np.float32))


def _empty() -> MicroBatch:
    none, nothing = torch.zeros(0, dtype=torch.int64), torch.zeros(0)
    one = torch.zeros(1, dtype=torch.int64)
    tokens = Tokens(none, none, none, none, nothing, nothing, nothing, nothing)
    return MicroBatch(PackedInputs(token_ids=one, positions=one, lengths=(1,), rows=none, targets=none), tokens)


# One token that is not trained: what a rank computes to take part in the exchanges of those that have work.
EMPTY = _empty()


def split_into_updates(
    samples: Sequence[Sample], updates_per_step: int, passes_per_batch: int, seed: int
) -> list[list[Sample]]:
    """Divide a step's samples into its updates by whole prompt groups, shuffled anew in each pass.

    Samples without a trained token are left out first, so that no update can be empty. Within a pass the number of
    groups differs by at most one between updates. With one update a pass it holds everything.

    Args:
        samples: of the step; those of equal `group` stay together, in the order given.
        updates_per_step: updates of one pass over the samples.
        passes_per_batch: how many times the samples are gone through.
        seed: of the shuffles; equal seeds give equal splits.

    Returns:
        passes_per_batch · updates_per_step lists, in the order to train them.

    Raises:
        NothingToTrain: no sample has a trained token.
        TooFewGroups: fewer groups with trained tokens than updates.
    """
    if updates_per_step < 1 or passes_per_batch < 1:
        raise InputError(f"updates_per_step {updates_per_step} and passes_per_batch {passes_per_batch} must be >= 1")
    members: dict[int, list[Sample]] = {}
    for sample in samples:
        if sample.trained_tokens:
            members.setdefault(sample.group, []).append(sample)
    if not members:
        raise NothingToTrain(f"none of the step's {len(samples)} samples has a trained token")
    if len(members) < updates_per_step:
        raise TooFewGroups(
            f"{len(members)} prompt groups with trained tokens cannot fill {updates_per_step} updates; "
            "lower updates_per_step or raise prompts_per_step"
        )
    groups = sorted(members)
    updates: list[list[Sample]] = []
    for number in range(passes_per_batch):
        for part in np.array_split(permutation([seed, number], len(groups)), updates_per_step):
            updates.append([sample for place in part for sample in members[groups[place]]])
    return updates
