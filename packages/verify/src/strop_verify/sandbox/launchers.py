"""What starts sandbox processes: a warm fork server, or bubblewrap with a cold interpreter for each program."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import sys
import sysconfig
import time
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal, Protocol

from strop_verify.child_process import ChildProcess
from strop_verify.sandbox.cgroups import ControlGroup, Hierarchies
from strop_verify.sandbox.guest.isolate import NOBODY
from strop_verify.sandbox.limits import Limits, SandboxFailure

Mode = Literal["root", "user", "bubblewrap", "none"]

GUEST = Path(__file__).parent
SYSTEM = ("/lib", "/lib64", "/lib32", "/libx32", "/bin", "/sbin")
LINKER = ("/etc/ld.so.cache", "/etc/alternatives")
# Its environment is empty but for the hash seed, so -I is not needed. -s -P: nothing of the user's; -B: writes nothing.
BOOT = "import sys; sys.path.insert(0, sys.argv[2]); from guest.fork_server import {entry}; {entry}()()"


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


def command(entry: Literal["main", "single"], stack: int, argument: str) -> list[str]:
    """How the guest's interpreter is started: the base one, since a virtual environment runs code at start.

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


START_SECONDS = 60.0
CLOSING_SECONDS = 2.0
MESSAGE = 1 << 16


class Launcher(Protocol):
    """Starts sandbox processes, one at a time."""

    isolated: bool
    group: ControlGroup | None
    resident: int  # bytes that a sandbox process shares with its launcher when it begins

    def launch(self, request: dict[str, Any], descriptors: Sequence[int]) -> tuple[int, int]:
        """Start a sandbox process: the id of the first process in it and a pidfd of that one, which the caller closes.

        Raises:
            SandboxFailure: none could be started.
        """
        ...

    def done(self) -> int:
        """A descriptor that is readable when every process in the sandbox has ended, or the launcher failed."""
        ...

    def collect(self) -> None:
        """Reap the sandbox process, after `done`.

        Raises:
            SandboxFailure: the launcher itself ended.
        """
        ...

    def abort(self) -> None:
        """Kill the launcher, from any thread; the thread that uses it meets a `SandboxFailure` and closes it."""
        ...

    def close(self) -> None:
        """End the launcher and every process, folder and group of its sandbox; in the thread that used it last."""
        ...


class ForkServer:
    """A warm interpreter that forks sandbox processes, see `guest.fork_server`."""

    def __init__(self, plan: LaunchPlan, limits: Limits, hierarchies: Hierarchies) -> None:
        self.isolated = plan.mode != "none"
        self.group: ControlGroup | None = None
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            arguments = command("main", limits.stack, str(theirs.fileno()))
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
        """Ask for a sandbox process; the descriptors stay the caller's."""
        try:
            socket.send_fds(self._control, [json.dumps(request).encode()], list(descriptors))
            data, received, _, _ = socket.recv_fds(self._control, MESSAGE, 1)
        except OSError as error:
            raise SandboxFailure(f"the fork server does not answer: {error}") from error
        return int(_reply(data, "pid")), received[0]

    def done(self) -> int:
        return self._control.fileno()

    def collect(self) -> None:
        """Read that the sandbox process was reaped."""
        self._expect("reaped")

    def abort(self) -> None:
        """Kill the fork server; the first process in its sandbox dies with it."""
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


class Bubblewrap:
    """Starts sandbox processes through bwrap: slower, but it works where only bwrap may make namespaces."""

    isolated = True
    resident = 0

    def __init__(self, plan: LaunchPlan, limits: Limits, path: str, hierarchies: Hierarchies) -> None:
        self._plan, self._limits, self._path = plan, limits, path
        self.group = ControlGroup(hierarchies) if hierarchies.described else None
        self._process: ChildProcess | None = None
        self._first = -1

    def launch(self, request: dict[str, Any], descriptors: Sequence[int]) -> tuple[int, int]:
        """Start bwrap and wait until it names the first process of its namespace."""
        reading, writing = os.pipe()
        try:
            everything = json.dumps([self._plan.wire(), request, list(descriptors)])
            arguments = [
                *_in_group(self.group), *self._wrapped(request["limits"], writing),
                *command("single", self._limits.stack, everything),
            ]  # fmt: skip
            self._process = ChildProcess(arguments, {}, pass_fds=[*descriptors, writing], folder="/")
        except OSError as error:
            os.close(reading)
            raise SandboxFailure(f"bubblewrap does not start: {error}") from error
        finally:
            os.close(writing)
        with open(reading, "rb") as info:
            written = info.read()
        try:
            pid = int(json.loads(written)["child-pid"])
            self._first = os.pidfd_open(pid)
        except (ValueError, KeyError, OSError) as error:
            self.collect()
            raise SandboxFailure("bubblewrap started no process") from error
        return pid, os.dup(self._first)

    def _wrapped(self, limits: dict[str, int], info: int) -> list[str]:
        words = [self._path, "--unshare-all", "--clearenv", "--cap-drop", "ALL", "--new-session", "--die-with-parent"]
        words += ["--uid", str(NOBODY), "--gid", str(NOBODY), "--setenv", "PYTHONHASHSEED", "0", "--info-fd", str(info)]
        words += ["--dev", "/dev", "--proc", "/proc"]
        for path in ("/tmp", "/dev/shm"):  # before the binds: Python itself may live below /tmp
            words += ["--size", str(limits["tmp_bytes"]), "--tmpfs", path]
        for path in (*self._plan.binds, str(GUEST)):
            words += ["--ro-bind", path, path]
        for path, target in self._plan.links:
            words += ["--symlink", target, path]
        return [*words, "--remount-ro", "/", "--chdir", "/tmp", "--"]

    def done(self) -> int:
        return self._first

    def collect(self) -> None:
        """Reap bwrap itself."""
        if self._process is not None:
            self._process.end(CLOSING_SECONDS)
            self._process = None
        if self._first >= 0:
            os.close(self._first)
            self._first = -1

    def abort(self) -> None:
        """Kill bwrap; everything in its sandbox dies with it."""
        process = self._process
        if process is not None:
            process.kill()

    def close(self) -> None:
        """Kill what runs in the sandbox, if anything does."""
        if self._first >= 0:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._first, signal.SIGKILL)
        self.collect()
        if self.group is not None:
            _remove(self.group)
            self.group = None


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


def _in_group(group: ControlGroup | None) -> list[str]:
    """A command that joins the group, then becomes the command that follows."""
    if group is None:
        return []
    files = [f"{folder}/cgroup.procs" for folder in group.folders]
    joins = " && ".join(f"echo $$ > '{file}'" for file in files)
    return ["/bin/sh", "-c", f'{joins} && exec "$@"', "sh"]


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
