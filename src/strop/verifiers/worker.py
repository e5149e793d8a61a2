"""A worker: forked from the supervisor, it judges one job after the other until it is killed."""

from __future__ import annotations

import ctypes
import gc
import json
import os
import resource
import signal
import socket
import sys
import time
from functools import lru_cache
from typing import Any, NoReturn

from pydantic import TypeAdapter

from strop.base.imports import allow_again
from strop.base.types import Status, Verdict
from strop.verifiers.base import Verifier
from strop.verifiers.isolation import Isolation, enter_worker
from strop.verifiers.wire import HEADER, read_problem, write_result

OUT_OF_MEMORY = 77  # exit status
_PR_SET_PDEATHSIG = 1
_LIBC = ctypes.CDLL(None, use_errno=True)


def work(end: socket.socket, isolation: Isolation, parent: int) -> NoReturn:
    """The life of a worker; never returns into the code of the process it was forked from."""
    try:
        _confine(isolation, parent)
        enter_worker()
        end.setblocking(True)
        while True:
            number, body = read_frame(end)
            end.sendall(_answer(number, body))
    except EOFError:
        os._exit(0)
    except MemoryError:
        os._exit(OUT_OF_MEMORY)
    except BaseException:  # the supervisor sees the exit status; there is nobody else to tell
        os._exit(1)


def _confine(isolation: Isolation, parent: int) -> None:
    """Die with the supervisor, in a group of one's own, within the memory, silent, and first when memory runs out."""
    os.setpgid(0, 0)
    _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(0)
    null = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(null, stream)
    with open("/proc/self/statm") as statm:
        pages = int(statm.read().split()[0])
    limit = pages * os.sysconf("SC_PAGE_SIZE") + isolation.memory_mib * 2**20
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    with open("/proc/self/oom_score_adj", "w") as score:
        score.write("1000")
    for each in (signal.SIGINT, signal.SIGTERM):
        signal.signal(each, signal.SIG_DFL)
    gc.unfreeze()


def read_frame(end: socket.socket) -> tuple[int, bytes]:
    """The next frame of a blocking socket; raises `EOFError` where the other side has closed."""
    header = _exactly(end, HEADER.size)
    length, number = HEADER.unpack(header)
    return number, _exactly(end, length)


def _exactly(end: socket.socket, length: int) -> bytes:
    parts = bytearray()
    while len(parts) < length:
        chunk = end.recv(min(length - len(parts), 1 << 20))
        if not chunk:
            raise EOFError
        parts += chunk
    return bytes(parts)


def _answer(number: int, body: bytes) -> bytes:
    job = json.loads(body)
    begin = time.perf_counter()
    verdict, refusal = _do(job)
    result = write_result(verdict, refusal, 1000 * (time.perf_counter() - begin))
    return HEADER.pack(len(result), number) + result


def _do(job: dict[str, Any]) -> tuple[Verdict | None, str | None]:
    verifier = _verifier(job["verifier"])
    problem = read_problem(job["problem"])
    if job["do"] == "refuses":
        return None, verifier.refuses(problem)
    try:
        return verifier(problem, job["text"], job["truncated"]), None
    except MemoryError:
        raise
    except RecursionError:
        return Verdict(0.0, Status.ERROR, "RecursionError in the verifier"), None
    except Exception as error:  # a verifier of anyone's may raise anything; it becomes a verdict that says so
        return Verdict(0.0, Status.ERROR, f"{type(error).__name__} in the verifier: {str(error)[:120]}"), None


@lru_cache(maxsize=256)
def _verifier(written: str) -> Verifier:
    """The piece, found again by its name."""
    family: TypeAdapter[Verifier] = TypeAdapter(Verifier)
    return family.validate_json(written)


def load(written: str, modules: list[list[str]], path: list[str]) -> Verifier:
    """The piece that the supervisor serves, its modules imported; raises what importing them raises."""
    sys.path[:] = path
    for name, file in modules:
        allow_again(name, file)
    return _verifier(written)
