"""A worker process: forked from the supervisor, it does one job after the other until it is killed."""

from __future__ import annotations

import gc
import json
import os
import resource
import signal
import socket
import time
from functools import lru_cache
from typing import Any, NoReturn

from pydantic import TypeAdapter

from strop.base.child_process import die_with_parent
from strop.base.framing import Channel
from strop.base.types import Problem, Status, Verdict
from strop.verifiers.base import Verifier
from strop.verifiers.isolation import Isolation, enter_worker
from strop.verifiers.jobs import Result, numbered, read_problem, split_number, write_result

OUT_OF_MEMORY = 77  # exit status


def work(end: socket.socket, isolation: Isolation, parent: int) -> NoReturn:
    """Serve the supervisor at the other end of the socket; never returns into the code that called `fork`."""
    try:
        _confine(isolation, parent)
        enter_worker()
        channel = Channel(end)
        while True:
            number, body = split_number(channel.next())
            channel.send_all(numbered(number, write_result(_result(json.loads(body)))))
    except EOFError:
        os._exit(0)
    except MemoryError:
        os._exit(OUT_OF_MEMORY)
    except BaseException:  # the supervisor sees the exit status; nothing may unwind into its loop
        os._exit(1)


def _confine(isolation: Isolation, parent: int) -> None:
    """Die with the supervisor, lead a process group, write nowhere, and end first when memory runs out."""
    os.setpgid(0, 0)
    die_with_parent(parent)
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


def _result(job: dict[str, Any]) -> Result:
    begin = time.perf_counter()
    verifier = read_verifier(job["verifier"])
    problem = read_problem(job["problem"])
    if job["do"] == "refuses":
        result = Result(refusal=verifier.refuses(problem))
    else:
        result = Result(_verdict(verifier, problem, job["text"], job["truncated"]))
    return result._replace(milliseconds=1000 * (time.perf_counter() - begin))


def _verdict(verifier: Verifier, problem: Problem, text: str, truncated: bool) -> Verdict:
    try:
        return verifier(problem, text, truncated)
    except MemoryError:
        raise
    except RecursionError:
        return Verdict(0.0, Status.ERROR, "RecursionError in the verifier")
    except Exception as error:  # a user's verifier may raise anything; it becomes a verdict that says so
        return Verdict(0.0, Status.ERROR, f"{type(error).__name__} in the verifier: {str(error)[:120]}")


@lru_cache(maxsize=256)
def read_verifier(written: str) -> Verifier:
    """The piece that is written as JSON."""
    family: TypeAdapter[Verifier] = TypeAdapter(Verifier)
    return family.validate_json(written)
