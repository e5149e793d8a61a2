"""Isolating a sandbox process: a root file system of read-only binds, the user nobody, no rights.

Each step has a name; `StepFailed` carries it, so that the probe can tell which layer this machine lacks.
`Config.without` names the optional steps that it found lacking: `user` (a user namespace below root), `proc`, `ipc`,
`seccomp`.
"""

from __future__ import annotations

import os
import resource
import signal
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from . import kernel, seccomp

NOBODY = 65534
ROOT_BYTES = 1 << 20
NO_RIGHTS = kernel.MS_NOSUID | kernel.MS_NODEV
OPTIONAL = ("user", "proc", "ipc", "seccomp")
DEVICES = ("null", "zero", "full", "random", "urandom")
DEVICE_LINKS = (("fd", "/proc/self/fd"), ("stdin", "fd/0"), ("stdout", "fd/1"), ("stderr", "fd/2"))
ENVIRONMENT = {
    "PATH": "/usr/local/bin:/usr/bin:/bin", "HOME": "/tmp", "TMPDIR": "/tmp", "LANG": "C.UTF-8", "USER": "nobody",
    "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1",
}  # fmt: skip


class StepFailed(Exception):
    """A step of the isolation did not work: its name, then why."""

    def __init__(self, step: str, why: str) -> None:
        super().__init__(f"{step}: {why}")
        self.step, self.why = step, why


class Config:
    """What the trusted process decided for a fork server; see `sandbox.plan`."""

    def __init__(self, values: Mapping[str, Any]) -> None:
        self.mode: str = values["mode"]  # "root", "user" or "none"
        self.without: list[str] = values["without"]
        self.binds: list[str] = values["binds"]
        self.links: list[list[str]] = values["links"]
        self.packages: list[str] = values["packages"]
        self.cgroups: list[str] = values["cgroups"]
        self.outer_uid, self.outer_gid = os.geteuid(), os.getegid()

    def has(self, step: str) -> bool:
        """Whether the layer `step` is to be used."""
        return step not in self.without

    @property
    def namespaces(self) -> int:
        """The flags with which the first process of a sandbox is cloned; 0 without isolation."""
        if self.mode == "none":
            return 0
        flags = kernel.CLONE_NEWPID | kernel.CLONE_NEWNS | kernel.CLONE_NEWNET
        if self.has("ipc"):
            flags |= kernel.CLONE_NEWIPC | kernel.CLONE_NEWUTS
        return flags | kernel.CLONE_NEWUSER if self.mode == "user" else flags


@contextmanager
def step(name: str) -> Iterator[None]:
    """Name whatever fails inside."""
    try:
        yield
    except OSError as error:
        raise StepFailed(name, str(error)) from error


def prepare(config: Config) -> None:
    """Isolate the fork server itself as far as all its sandboxes share it.

    That is a root of read-only binds in a separate mount namespace, of which each sandbox gets a copy. Where this
    takes a user namespace, the fork server has one, and each sandbox another one.
    """
    if config.mode == "none":
        return
    flags = kernel.CLONE_NEWNS
    if config.mode == "user":
        flags |= kernel.CLONE_NEWUSER
    with step("namespaces"):
        kernel.unshare(flags)
    if config.mode == "user":
        with step("user"):
            _map_ids(config.outer_uid, config.outer_gid)
            config.outer_uid = config.outer_gid = NOBODY
    with step("mounts"):
        _build_root(config)


def enter(config: Config, limits: Mapping[str, int]) -> None:
    """Make a freshly cloned process the first one of a sandbox: its own files and processes, the user nobody."""
    os.setsid()
    if config.mode == "user":
        with step("user"):
            _map_ids(config.outer_uid, config.outer_gid)
    if config.mode != "none":
        with step("mounts"):
            kernel.mount(None, "/", None, kernel.MS_REC | kernel.MS_PRIVATE)
            _mount_tmp(config, limits)
        if config.has("proc"):
            with step("proc"):
                _mount_proc()
        else:
            with step("mounts"):  # the machine's own must not be seen
                kernel.mount("none", "/proc", "tmpfs", kernel.MS_RDONLY, "size=4k")
        if config.has("ipc"):
            with step("ipc"):
                kernel.sethostname("sandbox")
    if os.geteuid() == 0:
        with step("nobody"):
            _become_nobody(config)
    with step("undumpable"):
        kernel.prctl(kernel.PR_SET_DUMPABLE, 0)
        kernel.prctl(kernel.PR_SET_PDEATHSIG, signal.SIGKILL)


def disarm(config: Config, limits: Mapping[str, int]) -> None:
    """Last step before foreign code, in the process that runs it: limits, no capabilities, no new ones, the filter."""
    with step("limits"):
        set_limits(limits)
    with step("capabilities"):
        kernel.drop_capabilities()
        kernel.prctl(kernel.PR_SET_NO_NEW_PRIVS, 1)
        kernel.prctl(kernel.PR_SET_DUMPABLE, 1)  # its own /proc/self is its own again; its parent stays closed
    if config.has("seccomp"):
        with step("seccomp"):
            if not seccomp.supported():
                raise OSError(f"no filter is written for {kernel.MACHINE}")
            seccomp.install()


