"""Pictures and lists of single tokens: the most and least certain ones, how entropy spreads, ratios, clip regions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray
from transformers import PreTrainedTokenizerBase

from strop.algorithms.covariance import ClipCov
from strop.algorithms.entropy_losses import ArcherClip, LowEntropyMask
from strop.algorithms.losses import Cispo, PolicyLoss, PpoClip
from strop.report.pictures import INK, MUTED, SERIES, Draw, Picture, Studio, legend, logarithmic
from strop.report.scoring import QUANTILE, Batch, Doubles
from strop.report.texts import BROKEN

if TYPE_CHECKING:
    from matplotlib.axes import Axes

SHOWN_POINTS = 1200
LISTED = 100
SELDOM = 5  # a token seen less often says little of its kind
WIDE_RATIO = 3.0


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


def token_lists(batch: Batch, tokenizer: PreTrainedTokenizerBase, listed: int = LISTED) -> TokenLists:
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


# ---------------------------------------------------------------------- entropy


def draw_spread(batch: Batch, studio: Studio, key: str) -> Picture:
    """Mean entropies of prompts against the batch's, and of responses against their prompt's (Archer, Figure 3)."""
    responses = batch.by_rollout(batch.entropy)
    tickets = np.array([row["ticket"] for row in batch.rows])
    prompts = prompt_means(batch)
    order = sorted(prompts, key=lambda ticket: prompts[ticket])
    mean = float(batch.entropy.mean())

    def by_prompt(axes: Axes) -> None:
        axes.plot(range(1, len(order) + 1), [prompts[ticket] for ticket in order], "o", color=SERIES[0], markersize=4,
                  markeredgewidth=0, alpha=0.85, label="a prompt")  # fmt: skip
        axes.axhline(mean, color=SERIES[1], linewidth=1.6, label=f"the batch, {mean:.3g}")
        axes.set_ylim(bottom=0)
        axes.set_xlabel("prompts in order", fontsize=9)
        axes.set_ylabel("mean entropy, nats", fontsize=9)
        legend(axes)

    def by_response(axes: Axes) -> None:
        x = np.array([prompts[ticket] for ticket in tickets])
        top = 1.05 * max(float(np.nanmax(responses)), float(x.max()), 1e-6)
        shown = thinned(len(x))
        axes.plot([0, top], [0, top], color=MUTED, linewidth=1.0, linestyle=(0, (4, 2)), label="equal")
        axes.plot(x[shown], responses[shown], "o", color=SERIES[0], markersize=3.6, markeredgewidth=0, alpha=0.5,
                  label="a response")  # fmt: skip
        axes.set_xlim(0, max(1.05 * float(x.max()), 1e-6))
        axes.set_ylim(0, top)
        axes.set_xlabel("its prompt's mean entropy, nats", fontsize=9)
        axes.set_ylabel("its own, nats", fontsize=9)
        legend(axes)

    low, high = threshold_shares(batch)
    caption = (
        f"Prompts against the batch, and responses against their prompt (Archer, Figure 3). One threshold for "
        f"the whole batch (its {100 * QUANTILE:.0f} % quantile) would call {100 * low:.1f} % of the tokens "
        f"high-entropy in the quarter of responses with the lowest entropy, {100 * high:.1f} % in the highest quarter."
    )
    return studio.picture(key, "Entropy by batch, prompt and response", caption, by_prompt, by_response)


def prompt_means(batch: Batch) -> dict[int, float]:
    """The mean entropy of each prompt's tokens, by ticket."""
    tickets = np.array([row["ticket"] for row in batch.rows])[batch.rollout]
    return {int(ticket): float(batch.entropy[tickets == ticket].mean()) for ticket in np.unique(tickets)}


def threshold_shares(batch: Batch) -> tuple[float, float]:
    """The share of tokens above the batch's quantile, in the responses of lowest and of highest mean entropy."""
    above = batch.entropy >= np.quantile(batch.entropy, QUANTILE)
    means = batch.by_rollout(batch.entropy)
    edges = np.nanquantile(means, [0.25, 0.75])
    low, high = means[batch.rollout] <= edges[0], means[batch.rollout] >= edges[1]
    return float(above[low].mean()), float(above[high].mean())


def draw_entropies(batch: Batch, studio: Studio, key: str) -> Picture:
    """How the entropies of tokens are distributed."""

    def draw(axes: Axes) -> None:
        axes.hist(batch.entropy, bins=40, color=SERIES[3], alpha=0.85)
        axes.set_ylim(0.7, axes.get_ylim()[1] * 1.5)
        logarithmic(axes)
        axes.set_xlim(left=0)
        axes.set_xlabel("entropy of a token, nats", fontsize=9)
        axes.set_ylabel("tokens", fontsize=9)

    share = 100 * float((batch.entropy < 0.01).mean())
    caption = f"{share:.0f} % of the {len(batch.entropy):,} tokens have less than 0.01 nats. The count is logarithmic."
    return studio.picture(key, "Distribution of token entropy", caption, draw)


