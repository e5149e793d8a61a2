"""Programs as answers: taken from a response, run in the sandbox, judged by their tests. See docs/sandbox.md."""

from strop.verifiers.code.verifier import CodeVerifier

__all__ = ["CodeVerifier"]
