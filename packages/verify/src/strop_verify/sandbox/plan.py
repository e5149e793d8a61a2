"""What Python needs to see in a sandbox, read-only, and how a fork server is started."""

from __future__ import annotations

import os
import sys
import sysconfig
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

Mode = Literal["root", "user", "bubblewrap", "none"]

GUEST = Path(__file__).parent
SYSTEM = ("/lib", "/lib64", "/lib32", "/libx32", "/bin", "/sbin")
LINKER = ("/etc/ld.so.cache", "/etc/alternatives")
# Its environment is empty but for the hash seed, so -I is not needed. -s -P: nothing of the user's; -B: writes nothing.
BOOT = "import sys; sys.path.insert(0, sys.argv[2]); from guest.fork_server import {entry}; {entry}()()"


@dataclass(frozen=True)
class Plan:
    """How sandbox processes are isolated; `without` names optional layers that this machine lacks."""

    mode: Mode
    binds: tuple[str, ...] = ()
    links: tuple[tuple[str, str], ...] = ()
    packages: tuple[str, ...] = ()
    without: tuple[str, ...] = ()

    def wire(self, cgroups: Iterable[str] = ()) -> dict[str, Any]:
        """The plan as the guest reads it."""
        return {**asdict(self), "cgroups": list(cgroups)}


def plan_for(mode: Mode, without: Iterable[str] = ()) -> Plan:
    """The plan for this interpreter: system libraries, Python itself, its installed packages; no home, no data."""
    links, wanted = [], ["/usr"]
    for path in SYSTEM:
        if os.path.islink(path):
            links.append((path, os.readlink(path)))
        elif os.path.isdir(path):
            wanted.append(path)
    packages = sorted({os.path.realpath(sysconfig.get_path(name)) for name in ("purelib", "platlib")})
    packages = [path for path in packages if os.path.isdir(path)]
    wanted += [path for path in LINKER if os.path.exists(path)]
    wanted += [*_interpreter_folders(), *packages]
    return Plan(mode, tuple(outermost(wanted)), tuple(links), tuple(packages), tuple(without))


def outermost(paths: Iterable[str]) -> list[str]:
    """The paths without those that lie in another one."""
    kept: list[str] = []
    for path in sorted(set(paths)):
        if not any(path == other or path.startswith(f"{other}/") for other in kept):
            kept.append(path)
    return kept


def command(entry: Literal["main", "single"], stack: int, argument: str) -> list[str]:
    """How the guest's interpreter is started: the base one, for a virtual environment runs code of its own.

    `argument` is the number of the control socket for `main`, the whole request for `single`.
    """
    program = BOOT.format(entry=entry)
    return [interpreter(), "-s", "-P", "-B", "-X", "utf8", "-c", program, str(stack), str(GUEST), argument]


def interpreter() -> str:
    """The base interpreter behind the one that runs."""
    return os.path.realpath(vars(sys)["_base_executable"])  # the only place where a virtual environment names it


def _interpreter_folders() -> list[str]:
    """Where the base interpreter lives; never a whole home or root folder, should Python be installed right in it."""
    prefixes = {os.path.realpath(sys.base_prefix), os.path.realpath(sys.base_exec_prefix)}
    narrow = {os.path.realpath(path) for path in ("/", "/opt", "/home", "/root", str(Path.home()))}
    folders = [os.path.dirname(interpreter())]
    for prefix in prefixes:
        folders += [f"{prefix}/lib", f"{prefix}/lib64", f"{prefix}/bin"] if prefix in narrow else [prefix]
    if Path(interpreter()).parent.resolve() in {Path(path) for path in narrow}:
        folders[0] = interpreter()
    return [path for path in folders if os.path.exists(path)]
