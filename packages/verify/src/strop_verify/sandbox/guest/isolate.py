"""Isolating a sandbox process: system calls, a filter of system calls, a root of read-only binds, the user nobody.

Python has no functions for these calls, so they go through ctypes; no compiler is needed. Each step of the isolation
has a name; `StepFailed` carries it, so that the probe can tell which layer this machine lacks. `Config.without` names
the optional steps that it found lacking: `user` (a user namespace below root), `proc`, `ipc`, `seccomp`.

The filter refuses the calls that a solution never needs: with EPERM (unknown newer ones with ENOSYS), so that a program
can go on. A call through a foreign calling convention kills the process. The filter is the last of several layers:
without capabilities and in separate namespaces a process can do little with these calls, but each is code of the kernel
that it need not reach.
"""

from __future__ import annotations

import ctypes
import functools
import os
import platform
import resource
import signal
import struct
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

MACHINE = platform.machine()
NUMBERS: dict[str, int] = {
    "x86_64": {"clone": 56, "capset": 126, "pivot_root": 155},
    "aarch64": {"clone": 220, "capset": 91, "pivot_root": 41},
}.get(MACHINE, {})

CLONE_NEWNS = 0x00020000
CLONE_NEWUTS = 0x04000000
CLONE_NEWIPC = 0x08000000
CLONE_NEWUSER = 0x10000000
CLONE_NEWPID = 0x20000000
CLONE_NEWNET = 0x40000000

MS_RDONLY, MS_NOSUID, MS_NODEV, MS_NOEXEC = 1, 2, 4, 8
MS_REMOUNT, MS_BIND, MS_REC, MS_PRIVATE = 32, 4096, 16384, 1 << 18
MNT_DETACH = 2

PR_SET_PDEATHSIG, PR_SET_DUMPABLE, PR_SET_KEEPCAPS, PR_CAPBSET_DROP = 1, 4, 8, 24
PR_SET_CHILD_SUBREAPER, PR_SET_NO_NEW_PRIVS, PR_CAP_AMBIENT = 36, 38, 47
PR_CAP_AMBIENT_CLEAR_ALL = 4

SIGCHLD = 17

# PyDLL keeps the interpreter's lock across the call: the child of a clone begins with the lock in its one thread.
_c = ctypes.PyDLL(None, use_errno=True)


def _checked(result: int, what: str) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")
    return result


def mount(source: str | None, target: str, kind: str | None, flags: int, data: str | None = None) -> None:
    """mount(2)."""
    texts = [None if text is None else os.fsencode(text) for text in (source, target, kind, data)]
    _checked(_c.mount(texts[0], texts[1], texts[2], ctypes.c_ulong(flags), texts[3]), f"mount {kind or ''} on {target}")


def detach(target: str) -> None:
    """Unmount lazily, with everything below."""
    _checked(_c.umount2(os.fsencode(target), MNT_DETACH), f"umount {target}")


def pivot_root(new: str, old: str) -> None:
    """pivot_root(2)."""
    _checked(_c.syscall(ctypes.c_long(NUMBERS["pivot_root"]), os.fsencode(new), os.fsencode(old)), "pivot_root")


def prctl(option: int, value: int = 0, third: int = 0, fourth: int = 0, fifth: int = 0) -> int:
    """prctl(2)."""
    words = [ctypes.c_ulong(word) for word in (value, third, fourth, fifth)]
    return _checked(_c.prctl(option, *words), f"prctl {option}")


def prctl_pointer(option: int, value: int, pointer: object) -> int:
    """prctl(2) whose third argument is a pointer."""
    result = _c.prctl(option, ctypes.c_ulong(value), pointer, ctypes.c_ulong(0), ctypes.c_ulong(0))
    return _checked(result, f"prctl {option}")


def unshare(flags: int) -> None:
    """unshare(2)."""
    _checked(_c.unshare(flags), f"unshare {flags:#x}")


def sethostname(name: str) -> None:
    """sethostname(2)."""
    _checked(_c.sethostname(os.fsencode(name), ctypes.c_size_t(len(name))), "sethostname")


def fork_into(flags: int) -> int:
    """fork(2) whose child begins in new namespaces: 0 in the child, its process id in the parent.

    The interpreter's own hooks run around the call as os.fork has them run. glibc does not hear of it and keeps the
    parent's thread id for `raise`; the child must not run a program itself, but fork a child that does.
    """
    python = ctypes.pythonapi
    python.PyOS_BeforeFork()
    arguments = [ctypes.c_long(word) for word in (NUMBERS["clone"], flags | SIGCHLD, 0, 0, 0, 0)]
    pid: int = _c.syscall(*arguments)
    number = ctypes.get_errno()
    if pid == 0:
        python.PyOS_AfterFork_Child()
        return 0
    python.PyOS_AfterFork_Parent()
    if pid < 0:
        raise OSError(number, f"clone {flags:#x}: {os.strerror(number)}")
    return pid


