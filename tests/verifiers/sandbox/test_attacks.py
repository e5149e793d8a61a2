"""Programs that try to get out, to get more, or to stay: each is contained, and nothing is left of it."""

from __future__ import annotations

import os
import socket
import tempfile
from pathlib import Path

import pytest
from tests.verifiers.sandbox.machine import processes_below

from strop_verify.sandbox import Outcome, ProgramRun, Sandbox

SECONDS = 8.0


def run(sandbox: Sandbox, program: str, stdin: bytes = b"", seconds: float = SECONDS) -> ProgramRun:
    """Run it twice where it ended in an error of ours, as the sandbox itself does, and see that nothing is left."""
    found = sandbox.run(program, stdin, seconds)
    assert found.ending.outcome is not Outcome.SANDBOX_ERROR, found.ending
    return found


def said(sandbox: Sandbox, program: str) -> str:
    """What a program prints that ends well."""
    found = run(sandbox, program)
    assert found.ending.outcome is Outcome.ENDED, found
    return found.stdout.decode().strip()


def attempt(action: str) -> str:
    """A program that prints `in` where the action works, else the name of the error."""
    lines = "\n".join(f"    {line}" for line in action.splitlines())
    head, tail = "import os, socket, ctypes", "    print('in')\nexcept BaseException as e:\n    print(type(e).__name__)"
    return f"{head}\ntry:\n{lines}\n{tail}"


@pytest.mark.parametrize(
    "action",
    [
        "open('/etc/shadow').read()",
        "open('/etc/hostname').read()",
        "os.listdir('/home')",
        "os.listdir('/sys')",
        "open('/usr/x', 'w')",
        "open('/x', 'w')",
        "os.mkdir('/dev/x')",
        "os.remove('/bin')",
        "open('/proc/1/environ').read()",
        "open('/proc/1/mem', 'rb').read(1)",
        "os.listdir('/proc/1/fd')",
        "open('/proc/sys/kernel/hostname', 'w').write('x')",
        "os.setuid(0)",
        "os.chroot('/tmp')",
        "os.open('/dev/vda', 0)",
        "os.mknod('/tmp/disk', 0o60600, os.makedev(254, 0))",
        "socket.socket(socket.AF_INET).connect(('127.0.0.1', 22))",
        "socket.socket(socket.AF_INET6)",
        "socket.socket(socket.AF_NETLINK)",
        "socket.socket(40)",  # virtual machine sockets reach the host whatever the namespace
        "socket.create_server(('127.0.0.1', 0))",
        "socket.getaddrinfo('example.org', 80)[0]",
        "import time; time.clock_settime(0, 0)",
        "os.setpriority(os.PRIO_PROCESS, 0, -5)",
        "import resource; resource.setrlimit(resource.RLIMIT_NPROC, (9999, 9999))",
        "import resource; resource.setrlimit(resource.RLIMIT_CPU, (-1, -1))",
        "os.memfd_create('x')",
        "os.kill(1, 9); os.kill(1, 0); raise PermissionError if os.path.exists('/proc/1') else None",
    ],
)
def test_what_a_program_may_not_do_fails(sandbox: Sandbox, action: str) -> None:
    assert said(sandbox, attempt(action)) != "in"


@pytest.mark.parametrize(
    ("call", "arguments"),
    [
        ("ptrace", "0, 0, 0, 0"),  # PTRACE_TRACEME
        ("unshare", "0x10000000"),
        ("mount", "b'x', b'/tmp', b'tmpfs', 0, None"),
        ("umount2", "b'/proc', 2"),
        ("setns", "0, 0"),
        ("sethostname", "b'x', 1"),
        ("process_vm_readv", "1, None, 0, None, 0, 0"),
        ("shmget", "1, 4096, 0o1777"),
    ],
)
def test_system_calls_that_reach_far_are_refused(sandbox: Sandbox, call: str, arguments: str) -> None:
    program = f"import ctypes\nc=ctypes.CDLL(None, use_errno=True)\nprint(c.{call}({arguments}), ctypes.get_errno())"
    assert said(sandbox, program) == "-1 1"  # EPERM


def test_files_of_the_machine_cannot_be_seen(sandbox: Sandbox) -> None:
    with tempfile.NamedTemporaryFile() as secret:
        os.chmod(secret.name, 0o644)
        assert said(sandbox, f"import os\nprint(os.path.exists({secret.name!r}))") == "False"
        assert said(sandbox, f"import os\nprint(os.path.exists({str(Path(__file__))!r}))") == "False"


def test_a_listener_of_the_machine_cannot_be_reached(sandbox: Sandbox) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server, socket.socket(socket.AF_UNIX) as abstract:
        name = f"\0strop-test-{os.getpid()}"
        abstract.bind(name)
        abstract.listen()
        port = server.getsockname()[1]
        assert said(sandbox, attempt(f"socket.create_connection(('127.0.0.1', {port}), 1)")) != "in"
        action = f"socket.socket(socket.AF_UNIX).connect({name!r})"
        assert said(sandbox, attempt(action)) == "ConnectionRefusedError"


