"""An engine of vLLM's native weight transfer whose weights are broadcast by strop's trainer.

vLLM's own NCCL engine loads what it receives as it comes, so that a broadcast that is cut leaves half of a version.
This one stages the whole: `update_weights` is called with `phase` "stage", and, when all was checked, with "load".

Loaded by vLLM's worker by its path: standard library, vllm, and what it is given.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

Reload = Callable[[Any, Any, Any, Iterator[tuple[str, Any]]], list[str]]


def transfer_class(name: str, broadcast: Any, reload: Reload) -> Any:
    """The class, called `name`.

    Args:
        broadcast: strop's package of broadcasts.
        reload: loads tensors into a model; names of the parameters that they left as they were.
    """
    import torch
    from vllm.distributed.weight_transfer.base import (
        WeightTransferEngine,
        WeightTransferInitInfo,
        WeightTransferUpdateInfo,
    )

    @dataclass
    class Init(WeightTransferInitInfo):
        address: str

    @dataclass
    class Update(WeightTransferUpdateInfo):
        phase: str
        ticket: dict[str, Any] = field(default_factory=dict)
        parts: dict[str, list[str]] = field(default_factory=dict)
        tied: dict[str, str] = field(default_factory=dict)

    class Transfer(WeightTransferEngine):
        init_info_cls = Init
        update_info_cls = Update

        def init_transfer_engine(self, init_info: Init) -> None:
            self.address = init_info.address
            self.peer: Any = None
            self.staged: dict[str, Any] = {}
            self.found: dict[str, Any] = {}

        def start_weight_update(self) -> None:
            """Nothing is touched before the whole is there."""

        def receive_weights(self, update_info: Update) -> None:
            if update_info.phase == "stage":
                self.stage(update_info.ticket)
            else:
                self.load(update_info.parts, update_info.tied)

        def stage(self, told: dict[str, Any]) -> None:
            channel = broadcast.Channel(**told["channel"])
            rank = told["rank"] + self.parallel_config.rank
            ticket = broadcast.Ticket(told["version"], told["number"], rank, channel)
            device = torch.device("cpu") if channel.backend == "gloo" else self.device
            self.staged = {}
            self.peer = self.peer or broadcast.Peer(device, self.address)
            try:
                self.staged = self.peer.receive(ticket)
            except broadcast.TransferLost as error:
                self.found = {"lost": str(error), "tensors": []}
            else:
                self.found = {"lost": None, "tensors": [vars(one) for one in broadcast.described(self.staged)]}

        def load(self, parts: dict[str, list[str]], tied: dict[str, str]) -> None:
            staged, self.staged = self.staged, {}
            wrong = wrong_values(staged, tied)
            self.found = {"refused": wrong, "missed": []}
            if wrong is None:
                taken = in_files(staged, parts, tied)
                self.found["missed"] = reload(self.model, self.vllm_config, self.model_config, taken)

        def finish_weight_update(self) -> None:
            self.staged = {}

        def shutdown(self) -> None:
            if self.peer is not None:
                self.peer.close()

    Transfer.__name__ = name
    return Transfer


def wrong_values(staged: dict[str, Any], tied: dict[str, str]) -> str | None:
    """Why a version whose names and shapes fit cannot be used."""
    import torch

    for name, tensor in staged.items():
        if not torch.isfinite(tensor).all():
            return f"weights: {name} has values that are not finite; the version is refused"
    for name, original in tied.items():
        if name in staged and not torch.equal(staged[name], staged[original]):
            return f"weights: {name} is tied to {original} but differs from it"
    return None


def in_files(
    staged: dict[str, Any], parts: dict[str, list[str]], tied: dict[str, str]
) -> Iterator[tuple[str, Any]]:
    """What was received, by the names of the model's files; what has been taken is no longer held here."""
    for name in list(staged):
        tensor, names = staged.pop(name), parts[name]
        if name in tied:
            continue
        if names == [name]:
            yield name, tensor
            continue
        shares = len(names) // len(tensor)  # of each expert
        split = [share for expert in tensor for share in expert.chunk(shares)]
        yield from zip(names, split, strict=True)
