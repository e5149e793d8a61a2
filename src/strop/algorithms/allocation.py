"""Allocation: how many completions each prompt gets, decided before any is sampled."""

from __future__ import annotations

from abc import abstractmethod
from typing import Annotated, ClassVar, Literal, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator

from strop.base.pieces import Piece


class Allocation(Piece):
    """Divides the completions of prompts that are drawn together between them; each gets from `least` to `most`."""

    modules: ClassVar[tuple[str, ...]] = ("strop.algorithms.allocation",)

    least: Annotated[int, Field(ge=2)] = 4
    most: Annotated[int, Field(ge=2)] = 32

    @abstractmethod
    def __call__(self, rates: NDArray[np.float64], samples: int) -> list[int]:
        """The group sizes of Q prompts.

        Args:
            rates: float64 [Q], their predicted pass rates (`predicted_rates`), in (0, 1).
            samples: the mean of the sizes, between `least` and `most`.
        """


class Vip(Allocation):
    r"""VIP (arXiv 2602.01601): most completions where the gradient is predicted to vary most.

        min Σ_q p̂_q (1 − p̂_q) v(n_q)    s.t.    Σ_q n_q = Q · samples_per_prompt,   least ≤ n_q ≤ most

    p̂ is the predicted pass rate. v(n) is the factor by which the variance of a prompt's gradient falls with its group:
    (n − 1) / n² for Dr. GRPO (Theorem 5.1; baseline `mean`), 1 / (n − 1) for RLOO (Theorem 5.2; `leave_one_out`). A
    prompt's gradient is the mean over its completions and all prompts weigh the same; `PromptMean` comes nearest to it.
    v is convex, so the optimum in whole numbers is reached by giving each next completion to the prompt whose variance
    falls most; the paper solves for real numbers with a multiplier and rounds. The Q prompts are those drawn together:
    a step's on-policy; with `selection.refill` a replacement by itself, which has samples_per_prompt.

    The predictor is, as in Section 5.1, a Gaussian process over prompts with an RBF kernel of median width, whose
    posterior mean is the logit of p̂. It departs from the paper in three points. A prompt's features are the
    logarithms of its tokens' counts, as no embedding model is loaded. A logit has the noise of its group's size; the
    paper's has none. The posterior comes anew from the last groups of 512 problems, its prior from their mean and
    variance beyond noise; the paper carries the posterior mean of every prompt from batch to batch.

    Fields:
        baseline: that of the advantage.
        least, most: completions of a prompt; the defaults are those of the authors' code.

    Example: p̂ = (.5, .1, .01), RLOO, 8 on average: sizes (12, 8, 4).
    """

    baseline: Literal["leave_one_out", "mean"] = "leave_one_out"

    @model_validator(mode="after")
    def _convex_within(self) -> Self:
        if self.baseline == "mean" and self.least < 3:
            raise ValueError(f"least={self.least}: with baseline='mean' it is at least 3, where the variance is convex")
        return self

    def __call__(self, rates: NDArray[np.float64], samples: int) -> list[int]:
        sizes = np.arange(self.least, self.most + 1)
        variances = 1 / (sizes - 1) if self.baseline == "leave_one_out" else (sizes - 1) / sizes**2
        falls = (rates * (1 - rates))[:, None] * (variances[:-1] - variances[1:])  # by each next completion
        best = np.argsort(-falls, axis=None, kind="stable")[: (samples - self.least) * len(rates)]
        given = np.bincount(best // max(falls.shape[1], 1), minlength=len(rates))
        return [self.least + int(each) for each in given]
