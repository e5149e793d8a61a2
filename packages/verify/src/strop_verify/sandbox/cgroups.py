"""Control groups, where they are writable: the kernel then counts memory and processes of a sandbox exactly.

A fork server is put into new groups once, and what it forks is born in them; moving each program would cost more
than running it. Groups are named after the process that made them; the next process removes those of dead ones.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import re
from dataclasses import dataclass
from pathlib import Path

from strop_verify.child_process import start_ticks

NAME = "strop-sandbox"
_OURS = re.compile(rf"{NAME}-([0-9]+)-([0-9]+)-[0-9]+")
_counter = itertools.count()


@dataclass(frozen=True)
class Hierarchies:
    """The folders below which groups can be made: version 2 (`unified`) or version 1 (`memory`, `pids`), or neither."""

    unified: Path | None = None
    memory: Path | None = None
    pids: Path | None = None

    @property
    def described(self) -> str:
        """In words, "" for none."""
        if self.unified is not None:
            return "version 2: memory, processes"
        found = [name for name, path in (("memory", self.memory), ("processes", self.pids)) if path is not None]
        return f"version 1: {', '.join(found)}" if found else ""


class ControlGroup:
    """The groups of one launcher."""

    def __init__(self, hierarchies: Hierarchies) -> None:
        name = f"{NAME}-{os.getpid()}-{start_ticks(os.getpid())}-{next(_counter)}"
        parents = [hierarchies.unified] if hierarchies.unified else [hierarchies.memory, hierarchies.pids]
        self._folders = {parent / name for parent in parents if parent is not None}
        self._version_2 = hierarchies.unified is not None
        self._memory = (hierarchies.unified or hierarchies.memory or Path()) / name
        self._has_memory = self._memory in self._folders
        pids = hierarchies.unified or hierarchies.pids
        self._pids = None if pids is None else pids / name
        self._limits: tuple[int, int] = (0, 0)
        for folder in self._folders:
            folder.mkdir(exist_ok=True)

    @property
    def folders(self) -> list[str]:
        """The groups as paths."""
        return [str(folder) for folder in sorted(self._folders)]

    def add(self, pid: int) -> None:
        """Move a process in."""
        for folder in self._folders:
            (folder / "cgroup.procs").write_text(str(pid))

    def limit(self, memory: int, processes: int) -> None:
        """Limits of the next sandbox process, on top of what the fork server itself uses."""
        if (memory, processes) == self._limits:
            return
        if self._has_memory:
            name = "memory.max" if self._version_2 else "memory.limit_in_bytes"
            (self._memory / name).write_text(str(memory + self._usage()))
            with contextlib.suppress(OSError):  # only machines with swap have one of them
                (self._memory / ("memory.swap.max" if self._version_2 else "memory.swappiness")).write_text("0")
        if self._pids is not None:
            (self._pids / "pids.max").write_text(str(processes + 2))
        self._limits = (memory, processes)

    def kills(self) -> int:
        """How often the kernel ended a process of the group because memory ran out."""
        if not self._has_memory:
            return 0
        name = "memory.events" if self._version_2 else "memory.oom_control"
        fields = dict(line.split() for line in (self._memory / name).read_text().splitlines())
        return int(fields.get("oom_kill", 0))

    def _usage(self) -> int:
        name = "memory.current" if self._version_2 else "memory.usage_in_bytes"
        return int((self._memory / name).read_text())

    def remove(self) -> None:
        """Remove the groups; their processes must be gone."""
        for folder in self._folders:
            with contextlib.suppress(FileNotFoundError):  # the fork server did it
                folder.rmdir()


def find() -> tuple[Hierarchies, str]:
    """The writable hierarchies, and why there is none where there is none. Removes groups of dead processes."""
    own = dict(_own_groups())
    mounts = list(_mounts())
    for kind, point, _ in mounts:
        if kind == "cgroup2" and "" in own:
            base = _within(point, own[""])
            enabled = base / "cgroup.subtree_control"
            if enabled.is_file() and {"memory", "pids"} <= set(enabled.read_text().split()) and _writable(base):
                return Hierarchies(unified=base), ""
    found: dict[str, Path] = {}
    for kind, point, options in mounts:
        for name in {"memory", "pids"} & options if kind == "cgroup" else ():
            base = _within(point, own.get(name, "/"))
            if _writable(base):
                found[name] = base
    if found:
        return Hierarchies(memory=found.get("memory"), pids=found.get("pids")), ""
    return Hierarchies(), "none is mounted" if not mounts else "none is writable, or memory and pids are not delegated"


def _writable(base: Path) -> bool:
    """Whether a group can be made here, by making one; groups of dead processes are removed."""
    trial = base / f"{NAME}-{os.getpid()}-{start_ticks(os.getpid())}-{next(_counter)}"
    try:
        trial.mkdir()
        trial.rmdir()
    except OSError:
        return False
    for folder in base.glob(f"{NAME}-*"):
        match = _OURS.fullmatch(folder.name)
        if match is not None and start_ticks(int(match[1])) != int(match[2]):
            with contextlib.suppress(OSError):  # another process was quicker, or one in it is still dying
                folder.rmdir()
    return True


def _within(point: Path, group: str) -> Path:
    """The folder of a group; the top where the path is that of another namespace."""
    path = point / group.lstrip("/")
    return path if path.is_dir() else point


def _own_groups() -> list[tuple[str, str]]:
    pairs = []
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        pairs += [(name, path) for name in controllers.split(",")]
    return pairs


def _mounts() -> list[tuple[str, Path, set[str]]]:
    found = []
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        before, _, after = line.partition(" - ")
        kind, _, options = after.split(" ")[:3]
        if kind in ("cgroup", "cgroup2"):
            found.append((kind, Path(before.split(" ")[4]), set(options.split(","))))
    return found
