"""Programs as answers: taken from a response, run in the sandbox, judged by their tests."""

from strop_verify.code.runners import CodeResult, ProgramSettings
from strop_verify.code.verifier import run, verify, verify_all
from strop_verify.sandbox.limits import Outcome

__all__ = ["CodeResult", "Outcome", "ProgramSettings", "run", "verify", "verify_all"]
