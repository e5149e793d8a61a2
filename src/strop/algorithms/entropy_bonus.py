"""Entropy bonuses: constant, and held at a target by a controller (Skywork-OR1). Shapes: M trained tokens."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field, model_validator

from strop.algorithms.regularizers import Regularizer
from strop.algorithms.tokens import Tokens, demanded
from strop.base.metrics import Metrics
from strop.base.pieces import State, StatefulPiece

if TYPE_CHECKING:
    from torch import Tensor


class EntropyBonus(Regularizer):
    """−coefficient · H_t in the loss, H the entropy over the whole vocabulary (OPEFO's Entropy-Reg: 0.01)."""

    coefficient: float = 0.01

    def __call__(
        self, tokens: Tokens, logprob: Tensor, entropy: Tensor, state: Mapping[str, Any]
    ) -> tuple[Tensor, Metrics]:
        return -self.coefficient * entropy, {}


class AdaptiveEntropy(Regularizer, StatefulPiece):
    r"""Adaptive entropy control (Skywork-OR1, Section 3.2.5): a bonus switched on below a target entropy.

        loss term −α H_t,   α = c · 1[gate open]
        c ← c + delta where e < target, c − delta elsewhere, then clipped to [minimum, maximum]

    e is the mean of −log π over the sampled tokens of a step (metric `entropy/sampled`), H the entropy over the whole
    vocabulary. The defaults are the released code's: step k+1 uses the c and the gate that e_k left behind, the gate
    is open at e < target and at the start, and c stays in [0, 0.005]. The paper's Eq. 3.2 is `gate="own"` (α_k goes by
    e_k, here of the update), `at_target="hold"` (open at e ≤ target, c unchanged at e = target), without cap and floor
    (`minimum` and `maximum` None). The paper's text gives Δ = 0.005, which in the scripts is the cap; there Δ is 1e-4.

    State: `coefficient` (c), `active` (the gate), `entropy` (the last e).
    """

    start: float = 0.0
    target: Annotated[float, Field(ge=0)] = 0.2
    delta: Annotated[float, Field(gt=0)] = 1e-4
    minimum: float | None = 0.0
    maximum: float | None = 5e-3
    gate: Literal["previous", "own"] = "previous"
    at_target: Literal["shrink", "hold"] = "shrink"

    @model_validator(mode="after")
    def _start_within_bounds(self) -> AdaptiveEntropy:
        if self.start != self._bounded(self.start):
            raise ValueError(f"start={self.start} is outside minimum={self.minimum} … maximum={self.maximum}")
        return self

    def _bounded(self, coefficient: float) -> float:
        if self.minimum is not None:
            coefficient = max(coefficient, self.minimum)
        return coefficient if self.maximum is None else min(coefficient, self.maximum)

    def initial(self) -> State:
        """c at the start, gate open."""
        return {"coefficient": self.start, "active": True, "entropy": None}

    def update(self, state: State, statistics: Mapping[str, float | None]) -> State:
        """The state after a step with this `entropy/sampled`; unchanged after one without (the critic's warm-up)."""
        entropy = statistics.get("entropy/sampled")
        if entropy is None:
            return state
        if entropy == self.target and self.at_target == "hold":
            return {**state, "active": True, "entropy": entropy}
        below = entropy < self.target
        moved = state["coefficient"] + (self.delta if below else -self.delta)
        return {"coefficient": self._bounded(moved), "active": below, "entropy": entropy}

    def prepare(self, tokens: Tokens) -> Tokens:
        """`sampled_entropy`, with `gate="own"`."""
        if self.gate == "previous":
            return tokens
        sampled = -tokens.generator_logprob.double().mean()
        return replace(tokens, sampled_entropy=sampled.to(tokens.weight.dtype).expand(len(tokens)))

    def __call__(
        self, tokens: Tokens, logprob: Tensor, entropy: Tensor, state: Mapping[str, Any]
    ) -> tuple[Tensor, Metrics]:
        if self.gate == "previous":
            return -(state["coefficient"] if state["active"] else 0.0) * entropy, {}
        sampled = demanded(tokens.sampled_entropy, "sampled_entropy")
        below = sampled <= self.target if self.at_target == "hold" else sampled < self.target
        return -state["coefficient"] * below * entropy, {}
