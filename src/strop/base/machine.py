"""Facts about the machine from the kernel: memory, and whether there is a GPU. No torch."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path

GIB = 1024**3
ROOT = Path("/")
# Of a control group: the limit, what is used, and which part of that the kernel would give up.
_GROUP = ("memory.max", "memory.current", "inactive_file")
_GROUP_V1 = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
_GPUS = ("/dev/nvidiactl", "/dev/kfd", "/dev/dxg")  # NVIDIA, AMD, and NVIDIA's under Windows


def memory() -> tuple[int, int]:
    """Bytes of memory that a process may use in total, including swap, and bytes that are free now.

    A container's or a batch system's limit counts: who goes over it is killed, however much the machine has left.
    """
    facts = _numbers(ROOT / "proc/meminfo")
    total, swap, free = (facts[name] * 1024 for name in ("MemTotal:", "SwapTotal:", "MemAvailable:"))
    limits = [(total + swap, total + swap - free), *_limits()]
    return min(limit for limit, _ in limits), max(min(limit - used for limit, used in limits), 0)


def _limits() -> Iterator[tuple[int, int]]:
    """Of each control group that this process is in, where it has a limit: the limit and what is used, in bytes."""
    for line in (ROOT / "proc/self/cgroup").read_text().splitlines():
        _, kinds, place = line.split(":", 2)
        if kinds and "memory" not in kinds.split(","):
            continue
        top = ROOT / "sys/fs/cgroup" / ("memory" if kinds else "")
        own = top / place.strip("/")  # in a container it may be a path of the host's, of which only the top is there
        limit, used, spare = _GROUP_V1 if kinds else _GROUP
        for group in {top, *(one for one in (own, *own.parents) if top in one.parents)}:
            if (group / limit).is_file() and (said := (group / limit).read_text().strip()).isdecimal():
                yield int(said), int((group / used).read_text()) - _numbers(group / "memory.stat").get(spare, 0)


def _numbers(path: Path) -> dict[str, int]:
    """The number after each name of a file of the kernel's."""
    return {line.split()[0]: int(line.split()[1]) for line in path.read_text().splitlines()}


def has_gpu() -> bool:
    """Whether a driver for a GPU is there; torch may still be built without it."""
    return any(Path(device).exists() for device in _GPUS)


def cuda_visible(numbers: Sequence[int]) -> dict[str, str]:
    """The environment that lets a child see only these GPUs, numbered as this process sees them."""
    seen = os.environ.get("CUDA_VISIBLE_DEVICES")
    names = seen.split(",") if seen else [str(number) for number in range(max(numbers, default=0) + 1)]
    return {"CUDA_VISIBLE_DEVICES": ",".join(names[number] for number in numbers)}


def resident(peak: bool = False) -> int:
    """Resident memory of this process in bytes, now or at its peak.

    getrusage is not used, because a process inherits its peak from the parent.
    """
    field = "VmHWM" if peak else "VmRSS"
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(field))