def set_limits(limits: Mapping[str, int]) -> None:
    """rlimits; a hard limit that is lower already stays."""
    wanted = {
        resource.RLIMIT_AS: limits["address_space"],
        resource.RLIMIT_CPU: limits["cpu_seconds"],
        resource.RLIMIT_FSIZE: limits["file_bytes"],
        resource.RLIMIT_NOFILE: limits["open_files"],
        resource.RLIMIT_NPROC: limits["processes"],
        resource.RLIMIT_CORE: 0,
        resource.RLIMIT_MEMLOCK: 0,
        resource.RLIMIT_MSGQUEUE: 0,
        resource.RLIMIT_STACK: limits["stack_bytes"],
    }
    for name, value in wanted.items():
        hard = resource.getrlimit(name)[1]
        value = value if hard == resource.RLIM_INFINITY else min(value, hard)
        resource.setrlimit(name, (value, value))


def _map_ids(uid: int, gid: int) -> None:
    _write("/proc/self/setgroups", "deny")
    _write("/proc/self/uid_map", f"{NOBODY} {uid} 1")
    _write("/proc/self/gid_map", f"{NOBODY} {gid} 1")


def _become_nobody(config: Config) -> None:
    """Leave root for good; then, where the kernel lets us, a user namespace in which processes are counted apart."""
    os.setgroups([])
    os.setresgid(NOBODY, NOBODY, NOBODY)
    os.setresuid(NOBODY, NOBODY, NOBODY)
    if config.mode == "root" and config.has("user") and config.has("proc"):
        with step("user"):
            kernel.prctl(kernel.PR_SET_DUMPABLE, 1)  # else the files of /proc/self belong to root
            kernel.unshare(kernel.CLONE_NEWUSER)
            _map_ids(NOBODY, NOBODY)


def _build_root(config: Config) -> None:
    """A tmpfs becomes the root; binds of the old root go in read-only; the old root is let go."""
    kernel.mount(None, "/", None, kernel.MS_REC | kernel.MS_PRIVATE)
    kernel.mount("root", "/tmp", "tmpfs", NO_RIGHTS, f"size={ROOT_BYTES},nr_inodes=1024,mode=755")
    os.mkdir("/tmp/.old")
    kernel.pivot_root("/tmp", "/tmp/.old")
    os.chdir("/")
    for path in ("/proc", "/tmp", "/etc"):
        os.mkdir(path)
    _make_dev()
    for path in config.binds:
        _bind(path, f"/.old{path}")
    for path, target in config.links:
        os.makedirs(os.path.dirname(path), exist_ok=True)
        os.symlink(target, path)
    _write("/etc/passwd", f"nobody:x:{NOBODY}:{NOBODY}:nobody:/tmp:/bin/false\n")
    _write("/etc/group", f"nogroup:x:{NOBODY}:\n")
    # The kernel mounts a new /proc only where a whole old one is; each sandbox's covers it.
    kernel.mount("/.old/proc", "/proc", None, kernel.MS_BIND | kernel.MS_REC)
    kernel.detach("/.old")
    os.rmdir("/.old")
    kernel.mount(None, "/", None, kernel.MS_REMOUNT | kernel.MS_RDONLY | NO_RIGHTS)


def _mount_tmp(config: Config, limits: Mapping[str, int]) -> None:
    """Mount what a sandbox may write. Python itself may live below /tmp: it is held open and bound again over it."""
    size = f"size={limits['tmp_bytes']},nr_inodes={limits['tmp_files']},mode=1777"
    hidden = {path: os.open(path, os.O_PATH) for path in config.binds if path.startswith(("/tmp/", "/dev/shm/"))}
    for path in ("/tmp", "/dev/shm"):
        kernel.mount("tmp", path, "tmpfs", NO_RIGHTS, size)
    for path, descriptor in hidden.items():
        _bind(path, f"/proc/self/fd/{descriptor}")
        os.close(descriptor)


def _bind(path: str, source: str) -> None:
    if os.path.isdir(source):
        os.makedirs(path, exist_ok=True)
    else:
        os.makedirs(os.path.dirname(path), exist_ok=True)
        _write(path, "")
    kernel.mount(source, path, None, kernel.MS_BIND | kernel.MS_REC)
    flags = kernel.MS_REMOUNT | kernel.MS_BIND | kernel.MS_RDONLY | kernel.MS_NOSUID | kernel.MS_NODEV
    try:
        kernel.mount(None, path, None, flags)
    except PermissionError:  # the mount below is locked with a flag more, which must be repeated
        kernel.mount(None, path, None, flags | kernel.MS_NOEXEC)


def _make_dev() -> None:
    os.makedirs("/dev/shm")
    for name in DEVICES:
        _write(f"/dev/{name}", "")
        kernel.mount(f"/.old/dev/{name}", f"/dev/{name}", None, kernel.MS_BIND)
    for name, target in DEVICE_LINKS:
        os.symlink(target, f"/dev/{name}")


def _mount_proc() -> None:
    flags = kernel.MS_NOSUID | kernel.MS_NODEV | kernel.MS_NOEXEC
    try:
        kernel.mount("proc", "/proc", "proc", flags, "subset=pid")  # processes only: Linux 5.8
    except OSError:
        kernel.mount("proc", "/proc", "proc", flags)


def _write(path: str, text: str) -> None:
    with open(path, "w") as file:
        file.write(text)
