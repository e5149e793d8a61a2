"""The trained tokens of a batch, one row each: what every loss and regularizer sees.

M trained tokens, S sequences of the update, P prompt groups.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING

from strop.base.lazy import torch

if TYPE_CHECKING:
    from torch import Tensor



@dataclass(frozen=True, eq=False)
class Tokens:
    """M trained tokens with aligned fields; whole sequences only, rows of a sequence adjacent and in order.

    Attributes:
        sequence: int64 [M], index of the token's sequence in the update (unique over all its micro-batches).
        position: int64 [M], index of the token within its sequence.
        sample: int64 [M], number of the token's sample in the run (see `sample_id`).
        version: int64 [M], the weight version that sampled it.
        generator_logprob: float32 [M], recorded when it was sampled.
        anchor_logprob: float32 [M], what importance ratios are taken against: the generator's log-probs, or the
            trainer's own from before the batch's first update.
        advantage: float32 [M].
        weight: float32 [M], its share of the loss, fixed when the batch was packed (see `aggregation`).
        correction: float32 [M], a constant factor on its policy loss (generator-trainer mismatch); None: 1.
        old_entropy: float32 [M], nats, the policy's before the batch's first update, where a piece asked for it.
        scored_logprob: float32 [M], the policy's just before this update, where a piece asked for scores.
        scored_entropy: float32 [M], likewise, nats.
        scored_collision: float32 [M], likewise Σ_j p_j² (log p_j + H) over the vocabulary (see `head.collision`).
        reference_logprob: float32 [M], the reference policy's, where a piece asked for it.
        reference_top: float32 [M, K], its log-probs of its most probable tokens there, where a piece asked for them.
        top_logprob: float32 [M, K], the policy's of the same tokens, with gradient.
        value: float32 [M], the critic's before the batch's first update.
        value_target: float32 [M], the return it learns.
        reasoning: bool [M], high-entropy tokens as `token_types` sorts them; filled by `Objective.prepare`.
        plan: float32 [M], what the loss's `prepare` decided for each token; its meaning is the loss's own.
        sampled_entropy: float32 [M], the mean of −log π_gen over the step, the same for all of its tokens, where a
            regularizer goes by it.
        regularizer_weight: float32 [M], its share in regularizers that do not go by `weight` (see
            `Regularizer.shares`).
    """

    sequence: Tensor
    position: Tensor
    sample: Tensor
    version: Tensor
    generator_logprob: Tensor
    anchor_logprob: Tensor
    advantage: Tensor
    weight: Tensor
    correction: Tensor | None = None
    old_entropy: Tensor | None = None
    scored_logprob: Tensor | None = None
    scored_entropy: Tensor | None = None
    scored_collision: Tensor | None = None
    reference_logprob: Tensor | None = None
    reference_top: Tensor | None = None
    top_logprob: Tensor | None = None
    value: Tensor | None = None
    value_target: Tensor | None = None
    reasoning: Tensor | None = None
    plan: Tensor | None = None
    sampled_entropy: Tensor | None = None
    regularizer_weight: Tensor | None = None

    def __len__(self) -> int:
        return len(self.weight)

    def to(self, device: torch.device) -> Tokens:
        """The same tokens on another device."""
        columns = {f.name: self.__dict__[f.name] for f in fields(self)}
        moved = {name: send(value, device) for name, value in columns.items() if value is not None}
        return replace(self, **moved)


def concatenate(parts: Sequence[Tokens]) -> Tokens:
    """All tokens of an update in one object; optional fields must be present in every part or in none."""
    joined: dict[str, Tensor | None] = {}
    for f in fields(Tokens):
        column = [part.__dict__[f.name] for part in parts]
        missing = sum(value is None for value in column)
        if missing not in (0, len(column)):
            raise ValueError(f"{f.name} is present in only some of the parts")
        joined[f.name] = None if missing else torch.cat(column)
    return Tokens(**joined)  # type: ignore[arg-type]


def demanded(column: Tensor | None, name: str) -> Tensor:
    """An optional column that must be there.

    Raises:
        ValueError: it was not filled; the piece that reads it must declare the need.
    """
    if column is None:
        raise ValueError(f"Tokens.{name} is read, but nothing has filled it")
    return column


def by_type(tokens: Tokens, reasoning: float | Tensor, knowledge: float | Tensor) -> Tensor:
    """One value for reasoning tokens and another for knowledge tokens, [M] in the type of `tokens.weight`."""
    mask, like = demanded(tokens.reasoning, "reasoning"), tokens.weight
    return torch.where(mask, scalar(reasoning, like), scalar(knowledge, like))


def scalar(value: float | Tensor, like: Tensor) -> Tensor:
    """A number as a tensor of the type and on the device of `like`, written there: a copy would wait for a GPU."""
    if isinstance(value, torch.Tensor):
        return value.to(like)
    return torch.full((), value, dtype=like.dtype, device=like.device)


def sequence_mean(values: Tensor, sequence: Tensor) -> Tensor:
    """The mean of `values` [M] over each token's own sequence, [M]; differentiable. `sequence` is int64 [M]."""
    return sequence_sum(values, sequence) / sequence_sum(torch.ones_like(values), sequence)


def sequence_sum(values: Tensor, sequence: Tensor) -> Tensor:
    """The sum of `values` [M] over each token's own sequence, [M]; differentiable. `sequence` is int64 [M], one's
    tokens adjacent."""
    # Rows of a sequence are adjacent. Not `unique`, whose result's size a GPU would have to be asked for.
    begins = torch.cat((torch.zeros_like(sequence[:1], dtype=torch.bool), sequence[1:] != sequence[:-1]))
    member = begins.cumsum(0)
    # Unlike indexing's, the gradient of `index_select` is summed in the same order by any number of threads.
    return torch.zeros_like(values).index_add(0, member, values).index_select(0, member)


def send(tensor: Tensor, device: torch.device) -> Tensor:
    """The tensor on `device`; a GPU that is still computing is not waited for."""
    if device.type != "cuda" or tensor.is_cuda:
        return tensor.to(device)
    return tensor.pin_memory().to(device, non_blocking=True)
