"""Programs in a sandbox, and what is left of it on the machine."""

from __future__ import annotations

import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from strop_verify.sandbox import ProgramRun, Sandbox
from strop_verify.sandbox.process import descendants


def processes_below() -> set[int]:
    """Every process that this one started, at any depth."""
    return set(descendants(os.getpid())) - {os.getpid()}


def mounts() -> list[str]:
    """The mounts that this process sees, without the small disks of other tests (`tests.orchestration.disks`)."""
    lines = Path("/proc/self/mountinfo").read_text().splitlines()
    return [line for line in lines if " strop-test " not in line]


def run_all(sandbox: Sandbox, program: str, inputs: Sequence[bytes], seconds: float = 6.0) -> list[ProgramRun]:
    """The runs of a program on these inputs, in their order, as many at once as the sandbox has workers."""
    with ThreadPoolExecutor(sandbox.workers) as threads:
        return list(threads.map(lambda given: sandbox.run(program, given, seconds), inputs))
