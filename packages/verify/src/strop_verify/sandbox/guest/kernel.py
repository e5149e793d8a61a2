"""System calls that Python has no function for, through ctypes; no compiler is needed.

`x86_64` and `aarch64` are known; elsewhere `NUMBERS` is empty and the layers that need a number are reported as absent.
"""

from __future__ import annotations

import ctypes
import os
import platform

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
    """Give up every capability, now and for whatever is executed later."""
    prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL)
    for capability in range(64):
        try:
            prctl(PR_CAPBSET_DROP, capability)
        except OSError:  # beyond the last capability of this kernel, or no right to shrink the set, which then is empty
            break
    header = (ctypes.c_uint32 * 2)(0x20080522, 0)
    _checked(_c.syscall(ctypes.c_long(NUMBERS["capset"]), header, (ctypes.c_uint32 * 6)()), "capset")
