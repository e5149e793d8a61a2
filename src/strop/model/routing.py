"""Which experts a mixture's routers choose, recorded where tokens are drawn and replayed where they are trained on.

    s = softmax(W h),   chosen = top-k of s,   weights = s[chosen] (/ their sum)

A router's choice jumps: a rounding between generator and trainer can send a token to other experts, and their log-probs
are then far apart. With rollout routing replay (R3, arXiv:2510.11370) `chosen` is what the generator chose, while s,
and so the gradient of the router, is the trainer's own.

Shapes: N tokens of a forward pass, L layers with experts, k experts a token, X experts.
"""

from __future__ import annotations

from typing import Any, Protocol

import torch
from torch import Tensor, nn

from strop.base.types import InputError

UNKNOWN = -1  # stands for a token whose experts were not recorded: its router chooses itself
_ROUTER = "TopKRouter"  # what transformers' classes of such a router end with


class _Router(Protocol):
    top_k: int
    num_experts: int
    norm_topk_prob: bool


class Routing:
    """The routers of a model, each followed by a hook.

    Attributes:
        replayed: int64 [N, L, k] for the forward passes to come, and for those that backward makes again; None: routers
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
    """The hook of one router. An object of its own, so that a copied model has hooks on the copy's routing."""

    def __init__(self, routing: Routing, layer: int) -> None:
        self.routing = routing
        self.layer = layer

    def __call__(self, router: _Router, given: Any, output: tuple[Tensor, Tensor, Tensor]) -> Any:
        logits, weights, chosen = output
        replayed = self.routing.replayed
        if replayed is None:
            self.routing.chosen[self.layer] = chosen
            return output
        recorded = replayed[:, self.layer]
        chosen = torch.where(recorded == UNKNOWN, chosen, recorded)
        picked = logits.softmax(-1, dtype=torch.float32).gather(-1, chosen)
        if router.norm_topk_prob:
            picked = picked / picked.sum(-1, keepdim=True)
        return logits, picked.to(weights.dtype), chosen
