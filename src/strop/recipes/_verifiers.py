"""The verifiers of the recipes, each in one place."""

from __future__ import annotations

from strop.verifiers.base import Verifier
from strop.verifiers.by_domain import ByDomain
from strop.verifiers.code_verifier import CodeVerifier
from strop.verifiers.combined import AnyOf
from strop.verifiers.math_verifier import MathVerifier


def math_verifier() -> Verifier:
    """Mathematics, the answer in the last box after the thinking."""
    return MathVerifier(extract="boxed")


def deepscaler_or_math_verifier() -> Verifier:
    """Equal as a simple number or text, or else as mathematics (Archer: DeepScaleR's rules, then math-verify)."""
    return AnyOf()


def tagged_math_verifier() -> Verifier:
    """Mathematics, the answer between answer tags; a truncated response is worth 0 (Open-Reasoner-Zero)."""
    return MathVerifier(extract="answer_tag", require_stop=True)


def code_verifier() -> Verifier:
    """Programs, judged by their tests in the sandbox."""
    return CodeVerifier()


def math_and_code_verifier() -> Verifier:
    """Whichever of the two the problem is of."""
    return ByDomain(members={"math": math_verifier(), "code": code_verifier()})