def test_only_its_own_processes_are_seen(sandbox: Sandbox) -> None:
    program = "import os\nprint(max([int(p) for p in os.listdir('/proc') if p.isdigit()], default=0), os.getpid())"
    most, own = map(int, said(sandbox, program).split())
    assert max(most, own) < 10


def test_it_is_nobody_without_rights(sandbox: Sandbox) -> None:
    program = (
        "import os\nprint(*os.getresuid(), *os.getresgid(), *os.getgroups())\n"
        "print([l.split()[1] for l in open('/proc/self/status') if l[:3] == 'Cap' or l[:3] == 'NoN'])"
    )
    ids, rights = said(sandbox, program).splitlines()
    assert set(ids.split()) == {"65534"}
    assert eval(rights) == ["0" * 16] * 5 + ["1"]


def test_a_fork_bomb_is_held_and_ended(sandbox: Sandbox) -> None:
    before = processes_below()  # the fork servers, and what other tests keep open
    program = "import os\nwhile True:\n    try: os.fork()\n    except OSError: pass"
    found = run(sandbox, program, seconds=1.0)
    assert found.ending.outcome is Outcome.TIMEOUT
    assert len(processes_below()) <= len(before)


def test_sleepers_are_counted_and_reaped(sandbox: Sandbox) -> None:
    before = processes_below()
    program = (
        "import os, time\nn = 0\nfor i in range(400):\n    try:\n        if os.fork() == 0:\n"
        "            time.sleep(30); os._exit(0)\n        n += 1\n    except OSError: break\nprint(n)"
    )
    assert 10 < int(said(sandbox, program)) < 32
    assert len(processes_below()) <= len(before)


def test_threads_count_as_processes(sandbox: Sandbox) -> None:
    program = (
        "import threading\nn = 0\nhold = threading.Event()\ntry:\n    for i in range(100):\n"
        "        threading.Thread(target=hold.wait, daemon=True).start(); n += 1\n"
        "except RuntimeError: pass\nprint(n)"
    )
    assert 10 < int(said(sandbox, program)) < 32


@pytest.mark.parametrize(
    "program",
    [
        "x = []\nwhile True: x.append(bytearray(1 << 20))",
        "x = b'a' * (1 << 20)\nwhile True: x += x",
        "import os\nfor i in range(8):\n    if os.fork() == 0: x = bytearray(100 << 20); import time; time.sleep(9)\n"
        "import time; time.sleep(9)",
        "x = b'x' * (300 << 20)",
    ],
)
def test_a_memory_bomb_is_ended(sandbox: Sandbox, program: str) -> None:
    assert run(sandbox, program).ending.outcome is Outcome.MEMORY


def test_files_are_bounded_and_gone(sandbox: Sandbox) -> None:
    program = (
        "n = 0\ntry:\n    for i in range(100):\n        with open(f'/tmp/f{i}', 'wb') as f:\n"
        "            for _ in range(4): n += f.write(bytes(1 << 20))\nexcept OSError: pass\nprint(n >> 20)"
    )
    assert 2 <= int(said(sandbox, program)) <= 8
    assert said(sandbox, "import os\nprint(os.path.exists('/tmp/f0'), os.listdir('/dev/shm'))") == "False []"


def test_descriptors_are_bounded(sandbox: Sandbox) -> None:
    program = "import os\nn = 0\ntry:\n    while True: os.open('/dev/null', 0); n += 1\nexcept OSError: print(n)"
    assert int(said(sandbox, program)) <= 256


def test_a_flood_of_output_is_ended(sandbox: Sandbox) -> None:
    for stream in ("stdout", "stderr"):
        found = run(sandbox, f"import sys\nwhile True: sys.{stream}.write('x' * 10000)")
        assert found.ending.outcome is Outcome.KILLED
        assert len(found.stdout) <= 1 << 20


@pytest.mark.parametrize(
    "program",
    [
        "import time; time.sleep(60)",
        "while True: pass",
        "pow(7, 10 ** 8)",
        "import re; re.match(r'(a+)+$', 'a' * 40 + 'b')",
        "import os, signal; os.kill(os.getpid(), signal.SIGSTOP)",
        "import signal\nfor s in range(1, 32):\n    try: signal.signal(s, signal.SIG_IGN)\n"
        "    except (OSError, ValueError): pass\nwhile True: pass",
        "import os\nos.setsid() if os.getpgrp() != os.getpid() else 0\nwhile True: pass",
        "import threading\nthreading.Thread(target=threading.Event().wait).start()",
        "import atexit, time\natexit.register(time.sleep, 60)",
        "import sys\nsys.stdout.close(); sys.stderr.close(); sys.stdin.close()\nimport os\nos.closerange(0, 100)\n"
        "while True: pass",
        "import time\ntime.time = time.monotonic = time.perf_counter = lambda: 0\nwhile True: pass",
        "str(10 ** 2000000) and int('9' * 3000000)\nwhile True: pass",
        "while True:\n    try:\n        while True: pass\n    except BaseException: pass",
    ],
)
def test_whatever_hangs_is_ended(sandbox: Sandbox, program: str) -> None:
    found = run(sandbox, program, seconds=0.7)
    assert found.ending.outcome is Outcome.TIMEOUT
    assert found.ending.seconds < 3.0


