"""The memory that this process has taken."""

from __future__ import annotations

from pathlib import Path


def resident(peak: bool = False) -> int:
    """Bytes of memory that this process has taken, now or at its peak.

    Not the peak that getrusage knows, which a process inherits from the one that started it.
    """
    field = "VmHWM" if peak else "VmRSS"
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(field))
