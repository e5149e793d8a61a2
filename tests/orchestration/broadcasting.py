"""A process that receives a broadcast and may end in the middle of it; or that sends one, and does.

    python -m tests.orchestration.broadcasting ROLE TICKET DONE

ROLE: `receive` or `send`; after a colon what happens to it, `kill` or `stop`, once 50 tensors of the 100 are there, or
were read. DONE: a file that gets a digest of what was received, or the reason why nothing was.
"""

from __future__ import annotations

import hashlib
import json
import os
import pickle
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import torch
from torch import Tensor

from strop.engines.broadcast import Channel, Peer, Ticket, TransferLost, described

TENSORS, HALF = 100, 50
SIGNALS = {"kill": signal.SIGKILL, "stop": signal.SIGSTOP}


def version_of(number: int) -> dict[str, Tensor]:
    """A hundred tensors of odd shapes, types and places in memory, other ones for every number."""
    drawn = torch.Generator().manual_seed(number)
    made: dict[str, Tensor] = {"scalar": torch.randn((), generator=drawn), "none": torch.empty(0, 3)}
    for index in range(TENSORS - len(made)):
        tensor = torch.randn(7 + index, 13, generator=drawn)
        made[f"tensor{index}"] = [tensor, tensor.bfloat16(), tensor.t(), tensor.half()[1:, 1:]][index % 4]
    return made


def digest(weights: dict[str, Tensor]) -> str:
    """Of names, types, shapes and every bit."""
    found = hashlib.sha256()
    for name, tensor in weights.items():
        found.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        found.update(tensor.cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    return found.hexdigest()


def written(ticket: Ticket) -> str:
    """A ticket as an argument of the command line."""
    return pickle.dumps(ticket).hex()


def main() -> None:
    """One transfer."""
    role, _, what = sys.argv[1].partition(":")
    ticket = pickle.loads(bytes.fromhex(sys.argv[2]))
    assert isinstance(ticket, Ticket) and isinstance(ticket.channel, Channel)
    done = Path(sys.argv[3])
    peer = Peer(torch.device("cuda", ticket.rank) if ticket.channel.backend == "nccl" else None)

    def strike(reached: int) -> None:
        if what and reached >= HALF:
            os.kill(os.getpid(), SIGNALS[what])

    def read() -> Iterator[tuple[str, Tensor]]:
        for number, item in enumerate(version_of(ticket.version).items()):
            strike(number)
            yield item

    try:
        if role == "send":
            peer.send(ticket, described(version_of(ticket.version)), read())
            answer = {"sent": str(ticket.version)}
        else:
            answer = {"digest": digest(peer.receive(ticket, lambda: strike(peer.staged)))}
    except TransferLost as error:
        answer = {"lost": str(error)}
    done.with_suffix(".part").write_text(json.dumps(answer))
    os.rename(done.with_suffix(".part"), done)
    peer.close()


if __name__ == "__main__":
    main()
