"""Regularizers: terms beside the policy loss, per token, that see entropies, the reference policy and their own state.

Shapes: M trained tokens of a micro-batch. The update's loss gains Σ_m share[m] · term[m], where the share is the
token's weight in the policy loss unless the regularizer says otherwise. The pieces: `kl`, `entropy_bonus`.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from strop.algorithms.tokens import Tokens
from strop.base.metrics import Metrics
from strop.base.pieces import Piece

if TYPE_CHECKING:
    from torch import Tensor


class Regularizer(Piece):
    """A term of the loss; a stateful one is also a `StatefulPiece`, and is called with its present state."""

    modules: ClassVar[tuple[str, ...]] = ("strop.algorithms.kl", "strop.algorithms.entropy_bonus")

    @property
    def needs_reference(self) -> bool:
        """Whether `tokens.reference_logprob` is read."""
        return False

    @property
    def needs_token_types(self) -> bool:
        """Whether `tokens.reasoning` is read."""
        return False

    def prepare(self, tokens: Tokens) -> Tokens:
        """Fill in what depends on all tokens of the update (called once, before any backward; after token types)."""
        return tokens

    def shares(self, tokens: Tokens) -> Tensor:
        """The factor of each token's term in the update's loss, [M]."""
        return tokens.weight

    @abstractmethod
    def __call__(
        self, tokens: Tokens, logprob: Tensor, entropy: Tensor, state: Mapping[str, Any]
    ) -> tuple[Tensor, Metrics]:
        """The term of each token, [M], to be minimised, and metrics.

        Args:
            tokens: the M trained tokens with their aligned fields.
            logprob: float32 [M], the current policy's, with gradient.
            entropy: float32 [M], of the whole vocabulary, nats, with gradient.
            state: the piece's state at this step; empty for a piece without.
        """
