"""A warm fork server that starts sandbox processes, and the plan by which they are isolated."""

from __future__ import annotations

import json
import os
import socket
import sys
import sysconfig
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from strop_verify.child_process import ChildProcess
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


START_SECONDS = 60.0
CLOSING_SECONDS = 2.0
MESSAGE = 1 << 16


class ForkServer:
    """A warm interpreter that forks sandbox processes, one at a time; see `guest.fork_server`.

    Attributes:
        isolated: whether sandbox processes are isolated from the machine.
        resident: bytes that a sandbox process shares with the fork server when it begins.

    Raises:
        SandboxFailure: it does not start.
    """

    def __init__(self, plan: LaunchPlan, limits: Limits) -> None:
        self.isolated = plan.mode != "none"
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
            self._control.settimeout(START_SECONDS)
            self._control.send(json.dumps(asdict(plan)).encode())
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
