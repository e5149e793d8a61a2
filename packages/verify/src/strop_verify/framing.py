"""Whole messages on a stream socket: each is eight bytes of length, then its body.

    channel = Channel(end)
    channel.send(b"a message")               # never blocks; what does not fit is sent by later calls of `flush`
    for message in channel.receive(): ...    # those that are in
"""

from __future__ import annotations

import select
import selectors
import socket
import struct
from collections.abc import Iterator

_LENGTH = struct.Struct(">Q")
_CHUNK = 1 << 18


def framed(body: bytes) -> bytes:
    """A message as it stands on the stream."""
    return _LENGTH.pack(len(body)) + body


class Channel:
    """One end of a stream socket. Only `send_all`, `next` and `wait` block.

    One thread may send while another one receives; otherwise it is not thread-safe.

    Args:
        end: the socket, which the channel owns from now on.
    """

    def __init__(self, end: socket.socket) -> None:
        self.socket = end
        end.setblocking(False)
        self._in = bytearray()
        self._out = bytearray()
        self._closed = False

    @property
    def unsent(self) -> bool:
        """Whether bytes wait for the other side to read."""
        return bool(self._out)

    @property
    def interest(self) -> int:
        """The events of a selector that matter now."""
        return selectors.EVENT_READ | (selectors.EVENT_WRITE if self._out else 0)

    def queue(self, body: bytes) -> None:
        """Have the next `flush` send a message."""
        self._out += framed(body)

    def send(self, body: bytes) -> None:
        """Queue a message and send what can be sent now.

        Raises:
            OSError: the other side is gone.
        """
        self.queue(body)
        self.flush()

    def send_all(self, body: bytes) -> None:
        """Send a message; waits until the other side has room for all of it.

        Raises:
            OSError: the other side is gone.
        """
        self.send(body)
        while self._out:
            self._poll(select.POLLOUT, None)
            self.flush()

    def flush(self) -> None:
        """Send what can be sent now.

        Raises:
            OSError: the other side is gone.
        """
        while self._out:
            try:
                sent = self.socket.send(self._out[:_CHUNK])
            except (BlockingIOError, InterruptedError):
                return
            del self._out[:sent]

    def receive(self) -> Iterator[bytes]:
        """The messages that are in, in order; does not wait.

        Raises:
            EOFError: the other side has closed, and its last message was received.
        """
        self._read()
        while (body := self._whole_message()) is not None:
            yield body
        if self._closed:
            raise EOFError

    def next(self) -> bytes:
        """The next message, however long it takes.

        Raises:
            EOFError: the other side has closed, and its last message was received.
        """
        while (body := self._whole_message()) is None:
            if self._closed:
                raise EOFError
            self._poll(select.POLLIN, None)
            self._read()
        return body

    def wait(self, seconds: float) -> bool:
        """Sleep until something can be received, or what is unsent can be sent; at most `seconds`. Whether it is so."""
        return self._poll(select.POLLIN | (select.POLLOUT if self._out else 0), seconds)

    def close(self) -> None:
        """Close the socket; may be called twice."""
        self.socket.close()

    def _read(self) -> None:
        while not self._closed:
            try:
                chunk = self.socket.recv(_CHUNK)
            except (BlockingIOError, InterruptedError):
                return
            except ConnectionError:
                chunk = b""
            self._in += chunk
            self._closed = not chunk

    def _whole_message(self) -> bytes | None:
        if len(self._in) < _LENGTH.size:
            return None
        end = _LENGTH.size + _LENGTH.unpack_from(self._in)[0]
        if len(self._in) < end:
            return None
        body = bytes(self._in[_LENGTH.size : end])
        del self._in[:end]
        return body

    def _poll(self, events: int, seconds: float | None) -> bool:
        poll = select.poll()
        poll.register(self.socket, events)
        return bool(poll.poll(None if seconds is None else max(seconds, 0.0) * 1000))