# ---------------------------------------------------------------------- probabilities


def draw_scatter(batch: Batch, studio: Studio, key: str) -> Picture:
    """The trainer's probability of each token against the generator's (ScaleRL, Figure 22)."""
    generator, trainer = np.exp(batch.recorded.astype(float)), np.exp(batch.logprob.astype(float))
    gaps = np.abs(batch.logprob.astype(float) - batch.recorded)

    def draw(axes: Axes) -> None:
        shown = thinned(len(generator))
        axes.plot([0, 1], [0, 1], color=MUTED, linewidth=1.0, linestyle=(0, (4, 2)))
        axes.plot(generator[shown], trainer[shown], "o", color=SERIES[0], markersize=3.2, markeredgewidth=0, alpha=0.45)
        axes.set_xlabel("probability under the generator", fontsize=9)
        axes.set_ylabel("under the trainer", fontsize=9)
        axes.set_xlim(0, 1.01)
        axes.set_ylim(0, 1.01)

    caption = (
        f"{len(gaps):,} tokens of step {batch.step}, all sampled by {batch.snapshot.name} (version "
        f"{batch.snapshot.version}) and scored again by it on the CPU: {_correlation(generator, trainer)}, |Δ log p| "
        f"{gaps.mean():.2g} on average, {gaps.max():.2g} at most (ScaleRL, Figure 22)."
    )
    return studio.picture(key, "Generator against trainer", caption, draw)


def _correlation(left: Doubles, right: Doubles) -> str:
    if left.std() == 0 or right.std() == 0:
        return "no correlation to tell, the probabilities are all alike"
    return f"correlation {np.corrcoef(left, right)[0, 1]:.6f}"


class Bounds(NamedTuple):
    """Where a loss clips the ratio of some tokens; None where it does not.

    `capped` means that `high` bounds the weight of a token whatever its advantage, and that it keeps its gradient.
    """

    name: str
    low: float | None
    high: float | None
    dual: float | None = None
    capped: bool = False


def bounds_of(loss: PolicyLoss) -> tuple[Bounds, ...]:
    """The bounds of a policy loss for single tokens; none for losses that clip sequences or nothing."""
    if isinstance(loss, PpoClip):
        return (Bounds("", 1 - loss.clip_low, 1 + loss.clip_high, loss.dual_clip),)
    if isinstance(loss, ArcherClip):
        knowledge, reasoning = loss.clip_knowledge, loss.clip_reasoning
        return (
            Bounds("knowledge", 1 - knowledge, 1 + knowledge, loss.dual_clip),
            Bounds("reasoning", 1 - reasoning, 1 + reasoning, loss.dual_clip),
        )
    if isinstance(loss, ClipCov):
        return (Bounds("", 1 - loss.clip_low, 1 + loss.clip_high),)
    if isinstance(loss, Cispo):
        return (Bounds("cap", None, loss.max_ratio, capped=True),)
    return bounds_of(loss.loss) if isinstance(loss, LowEntropyMask) else ()


