"""Running programs that must not be trusted, without network, files or rights. See docs/sandbox.md."""

from strop.verifiers.sandbox.layers import Capabilities, NoIsolation, probe
from strop.verifiers.sandbox.limits import Ending, Kind, Limits, Run, SandboxFailure
from strop.verifiers.sandbox.pool import Sandbox

__all__ = [
    "Capabilities",
    "Ending",
    "Kind",
    "Limits",
    "NoIsolation",
    "Run",
    "Sandbox",
    "SandboxFailure",
    "probe",
]
