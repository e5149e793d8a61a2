"""Experts of a mixture: which ones routers choose, and those of a recording that they are made to choose.

Shapes: N tokens, L layers with experts, k experts of a token.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor, nn

from strop.algorithms.tokens import send
from strop.base.types import ExpertArray, InputError

UNKNOWN = 0  # a token whose experts were not recorded: its router chooses; else the expert's number + 1
_ROUTER = "TopKRouter"  # the end of the class names of such routers in transformers


class _Router(Protocol):
    top_k: int
    num_experts: int
    norm_topk_prob: bool


class Routing:
    """The routers of a model, each followed by a hook.

    Attributes:
        replayed: [N, L, k] for the forward passes to come, and for those that backward makes again; None: routers
            choose. `UNKNOWN` rows are chosen too.
        chosen: of the last forward pass, int64 [N, k] of each layer.

    Raises:
        InputError: the model has no routers, or some that strop does not know.
    """

    def __init__(self, model: nn.Module) -> None:
        found = [(name, module) for name, module in model.named_modules() if type(module).__name__.endswith(_ROUTER)]
        if not found:
            raise InputError(
                f"model.replay_routing: {type(model).__name__} has no routers of experts that strop knows; set it false"
            )
        self.replayed: Tensor | None = None
        self.chosen: list[Tensor] = [torch.empty(0)] * len(found)
        for layer, (name, module) in enumerate(found):
            if not {"top_k", "num_experts", "norm_topk_prob"} <= vars(module).keys():
                raise InputError(f"model.replay_routing: the router {name} weighs experts in a way strop does not know")
            module.register_forward_hook(_Tap(self, layer))

    @property
    def layers(self) -> int:
        """L."""
        return len(self.chosen)


class _Tap:
    """The hook of one router. It is an object, so that a copied model has hooks on the copy's routing."""

    def __init__(self, routing: Routing, layer: int) -> None:
        self.routing = routing
        self.layer = layer

    def __call__(self, router: _Router, given: Any, output: tuple[Tensor, Tensor, Tensor]) -> Any:
        logits, weights, chosen = output
        replayed = self.routing.replayed
        if replayed is None:
            self.routing.chosen[self.layer] = chosen
            return output
        recorded = replayed[:, self.layer].long()
        chosen = torch.where(recorded == UNKNOWN, chosen, recorded - 1)
        picked = logits.softmax(-1, dtype=torch.float32).gather(-1, chosen)
        if router.norm_topk_prob:
            picked = picked / picked.sum(-1, keepdim=True)
        return logits, picked.to(weights.dtype), chosen


@dataclass(frozen=True, eq=False)
class RecordedExperts:
    """The experts of packed tokens, as they came with each sequence: put together only where they are computed with.

    Attributes:
        parts: of each sequence [up to its length, L, k], or None.
        lengths: tokens of each sequence.
    """

    parts: tuple[ExpertArray | None, ...]
    lengths: tuple[int, ...]

    @classmethod
    def of(cls, parts: Sequence[ExpertArray | None], lengths: tuple[int, ...]) -> RecordedExperts | None:
        """None where no sequence has any."""
        return None if all(part is None for part in parts) else cls(tuple(parts), lengths)

    def to(self, device: torch.device) -> Tensor:
        """uint8 or int16 [N, L, k]: each expert's number + 1, or `UNKNOWN`."""
        given = [part for part in self.parts if part is not None]
        found = np.full((sum(self.lengths), *given[0].shape[1:]), UNKNOWN, np.result_type(*given))
        start = 0
        for part, length in zip(self.parts, self.lengths, strict=True):
            if part is not None:
                found[start : start + len(part)] = part
                found[start : start + len(part)] += 1
            start += length
        return send(torch.from_numpy(found), device)
