"""A seccomp filter, assembled by hand: what a solution never needs, and what a kernel regrets most often, is refused.

Refused calls fail with EPERM (unknown newer ones with ENOSYS), so that a program can go on; a call through a foreign
calling convention kills the process. The filter is the last of several layers: without capabilities and in
separate namespaces a process can do little with these calls, but each is code of the kernel that it need not reach.
"""

from __future__ import annotations

import ctypes
import functools
import struct

from . import kernel

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


def supported() -> bool:
    """Whether the filter is written for this processor."""
    return kernel.MACHINE in _CALLS


@functools.cache  # the fork server calls it first, its children have the result
def program() -> bytes:
    """The filter as an array of struct sock_filter."""
    refused, checked = _CALLS[kernel.MACHINE]
    code = [
        _step(LOAD, ARCHITECTURE), _step(JUMP_EQUAL, AUDIT[kernel.MACHINE], 1, 0), _step(RETURN, KILL),
        _step(LOAD, NUMBER), _step(JUMP_AT_LEAST, X32_BIT, 0, 1), _step(RETURN, KILL),
        _step(JUMP_AT_LEAST, YOUNGEST + 1, 0, 1), _step(RETURN, ERRNO | ENOSYS),
        *_refuse(CLONE3, ENOSYS),  # its flags are behind a pointer; glibc falls back to clone
    ]  # fmt: skip
    for number in sorted({*refused.values(), *_YOUNG.values()}):
        code += _refuse(number, EPERM)
    for name in ("socket", "socketpair"):  # UNIX sockets only: no network, netlink, packet or machine sockets
        code += [
            _step(JUMP_EQUAL, checked[name], 0, 4), _step(LOAD, ARGUMENT_0), _step(JUMP_EQUAL, AF_UNIX, 1, 0),
            _step(RETURN, ERRNO | EAFNOSUPPORT), _step(RETURN, ALLOW),
        ]  # fmt: skip
    code += [
        _step(JUMP_EQUAL, checked["clone"], 0, 4), _step(LOAD, ARGUMENT_0), _step(JUMP_ANY_BIT, NEW_NAMESPACES, 0, 1),
        _step(RETURN, ERRNO | EPERM), _step(RETURN, ALLOW),
        _step(JUMP_EQUAL, checked["ioctl"], 0, 4), _step(LOAD, ARGUMENT_1), _step(JUMP_EQUAL, TIOCSTI, 1, 0),
        _step(JUMP_EQUAL, TIOCLINUX, 0, 1), _step(RETURN, ERRNO | EPERM), _step(RETURN, ALLOW),
    ]  # fmt: skip
    return b"".join(code)


def install() -> None:
    """Put the filter on this process and everything that it starts; needs no_new_privs.

    Raises:
        OSError: the kernel has no seccomp filters, or forbids them.
    """
    code = program()
    buffer = ctypes.create_string_buffer(code, len(code))
    header = struct.pack("HxxxxxxP", len(code) // 8, ctypes.addressof(buffer))
    kernel.prctl_pointer(PR_SET_SECCOMP, MODE_FILTER, ctypes.c_char_p(header))


def _step(code: int, value: int, if_true: int = 0, if_false: int = 0) -> bytes:
    return struct.pack("=HBBI", code, if_true, if_false, value)


def _refuse(number: int, error: int) -> list[bytes]:
    return [_step(JUMP_EQUAL, number, 0, 1), _step(RETURN, ERRNO | error)]
