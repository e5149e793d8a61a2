"""What this machine has, what is missing, and what to install, in plain words: `strop doctor`."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import platform
import shutil
import sys
from pathlib import Path

from strop.base import machine
from strop.base.machine import GIB
from strop.run.accelerators import Finding, accelerators

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


def _compiler() -> Finding:
    found = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if found:
        return Finding("C compiler", "ok", found)
    advice = "without one a CPU computes slower, and the extra gym cannot be installed: apt-get install gcc libc6-dev"
    return Finding("C compiler", "note", "none", advice)


def _sandbox() -> list[Finding]:
    """Code verifiers run a model's programs: which layers of isolation were built here, and which could not be."""
    from strop_verify.sandbox.layers import LAYERS, probe

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
