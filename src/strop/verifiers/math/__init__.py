"""Mathematical answers: found, read by kind, bounded, and proved equal or different."""

from strop.verifiers.math.verifier import MathVerifier

__all__ = ["MathVerifier"]
