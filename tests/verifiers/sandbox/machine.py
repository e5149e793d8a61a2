"""Programs in a sandbox, and what is left of it on the machine."""

from __future__ import annotations

import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from strop_verify.sandbox import ProgramRun, Sandbox
from strop_verify.sandbox.launchers import GROUP_NAME
from strop_verify.sandbox.layers import probe
from strop_verify.sandbox.process import descendants


def processes_below() -> set[int]:
    """Every process that this one started, at any depth."""
    return set(descendants(os.getpid())) - {os.getpid()}


def groups() -> list[Path]:
    """Control groups of this process's sandboxes."""
    found = probe().hierarchies
    bases = {base for base in (found.unified, found.memory, found.pids) if base is not None}
    return [folder for base in bases for folder in base.glob(f"{GROUP_NAME}-{os.getpid()}-*")]


def mounts() -> str:
    """The mounts that this process sees."""
    return Path("/proc/self/mountinfo").read_text()


def run_all(sandbox: Sandbox, program: str, inputs: Sequence[bytes], seconds: float = 6.0) -> list[ProgramRun]:
    """The runs of a program on these inputs, in their order, as many at once as the sandbox has workers."""
    with ThreadPoolExecutor(sandbox.workers) as threads:
        return list(threads.map(lambda given: sandbox.run(program, given, seconds), inputs))