def draw_clip_regions(batch: Batch, bounds: Sequence[Bounds], studio: Studio, key: str) -> Picture:
    """π after the step against π at sampling, tokens of positive and negative advantage apart (Archer, Figure 7)."""
    sign, reasoning = batch.advantage_sign(), batch.reasoning()
    old, new = np.exp(batch.recorded.astype(float)), np.exp(batch.logprob.astype(float))

    def panel(side: int, title: str) -> Draw:
        def draw(axes: Axes) -> None:
            _regions(axes, bounds, side)
            for mask, color, label in (
                (~reasoning, SERIES[0], "low entropy"), (reasoning, SERIES[1], "high entropy"),
            ):  # fmt: skip
                chosen = np.flatnonzero((sign == side) & mask)
                shown = chosen[thinned(len(chosen), SHOWN_POINTS // 4)]
                axes.plot(
                    old[shown], new[shown], "o", color=color, markersize=3.2, markeredgewidth=0, alpha=0.55, label=label
                )
            axes.set_xlim(0, 1.01)
            axes.set_ylim(0, 1.01)
            axes.set_xlabel(f"{title}: probability when sampled", fontsize=9)
            axes.set_ylabel("after the step", fontsize=9)
            legend(axes)

        return draw

    caption = (
        f"Tokens of step {batch.step}: their probability under the generator, and under {batch.snapshot.name}, which "
        f"is after the step's last update (Archer, Figure 7). High entropy: at or above the {100 * QUANTILE:.0f} % "
        f"quantile of the response. A > 0: rewarded more than the mean of their prompt; A < 0: less. "
        + _beyond(batch, bounds, sign, reasoning)
    )
    return studio.picture(key, "Clip regions", caption, panel(1, "A > 0"), panel(-1, "A < 0"))


def _regions(axes: Axes, bounds: Sequence[Bounds], side: int) -> None:
    """The lines at which the loss takes the gradient away, and the area beyond the outermost one."""
    x = np.array([0.0, 1.01])
    axes.plot(x, x, color=MUTED, linewidth=0.9, linestyle=(0, (4, 2)))
    limits = [(each, each.high if side > 0 or each.capped else each.low) for each in bounds]
    for number, (each, limit) in enumerate(limits):
        if limit is not None:
            axes.plot(x, limit * x, color=INK, linewidth=1.3, linestyle=("-", (0, (1.5, 1.5)))[number % 2],
                      label=f"{each.name} {limit:g}".strip())  # fmt: skip
    known = [limit for _, limit in limits if limit is not None]
    if known:
        above = side > 0 or bounds[0].capped
        outer = max(known) if above else min(known)
        axes.fill_between(x, outer * x, 1.01 if above else 0.0, color=MUTED, alpha=0.12, linewidth=0)
    dual = next((each.dual for each in bounds if each.dual is not None), None)
    if side < 0 and dual is not None:
        axes.plot(x, dual * x, color=SERIES[4], linewidth=1.2, label=f"dual clip {dual:g}")


def _beyond(batch: Batch, bounds: Sequence[Bounds], sign: NDArray[np.int8], reasoning: NDArray[np.bool_]) -> str:
    """How many tokens lie where the loss would cut or cap them if the batch were gone through once more."""
    if not bounds:
        return "The loss clips no single token."
    ratio = np.exp(batch.logprob.astype(float) - batch.recorded)
    parts = []
    for each in bounds:
        chosen = {"knowledge": ~reasoning, "reasoning": reasoning}.get(each.name, np.ones_like(reasoning))
        cut = np.zeros_like(chosen)
        if each.high is not None:
            cut |= (ratio > each.high) & (each.capped | (sign == 1))
        if each.low is not None:
            cut |= (ratio < each.low) & (sign == -1)
        kind = f"{each.name} tokens" if each.name in ("knowledge", "reasoning") else "tokens"
        share = 100 * float(cut[chosen].mean()) if chosen.any() else 0.0
        parts.append(f"{share:.2f} % of {kind}")
    fate = "have their weight capped" if bounds[0].capped else "have no gradient"
    return " and ".join(parts) + f" would {fate} in a further pass over this batch."


def draw_ratios(batch: Batch, bounds: Sequence[Bounds], studio: Studio, key: str) -> Picture:
    """The histogram of importance ratios after the step."""
    ratio = np.exp(np.clip(batch.logprob.astype(float) - batch.recorded, -20, 20))

    def draw(axes: Axes) -> None:
        edges = np.geomspace(1 / WIDE_RATIO, WIDE_RATIO, 61)
        axes.hist(np.clip(ratio, edges[0], edges[-1]), bins=edges.tolist(), color=SERIES[0], alpha=0.85)
        axes.set_xscale("log")
        axes.set_ylim(0.7, axes.get_ylim()[1] * 1.5)
        logarithmic(axes)
        axes.set_xlim(edges[0], edges[-1])
        ticks = [0.33, 0.5, 0.7, 1.0, 1.4, 2.0, 3.0]
        axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
        axes.minorticks_off()
        for limit in {limit for each in bounds for limit in (each.low, each.high) if limit is not None}:
            if edges[0] < limit < edges[-1]:
                axes.axvline(limit, color=INK, linewidth=1.2, linestyle=(0, (4, 2)))
        axes.set_xlabel("importance ratio", fontsize=9)
        axes.set_ylabel("tokens", fontsize=9)

    caption = (
        f"{batch.snapshot.name.capitalize()} to the generator, tokens of step {batch.step}; mean {ratio.mean():.4f}, "
        f"{ratio.min():.3g} to {ratio.max():.3g}. Ratios beyond the picture are counted at its edges; "
        "dashed: the clip bounds."
    )
    return studio.picture(key, "Histogram of importance ratios", caption, draw)


def thinned(count: int, most: int = SHOWN_POINTS) -> NDArray[np.intp]:
    """At most `most` of `count` places, chosen evenly at random, always the same."""
    if count <= most:
        return np.arange(count)
    return np.sort(np.random.RandomState(0).permutation(count)[:most])
