"""What torch, the driver and the GPUs of this machine are: a part of `strop doctor`, and the head of `strop smoke`."""

from __future__ import annotations

import importlib.metadata
import os
import shutil
import subprocess
import time
from dataclasses import dataclass
from typing import Literal

from strop.base.machine import GIB
from strop.engines.vllm.settings import PYTHON_VARIABLE
from strop.model.settings import DTypeName

Level = Literal["ok", "note", "problem"]
SIZE = 512  # of the matrices that speed is measured with
_DRIVER = ("nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader")
_VLLM = "from importlib.metadata import version; print(version('vllm'))"


@dataclass(frozen=True)
class Finding:
    """One thing looked at: `ok`, a `note` (works, could be better) or a `problem` (something will not work)."""

    topic: str
    level: Level
    found: str
    advice: str = ""


def accelerators(vllm: str | None = None) -> list[Finding]:
    """torch, transformers, driver, GPUs, NCCL, bfloat16 and vLLM; takes a few seconds, because it loads torch.

    `vllm` is the interpreter of an environment with vLLM; None: what STROP_VLLM_PYTHON names.
    """
    torch = _torch()
    if torch.level == "problem":
        return [torch]
    return [torch, _transformers(), *_gpus(), _bfloat16(), _vllm(vllm or os.environ.get(PYTHON_VARIABLE))]


def _torch() -> Finding:
    try:
        import torch
    except (ImportError, OSError) as error:
        return Finding("torch", "problem", f"does not load: {error}", "install it anew: pip install -U torch")
    version, major_minor = torch.__version__, tuple(int(part) for part in torch.__version__.split(".")[:2])
    if major_minor < (2, 11):
        return Finding("torch", "problem", version, "strop needs torch 2.11 or later: pip install -U torch")
    cuda = f"CUDA {torch.version.cuda}" if torch.version.cuda else "without CUDA"
    return Finding("torch", "ok", f"{version}, {cuda}, {torch.get_num_threads()} threads")


def _transformers() -> Finding:
    return Finding("transformers", "ok", importlib.metadata.version("transformers"))


def _gpus() -> list[Finding]:
    """The driver, each GPU, whether they reach each other's memory, and NCCL."""
    import torch

    driver = _driver()
    if not torch.cuda.is_available():
        if driver is None:
            return [Finding("GPU", "note", "none", "small models train on the CPU; for real ones use an NVIDIA GPU")]
        if torch.version.cuda is None:
            found, advice = "but this torch has no CUDA", "install a CUDA build of torch"
        else:
            found, advice = "but torch cannot use it", "update the driver, or use an older CUDA"
        return [Finding("GPU", "problem", f"driver {driver}, {found}", advice)]
    count = torch.cuda.device_count()
    findings = [Finding("driver", "ok", driver or "unknown")]
    for number in range(count):
        gpu = torch.cuda.get_device_properties(number)
        free, _ = torch.cuda.mem_get_info(number)
        found = f"{gpu.name}, {gpu.total_memory / GIB:.0f} GiB, {free / GIB:.0f} free, sm_{gpu.major}{gpu.minor}"
        if (gpu.major, gpu.minor) < (8, 0):
            findings.append(Finding(f"GPU {number}", "note", found, "bfloat16 is slow before Ampere (sm_80)"))
        else:
            findings.append(Finding(f"GPU {number}", "ok", found))
    nccl = ".".join(map(str, torch.cuda.nccl.version()))
    findings.append(Finding("NCCL", "ok", nccl))
    pairs = [(a, b) for a in range(count) for b in range(count) if a != b]
    apart = [pair for pair in pairs if not torch.cuda.can_device_access_peer(*pair)]
    if apart:
        advice = "GPUs exchange through the host's memory, which is slower"
        findings.append(Finding("peer access", "note", f"{len(apart)} of {len(pairs)} pairs lack it", advice))
    elif pairs:
        findings.append(Finding("peer access", "ok", "between all GPUs"))
    return findings


def _driver() -> str | None:
    """The version of NVIDIA's driver; None without nvidia-smi, which comes with it."""
    if shutil.which(_DRIVER[0]) is None:
        return None
    try:
        done = subprocess.run(_DRIVER, capture_output=True, text=True, timeout=20, check=False)
    except subprocess.TimeoutExpired:
        return "unknown (nvidia-smi does not answer)"
    lines = done.stdout.strip().splitlines()
    return lines[0] if done.returncode == 0 and lines else "unknown (nvidia-smi fails)"


def _bfloat16() -> Finding:
    """Measured, since the name of a processor says little about it."""
    import torch

    device = "cuda" if torch.cuda.is_available() else "cpu"
    full, half = (_product_seconds(dtype, device) for dtype in (torch.float32, torch.bfloat16))
    found = f"matrix products run at {full / half:.1f} times the speed of float32 ({device})"
    if half > full:
        return Finding("bfloat16", "note", found, "set model.dtype=float32 on this machine")
    return Finding("bfloat16", "ok", found)


def products_a_second(dtype: DTypeName) -> float:
    """Floating-point operations a second that this machine's matrix products reach in a type."""
    import torch

    device = "cuda" if torch.cuda.is_available() else "cpu"
    return 4 * 2 * SIZE**3 / _product_seconds({"float32": torch.float32, "bfloat16": torch.bfloat16}[dtype], device)


def _product_seconds(dtype: object, device: str) -> float:
    import torch
    from torch.nn.functional import linear

    assert isinstance(dtype, torch.dtype)
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
    if not python:
        advice = f"for engine=Vllm name the interpreter of an environment with vLLM by {PYTHON_VARIABLE}"
        return Finding("vLLM", "note", "none named", advice)
    advice = f"name the interpreter of an environment with vLLM by {PYTHON_VARIABLE}"
    try:
        done = subprocess.run([python, "-I", "-c", _VLLM], capture_output=True, text=True, timeout=60, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return Finding("vLLM", "problem", f"{python}: {error}", advice)
    if done.returncode != 0 or not done.stdout.strip():
        return Finding("vLLM", "problem", f"{python}: no vLLM in it", advice)
    return Finding("vLLM", "ok", f"{done.stdout.strip()} in {python}")
