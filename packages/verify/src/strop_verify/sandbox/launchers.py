"""What starts sandbox processes: a warm fork server, in control groups where they are writable.

The kernel then counts memory and processes of a sandbox exactly. A fork server is put into new groups once, and what it
forks is born in them; moving each program would cost more than running it. Groups are named after the process that made
them; the next process removes those of dead ones.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import re
import socket
import sys
import sysconfig
import time
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from strop_verify.child_process import ChildProcess, start_ticks
from strop_verify.sandbox.limits import Limits, SandboxFailure

Mode = Literal["root", "user", "none"]

GUEST = Path(__file__).parent
SYSTEM = ("/lib", "/lib64", "/lib32", "/libx32", "/bin", "/sbin")
LINKER = ("/etc/ld.so.cache", "/etc/alternatives")
# Its environment is empty but for the hash seed, so -I is not needed. -s -P: nothing of the user's; -B: writes nothing.
BOOT = "import sys; sys.path.insert(0, sys.argv[2]); from guest.fork_server import main; main()()"


@dataclass(frozen=True)
class LaunchPlan:
    """How sandbox processes are isolated; `without` names optional layers that this machine lacks."""

    mode: Mode
    binds: tuple[str, ...] = ()
    links: tuple[tuple[str, str], ...] = ()
    packages: tuple[str, ...] = ()
    without: tuple[str, ...] = ()

    def wire(self, cgroups: Iterable[str] = ()) -> dict[str, Any]:
        """The plan as the guest reads it."""
        return {**asdict(self), "cgroups": list(cgroups)}


def plan_for(mode: Mode, without: Iterable[str] = ()) -> LaunchPlan:
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
    return LaunchPlan(mode, tuple(outermost(wanted)), tuple(links), tuple(packages), tuple(without))


def outermost(paths: Iterable[str]) -> list[str]:
    """The paths without those that lie in another one."""
    kept: list[str] = []
    for path in sorted(set(paths)):
        if not any(path == other or path.startswith(f"{other}/") for other in kept):
            kept.append(path)
    return kept


def command(stack: int, control: int) -> list[str]:
    """How the guest's interpreter is started: the base one, since a virtual environment runs code at start.

    `control` is the number of the control socket.
    """
    return [interpreter(), "-s", "-P", "-B", "-X", "utf8", "-c", BOOT, str(stack), str(GUEST), str(control)]


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


GROUP_NAME = "strop-sandbox"
_OURS = re.compile(rf"{GROUP_NAME}-([0-9]+)-([0-9]+)-[0-9]+")
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
        name = f"{GROUP_NAME}-{os.getpid()}-{start_ticks(os.getpid())}-{next(_counter)}"
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


def find_groups() -> tuple[Hierarchies, str]:
    """The writable hierarchies, and the reason if there are none. Removes groups of dead processes."""
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
    trial = base / f"{GROUP_NAME}-{os.getpid()}-{start_ticks(os.getpid())}-{next(_counter)}"
    try:
        trial.mkdir()
        trial.rmdir()
    except OSError:
        return False
    for folder in base.glob(f"{GROUP_NAME}-*"):
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


START_SECONDS = 60.0
CLOSING_SECONDS = 2.0
MESSAGE = 1 << 16


class ForkServer:
    """A warm interpreter that forks sandbox processes, one at a time; see `guest.fork_server`.

    Attributes:
        isolated: whether sandbox processes are isolated from the machine.
        group: its control groups, where there are any.
        resident: bytes that a sandbox process shares with the fork server when it begins.

    Raises:
        SandboxFailure: it does not start.
    """

    def __init__(self, plan: LaunchPlan, limits: Limits, hierarchies: Hierarchies) -> None:
        self.isolated = plan.mode != "none"
        self.group: ControlGroup | None = None
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            arguments = command(limits.stack, theirs.fileno())
            environment = {"LANG": "C.UTF-8", "PYTHONHASHSEED": "0"}
            try:
                self._process = ChildProcess(arguments, environment, pass_fds=[theirs.fileno()], folder="/")
            except OSError as error:
                self._control.close()
                raise SandboxFailure(f"the fork server does not start: {error}") from error
        try:
            if hierarchies.described:
                self.group = ControlGroup(hierarchies)
                self.group.add(self._process.pid)
            self._control.settimeout(START_SECONDS)
            self._control.send(json.dumps(plan.wire(self.group.folders if self.group else ())).encode())
            self._expect("ready")
        except (SandboxFailure, OSError) as error:
            self.close()
            if isinstance(error, SandboxFailure):
                raise
            raise SandboxFailure(f"start: {error}") from error
        self.resident = resident_bytes(self._process.pid)

    @property
    def pid(self) -> int:
        """The fork server's process id."""
        return self._process.pid

    def launch(self, request: dict[str, Any], descriptors: Sequence[int]) -> tuple[int, int]:
        """Start a sandbox process: the id of the first process in it and a pidfd of that one, which the caller closes.

        The descriptors stay the caller's.

        Raises:
            SandboxFailure: none could be started.
        """
        try:
            socket.send_fds(self._control, [json.dumps(request).encode()], list(descriptors))
            data, received, _, _ = socket.recv_fds(self._control, MESSAGE, 1)
        except OSError as error:
            raise SandboxFailure(f"the fork server does not answer: {error}") from error
        return int(_reply(data, "pid")), received[0]

    def done(self) -> int:
        """A descriptor that is readable when every process in the sandbox has ended, or the fork server failed."""
        return self._control.fileno()

    def collect(self) -> None:
        """Read that the sandbox process was reaped, after `done`.

        Raises:
            SandboxFailure: the fork server itself ended.
        """
        self._expect("reaped")

    def abort(self) -> None:
        """Kill the fork server, from any thread; the thread that uses it meets a `SandboxFailure` and closes it.

        The first process in its sandbox dies with it.
        """
        self._process.kill()

    def close(self) -> None:
        """Close the socket: the fork server then kills its sandbox process and ends, or is killed with it."""
        self._control.close()
        self._process.end(CLOSING_SECONDS)
        if self.group is not None:
            _remove(self.group)
            self.group = None

    def _expect(self, key: str) -> None:
        try:
            data = self._control.recv(MESSAGE)
        except OSError as error:
            raise SandboxFailure(f"the fork server does not answer: {error}") from error
        _reply(data, key)


def _reply(data: bytes, key: str) -> Any:
    """The value of `key` in a message of the fork server.

    Raises:
        SandboxFailure: it has failed, or has ended.
    """
    reply: dict[str, Any] = json.loads(data) if data else {}
    if "failed" in reply:
        raise SandboxFailure(": ".join(reply["failed"]))
    if key not in reply:
        raise SandboxFailure("the fork server has ended")
    return reply[key]


def resident_bytes(pid: int) -> int:
    """What a process has in memory; 0 where it is gone."""
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (FileNotFoundError, ProcessLookupError):
        return 0


def _remove(group: ControlGroup) -> None:
    """A group is busy for a moment after its last process has ended."""
    for attempt in range(100):
        try:
            group.remove()
            return
        except OSError:
            if attempt == 99:
                raise
            time.sleep(0.02)
