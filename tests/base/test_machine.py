"""What the kernel says about the machine."""

from __future__ import annotations

from pathlib import Path

import pytest

from strop.base import machine
from strop.base.machine import GIB

GROUPS = {
    "of version 2, of a batch job": ("0::/slurm/job_7/step_0", "sys/fs/cgroup/slurm/job_7", ("max", "current", "")),
    "of version 1, in a container": (
        "4:cpu,memory:/docker/1f", "sys/fs/cgroup/memory", ("limit_in_bytes", "usage_in_bytes", "total_")
    ),
}  # fmt: skip


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The files of a machine with 64 GiB, of which 48 are free."""
    monkeypatch.setattr(machine, "ROOT", tmp_path)
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/meminfo").write_text(
        f"MemTotal: {64 << 20} kB\nMemFree: 4 kB\nMemAvailable: {48 << 20} kB\nSwapTotal: 0 kB\nHugePages_Total: 0\n"
    )
    (tmp_path / "proc/self/cgroup").write_text("3:cpu:/other\n0::/\n")
    return tmp_path


@pytest.mark.parametrize("kind", GROUPS)
def test_memory_is_that_of_the_tightest_group(root: Path, kind: str) -> None:
    assert machine.memory() == (64 * GIB, 48 * GIB)
    line, place, (limit, used, prefix) = GROUPS[kind]
    (root / "proc/self/cgroup").write_text(f"3:cpu:/other\n{line}\n")
    group = root / place
    group.mkdir(parents=True)
    (group / f"memory.{limit}").write_text(f"{32 * GIB}\n")
    (group / f"memory.{used}").write_text(f"{20 * GIB}\n")
    (group / "memory.stat").write_text(f"anon 5\n{prefix}inactive_file {4 * GIB}\n")
    assert machine.memory() == (32 * GIB, 16 * GIB)
    (group / f"memory.{limit}").write_text(f"{256 * GIB}\n")
    assert machine.memory() == (64 * GIB, 48 * GIB)
    (group / f"memory.{limit}").write_text("max\n")
    assert machine.memory() == (64 * GIB, 48 * GIB)
