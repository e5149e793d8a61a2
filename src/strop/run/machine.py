"""What this machine has, what is missing, and what to install: `strop doctor`, and the head of `strop smoke`."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import platform
import shutil
import subprocess
import sys
import time
from pathlib import Path

from strop.base import machine
from strop.base.machine import GIB
from strop.engines.vllm.settings import PYTHON_VARIABLE
from strop.run.finding import Finding, Level

SIZE = 512  # of the matrices that speed is measured with
_DRIVER = ("nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader")
_VLLM = "from importlib.metadata import version; print(version('vllm'))"
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


def examine(folder: Path = Path(".")) -> list[Finding]:
    """Look at the machine; `folder` is where runs would be written. Takes a second or two: it loads torch."""
    findings = [_python(), _cores(), _memory(), _disk(folder), _shared_memory(), *accelerators()]
    return [*findings, _compiler(), *_sandbox(), *(_extra(*extra) for extra in EXTRAS)]


def _python() -> Finding:
    version = platform.python_version()
    if (3, 11) <= sys.version_info[:2] < (3, 14):
        return _finding("Python", "ok", version)
    return _finding("Python", "error", version, "use Python 3.11, 3.12 or 3.13")


def _cores() -> Finding:
    cores = len(os.sched_getaffinity(0))
    threads = os.environ.get("OMP_NUM_THREADS")
    found = f"{cores} usable" + (f", OMP_NUM_THREADS={threads}" if threads else "")
    if threads == "1" and cores > 1:
        return _finding("CPU cores", "note", found, "unset OMP_NUM_THREADS, or training uses one core only")
    return _finding("CPU cores", "ok", found)


def _memory() -> Finding:
    total, free = (size / GIB for size in machine.memory())
    found = f"{total:.1f} GiB, {free:.1f} free"
    if free < 2:
        return _finding("memory", "error", found, "the quickstart wants about 2 GiB free; end other programs")
    return _finding("memory", "ok", found)


def _disk(folder: Path) -> Finding:
    free = shutil.disk_usage(folder).free / GIB
    found = f"{free:.1f} GiB free in {folder.resolve()}"
    if free < 1:
        return _finding("disk", "error", found, "free some space: checkpoints are about six times the model's size")
    return _finding("disk", "ok", found)


def _shared_memory() -> Finding:
    place = Path("/dev/shm")
    if not place.is_dir():
        return _finding("shared memory", "note", "no /dev/shm", "only generators in separate processes need it")
    free = shutil.disk_usage(place).free / GIB
    if free < 0.25:
        advice = "in a container, start it with a larger --shm-size"
        return _finding("shared memory", "note", f"{free:.2f} GiB free in /dev/shm", advice)
    return _finding("shared memory", "ok", f"{free:.1f} GiB free in /dev/shm")


def _compiler() -> Finding:
    found = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if found:
        return _finding("C compiler", "ok", found)
    advice = "without one a CPU computes slower, and the extra gym cannot be installed: apt-get install gcc libc6-dev"
    return _finding("C compiler", "note", "none", advice)


def _sandbox() -> list[Finding]:
    """Code verifiers run a model's programs: which layers of isolation were built here, and which could not be."""
    from strop_verify.sandbox.layers import LAYERS, MODES, probe

    found = probe()
    if not found.isolated:
        reasons = "; ".join(f"{name}: {reason}" for name, reason in found.missing.items())
        advice = "allow unprivileged user namespaces; else code is judged only with "
        return [_finding("sandbox", "note", f"none ({reasons})", advice + "allow_unsafe_sandbox=true")]
    findings = [_finding("sandbox", "ok", f"{MODES[found.plan.mode]}; tried, and nothing got through")]
    for step, name in LAYERS.items():
        if name in found.missing:
            findings.append(_finding(f"sandbox {step}", "note", f"lacks {name}: {found.missing[name]}"))
        else:
            findings.append(_finding(f"sandbox {step}", "ok", name))
    groups = found.hierarchies.described
    if groups:
        findings.append(_finding("sandbox cgroups", "ok", groups))
    else:
        reason = found.missing["control groups"]
        findings.append(_finding("sandbox cgroups", "note", f"{reason}; memory is watched instead"))
    return findings


