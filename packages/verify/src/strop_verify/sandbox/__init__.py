"""Running untrusted programs without network, files or rights.

The files in `guest` run inside the sandbox, by path; they import nothing of this package.
"""

from strop_verify.sandbox.layers import Capabilities, NoIsolation, probe
from strop_verify.sandbox.limits import Ending, Kind, Limits, Run, SandboxFailure
from strop_verify.sandbox.pool import Sandbox

__all__ = ["Capabilities", "Ending", "Kind", "Limits", "NoIsolation", "Run", "Sandbox", "SandboxFailure", "probe"]
