"""Charts and lists of single tokens: how entropy spreads, the most and the least certain tokens.

R rollouts of one step, M sampled tokens of all of them; entropies are those that generation recorded, in nats.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from transformers import PreTrainedTokenizerBase

from strop.base.types import FloatArray, IntArray
from strop.report.figures.writer import DOTTED, MUTED, ORANGE, SERIES, Chart, log_axis
from strop.report.texts import BROKEN

if TYPE_CHECKING:
    from matplotlib.axes import Axes

QUANTILE = 0.8  # tokens at or above it reason (Archer, Eq. 4 and 5)
SHOWN_POINTS = 1200
LISTED = 100
SELDOM = 5  # a token seen less often says little of its kind


@dataclass(frozen=True, eq=False)
class TokenBatch:
    """The sampled tokens of a step's rollouts.

    Attributes:
        step: whose rollouts they are.
        ticket: int [R], the prompt of each rollout.
        rollout: int [M], the rollout of each token.
        token_id: int [M].
        entropy: float [M].
    """

    step: int
    ticket: IntArray
    rollout: IntArray
    token_id: IntArray
    entropy: FloatArray

    def by_rollout(self) -> NDArray[np.float64]:
        """The mean entropy of each rollout, [R]; NaN where one has no token."""
        counts = np.bincount(self.rollout, minlength=len(self.ticket))
        sums = np.bincount(self.rollout, weights=self.entropy, minlength=len(self.ticket))
        return np.where(counts > 0, sums / np.maximum(counts, 1), np.nan)


def token_batch(step: int, rows: Sequence[Mapping[str, Any]]) -> TokenBatch | None:
    """The tokens of those rows of the rollout table that have entropies, injected ones left out; None without any."""
    rows = [row for row in rows if row["entropies"]]
    kept = [~injected(row) for row in rows]
    if not any(mask.any() for mask in kept):
        return None

    def flat(column: str, kind: type) -> NDArray[Any]:
        return np.concatenate([np.asarray(row[column], kind)[mask] for row, mask in zip(rows, kept, strict=True)])

    counts = [int(mask.sum()) for mask in kept]
    return TokenBatch(
        step,
        np.array([row["ticket"] for row in rows], np.int32),
        np.repeat(np.arange(len(rows), dtype=np.int32), counts),
        flat("token_ids", np.int32),
        flat("entropies", np.float32),
    )


def injected(row: Mapping[str, Any]) -> NDArray[np.bool_]:
    """Which completion tokens of a row of the rollout table were forced into the context, bool [T]."""
    mask = np.zeros(len(row["token_ids"]), np.bool_)
    for span in row["injected"]:
        mask[span["start"] : span["end"]] = True
    return mask


# ---------------------------------------------------------------------- lists


class TokenKind(NamedTuple):
    """A token of the vocabulary: its text, how often it was seen, its mean entropy in nats."""

    text: str
    seen: int
    entropy: float


class TokenLists(NamedTuple):
    """The tokens of highest and of lowest mean entropy, of `kinds` seen `at_least` times."""

    highest: list[TokenKind]
    lowest: list[TokenKind]
    kinds: int
    at_least: int


def token_lists(batch: TokenBatch, tokenizer: PreTrainedTokenizerBase, listed: int = LISTED) -> TokenLists:
    """The `listed` tokens with the highest and those with the lowest mean entropy (Archer, Figure 2).

    Of fewer than twice as many kinds each list has half. Tokens seen seldom are left out, unless that left too few.
    """
    ids, member, counts = np.unique(batch.token_id, return_inverse=True, return_counts=True)
    means = np.bincount(member, weights=batch.entropy) / counts
    at_least = SELDOM if (counts >= SELDOM).sum() >= min(2 * listed, 20) else 1
    kept = np.flatnonzero(counts >= at_least)
    order = kept[np.argsort(-means[kept], kind="stable")]
    take = min(listed, (len(order) + 1) // 2)
    top, bottom = order[:take], order[::-1][: min(listed, len(order) - take)]

    def kinds(places: Sequence[int]) -> list[TokenKind]:
        return [TokenKind(token_text(tokenizer, int(ids[i])), int(counts[i]), float(means[i])) for i in places]

    return TokenLists(kinds(top.tolist()), kinds(bottom.tolist()), len(order), at_least)


def token_text(tokenizer: PreTrainedTokenizerBase, token: int) -> str:
    """A token on its own, its outer spaces and line ends made visible."""
    text = str(tokenizer.decode([token], skip_special_tokens=False, clean_up_tokenization_spaces=False))
    if BROKEN in text or not text:
        text = str(tokenizer.convert_ids_to_tokens(token))
    return text.replace("\n", "↵").replace("\t", "⇥").replace(" ", "␣")


# ---------------------------------------------------------------------- charts


def entropy_chart(batch: TokenBatch, key: str) -> Chart:
    """How the entropies of tokens are distributed."""

    def draw(axes: Axes) -> None:
        axes.hist(batch.entropy, bins=40, color=SERIES[3], alpha=0.85)
        axes.set_ylim(0.7, axes.get_ylim()[1] * 1.5)
        log_axis(axes)
        axes.set_xlim(left=0)
        axes.set_xlabel("entropy of a token, nats")
        axes.set_ylabel("tokens")

    share = 100 * float((batch.entropy < 0.01).mean())
    caption = f"{share:.0f} % of the {len(batch.entropy):,} tokens have less than 0.01 nats. The count is logarithmic."
    return Chart(key, "Distribution of token entropy", caption, (draw,))


def spread_chart(batch: TokenBatch, key: str) -> Chart:
    """Mean entropies of prompts against the batch's, and of responses against their prompt's (Archer, Figure 3)."""
    responses, prompts = batch.by_rollout(), prompt_means(batch)
    order = sorted(prompts.values())
    mean = float(batch.entropy.mean())

    def by_prompt(axes: Axes) -> None:
        axes.plot(range(1, len(order) + 1), order, "o", color=SERIES[0], markersize=4, markeredgewidth=0, alpha=0.85,
                  label="a prompt")  # fmt: skip
        axes.axhline(mean, color=ORANGE, linewidth=1.6, label=f"the batch, {mean:.3g}")
        axes.set_ylim(0, max(1.08 * max(order), 1e-6))
        axes.set_xlabel("prompts in order")
        axes.set_ylabel("mean entropy, nats")

    def by_response(axes: Axes) -> None:
        x = np.array([prompts.get(int(ticket), np.nan) for ticket in batch.ticket])
        right = max(1.05 * float(np.nanmax(x)), 1e-6)
        top = max(1.05 * float(np.nanmax(responses)), right)
        shown = thinned(len(x))
        axes.plot([0, top], [0, top], color=MUTED, linewidth=1.0, linestyle=DOTTED, label="equal")
        axes.plot(x[shown], responses[shown], "o", color=SERIES[0], markersize=3.6, markeredgewidth=0, alpha=0.5,
                  label="a response")  # fmt: skip
        axes.set_xlim(0, right)
        axes.set_ylim(0, top)
        axes.set_xlabel("its prompt's mean entropy, nats")
        axes.set_ylabel("its own, nats")

    low, high = threshold_shares(batch)
    caption = (
        f"Prompts against the batch, and responses against their prompt (Archer, Figure 3). One threshold for "
        f"the whole batch (its {100 * QUANTILE:.0f} % quantile) would call {100 * low:.1f} % of the tokens "
        f"high-entropy in the quarter of responses with the lowest entropy, {100 * high:.1f} % in the highest quarter."
    )
    return Chart(key, "Entropy by batch, prompt and response", caption, (by_prompt, by_response))


def prompt_means(batch: TokenBatch) -> dict[int, float]:
    """The mean entropy of each prompt's tokens, by ticket."""
    tickets, member = np.unique(batch.ticket[batch.rollout], return_inverse=True)
    means = np.bincount(member, weights=batch.entropy) / np.bincount(member)
    return {int(ticket): float(mean) for ticket, mean in zip(tickets, means, strict=True)}


def threshold_shares(batch: TokenBatch) -> tuple[float, float]:
    """The share of tokens above the batch's quantile, in the responses of lowest and of highest mean entropy."""
    above = batch.entropy >= np.quantile(batch.entropy, QUANTILE)
    means = batch.by_rollout()
    edges = np.nanquantile(means, [0.25, 0.75])
    low, high = means[batch.rollout] <= edges[0], means[batch.rollout] >= edges[1]
    return float(above[low].mean()), float(above[high].mean())


def thinned(count: int, most: int = SHOWN_POINTS) -> NDArray[np.intp]:
    """At most `most` of `count` places, chosen evenly at random, always the same."""
    if count <= most:
        return np.arange(count)
    return np.sort(np.random.RandomState(0).permutation(count)[:most])
