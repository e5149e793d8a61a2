"""Ulysses sequence parallelism: ranks share the tokens of a micro-batch, and in attention its heads (arXiv:2309.14509).

    policy.sequence = SequenceParallel(group)       # forward as before, called by every rank with the whole micro-batch

Each of n ranks computes N / n consecutive tokens through the layers and the head. Around attention one exchange gives
every rank all N tokens of H / n heads, which it attends as one process would, and another gives the tokens back. In the
end every rank has all log-probs; its gradients are those of its tokens, so that their sum over ranks is the gradient.

Shapes: N packed tokens, padded to whole parts of C = N / n for each rank; H query heads, K key/value heads, D head
dimension, M targets.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor

from strop.base.types import InputError
from strop.model.attention import PackedContext
from strop.model.attention_kinds import PLAIN, AttentionKind
from strop.model.routing import RecordedExperts

KEY = "orchestration.sequence_parallel"


@dataclass(frozen=True, eq=False)
class Part:
    """This rank's part of a micro-batch; its fields are those of `policy.Packed`, rows counted within it.

    Attributes:
        context: attends all tokens with a share of the heads.
        counts: how many targets each rank has.
        order: int64 [M], where each target is among those of all ranks one after another.
    """

    token_ids: Tensor
    positions: Tensor
    rows: Tensor
    targets: Tensor
    experts: Tensor | None
    context: UlyssesContext
    counts: tuple[int, ...]
    order: Tensor

    def whole(self, column: Tensor) -> Tensor:
        """A column [M] of all targets, from this rank's part of it; only that part gets a gradient."""
        gathered: Tensor = _Gathered.apply(column, self.counts, self.context.group)
        return gathered.index_select(0, self.order)


class SequenceParallel:
    """The ranks of `group`, which compute each micro-batch together."""

    def __init__(self, group: dist.ProcessGroup) -> None:
        self.group = group
        self.rank, self.size = dist.get_rank(group), dist.get_world_size(group)

    def part(
        self, token_ids: Tensor, positions: Tensor, lengths: tuple[int, ...], rows: Tensor, targets: Tensor,
        experts: RecordedExperts | None,
    ) -> Part:  # fmt: skip
        """What this rank computes of a micro-batch; see `PackedInputs`. All call it with the same arguments."""
        routes = None if experts is None else experts.to(token_ids.device)
        missing = -len(token_ids) % self.size
        if missing:  # padding: a separate sequence at the end, which nothing reads
            lengths = (*lengths, missing)
            token_ids, positions = F.pad(token_ids, (0, missing)), F.pad(positions, (0, missing))
            routes = None if routes is None else F.pad(routes, (0, 0, 0, 0, 0, missing))
        each = len(token_ids) // self.size
        own = slice(self.rank * each, (self.rank + 1) * each)
        owner = rows // each
        mine = owner == self.rank
        return Part(
            token_ids=token_ids[own],
            positions=positions[own],
            rows=rows[mine] - own.start,
            targets=targets[mine],
            experts=None if routes is None else routes[own],
            context=UlyssesContext(PackedContext(lengths, token_ids.device), self.group),
            counts=tuple(torch.bincount(owner, minlength=self.size).tolist()),
            order=owner.argsort(stable=True).argsort(),
        )


class UlyssesContext:
    """Attention of this rank's tokens: over all tokens, one share of the heads on each rank."""

    def __init__(self, inner: PackedContext, group: dist.ProcessGroup) -> None:
        self.inner = inner
        self.group = group
        self.size = dist.get_world_size(group)

    def attend(
        self, layer: int, query: Tensor, key: Tensor, value: Tensor, scale: float, kind: AttentionKind = PLAIN
    ) -> Tensor:
        """Attention [C, H, D] of query [C, H, D], key and value [C, K, D]; see `attention.AttentionContext`."""
        if kind.sinks is not None:  # those of this rank's heads
            kind = replace(kind, sinks=kind.sinks.unflatten(0, (self.size, -1))[dist.get_rank(self.group)])
        copies = max(self.size // key.shape[1], 1)  # with fewer heads of keys than ranks some have the same one
        if copies > 1:
            key, value = (states.repeat_interleave(copies, dim=1) for states in (key, value))
        heads = [states.unflatten(1, (self.size, -1)) for states in (query, key, value)]
        # To each rank its heads [n, C, h, D] of these tokens; from each rank its tokens of this one's heads.
        tokens = _exchanged(torch.cat(heads, dim=2).transpose(0, 1), self.group).flatten(0, 1)
        q, k, v = tokens.split([part.shape[2] for part in heads], dim=1)
        attended = self.inner.attend(layer, q, k, v, scale, kind)
        back = _exchanged(attended.unflatten(0, (self.size, -1)), self.group)
        return back.transpose(0, 1).flatten(1, 2)


def refuse_heads(config: Mapping[str, Any], ranks: int) -> None:
    """Refuse a model whose heads cannot be shared among so many ranks.

    Raises:
        InputError: naming its heads and the setting.
    """
    if "v_head_dim" in config:
        raise InputError(f"{KEY}={ranks}: values have heads of another size (latent attention); set {KEY}=1")
    heads = int(config["num_attention_heads"])
    key_heads = int(config.get("num_key_value_heads") or heads)
    if heads % ranks or (key_heads % ranks and ranks % key_heads):
        fitting = [n for n in range(1, heads + 1) if heads % n == 0 and (key_heads % n == 0 or n % key_heads == 0)]
        raise InputError(
            f"{KEY}={ranks}: {heads} heads, {key_heads} of keys, cannot be shared among so many ranks; "
            f"{', '.join(map(str, fitting))} could"
        )


def _exchanged(parts: Tensor, group: dist.ProcessGroup) -> Tensor:
    """Of parts [n, …], one for each rank, those that all ranks have for this one, [n, …] by rank."""
    found: Tensor = _Exchanged.apply(parts, group)
    return found


class _Exchanged(torch.autograd.Function):
    """An all-to-all, which is its own transpose."""

    @staticmethod
    def forward(ctx: Any, parts: Tensor, group: dist.ProcessGroup) -> Tensor:
        ctx.group = group
        return _all_to_all(parts, group)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        return _all_to_all(grad, ctx.group), None


def _all_to_all(parts: Tensor, group: dist.ProcessGroup) -> Tensor:
    parts = parts.contiguous()
    found = torch.empty_like(parts)
    # As bytes, which every backend can move whatever the type.
    dist.all_to_all_single(found.view(torch.uint8), parts.view(torch.uint8), group=group)
    return found


class _Gathered(torch.autograd.Function):
    """The columns of all ranks one after another; backward keeps the gradient of this rank's own."""

    @staticmethod
    def forward(ctx: Any, column: Tensor, counts: tuple[int, ...], group: dist.ProcessGroup) -> Tensor:
        ctx.own = slice(start := sum(counts[: dist.get_rank(group)]), start + len(column))
        longest = max(counts)
        padded = F.pad(column, (0, longest - len(column)))
        every = [torch.empty_like(padded) for _ in counts]
        if longest:
            dist.all_gather(every, padded, group=group)
        return torch.cat([one[:count] for one, count in zip(every, counts, strict=True)])

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        return grad[ctx.own], None, None