def _extra(name: str, module: str, purpose: str) -> Finding:
    topic = f"extra {name}"
    if importlib.util.find_spec(module) is None:
        return _finding(topic, "note", f"not installed: {purpose}", f'pip install "strop[{name}]"')
    distribution = module.replace("_", "-")
    return _finding(topic, "ok", f"{distribution} {importlib.metadata.version(distribution)}")


def accelerators(vllm: str | None = None) -> list[Finding]:
    """torch, transformers, driver, GPUs, NCCL, bfloat16 and vLLM; takes a few seconds, because it loads torch.

    `vllm` is the interpreter of an environment with vLLM; None: what STROP_VLLM_PYTHON names.
    """
    torch = _torch()
    if torch.level == "error":
        return [torch]
    return [torch, _transformers(), *_gpus(), _bfloat16(), _vllm(vllm or os.environ.get(PYTHON_VARIABLE))]


def _torch() -> Finding:
    try:
        import torch
    except (ImportError, OSError) as error:
        return _finding("torch", "error", f"does not load: {error}", "install it anew: pip install -U torch")
    version, major_minor = torch.__version__, tuple(int(part) for part in torch.__version__.split(".")[:2])
    if major_minor < (2, 11):
        return _finding("torch", "error", version, "strop needs torch 2.11 or later: pip install -U torch")
    cuda = f"CUDA {torch.version.cuda}" if torch.version.cuda else "without CUDA"
    return _finding("torch", "ok", f"{version}, {cuda}, {torch.get_num_threads()} threads")


def _transformers() -> Finding:
    return _finding("transformers", "ok", importlib.metadata.version("transformers"))


def _gpus() -> list[Finding]:
    """The driver, each GPU, whether they reach each other's memory, and NCCL."""
    import torch

    driver = _driver()
    if not torch.cuda.is_available():
        if driver is None:
            return [_finding("GPU", "note", "none", "small models train on the CPU; for real ones use an NVIDIA GPU")]
        if torch.version.cuda is None:
            found, advice = "but this torch has no CUDA", "install a CUDA build of torch"
        else:
            found, advice = "but torch cannot use it", "update the driver, or use an older CUDA"
        return [_finding("GPU", "error", f"driver {driver}, {found}", advice)]
    count = torch.cuda.device_count()
    findings = [_finding("driver", "ok", driver or "unknown")]
    for number in range(count):
        gpu = torch.cuda.get_device_properties(number)
        free, _ = torch.cuda.mem_get_info(number)
        found = f"{gpu.name}, {gpu.total_memory / GIB:.0f} GiB, {free / GIB:.0f} free, sm_{gpu.major}{gpu.minor}"
        if (gpu.major, gpu.minor) < (8, 0):
            findings.append(_finding(f"GPU {number}", "note", found, "bfloat16 is slow before Ampere (sm_80)"))
        else:
            findings.append(_finding(f"GPU {number}", "ok", found))
    nccl = ".".join(map(str, torch.cuda.nccl.version()))
    findings.append(_finding("NCCL", "ok", nccl))
    pairs = [(a, b) for a in range(count) for b in range(count) if a != b]
    apart = [pair for pair in pairs if not torch.cuda.can_device_access_peer(*pair)]
    if apart:
        advice = "GPUs exchange through the host's memory, which is slower"
        findings.append(_finding("peer access", "note", f"{len(apart)} of {len(pairs)} pairs lack it", advice))
    elif pairs:
        findings.append(_finding("peer access", "ok", "between all GPUs"))
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
        return _finding("bfloat16", "note", found, "set model.dtype=float32 on this machine")
    return _finding("bfloat16", "ok", found)


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
        return _finding("vLLM", "note", "none named", advice)
    advice = f"name the interpreter of an environment with vLLM by {PYTHON_VARIABLE}"
    try:
        done = subprocess.run([python, "-I", "-c", _VLLM], capture_output=True, text=True, timeout=60, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return _finding("vLLM", "error", f"{python}: {error}", advice)
    if done.returncode != 0 or not done.stdout.strip():
        return _finding("vLLM", "error", f"{python}: no vLLM in it", advice)
    return _finding("vLLM", "ok", f"{done.stdout.strip()} in {python}")


def _finding(subject: str, level: Level, found: str, way_out: str = "") -> Finding:
    """A finding on a part of the machine, which names its code."""
    return Finding(subject.lower().replace(" ", "-"), level, subject, found, way_out)