def drop_capabilities() -> None:
    """Give up every capability, for this process and all programs that it executes."""
    prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL)
    for capability in range(64):
        try:
            prctl(PR_CAPBSET_DROP, capability)
        except OSError:  # beyond the last capability of this kernel, or no right to shrink the set, which then is empty
            break
    header = (ctypes.c_uint32 * 2)(0x20080522, 0)
    _checked(_c.syscall(ctypes.c_long(NUMBERS["capset"]), header, (ctypes.c_uint32 * 6)()), "capset")


# ---------------------------------------------------------------------- the filter of system calls


PR_SET_SECCOMP, MODE_FILTER = 22, 2
ALLOW, KILL, ERRNO = 0x7FFF0000, 0x80000000, 0x00050000
EPERM, ENOSYS, EAFNOSUPPORT = 1, 38, 97
LOAD, JUMP_EQUAL, JUMP_AT_LEAST, JUMP_ANY_BIT, RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
NUMBER, ARCHITECTURE, ARGUMENT_0, ARGUMENT_1 = 0, 4, 16, 24  # offsets in struct seccomp_data, low words

AUDIT = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
X32_BIT = 0x40000000
AF_UNIX = 1
NEW_NAMESPACES = 0x7E020080  # NEWTIME, NEWNS, NEWCGROUP, NEWUTS, NEWIPC, NEWUSER, NEWPID, NEWNET
TIOCSTI, TIOCLINUX = 0x5412, 0x541C

_X86_64 = {
    "ptrace": 101, "process_vm_readv": 310, "process_vm_writev": 311, "kcmp": 312, "mount": 165, "umount2": 166,
    "pivot_root": 155, "chroot": 161, "unshare": 272, "setns": 308, "keyctl": 250, "add_key": 248, "request_key": 249,
    "bpf": 321, "perf_event_open": 298, "userfaultfd": 323, "kexec_load": 246, "kexec_file_load": 320,
    "init_module": 175, "finit_module": 313, "delete_module": 176, "open_by_handle_at": 304, "name_to_handle_at": 303,
    "reboot": 169, "swapon": 167, "swapoff": 168, "acct": 163, "settimeofday": 164, "clock_settime": 227,
    "adjtimex": 159, "clock_adjtime": 305, "syslog": 103, "quotactl": 179, "personality": 135, "fanotify_init": 300,
    "memfd_create": 319, "shmget": 29, "shmat": 30, "msgget": 68, "semget": 64, "mq_open": 240, "iopl": 172,
    "ioperm": 173, "modify_ldt": 154, "vhangup": 153, "sethostname": 170, "setdomainname": 171, "lookup_dcookie": 212,
    "move_pages": 279, "mbind": 237, "migrate_pages": 256, "set_mempolicy": 238, "vmsplice": 278, "uselib": 134,
    "_sysctl": 156, "nfsservctl": 180,
}  # fmt: skip
_AARCH64 = {
    "ptrace": 117, "process_vm_readv": 270, "process_vm_writev": 271, "kcmp": 272, "mount": 40, "umount2": 39,
    "pivot_root": 41, "chroot": 51, "unshare": 97, "setns": 268, "keyctl": 219, "add_key": 217, "request_key": 218,
    "bpf": 280, "perf_event_open": 241, "userfaultfd": 282, "kexec_load": 104, "kexec_file_load": 294,
    "init_module": 105, "finit_module": 273, "delete_module": 106, "open_by_handle_at": 265, "name_to_handle_at": 264,
    "reboot": 142, "swapon": 224, "swapoff": 225, "acct": 89, "settimeofday": 170, "clock_settime": 112,
    "adjtimex": 171, "clock_adjtime": 266, "syslog": 116, "quotactl": 60, "personality": 92, "fanotify_init": 262,
    "memfd_create": 279, "shmget": 194, "shmat": 196, "msgget": 186, "semget": 190, "mq_open": 180, "vhangup": 58,
    "sethostname": 161, "setdomainname": 162, "lookup_dcookie": 18, "move_pages": 239, "mbind": 235,
    "migrate_pages": 238, "set_mempolicy": 237, "vmsplice": 75, "nfsservctl": 42,
}  # fmt: skip
# The same on every architecture: io_uring, the new mount calls, and others younger than 2019 that reach far.
_YOUNG = {
    "io_uring_setup": 425, "io_uring_enter": 426, "io_uring_register": 427, "open_tree": 428, "move_mount": 429,
    "fsopen": 430, "fsconfig": 431, "fsmount": 432, "fspick": 433, "pidfd_getfd": 438, "process_madvise": 440,
    "mount_setattr": 442, "quotactl_fd": 443, "memfd_secret": 447,
}  # fmt: skip
CLONE3 = 435
YOUNGEST = 449  # futex_waitv; what came later is unknown to this filter
_CALLS = {
    "x86_64": (_X86_64, {"socket": 41, "socketpair": 53, "clone": 56, "ioctl": 16}),
    "aarch64": (_AARCH64, {"socket": 198, "socketpair": 199, "clone": 220, "ioctl": 29}),
}


