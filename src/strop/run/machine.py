"""What this machine has, what is missing, and what to install: `strop doctor`, and the head of `strop smoke`."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from strop.base import machine
from strop.base.machine import GIB
from strop.engines.settings import PYTHON_VARIABLE
from strop.run.finding import Finding, Level

if TYPE_CHECKING:
    import torch

SIZE = 512  # of the matrices that speed is measured with
_DRIVER = ("nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader")
_VLLM = "from importlib.metadata import version; print(version('vllm'))"


def examine(folder: Path = Path(".")) -> list[Finding]:
    """Look at the machine; `folder` is where runs would be written. Takes a second or two: it loads torch."""
    return [_python(), _cores(), *_room(folder), *accelerators(), _compiler(), *_sandbox()]


def _python() -> Finding:
    version = platform.python_version()
    known = (3, 11) <= sys.version_info[:2] < (3, 14)
    return _finding("Python", "ok" if known else "error", version, "" if known else "use Python 3.11, 3.12 or 3.13")


def _cores() -> Finding:
    cores = len(os.sched_getaffinity(0))
    threads = os.environ.get("OMP_NUM_THREADS")
    found = f"{cores} usable" + (f", OMP_NUM_THREADS={threads}" if threads else "")
    if threads == "1" and cores > 1:
        return _finding("CPU cores", "note", found, "unset OMP_NUM_THREADS, or training uses one core only")
    return _finding("CPU cores", "ok", found)


def _room(folder: Path) -> Iterator[Finding]:
    """Free memory and disk, each with what it should have at least."""
    total, free = machine.memory()
    advice = "the quickstart needs about 2 GiB free; end other programs"
    yield _enough("memory", free, 2, f"{total / GIB:.1f} GiB, {free / GIB:.1f} free", advice)
    free = shutil.disk_usage(folder).free
    advice = "free some space: checkpoints are about six times the model's size"
    yield _enough("disk", free, 1, f"{free / GIB:.1f} GiB free in {folder.resolve()}", advice)


def _enough(subject: str, free: int, least: float, found: str, way_out: str, level: Level = "error") -> Finding:
    """`ok` if at least `least` GiB are free."""
    return _finding(subject, "ok", found) if free >= least * GIB else _finding(subject, level, found, way_out)


def _compiler() -> Finding:
    found = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if found:
        return _finding("C compiler", "ok", found)
    advice = "without one a CPU computes slower, and the extra gym cannot be installed: apt-get install gcc libc6-dev"
    return _finding("C compiler", "note", "none", advice)


def _sandbox() -> Iterator[Finding]:
    """Code verifiers run a model's programs: which layers of isolation could be built here."""
    from strop_verify.sandbox.layers import LAYERS, MODES, probe

    found = probe()
    if not found.isolated:
        reasons = "; ".join(f"{name}: {reason}" for name, reason in found.missing.items())
        advice = "allow unprivileged user namespaces; else code needs allow_unsafe_sandbox=true"
        yield _finding("sandbox", "note", f"none ({reasons})", advice)
        return
    yield _finding("sandbox", "ok", f"{MODES[found.plan.mode]}; tried, and nothing got through")
    for step, name in LAYERS.items():
        missing = found.missing.get(name)
        yield _finding(f"sandbox {step}", *(("ok", name) if missing is None else ("note", f"lacks {name}: {missing}")))


def accelerators(vllm: str | None = None) -> list[Finding]:
    """torch, driver, GPUs, bfloat16 and vLLM; takes a few seconds, because it loads torch.

    `vllm` is the interpreter of an environment with vLLM; None: what STROP_VLLM_PYTHON names.
    """
    torch = _torch()
    if torch.level == "error":
        return [torch]
    return [torch, *_gpus(), _bfloat16(), _vllm(vllm or os.environ.get(PYTHON_VARIABLE))]


