"""Policy losses whose importance ratio is of the whole sequence. Shapes: M trained tokens, whole sequences only."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from pydantic import Field

from strop.algorithms.losses import (
    Clipped,
    PolicyLoss,
    Ratio,
    clipped_surrogate,
    ratio_metrics,
    surrogate_clips,
)
from strop.algorithms.tokens import Tokens, sequence_mean
from strop.base.lazy import torch
from strop.base.metrics import Metrics

if TYPE_CHECKING:
    from torch import Tensor


class Gspo(PolicyLoss):
    r"""Group sequence policy optimisation: PPO-clip on the geometric mean of a sequence's token ratios.

        s = exp( (1/|o|) Σ_t (log π_t − log π_anchor,t) )
        loss_t = −min(s_t A_t, clip(s_t, 1 − clip_low, 1 + clip_high) A_t),   s_t = sg(s) · π_t / sg(π_t)

    Every token has the value of its sequence's loss, and its gradient is that of log π_t times the sequence's ratio
    (the paper's token form, GSPO-token). Averaged over the tokens of a sequence (`SampleMean`) with one advantage a
    sequence, that is exactly the gradient of the sequence form; other aggregations weigh sequences otherwise.
    |o| counts trained tokens. Defaults are ScaleRL's (A.18.3: 3e-3 and 4e-3, or 5e-3; the 1e-4 scale of the original
    did not work for them).
    """

    clip_low: Annotated[float, Field(gt=0, le=1)] = 3e-3
    clip_high: Ratio = 4e-3

    def clipped(self, tokens: Tokens, logprob: Tensor) -> Clipped:
        """All tokens of sequences whose ratio is beyond the bound that their advantage rewards."""
        ratio = sequence_ratio(tokens, logprob.detach())
        return surrogate_clips(ratio, tokens.advantage, self.clip_low, self.clip_high, None)

    def __call__(self, tokens: Tokens, logprob: Tensor) -> tuple[Tensor, Metrics]:
        whole = sequence_ratio(tokens, logprob.detach())
        ratio = whole * torch.exp(logprob - logprob.detach())
        loss = clipped_surrogate(ratio, tokens.advantage, self.clip_low, self.clip_high, None)
        return loss, ratio_metrics(whole, self.clipped(tokens, logprob))


def sequence_ratio(tokens: Tokens, logprob: Tensor) -> Tensor:
    """s of each token's own sequence, [M]: the exponential of the mean log-ratio of its trained tokens."""
    return torch.exp(sequence_mean(logprob - tokens.anchor_logprob, tokens.sequence))
