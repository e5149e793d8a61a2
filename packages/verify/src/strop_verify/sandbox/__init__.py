"""Running untrusted programs without network, files or rights.

The files in `guest` run inside the sandbox, by path; they import nothing of this package.
"""

from strop_verify.sandbox.layers import NoIsolation, SandboxCapabilities, probe
from strop_verify.sandbox.limits import Ending, Limits, Outcome, ProgramRun, SandboxFailure
from strop_verify.sandbox.pool import Sandbox

__all__ = [
    "Ending",
    "Outcome",
    "Limits",
    "NoIsolation",
    "ProgramRun",
    "Sandbox",
    "SandboxCapabilities",
    "SandboxFailure",
    "probe",
]
