"""Messages on a socket: whole, in order, also when either side is slow or ends in the middle of one."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Iterator

import pytest

from strop_verify.framing import Channel, framed


@pytest.fixture
def ends() -> Iterator[tuple[Channel, Channel]]:
    one, other = map(Channel, socket.socketpair())
    yield one, other
    one.close()
    other.close()


def test_messages_arrive_whole_and_in_order_through_a_small_socket(ends: tuple[Channel, Channel]) -> None:
    one, other = ends
    sent = [b"", b"short", os.urandom(3_000_000), b"last"]
    for body in sent:
        one.send(body)
    assert one.unsent  # the socket holds a tenth of it
    received: list[bytes] = []
    while len(received) < len(sent):
        one.flush()
        received += other.receive()
    assert received == sent and list(other.receive()) == []


def test_a_sender_that_waits_goes_on_when_the_other_side_reads(ends: tuple[Channel, Channel]) -> None:
    one, other = ends
    body = os.urandom(3_000_000)
    sender = threading.Thread(target=one.send_all, args=(body,))
    sender.start()
    assert other.next() == body
    sender.join()
    assert not one.unsent


def test_what_was_sent_before_the_end_is_received_and_half_a_message_is_not(ends: tuple[Channel, Channel]) -> None:
    one, other = ends
    one.send(b"whole")
    one.socket.send(framed(b"half of it")[:12])
    one.close()
    received = []
    with pytest.raises(EOFError):
        for body in other.receive():
            received.append(body)
    assert received == [b"whole"]
    with pytest.raises(EOFError):
        other.next()


def test_waiting_ends_with_a_message_or_the_time(ends: tuple[Channel, Channel]) -> None:
    one, other = ends
    assert not other.wait(0.01)
    one.send(b"now")
    assert other.wait(10.0) and list(other.receive()) == [b"now"]


def test_sending_to_a_side_that_is_gone_is_an_error(ends: tuple[Channel, Channel]) -> None:
    one, other = ends
    other.close()
    with pytest.raises(OSError):
        one.send_all(b"x" * 3_000_000)