def test_grandchildren_that_hide_are_ended(sandbox: Sandbox) -> None:
    before = processes_below()
    program = (
        "import os, time\nif os.fork() == 0:\n    os.setsid()\n    if os.fork() == 0:\n"
        "        os.close(0); os.close(1); os.close(2)\n        while True: time.sleep(1)\n    os._exit(0)\n"
        "os.wait()\nprint('done')"
    )
    assert said(sandbox, program) == "done"
    assert len(processes_below()) <= len(before)


def test_the_first_process_does_not_listen_to_signals(sandbox: Sandbox) -> None:
    program = (
        "import os, signal\nfor s in range(1, 65):\n    try: os.kill(1, s)\n    except OSError: pass\n"
        "try: os.kill(-1, signal.SIGCONT)\nexcept OSError: pass\nprint('alive')"
    )
    assert said(sandbox, program) == "alive"


@pytest.mark.parametrize(
    ("program", "kind"),
    [
        ("raise ValueError('x')", Outcome.RUNTIME_ERROR),
        ("import sys; sys.exit(3)", Outcome.RUNTIME_ERROR),
        ("import os; os._exit(1)", Outcome.RUNTIME_ERROR),
        ("import os; os.abort()", Outcome.RUNTIME_ERROR),
        ("import ctypes; ctypes.string_at(0)", Outcome.RUNTIME_ERROR),
        ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", Outcome.KILLED),
        ("import os; os.execv('/bin/false', ['false'])", Outcome.RUNTIME_ERROR),
        ("x = (", Outcome.SYNTAX_ERROR),
        ("x = '\0'", Outcome.SYNTAX_ERROR),
        ("(" * 5000, Outcome.SYNTAX_ERROR),
        ("x = " + "-" * 100_000 + "1", Outcome.SYNTAX_ERROR),
        ("\udce4 = 1", Outcome.SYNTAX_ERROR),
    ],
)
def test_how_a_program_ends_is_known(sandbox: Sandbox, program: str, kind: Outcome) -> None:
    assert run(sandbox, program).ending.outcome is kind


def test_recursion_through_C_ends_in_a_crash_or_at_the_limit(sandbox: Sandbox) -> None:
    program = "import sys; sys.setrecursionlimit(10**9)\nclass A:\n    def __repr__(s): return repr(s)\nrepr(A())"
    assert run(sandbox, program).ending.outcome in (Outcome.RUNTIME_ERROR, Outcome.MEMORY)


def test_an_exit_status_of_zero_is_only_that(sandbox: Sandbox) -> None:
    found = run(sandbox, "import os; os.execv('/bin/true', ['true'])")
    assert (found.ending.outcome, found.stdout) == (Outcome.ENDED, b"")


def test_frames_of_the_supervisor_cannot_be_forged(sandbox: Sandbox) -> None:
    """Every descriptor that the program has is written to; none of them is a way to the supervisor."""
    program = (
        "import os\nbody = b'[\"exit\",0,0.0,0]'\nframe = len(body).to_bytes(4, 'big') + body\n"
        "for d in range(3, 300):\n    try: os.write(d, frame)\n    except OSError: pass\nraise SystemExit(5)"
    )
    assert run(sandbox, program).ending.detail == "exit code 5"
    assert said(sandbox, "import os\nprint(os.listdir('/proc/self/fd'))") == "['0', '1', '2', '3']"  # 3 is the listing


def test_nothing_of_the_supervisor_is_in_its_memory(sandbox: Sandbox) -> None:
    """Neither the input of an earlier run nor modules of the fork server."""
    secret = "expected-" + os.urandom(8).hex()
    run(sandbox, "print(input())", secret.encode())
    program = (
        "import sys\nframe, names = sys._getframe(), []\n"
        "while frame:\n    names += frame.f_locals\n    frame = frame.f_back\n"
        "print([m for m in sys.modules if m.startswith('guest')], 'config' in names, 'control' in names)"
    )
    assert said(sandbox, program) == "[] False False"
    memory = (
        "import re\nfound = set()\nfor line in open('/proc/self/maps'):\n"
        "    a, b = [int(x, 16) for x in line.split()[0].split('-')]\n"
        "    if 'r' in line.split()[1] and b - a < 1 << 26 and '[v' not in line:\n"
        "        with open('/proc/self/mem', 'rb') as f:\n            f.seek(a)\n"
        "            try: found |= set(re.findall(rb'expected[-][0-9a-f]{16}', f.read(b - a)))\n"
        "            except OSError: continue\nprint(len(found))"
    )
    assert said(sandbox, memory) == "0"
    assert said(sandbox, f"secret = {secret!r}\n{memory}") == "1"  # it would be found
