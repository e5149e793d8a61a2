"""The processes below one process, from /proc: what they use, and their end where no namespace ends them."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

PAGE = os.sysconf("SC_PAGE_SIZE")
MOST = 4096
_GONE = (FileNotFoundError, ProcessLookupError, PermissionError)


def descendants(pid: int) -> list[int]:
    """`pid` and every process below it, as far as they can be seen."""
    found, position = [pid], 0
    while position < len(found) and len(found) < MOST:
        current = found[position]
        position += 1
        try:
            for thread in os.listdir(f"/proc/{current}/task"):
                found += map(int, Path(f"/proc/{current}/task/{thread}/children").read_text().split())
        except _GONE:
            continue
    return found


def tree_bytes(pid: int, shared: int, limit: int) -> int:
    """Memory of `pid` and all below it.

    Each process shares `shared` bytes with the fork server that forked it, and forks share with one another. The sum of
    resident sizes counts these again and again, so where it exceeds `limit` the proportional sizes decide.
    """
    processes = descendants(pid)
    resident = shared
    for process in processes:
        try:
            pages = int(Path(f"/proc/{process}/statm").read_text().split()[1])
        except _GONE:
            continue
        resident += max(0, pages * PAGE - shared)
    if resident <= limit:
        return resident
    proportional = [_proportional(process) for process in processes]
    return resident if None in proportional else sum(size for size in proportional if size is not None)


def kill_tree(pid: int) -> None:
    """Kill all below `pid`, then `pid`: stopped first, so that none can fork meanwhile."""
    for _ in range(100):
        below = descendants(pid)[1:]
        for signal_number in (signal.SIGSTOP, signal.SIGKILL):
            for process in below:
                _send(process, signal_number)
        if not below:
            break
        time.sleep(0.005)
    _send(pid, signal.SIGKILL)


def _send(pid: int, number: signal.Signals) -> None:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return


def _proportional(pid: int) -> int | None:
    """The proportional set size; 0 for a process that is gone, None where it may not be read."""
    try:
        text = Path(f"/proc/{pid}/smaps_rollup").read_text()
    except PermissionError:
        return None
    except (FileNotFoundError, ProcessLookupError):
        return 0
    for line in text.splitlines():
        if line.startswith("Pss:"):
            return int(line.split()[1]) * 1024
    return 0