def _torch() -> Finding:
    try:
        import torch
    except (ImportError, OSError) as error:
        return _finding("torch", "error", f"does not load: {error}", "install it anew: pip install -U torch")
    major_minor = tuple(int(part) for part in torch.__version__.split(".")[:2])
    cuda = f"CUDA {torch.version.cuda}" if torch.version.cuda else "without CUDA"
    transformers = importlib.metadata.version("transformers")
    found = f"{torch.__version__}, {cuda}, {torch.get_num_threads()} threads; transformers {transformers}"
    if major_minor < (2, 11):
        return _finding("torch", "error", found, "strop needs torch 2.11 or later: pip install -U torch")
    return _finding("torch", "ok", found)


def _gpus() -> Iterator[Finding]:
    """The driver and NCCL, and each GPU."""
    import torch

    driver = _driver()
    if not torch.cuda.is_available():
        if driver is None:
            yield _finding("GPU", "note", "none", "small models train on the CPU; for real ones use an NVIDIA GPU")
        elif torch.version.cuda is None:
            found = f"driver {driver}, but this torch has no CUDA"
            yield _finding("GPU", "error", found, "install a CUDA build of torch")
        else:
            advice = "update the driver, or use an older CUDA"
            yield _finding("GPU", "error", f"driver {driver}, but torch cannot use it", advice)
        return
    yield _finding("driver", "ok", f"{driver}, NCCL {'.'.join(map(str, torch.cuda.nccl.version()))}")
    for number in range(torch.cuda.device_count()):
        gpu = torch.cuda.get_device_properties(number)
        free, _ = torch.cuda.mem_get_info(number)
        found = f"{gpu.name}, {gpu.total_memory / GIB:.0f} GiB, {free / GIB:.0f} free, sm_{gpu.major}{gpu.minor}"
        if gpu.major < 8:
            yield _finding(f"GPU {number}", "note", found, "bfloat16 is slow before Ampere (sm_80)")
        else:
            yield _finding(f"GPU {number}", "ok", found)


def _driver() -> str | None:
    """The version of NVIDIA's driver; None without nvidia-smi, which comes with it."""
    if shutil.which(_DRIVER[0]) is None:
        return None
    try:
        done = subprocess.run(_DRIVER, capture_output=True, text=True, timeout=20, check=True)
        return done.stdout.split()[0]
    except (subprocess.SubprocessError, IndexError):
        return "unknown (nvidia-smi fails)"


def _bfloat16() -> Finding:
    """Measured, because the name of a processor says little about it."""
    import torch

    device = "cuda" if torch.cuda.is_available() else "cpu"
    full, half = (_product_seconds(dtype, device) for dtype in (torch.float32, torch.bfloat16))
    found = f"matrix products run at {full / half:.1f} times the speed of float32 ({device})"
    slow = half > full
    way_out = "set model.dtype=float32 on this machine" if slow else ""
    return _finding("bfloat16", "note" if slow else "ok", found, way_out)


def _product_seconds(dtype: torch.dtype, device: str) -> float:
    import torch
    from torch.nn.functional import linear

    a = torch.randn(SIZE, SIZE, device=device).to(dtype)
    best = float("inf")
    for _ in range(5):
        begin = time.perf_counter()
        for _ in range(4):
            product = linear(a, a)  # as layers do: `a @ a` of bfloat16 is many times slower on some processors
        product.float().sum().item()  # waits for the device
        best = min(best, time.perf_counter() - begin)
    return best


def _vllm(python: str | None) -> Finding:
    advice = f"for engine=Vllm name the interpreter of an environment with vLLM by {PYTHON_VARIABLE}"
    if not python:
        return _finding("vLLM", "note", "none named", advice)
    try:
        done = subprocess.run([python, "-I", "-c", _VLLM], capture_output=True, text=True, timeout=60, check=True)
    except (OSError, subprocess.SubprocessError) as error:
        return _finding("vLLM", "error", f"{python}: {error}", advice)
    return _finding("vLLM", "ok", f"{done.stdout.strip()} in {python}")


def _finding(subject: str, level: Level, found: str, way_out: str = "") -> Finding:
    """A finding on a part of the machine, which names its code."""
    return Finding(subject.lower().replace(" ", "-"), level, subject, found, way_out)
