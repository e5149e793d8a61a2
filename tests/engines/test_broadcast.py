"""Broadcasts of weights between real processes, over gloo: what arrives is what was sent, or nothing does."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.orchestration.broadcasting import HALF, TENSORS, digest, version_of, written
from torch import Tensor

from strop.engines.broadcast import (
    LOOPBACK,
    Channel,
    Peer,
    Ticket,
    TransferLost,
    described,
    give_up,
    nobody,
)
from strop.engines.broadcast.content import buckets, checksum
from strop.training.rendezvous import open_store

ROOT = Path(__file__).resolve().parents[2]
PATIENCE = 60.0


class Meeting:
    """A store, and processes that meet there."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.store = open_store(LOOPBACK, 1, 60.0)
        self.processes: list[subprocess.Popen[bytes]] = []
        self.numbers = 0

    def channel(self, size: int, bucket_bytes: int = 1500, seconds: float = 60.0) -> Channel:
        self.numbers += 1
        return Channel(LOOPBACK, self.store.port, f"channel{self.numbers}", size, "gloo", seconds, bucket_bytes)

    def spawn(self, role: str, ticket: Ticket) -> Path:
        """A process of `tests.orchestration.broadcasting`; the file in which it will say what came of it."""
        done = self.folder / f"done-{len(self.processes)}"
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        environment["PYTHONPATH"] = os.pathsep.join([str(ROOT), *(path for path in sys.path if path)])
        command = [sys.executable, "-m", "tests.orchestration.broadcasting", role, written(ticket), str(done)]
        self.processes.append(subprocess.Popen(command, env=environment, stderr=subprocess.DEVNULL))
        return done

    def close(self) -> None:
        for process in self.processes:
            process.kill()
            process.wait()


def said(done: Path) -> dict[str, Any]:
    """What a process says in the end."""
    deadline = time.monotonic() + PATIENCE
    while not done.exists():
        assert time.monotonic() < deadline, "nothing was said"
        time.sleep(0.02)
    found = json.loads(done.read_text())
    assert isinstance(found, dict)
    return found


@pytest.fixture
def meeting(tmp_path: Path) -> Iterator[Meeting]:
    made = Meeting(tmp_path)
    yield made
    made.close()


def send(peer: Peer, ticket: Ticket, watch: Callable[[], None] = nobody) -> str:
    weights = version_of(ticket.version)
    return peer.send(ticket, described(weights), weights.items(), watch)


def tickets(channel: Channel, version: int, number: int = 1) -> list[Ticket]:
    return [Ticket(version, number, rank, channel) for rank in range(channel.size)]


def test_a_killed_receiver_leaves_nobody_with_half_and_the_others_get_it_again(meeting: Meeting) -> None:
    first = tickets(meeting.channel(3), 7)
    killed = meeting.spawn("receive:kill", first[1])
    sender, survivor = Peer(), Peer()
    with ThreadPoolExecutor(1) as pool:
        half = pool.submit(survivor.receive, first[2])
        with pytest.raises(TransferLost):
            send(sender, first[0])
        with pytest.raises(TransferLost):
            half.result(PATIENCE)
        assert meeting.processes[0].wait() == -signal.SIGKILL and not killed.exists()
        assert HALF <= survivor.staged < TENSORS
        again = tickets(meeting.channel(2), 7, 2)
        whole = pool.submit(survivor.receive, again[1])
        send(sender, again[0])
        assert digest(whole.result(PATIENCE)) == digest(version_of(7))


@pytest.mark.slow
def test_a_sender_that_is_killed_leaves_receivers_with_nothing(meeting: Meeting) -> None:
    channel = meeting.channel(2)
    meeting.spawn("send:kill", tickets(channel, 3)[0])
    peer = Peer()
    with pytest.raises(TransferLost):
        peer.receive(tickets(channel, 3)[1])
    assert 0 < peer.staged < 100


@pytest.mark.slow
def test_a_stopped_receiver_holds_nobody_once_the_others_are_told(meeting: Meeting) -> None:
    channel = meeting.channel(2)
    meeting.spawn("receive:stop", tickets(channel, 3)[1])
    begin: list[float] = []

    def watch() -> None:  # as who supervises the processes does
        status = Path(f"/proc/{meeting.processes[0].pid}/stat").read_text().rpartition(")")[2].split()[0]
        if status == "T" and not begin:
            begin.append(time.monotonic())
            give_up(channel, meeting.store, "it does not answer")

    with pytest.raises(TransferLost, match="it does not answer"):
        send(Peer(), tickets(channel, 3)[0], watch)
    assert time.monotonic() - begin[0] < 10  # and not the 60 s after which gloo would


@pytest.mark.slow
def test_a_bucket_that_does_not_come_is_given_up_after_its_time(meeting: Meeting) -> None:
    channel = meeting.channel(2, seconds=2.0)
    meeting.spawn("send:stop", tickets(channel, 3)[0])
    with pytest.raises(TransferLost, match="nothing has come for 2 s|Timed out|timed out"):
        Peer().receive(tickets(channel, 3)[1])


def test_nobody_waits_where_the_store_is_not_there_any_more() -> None:
    channel = Channel(LOOPBACK, 1, "channel", 2, "gloo", 0.2)
    with pytest.raises(TransferLost, match="nobody is reached where weights are sent"):
        Peer().receive(Ticket(0, 0, 1, channel))