def filter_supported() -> bool:
    """Whether the filter is written for this processor."""
    return MACHINE in _CALLS


@functools.cache  # the fork server calls it first, its children have the result
def seccomp_filter() -> bytes:
    """The filter as an array of struct sock_filter."""
    refused, checked = _CALLS[MACHINE]
    code = [
        _bpf(LOAD, ARCHITECTURE), _bpf(JUMP_EQUAL, AUDIT[MACHINE], 1, 0), _bpf(RETURN, KILL),
        _bpf(LOAD, NUMBER), _bpf(JUMP_AT_LEAST, X32_BIT, 0, 1), _bpf(RETURN, KILL),
        _bpf(JUMP_AT_LEAST, YOUNGEST + 1, 0, 1), _bpf(RETURN, ERRNO | ENOSYS),
        *_refuse(CLONE3, ENOSYS),  # its flags are behind a pointer; glibc falls back to clone
    ]  # fmt: skip
    for number in sorted({*refused.values(), *_YOUNG.values()}):
        code += _refuse(number, EPERM)
    for name in ("socket", "socketpair"):  # UNIX sockets only: no network, netlink, packet or machine sockets
        code += [
            _bpf(JUMP_EQUAL, checked[name], 0, 4), _bpf(LOAD, ARGUMENT_0), _bpf(JUMP_EQUAL, AF_UNIX, 1, 0),
            _bpf(RETURN, ERRNO | EAFNOSUPPORT), _bpf(RETURN, ALLOW),
        ]  # fmt: skip
    code += [
        _bpf(JUMP_EQUAL, checked["clone"], 0, 4), _bpf(LOAD, ARGUMENT_0), _bpf(JUMP_ANY_BIT, NEW_NAMESPACES, 0, 1),
        _bpf(RETURN, ERRNO | EPERM), _bpf(RETURN, ALLOW),
        _bpf(JUMP_EQUAL, checked["ioctl"], 0, 4), _bpf(LOAD, ARGUMENT_1), _bpf(JUMP_EQUAL, TIOCSTI, 1, 0),
        _bpf(JUMP_EQUAL, TIOCLINUX, 0, 1), _bpf(RETURN, ERRNO | EPERM), _bpf(RETURN, ALLOW),
    ]  # fmt: skip
    return b"".join(code)


