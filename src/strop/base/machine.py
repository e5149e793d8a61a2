"""Facts about the machine from the kernel: memory, and whether there is a GPU. No torch."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

GIB = 1024**3
_LIMITS = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")
_GPUS = ("/dev/nvidiactl", "/dev/kfd", "/dev/dxg")  # NVIDIA, AMD, and NVIDIA's under Windows


def memory() -> tuple[int, int]:
    """Bytes of memory that a process may use in total, including swap, and bytes that are free now."""
    facts = dict(line.split(":", 1) for line in Path("/proc/meminfo").read_text().splitlines() if ":" in line)
    total, swap, free = (int(facts[name].split()[0]) * 1024 for name in ("MemTotal", "SwapTotal", "MemAvailable"))
    limits = [Path(place).read_text().strip() for place in _LIMITS if Path(place).is_file()]
    return min([total + swap, *(int(limit) for limit in limits if limit.isdecimal())]), free


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
