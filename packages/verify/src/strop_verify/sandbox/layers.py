"""The layers of isolation that this machine offers, found out once a process by building them and trying to get out.

The fork server works as root, or else in a user namespace; without isolation only where the user says
`allow_unsafe_sandbox`.
"""

from __future__ import annotations

import functools
import json
import os
import socket
import tempfile
from dataclasses import dataclass, field

from strop_verify.sandbox.guest.isolate import NOBODY, OPTIONAL
from strop_verify.sandbox.launchers import ForkServer, LaunchPlan, Mode, plan_for
from strop_verify.sandbox.limits import Limits, Outcome, ProgramRun, SandboxFailure
from strop_verify.sandbox.process import SandboxProcess, finish
from strop_verify.verdict import VerifyError

TRIAL_SECONDS = 20.0
# Tries to leave the sandbox in the ways that must be shut; prints what it found.
TRIAL = """
import json, os, socket
def opens(action):
    try:
        action()
        return True
    except OSError:
        return False
def connect():
    s = socket.socket(socket.AF_UNIX)
    s.connect({address!r})
print(json.dumps({{
    "uid": os.getuid(), "pid": os.getpid(), "file": opens(lambda: open({file!r})), "network": opens(connect),
    "writes": opens(lambda: open("/usr/strop-trial", "w")),
}}))
"""
MODES = {"root": "a fork server with namespaces as root", "user": "a fork server in a user namespace", "none": "none"}
LAYERS = {
    "user": "a separate user namespace (counts its own processes)",
    "proc": "a separate /proc (/dev/stdin)",
    "ipc": "namespaces for IPC and host name",
    "seccomp": "a system-call filter",
}


@dataclass(frozen=True)
class SandboxCapabilities:
    """What was found.

    Attributes:
        plan: how sandbox processes are isolated; its mode is `none` where they cannot be.
        missing: what does not work here, with the reason.
    """

    plan: LaunchPlan
    missing: dict[str, str] = field(default_factory=dict)

    @property
    def isolated(self) -> bool:
        """Whether foreign programs can be run safely."""
        return self.plan.mode != "none"


class NoIsolation(VerifyError):
    """This machine cannot isolate foreign programs."""


@functools.cache
def probe() -> SandboxCapabilities:
    """What this machine can do; takes a fraction of a second, once.

    As root a user namespace is no way: a process that stays root outside is not held by the limit on processes.
    """
    mode: Mode = "root" if os.geteuid() == 0 else "user"
    plan, why = attempt(mode)
    if plan is None:
        return SandboxCapabilities(plan_for("none", OPTIONAL), {mode: "; ".join(why.values())})
    return SandboxCapabilities(plan, {LAYERS[step]: reason for step, reason in why.items() if step in LAYERS})


def attempt(mode: Mode) -> tuple[LaunchPlan | None, dict[str, str]]:
    """A plan of this mode that was seen to hold, optional layers left out one by one; None and why where none does."""
    without: dict[str, str] = {}
    while True:
        plan = plan_for(mode, without)
        try:
            run = _trial(plan)
        except SandboxFailure as error:
            step, why = _failed(str(error))
        else:
            if run.ending.outcome is Outcome.ENDED:
                return (plan, without) if not (hole := holes(run)) else (None, {"trial": hole})
            step, why = _failed(run.ending.detail)
        if step not in OPTIONAL or step in without:
            return None, {step: why}
        without[step] = why


def require(allow_unsafe: bool) -> SandboxCapabilities:
    """What this machine can do.

    Raises:
        NoIsolation: it cannot isolate programs, and `allow_unsafe` does not say that this is fine.
    """
    found = probe()
    if not found.isolated and not allow_unsafe:
        reasons = "; ".join(f"{name}: {reason}" for name, reason in found.missing.items())
        raise NoIsolation(
            f"no isolation for foreign programs on this machine ({reasons}); allow unprivileged user namespaces "
            "(see `strop doctor`), or set allow_unsafe_sandbox=true if a program may do what you may"
        )
    return found


def holes(run: ProgramRun) -> str:
    """What the trial program got through, in words; "" for nothing."""
    try:
        facts = json.loads(run.stdout)
    except ValueError:
        return "the trial program printed nonsense"
    found = {
        "the user is not nobody": facts["uid"] != NOBODY,
        "processes of the machine can be seen": facts["pid"] > 50,
        "files of the machine can be read": facts["file"],
        "sockets of the machine can be reached": facts["network"],
        "system folders can be written": facts["writes"],
    }
    return ", ".join(name for name, open_ in found.items() if open_)


def _trial(plan: LaunchPlan) -> ProgramRun:
    limits = Limits()
    with tempfile.NamedTemporaryFile(mode="w") as secret, socket.socket(socket.AF_UNIX) as listener:
        os.chmod(secret.name, 0o644)
        address = f"\0strop-trial-{os.getpid()}-{os.urandom(4).hex()}"
        listener.bind(address)
        listener.listen()
        program = TRIAL.format(address=address, file=secret.name)
        server = ForkServer(plan, limits)
        try:
            process = SandboxProcess(server, "main", program, b"", limits, TRIAL_SECONDS)
            try:
                return finish(process, TRIAL_SECONDS)
            finally:
                process.close()
        finally:
            server.close()


def _failed(text: str) -> tuple[str, str]:
    step, _, why = text.partition(": ")
    return step, why or text
