"""Frames between the trainer, the supervisor and its workers: a length, a number, JSON. Nothing is unpickled."""

from __future__ import annotations

import json
import selectors
import socket
import struct
from collections.abc import Iterator
from typing import Any

from strop.base.types import Problem, Status, Verdict

HEADER = struct.Struct(">IQ")  # length of the body, number of the job
SETUP = 0  # the number of the first frame, which says what to serve; jobs count from 1
_CHUNK = 1 << 16


class Channel:
    """One end of a stream socket that neither blocks nor loses half a frame."""

    def __init__(self, end: socket.socket) -> None:
        self.socket = end
        end.setblocking(False)
        self._in = bytearray()
        self._out = bytearray()

    @property
    def unsent(self) -> bool:
        """Whether bytes wait for the other side to read."""
        return bool(self._out)

    @property
    def interest(self) -> int:
        """The events of a selector that matter now."""
        return selectors.EVENT_READ | (selectors.EVENT_WRITE if self._out else 0)

    def send(self, number: int, body: bytes) -> None:
        """Queue a frame and send what can be sent now; raises `OSError` where the other side is gone."""
        self._out += HEADER.pack(len(body), number) + body
        self.flush()

    def flush(self) -> None:
        """Send what can be sent now; raises `OSError` where the other side is gone."""
        while self._out:
            try:
                sent = self.socket.send(self._out[:_CHUNK])
            except (BlockingIOError, InterruptedError):
                return
            del self._out[:sent]

    def receive(self) -> Iterator[tuple[int, bytes]]:
        """The frames that are in; raises `EOFError` after the last one where the other side has closed."""
        closed = False
        while True:
            try:
                chunk = self.socket.recv(_CHUNK)
            except (BlockingIOError, InterruptedError):
                break
            except ConnectionError:
                closed = True
                break
            if not chunk:
                closed = True
                break
            self._in += chunk
        while len(self._in) >= HEADER.size:
            length, number = HEADER.unpack_from(self._in)
            if len(self._in) < HEADER.size + length:
                break
            body = bytes(self._in[HEADER.size : HEADER.size + length])
            del self._in[: HEADER.size + length]
            yield number, body
        if closed:
            raise EOFError

    def close(self) -> None:
        """Close the socket."""
        self.socket.close()


def write_job(operation: str, verifier: str, problem: Problem, text: str, truncated: bool) -> bytes:
    """A job as JSON; `verifier` is a piece as JSON.

    Raises:
        TypeError: the problem holds something that JSON does not know.
    """
    asked = {
        "id": problem.id,
        "prompt": problem.prompt,
        "reference": problem.reference,
        "domain": problem.domain,
        "source": problem.source,
        "extra": dict(problem.extra),
    }
    job = {"do": operation, "verifier": verifier, "problem": asked, "text": text, "truncated": truncated}
    return json.dumps(job).encode()


def read_problem(asked: dict[str, Any]) -> Problem:
    """The problem of a job; chat messages are a tuple again."""
    prompt = asked["prompt"]
    return Problem(**{**asked, "prompt": prompt if isinstance(prompt, str) else tuple(prompt)})


def write_result(verdict: Verdict | None, refusal: str | None, milliseconds: float) -> bytes:
    """What came of a job."""
    result: dict[str, Any] = {"ms": milliseconds, "refusal": refusal}
    if verdict is not None:
        result |= {"score": verdict.score, "status": str(verdict.status), "detail": verdict.detail}
    return json.dumps(result).encode()


def read_verdict(result: dict[str, Any]) -> Verdict:
    """The verdict of a result."""
    return Verdict(float(result["score"]), Status(result["status"]), str(result["detail"]))
