"""What this machine has, what is missing, and what to install, in plain words: `strop doctor`."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import platform
import shutil
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

from strop.base import machine
from strop.base.machine import GIB
from strop.model.settings import DTypeName

Level = Literal["ok", "note", "problem"]
SIZE = 512  # of the matrices that speed is measured with

# Extra, the module that shows whether it is there, what it is for.
EXTRAS: tuple[tuple[str, str, str], ...] = (
    ("gym", "reasoning_gym", "the problem generators of reasoning-gym"),
    ("hub", "datasets", "data sets of the Hugging Face hub by name"),
    ("tensorboard", "tensorboard", "curves in TensorBoard"),
    ("trackio", "trackio", "curves in trackio"),
    ("wandb", "wandb", "curves in Weights & Biases"),
    ("openenv", "websockets", "environments of OpenEnv servers"),
    ("ray", "ray", "runs on several machines"),
    ("dev", "pytest", "running the tests"),
)


@dataclass(frozen=True)
class Finding:
    """One thing looked at: `ok`, a `note` (works, could be better) or a `problem` (something will not work)."""

    topic: str
    level: Level
    found: str
    advice: str = ""


def examine(folder: Path = Path(".")) -> list[Finding]:
    """Look at the machine; `folder` is where runs would be written. Takes a second or two: it loads torch."""
    findings = [_python(), _cores(), _memory(), _disk(folder), _shared_memory()]
    torch = _torch()
    findings.append(torch)
    if torch.level == "ok":
        findings += [_cuda(), _bfloat16()]
    return [*findings, _compiler(), *_sandbox(), *(_extra(*extra) for extra in EXTRAS)]


def as_json(findings: list[Finding]) -> list[dict[str, str]]:
    """The findings as plain values."""
    return [asdict(finding) for finding in findings]


def _python() -> Finding:
    version = platform.python_version()
    if (3, 11) <= sys.version_info[:2] < (3, 14):
        return Finding("Python", "ok", version)
    return Finding("Python", "problem", version, "use Python 3.11, 3.12 or 3.13")


def _cores() -> Finding:
    cores = len(os.sched_getaffinity(0))
    threads = os.environ.get("OMP_NUM_THREADS")
    found = f"{cores} usable" + (f", OMP_NUM_THREADS={threads}" if threads else "")
    if threads == "1" and cores > 1:
        return Finding("CPU cores", "note", found, "unset OMP_NUM_THREADS, or training uses one core only")
    return Finding("CPU cores", "ok", found)


def _memory() -> Finding:
    total, free = (size / GIB for size in machine.memory())
    found = f"{total:.1f} GiB, {free:.1f} free"
    if free < 2:
        return Finding("memory", "problem", found, "the quickstart wants about 2 GiB free; end other programs")
    return Finding("memory", "ok", found)


def _disk(folder: Path) -> Finding:
    free = shutil.disk_usage(folder).free / GIB
    found = f"{free:.1f} GiB free in {folder.resolve()}"
    if free < 1:
        return Finding("disk", "problem", found, "free some space: checkpoints are about six times the model's size")
    return Finding("disk", "ok", found)


def _shared_memory() -> Finding:
    place = Path("/dev/shm")
    if not place.is_dir():
        return Finding("shared memory", "note", "no /dev/shm", "only generators in processes of their own need it")
    free = shutil.disk_usage(place).free / GIB
    if free < 0.25:
        advice = "in a container, start it with a larger --shm-size"
        return Finding("shared memory", "note", f"{free:.2f} GiB free in /dev/shm", advice)
    return Finding("shared memory", "ok", f"{free:.1f} GiB free in /dev/shm")


def _torch() -> Finding:
    try:
        import torch
    except (ImportError, OSError) as error:
        return Finding("torch", "problem", f"does not load: {error}", "install it anew: pip install -U torch")
    version, major_minor = torch.__version__, tuple(int(part) for part in torch.__version__.split(".")[:2])
    if major_minor < (2, 11):
        return Finding("torch", "problem", version, "strop needs torch 2.11 or later: pip install -U torch")
    return Finding("torch", "ok", f"{version}, {torch.get_num_threads()} threads")


def _cuda() -> Finding:
    import torch

    if torch.cuda.is_available():
        names = [torch.cuda.get_device_properties(i) for i in range(torch.cuda.device_count())]
        return Finding("GPU", "ok", "; ".join(f"{gpu.name}, {gpu.total_memory / GIB:.0f} GiB" for gpu in names))
    if shutil.which("nvidia-smi") is None:
        return Finding("GPU", "note", "none", "small models train on the CPU; for real ones use an NVIDIA GPU")
    if torch.version.cuda is None:
        return Finding("GPU", "problem", "a driver, but this torch has no CUDA", "install a CUDA build of torch")
    return Finding("GPU", "problem", "a driver, but torch cannot use it", "update the driver, or use an older CUDA")


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

    assert isinstance(dtype, torch.dtype)
    a = torch.randn(SIZE, SIZE, device=device).to(dtype)
    best = float("inf")
    for _ in range(5):
        begin = time.perf_counter()
        for _ in range(4):
            product = a @ a
        product.float().sum().item()  # waits for the device
        best = min(best, time.perf_counter() - begin)
    return best


def _compiler() -> Finding:
    found = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if found:
        return Finding("C compiler", "ok", found)
    advice = "without one a CPU computes slower, and the extra gym cannot be installed: apt-get install gcc libc6-dev"
    return Finding("C compiler", "note", "none", advice)


def _sandbox() -> list[Finding]:
    """Code verifiers run a model's programs: which layers of isolation were built here, and which could not be."""
    from strop.verifiers.sandbox.layers import LAYERS, probe

    found = probe()
    if not found.isolated:
        reasons = "; ".join(f"{name}: {reason}" for name, reason in found.missing.items())
        advice = "install bubblewrap, or allow unprivileged user namespaces; else code is judged only with "
        return [Finding("sandbox", "note", f"none ({reasons})", advice + "allow_unsafe_sandbox=true")]
    findings = [Finding("sandbox", "ok", f"{found.runner}; tried, and nothing got through")]
    for step, name in LAYERS.items():
        if name in found.missing:
            findings.append(Finding(f"sandbox {step}", "note", f"lacks {name}: {found.missing[name]}"))
        else:
            findings.append(Finding(f"sandbox {step}", "ok", name))
    groups = found.hierarchies.described
    if groups:
        findings.append(Finding("sandbox cgroups", "ok", groups))
    else:
        reason = found.missing["control groups"]
        findings.append(Finding("sandbox cgroups", "note", f"{reason}; memory is watched instead"))
    if found.bubblewrap:
        findings.append(Finding("sandbox bwrap", "ok", f"{found.bubblewrap}, used where the fork server fails"))
    else:
        advice = "used where the fork server fails: apt-get install bubblewrap"
        findings.append(Finding("sandbox bwrap", "note", "not installed", advice))
    return findings


def _extra(name: str, module: str, purpose: str) -> Finding:
    topic = f"extra {name}"
    if importlib.util.find_spec(module) is None:
        return Finding(topic, "note", f"not installed: {purpose}", f'pip install "strop[{name}]"')
    distribution = module.replace("_", "-")
    return Finding(topic, "ok", f"{distribution} {importlib.metadata.version(distribution)}")
