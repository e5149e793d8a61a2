"""Mathematical answers: found, read by kind, bounded, and proved equal or different."""

from strop_verify.math.settings import MathSettings
from strop_verify.math.verifier import verify, verify_all

__all__ = ["MathSettings", "verify", "verify_all"]
