"""What rooms are made with: a warm zygote that forks them, or bubblewrap with a cold interpreter."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

from strop.verifiers.sandbox.cgroups import Group, Hierarchies
from strop.verifiers.sandbox.guest.isolate import NOBODY
from strop.verifiers.sandbox.limits import Limits, SandboxFailure
from strop.verifiers.sandbox.plan import GUEST, Plan, command

START_SECONDS = 60.0
MESSAGE = 1 << 16


class Host(Protocol):
    """Makes one room at a time."""

    isolated: bool
    group: Group | None
    resident: int  # bytes that a room's process shares with the host when it begins

    def launch(self, request: dict[str, Any], descriptors: Sequence[int]) -> tuple[int, int]:
        """Begin a room: the id of its first process and a descriptor of that process, which the caller closes.

        Raises:
            SandboxFailure: none could be begun.
        """
        ...

    def done(self) -> int:
        """A descriptor that is readable when the room is gone to the last process, or the host failed."""
        ...

    def collect(self) -> None:
        """Take note that the room is gone.

        Raises:
            SandboxFailure: the host itself ended.
        """
        ...

    def abort(self) -> None:
        """Kill the host from any thread; whoever uses it meets a `SandboxFailure` and closes it."""
        ...

    def close(self) -> None:
        """End the host and the room in it, to the last process, folder and group; by the thread that used it last."""
        ...


class Zygote:
    """A warm interpreter that forks rooms, see `guest.fork_server`."""

    def __init__(self, plan: Plan, limits: Limits, hierarchies: Hierarchies) -> None:
        self.isolated = plan.mode != "none"
        self.group: Group | None = None
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._process = _start_zygote(theirs.fileno(), limits.stack)
        try:
            if hierarchies.described:
                self.group = Group(hierarchies)
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
        """The zygote's process id."""
        return self._process.pid

    def launch(self, request: dict[str, Any], descriptors: Sequence[int]) -> tuple[int, int]:
        """Ask for a room; the descriptors stay the caller's."""
        try:
            socket.send_fds(self._control, [json.dumps(request).encode()], list(descriptors))
            data, received, _, _ = socket.recv_fds(self._control, MESSAGE, 1)
        except OSError as error:
            raise SandboxFailure(f"the zygote does not answer: {error}") from error
        reply: dict[str, Any] = json.loads(data) if data else {"failed": ["zygote", "it has ended"]}
        if "failed" in reply:
            raise SandboxFailure(": ".join(reply["failed"]))
        return int(reply["pid"]), received[0]

    def done(self) -> int:
        return self._control.fileno()

    def collect(self) -> None:
        """Read that the room was reaped."""
        self._expect("reaped")

    def abort(self) -> None:
        """Its room's first process dies with the zygote."""
        self._process.kill()

    def close(self) -> None:
        """The zygote kills its room and ends when its socket closes; it gets a second for that."""
        self._control.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout=2.0)
        self._process.kill()  # its room's first process dies with it
        self._process.wait()
        if self.group is not None:
            _remove(self.group)
            self.group = None

    def _expect(self, key: str) -> None:
        try:
            data = self._control.recv(MESSAGE)
        except OSError as error:
            raise SandboxFailure(f"the zygote does not answer: {error}") from error
        reply: dict[str, Any] = json.loads(data) if data else {}
        if "failed" in reply:
            raise SandboxFailure(": ".join(reply["failed"]))
        if key not in reply:
            raise SandboxFailure("the zygote has ended")


class Bubblewrap:
    """A room through bwrap: no warm interpreter, but it works where only bwrap may make namespaces."""

    isolated = True
    resident = 0

    def __init__(self, plan: Plan, limits: Limits, path: str, hierarchies: Hierarchies) -> None:
        self._plan, self._limits, self._path = plan, limits, path
        self.group = Group(hierarchies) if hierarchies.described else None
        self._process: subprocess.Popen[bytes] | None = None
        self._first = -1

    def launch(self, request: dict[str, Any], descriptors: Sequence[int]) -> tuple[int, int]:
        """Start bwrap and wait until it names the first process of its namespace."""
        reading, writing = os.pipe()
        try:
            arguments = json.dumps([self._plan.wire(), request, list(descriptors)])
            self._process = subprocess.Popen(
                [
                    *_in_group(self.group), *self._wrapped(request["limits"], writing),
                    *command("single", self._limits.stack, arguments),
                ],
                pass_fds=[*descriptors, writing], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL, env={}, cwd="/",
            )  # fmt: skip
        except OSError as error:
            os.close(reading)
            raise SandboxFailure(f"bubblewrap does not start: {error}") from error
        finally:
            os.close(writing)
        with open(reading, "rb") as info:
            told = info.read()
        try:
            pid = int(json.loads(told)["child-pid"])
            self._first = os.pidfd_open(pid)
        except (ValueError, KeyError, OSError) as error:
            self.collect()
            raise SandboxFailure("bubblewrap made no room") from error
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
            try:
                self._process.wait(timeout=2.0)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
            self._process = None
        if self._first >= 0:
            os.close(self._first)
            self._first = -1

    def abort(self) -> None:
        """The room dies with bwrap."""
        process = self._process
        if process is not None:
            process.kill()

    def close(self) -> None:
        """Kill the room, if there is one."""
        if self._first >= 0:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._first, signal.SIGKILL)
        self.collect()
        if self.group is not None:
            _remove(self.group)
            self.group = None


def resident_bytes(pid: int) -> int:
    """What a process has in memory; 0 where it is gone."""
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (FileNotFoundError, ProcessLookupError):
        return 0


def _start_zygote(control: int, stack: int) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        command("main", stack, str(control)), pass_fds=[control], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL, env={"LANG": "C.UTF-8", "PYTHONHASHSEED": "0"}, cwd="/", start_new_session=True,
    )  # fmt: skip


def _in_group(group: Group | None) -> list[str]:
    """A command that joins the group, then becomes the command that follows."""
    if group is None:
        return []
    files = [f"{folder}/cgroup.procs" for folder in group.folders]
    joins = " && ".join(f"echo $$ > '{file}'" for file in files)
    return ["/bin/sh", "-c", f'{joins} && exec "$@"', "sh"]


def _remove(group: Group) -> None:
    """A group is busy for a moment after its last process has ended."""
    for attempt in range(100):
        try:
            group.remove()
            return
        except OSError:
            if attempt == 99:
                raise
            time.sleep(0.02)