def install_filter() -> None:
    """Put the filter on this process and everything that it starts; needs no_new_privs.

    Raises:
        OSError: the kernel has no seccomp filters, or forbids them.
    """
    code = seccomp_filter()
    buffer = ctypes.create_string_buffer(code, len(code))
    header = struct.pack("HxxxxxxP", len(code) // 8, ctypes.addressof(buffer))
    prctl_pointer(PR_SET_SECCOMP, MODE_FILTER, ctypes.c_char_p(header))


def _bpf(code: int, value: int, if_true: int = 0, if_false: int = 0) -> bytes:
    return struct.pack("=HBBI", code, if_true, if_false, value)


def _refuse(number: int, error: int) -> list[bytes]:
    return [_bpf(JUMP_EQUAL, number, 0, 1), _bpf(RETURN, ERRNO | error)]


# ---------------------------------------------------------------------- the steps of the isolation


NOBODY = 65534
ROOT_BYTES = 1 << 20
NO_RIGHTS = MS_NOSUID | MS_NODEV
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
        self.outer_uid, self.outer_gid = os.geteuid(), os.getegid()

    def has(self, step: str) -> bool:
        """Whether the layer `step` is to be used."""
        return step not in self.without

    @property
    def namespaces(self) -> int:
        """The flags with which the first process of a sandbox is cloned; 0 without isolation."""
        if self.mode == "none":
            return 0
        flags = CLONE_NEWPID | CLONE_NEWNS | CLONE_NEWNET
        if self.has("ipc"):
            flags |= CLONE_NEWIPC | CLONE_NEWUTS
        return flags | CLONE_NEWUSER if self.mode == "user" else flags


@contextmanager
def step(name: str) -> Iterator[None]:
    """Raise an `OSError` of the block as `StepFailed` with this name."""
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
    flags = CLONE_NEWNS
    if config.mode == "user":
        flags |= CLONE_NEWUSER
    with step("namespaces"):
        unshare(flags)
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
            mount(None, "/", None, MS_REC | MS_PRIVATE)
            _mount_tmp(config, limits)
        if config.has("proc"):
            with step("proc"):
                _mount_proc()
        else:
            with step("mounts"):  # the machine's own must not be seen
                mount("none", "/proc", "tmpfs", MS_RDONLY, "size=4k")
        if config.has("ipc"):
            with step("ipc"):
                sethostname("sandbox")
    if os.geteuid() == 0:
        with step("nobody"):
            _become_nobody(config)
    with step("undumpable"):
        prctl(PR_SET_DUMPABLE, 0)
        prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def disarm(config: Config, limits: Mapping[str, int]) -> None:
    """Last step before foreign code, in the process that runs it: limits, no capabilities, no new ones, the filter."""
    with step("limits"):
        set_limits(limits)
    with step("capabilities"):
        drop_capabilities()
        prctl(PR_SET_NO_NEW_PRIVS, 1)
        prctl(PR_SET_DUMPABLE, 1)  # its own /proc/self is its own again; its parent stays closed
    if config.has("seccomp"):
        with step("seccomp"):
            if not filter_supported():
                raise OSError(f"no filter is written for {MACHINE}")
            install_filter()


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
            prctl(PR_SET_DUMPABLE, 1)  # else the files of /proc/self belong to root
            unshare(CLONE_NEWUSER)
            _map_ids(NOBODY, NOBODY)


def _build_root(config: Config) -> None:
    """A tmpfs becomes the root; binds of the old root go in read-only; the old root is let go."""
    mount(None, "/", None, MS_REC | MS_PRIVATE)
    mount("root", "/tmp", "tmpfs", NO_RIGHTS, f"size={ROOT_BYTES},nr_inodes=1024,mode=755")
    os.mkdir("/tmp/.old")
    pivot_root("/tmp", "/tmp/.old")
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
    mount("/.old/proc", "/proc", None, MS_BIND | MS_REC)
    detach("/.old")
    os.rmdir("/.old")
    mount(None, "/", None, MS_REMOUNT | MS_RDONLY | NO_RIGHTS)


def _mount_tmp(config: Config, limits: Mapping[str, int]) -> None:
    """Mount the folders that a sandbox may write. Python itself may lie below /tmp; it is then bound again over it."""
    size = f"size={limits['tmp_bytes']},nr_inodes={limits['tmp_files']},mode=1777"
    hidden = {path: os.open(path, os.O_PATH) for path in config.binds if path.startswith(("/tmp/", "/dev/shm/"))}
    for path in ("/tmp", "/dev/shm"):
        mount("tmp", path, "tmpfs", NO_RIGHTS, size)
    for path, descriptor in hidden.items():
        _bind(path, f"/proc/self/fd/{descriptor}")
        os.close(descriptor)


def _bind(path: str, source: str) -> None:
    if os.path.isdir(source):
        os.makedirs(path, exist_ok=True)
    else:
        os.makedirs(os.path.dirname(path), exist_ok=True)
        _write(path, "")
    mount(source, path, None, MS_BIND | MS_REC)
    flags = MS_REMOUNT | MS_BIND | MS_RDONLY | MS_NOSUID | MS_NODEV
    try:
        mount(None, path, None, flags)
    except PermissionError:  # the mount below is locked with a flag more, which must be repeated
        mount(None, path, None, flags | MS_NOEXEC)


def _make_dev() -> None:
    os.makedirs("/dev/shm")
    for name in DEVICES:
        _write(f"/dev/{name}", "")
        mount(f"/.old/dev/{name}", f"/dev/{name}", None, MS_BIND)
    for name, target in DEVICE_LINKS:
        os.symlink(target, f"/dev/{name}")


def _mount_proc() -> None:
    flags = MS_NOSUID | MS_NODEV | MS_NOEXEC
    try:
        mount("proc", "/proc", "proc", flags, "subset=pid")  # processes only: Linux 5.8
    except OSError:
        mount("proc", "/proc", "proc", flags)


def _write(path: str, text: str) -> None:
    with open(path, "w") as file:
        file.write(text)