def test_all_ranks_of_one_process_exchange_versions_one_after_the_other(meeting: Meeting) -> None:
    """Threads serve for what needs no deaths: many versions over one channel, each whole, in buckets of any size."""
    for bucket_bytes in (1000, 1 << 20):
        channel = meeting.channel(3, bucket_bytes)
        peers = [Peer() for _ in range(3)]
        with ThreadPoolExecutor(2) as pool:
            for version in range(3):
                told = tickets(channel, version, version)
                found = [pool.submit(peer.receive, ticket) for peer, ticket in zip(peers[1:], told[1:], strict=True)]
                send(peers[0], told[0])
                for one in found:
                    assert digest(one.result(PATIENCE)) == digest(version_of(version))
        for peer in peers:
            peer.close()


def test_parameters_that_change_while_they_are_sent_are_refused_by_name(meeting: Meeting) -> None:
    told = tickets(meeting.channel(2), 5)
    weights = version_of(5)
    under_way: list[str] = []

    def read() -> Iterator[tuple[str, Tensor]]:
        for name, tensor in weights.items():
            under_way.append(name)
            yield name, tensor

    def watch() -> None:
        if under_way and under_way[-1] == "tensor96":  # of several buckets, the first of which is about to go
            weights["tensor96"].add_(1)

    with ThreadPoolExecutor(1) as pool:
        found = pool.submit(Peer().receive, told[1])
        Peer().send(told[0], described(weights), read(), watch)
        with pytest.raises(TransferLost, match="1 tensors did not arrive as they were sent, such as tensor96"):
            found.result(PATIENCE)


def test_an_announcement_that_is_not_kept_is_an_error(meeting: Meeting) -> None:
    told = tickets(meeting.channel(2), 5)
    weights = version_of(5)
    with ThreadPoolExecutor(1) as pool:
        found = pool.submit(Peer().receive, told[1])
        with pytest.raises(ValueError, match="the weights go on with tensor1 where tensor0 was announced"):
            Peer().send(told[0], described(weights), [(n, w) for n, w in weights.items() if n != "tensor0"])
        with pytest.raises(TransferLost, match="tensor0 was announced"):
            found.result(PATIENCE)


@pytest.mark.gpu
@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="NCCL takes no two ranks of one GPU")
def test_over_nccl_a_killed_receiver_is_left_and_the_next_one_gets_it(meeting: Meeting) -> None:
    sender = Peer(torch.device("cuda", 0))
    weights = {name: tensor.cuda() for name, tensor in version_of(7).items()}
    first = tickets(replace(meeting.channel(2), backend="nccl"), 7)
    meeting.spawn("receive:kill", first[1])

    def watch() -> None:  # NCCL itself hears of no death
        if meeting.processes[0].poll() is not None:
            give_up(first[0].channel, meeting.store, "it died")

    with pytest.raises(TransferLost):
        sender.send(first[0], described(weights), weights.items(), watch)
    again = tickets(replace(meeting.channel(2), backend="nccl"), 7, 2)
    done = meeting.spawn("receive", again[1])
    sender.send(again[0], described(weights), weights.items())
    assert said(done) == {"digest": digest(version_of(7))}
    sender.close()


sizes = st.lists(st.integers(0, 40), max_size=12)


@given(sizes, st.integers(1, 17))
def test_buckets_hold_every_byte_once_and_in_order(given_sizes: list[int], room: int) -> None:
    content = [bytes((17 * number + place) % 251 for place in range(size)) for number, size in enumerate(given_sizes)]
    found = [bytearray() for _ in given_sizes]
    lengths = []
    for cuts, length in buckets(given_sizes, room):
        lengths.append(length)
        assert sum(cut.length for cut in cuts) == length
        for before, cut in zip([None, *cuts], cuts, strict=False):
            assert cut.place == (0 if before is None else before.place + before.length)
            assert cut.start == len(found[cut.tensor])
            found[cut.tensor] += content[cut.tensor][cut.start : cut.start + cut.length]
    assert [bytes(one) for one in found] == content
    assert all(length == room for length in lengths[:-1])


def test_a_checksum_by_hand() -> None:
    # Two words, no whole row: 8 bytes + third part's (weight 4, 5 each) times 3.
    assert int(checksum(torch.tensor([10, 20], dtype=torch.int32))) == 8 + 3 * (10 * 4 + 20 * 5)
    # Negative words count modulo 2^31 - 1; a tail of three bytes weighs 5, 6, 7, times 4.
    tail = torch.tensor([255, 255, 255, 255, 1, 2, 3], dtype=torch.uint8)
    assert int(checksum(tail)) == (7 + 3 * ((2**31 - 2) * 4 % (2**31 - 1)) + 4 * (1 * 5 + 2 * 6 + 3 * 7)) % (2**31 - 1)


@settings(max_examples=60)
@given(st.integers(1, 9000), st.data())
def test_a_checksum_knows_every_bit_and_where_it_is(size: int, data: st.DataObject) -> None:
    content = torch.randint(0, 256, (size,), dtype=torch.uint8, generator=torch.Generator().manual_seed(size))
    before = int(checksum(content))
    assert int(checksum(content.clone())) == before
    changed = content.clone()
    changed[data.draw(st.integers(0, size - 1))] ^= 1 << data.draw(st.integers(0, 7))
    assert int(checksum(changed)) != before
    turned = content.roll(data.draw(st.integers(1, size)))
    assert torch.equal(turned, content) or int(checksum(turned)) != before
