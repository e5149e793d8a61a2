"""The trained tokens of a batch, one row each: what every loss and regularizer sees.

M trained tokens, S sequences of the update, P prompt groups.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace

import torch
from torch import Tensor


@dataclass(frozen=True, eq=False)
class Tokens:
    """M trained tokens with aligned fields; whole sequences only, rows of a sequence adjacent and in order.

    Attributes:
        sequence: int64 [M], index of the token's sequence in the update (unique over all its micro-batches).
        position: int64 [M], index of the token within its sequence.
        version: int64 [M], the weight version that sampled it.
        generator_logprob: float32 [M], recorded when it was sampled.
        advantage: float32 [M].
        weight: float32 [M], its share of the loss, fixed when the batch was packed (see `aggregation`).
        scored_logprob: float32 [M], the policy's just before the update, where a piece asked for scores.
        scored_entropy: float32 [M], likewise, nats.
        reference_logprob: float32 [M], the reference policy's, where a piece asked for it.
    """

    sequence: Tensor
    position: Tensor
    version: Tensor
    generator_logprob: Tensor
    advantage: Tensor
    weight: Tensor
    scored_logprob: Tensor | None = None
    scored_entropy: Tensor | None = None
    reference_logprob: Tensor | None = None

    def __len__(self) -> int:
        return len(self.weight)

    def to(self, device: torch.device) -> Tokens:
        """The same tokens on another device."""
        moved = {f.name: value.to(device) for f in fields(self) if (value := self.__dict__[f.name]) is not None}
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
