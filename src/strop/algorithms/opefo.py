"""OPEFO: a policy gradient that balances entropy-increasing and entropy-decreasing tokens.

Shapes: M trained tokens.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field

from strop.algorithms.losses import Clipped, PolicyLoss, importance_ratio, ratio_metrics
from strop.algorithms.statistics import balance, entropy_flow, exact_entropy_flow, flow_sums
from strop.algorithms.tokens import Tokens, demanded
from strop.base.lazy import torch
from strop.base.metrics import Mean, Metrics, Ratio, Total

if TYPE_CHECKING:
    from torch import Tensor


class Opefo(PolicyLoss):
    r"""On-policy entropy flow optimisation (OPEFO, Eq. 7 to 9).

        loss_t = −w_t A_t log π_t,   w_t = 1 + λ where ΔH_t > 0,  1 − λ where ΔH_t < 0,  1 where ΔH_t = 0
        ΔH_t = −A_t (1 − p_t)² (log p_t + H_t)
        λ = λ* = (Σ_{S−} |ΔH| − Σ_{S+} ΔH) / (Σ_{S−} |ΔH| + Σ_{S+} ΔH), or 0 where every ΔH is 0

    No ratio: it is right only where the policy that samples is the policy that is updated. λ* is of all trained tokens
    of the update, from one pass without gradient before the first backward. The defaults are the paper's.

    Fields:
        balance: None for λ*, or a constant λ in (−1, 1) ("static scaling" of Table 2: 0.001; 0 is the plain gradient).
        sides: the tokens that λ reweights: both, or one of S+ (`increasing`) and S− (`decreasing`) (Table 2).
        power: of (1 − p_t); 2 in the paper, 1 in the related code of STEER.
        exact: ΔH_t is the exact first-order change under the tabular softmax instead (`statistics.exact_entropy_flow`);
            `power` then has no part in it.
    """

    balance: Annotated[float, Field(gt=-1, lt=1)] | None = None
    sides: Literal["both", "increasing", "decreasing"] = "both"
    power: Literal[1, 2] = 2
    exact: bool = False

    @property
    def needs_scores(self) -> bool:
        """Always: the signs and sums of ΔH are of the policy before the update."""
        return True

    @property
    def needs_collision(self) -> bool:
        """In exact mode."""
        return self.exact

    @property
    def strictly_on_policy(self) -> bool:
        """Always."""
        return True

    def flow(self, tokens: Tokens) -> Tensor:
        """ΔH_t under the scored policy, float64 [M]."""
        logprob = demanded(tokens.scored_logprob, "scored_logprob")
        entropy = demanded(tokens.scored_entropy, "scored_entropy")
        if not self.exact:
            return entropy_flow(tokens.advantage, logprob, entropy, self.power)
        collision = demanded(tokens.scored_collision, "scored_collision")
        return exact_entropy_flow(tokens.advantage, logprob, entropy, collision)

    def prepare(self, tokens: Tokens, seed: int) -> Tokens:
        """`plan`: the weight w_t of each token."""
        flow = self.flow(tokens)
        strength = balance(*flow_sums(flow)) if self.balance is None else torch.full_like(flow[:1].sum(), self.balance)
        up = 1 + strength if self.sides != "decreasing" else torch.ones_like(strength)
        down = 1 - strength if self.sides != "increasing" else torch.ones_like(strength)
        weight = torch.where(flow > 0, up, torch.where(flow < 0, down, torch.ones_like(strength)))
        return replace(tokens, plan=weight.to(tokens.weight.dtype))

    def __call__(self, tokens: Tokens, logprob: Tensor) -> tuple[Tensor, Metrics]:
        loss = -demanded(tokens.plan, "plan") * tokens.advantage * logprob
        ratio = importance_ratio(tokens, logprob)
        return loss, ratio_metrics(ratio, Clipped.none(ratio)) | self._metrics(tokens)

    def _metrics(self, tokens: Tokens) -> Metrics:
        """The sums of ΔH over S+ and S− as this piece computes it, and the λ that was applied."""
        if not len(tokens):
            return {}
        positive, negative = flow_sums(self.flow(tokens))
        applied = Ratio(-(positive + negative), positive - negative, otherwise=0.0)
        return {
            "opefo/positive": Total(positive),
            "opefo/negative": Total(negative),
            "opefo/lambda": applied if self.balance is None else Mean(self.balance * len(tokens), len(tokens)),
        }
