"""Figures of single tokens, from what a run recorded of its rollouts: `strop plot RUN --figure NAME`.

R rollouts, M sampled tokens of all of them; entropies and log-probs are in nats.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from transformers import PreTrainedTokenizerBase

from strop.algorithms.losses import PolicyLoss
from strop.algorithms.step_diagnostics import first_repetition
from strop.algorithms.tokens import Tokens
from strop.base.near import nearest
from strop.base.types import InputError
from strop.model.endings import REPLACEMENT
from strop.report.drawing import (
    DOTTED,
    GREY,
    MUTED,
    ORANGE,
    SERIES,
    Draw,
    number_axis,
    percent_axis,
    step_axis,
    write_panels,
)
from strop.report.runs import RunData, plain
from strop.report.samples import QUANTILE, injected, tokenizer_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Array = NDArray[np.float64]
Rows = Sequence[Mapping[str, Any]]
Panels = Sequence[tuple[str, Draw]]

LISTED = 20  # tokens of a panel of Archer's Figure 2
SHOWN_POINTS = 3000
CELLS = 240  # of a side of a map of clip regions
ADVANTAGES = (1.0, -1.0)


@dataclass(frozen=True)
class Choice:
    """What `strop plot` asks of a figure: the step (None: the first with what it needs), the least count of a token."""

    step: int | None = None
    seen: int = 100


def plot_figure(run: RunData, name: str, target: Path, choice: Choice) -> Path:
    """Draw one of `FIGURES` as a PNG.

    Raises:
        InputError: there is no such figure, or the run has not recorded what it needs.
    """
    if name not in FIGURES:
        raise InputError(f"--figure {name}: {nearest(name, FIGURES)}")
    title, panels = FIGURES[name](run, choice)
    return write_panels(target, f"{run.name}: {title}", panels, columns=2)


def _rows(run: RunData, column: str, choice: Choice) -> tuple[int, Rows]:
    """The rollouts of the chosen step, or of the first, that have the column.

    Raises:
        InputError: none has.
    """
    for step in run.folder.rollout_steps() if choice.step is None else [choice.step]:
        rows = [row for row in run.folder.read_rollouts(step) if row[column] and not injected(row).all()]
        if rows:
            return step, rows
    raise InputError(f"{run.path}: no rollout with {column.replace('_', ' ')} is recorded; {_WHY[column]}")


_WHY = {
    "entropies": "name a step whose rollouts were trained on (--step)",
    "trainer_logprobs": "name a step whose rollouts were trained on (--step)",
    "values": "only a critic has them (critic.updates_per_step)",
}


def _flat(rows: Rows, column: str) -> Array:
    """The column of every sampled token, [M]."""
    return np.concatenate([np.asarray(row[column], np.float64)[~injected(row)] for row in rows])


def _thinned(count: int) -> NDArray[np.intp]:
    """At most `SHOWN_POINTS` of `count` places, at random and always the same."""
    return np.sort(np.random.default_rng(0).permutation(count)[:SHOWN_POINTS])


# ---------------------------------------------------------------------- entropies (Archer, Figures 2 and 3)


class Kind(NamedTuple):
    """A token of the vocabulary: how often it was seen, its mean entropy."""

    token: int
    seen: int
    entropy: float


def token_kinds(rows: Rows, at_least: int) -> list[Kind]:
    """The tokens that were seen `at_least` times, those of the highest mean entropy first."""
    tokens, member, counts = np.unique(_flat(rows, "token_ids"), return_inverse=True, return_counts=True)
    means = np.bincount(member, weights=_flat(rows, "entropies")) / counts
    order = [place for place in np.argsort(-means, kind="stable") if counts[place] >= at_least]
    return [Kind(int(tokens[place]), int(counts[place]), float(means[place])) for place in order]


def _token_entropies(run: RunData, choice: Choice) -> tuple[str, Panels]:
    step, rows = _rows(run, "entropies", choice)
    tokenizer, kinds = tokenizer_of(run), token_kinds(rows, choice.seen)
    if tokenizer is None:
        raise InputError(f"{run.path}: the tokenizer of its model is not on this machine")
    if len(kinds) < 2:
        raise InputError(f"{run.path}: step {step} has no two tokens seen {choice.seen} times; lower --seen")
    half = min(LISTED, len(kinds) // 2)
    parts = (("highest entropy", kinds[:half], SERIES[4]), ("lowest entropy", kinds[::-1][:half], SERIES[0]))
    panels = [
        (name, _bars([(_text(tokenizer, one.token), one.entropy) for one in of], color)) for name, of, color in parts
    ]
    return f"tokens of step {step} seen {choice.seen} times or more", panels


def _text(tokenizer: PreTrainedTokenizerBase, token: int) -> str:
    """A token on one line, its spaces and line ends made visible."""
    text = str(tokenizer.decode([token], skip_special_tokens=False, clean_up_tokenization_spaces=False))
    if REPLACEMENT in text or not text:
        text = str(tokenizer.convert_ids_to_tokens(token))
    return plain(text.replace("\n", "↵").replace(" ", "␣"), 16)


def _bars(values: Sequence[tuple[str, float]], color: str) -> Draw:
    def draw(axes: Axes) -> None:
        axes.barh(range(len(values)), [value for _, value in values], color=color, alpha=0.85)
        axes.set_yticks(range(len(values)), [name for name, _ in values])
        axes.set_ylim(len(values) - 0.4, -0.6)
        axes.set_xlabel("mean entropy, nats")

    return draw


class Spread(NamedTuple):
    """Mean entropies: of the batch; of each prompt, by ticket; of each rollout [R]; and, under one threshold for the
    batch, the share of tokens at or above it in the rollouts of the lowest and of the highest quarter."""

    batch: float
    prompts: Mapping[int, float]
    rollouts: Array
    low: float
    high: float


def entropy_spread(rows: Rows) -> Spread:
    """How mean entropies differ between prompts and between rollouts of a prompt (Archer, Section 3.1.1)."""
    entropies = _flat(rows, "entropies")
    of = np.repeat(np.arange(len(rows)), [int((~injected(row)).sum()) for row in rows])
    means = np.bincount(of, weights=entropies) / np.bincount(of)
    tickets, prompt = np.unique(np.array([row["ticket"] for row in rows])[of], return_inverse=True)
    by_prompt = np.bincount(prompt, weights=entropies) / np.bincount(prompt)
    above, (first, last) = entropies >= np.quantile(entropies, QUANTILE), np.quantile(means, [0.25, 0.75])
    low, high = above[means[of] <= first].mean(), above[means[of] >= last].mean()
    return Spread(float(entropies.mean()), dict(zip(tickets.tolist(), by_prompt, strict=True)), means, low, high)


def _entropy_levels(run: RunData, choice: Choice) -> tuple[str, Panels]:
    step, rows = _rows(run, "entropies", choice)
    spread = entropy_spread(rows)

    def by_prompt(axes: Axes) -> None:
        order = sorted(spread.prompts.values())
        axes.plot(range(1, len(order) + 1), order, "o", color=SERIES[0], markersize=4, label="a prompt")
        axes.axhline(spread.batch, color=ORANGE, linewidth=1.6, label="the batch")
        axes.set_ylim(bottom=0)
        step_axis(axes)
        axes.set_xlabel("prompts in order")
        axes.set_ylabel("mean entropy, nats")

    def by_rollout(axes: Axes) -> None:
        x = np.array([spread.prompts[row["ticket"]] for row in rows])
        axes.plot(x, spread.rollouts, "o", color=SERIES[0], markersize=3.6, alpha=0.5, label="a response")
        axes.plot([0, x.max()], [0, x.max()], color=MUTED, linestyle=DOTTED, label="equal")
        axes.set_xlabel("its prompt's mean entropy, nats")
        axes.set_ylabel("its own, nats")

    shares = f"{100 * spread.low:.1f} % to {100 * spread.high:.1f} % above one threshold"
    return f"entropy at step {step}", [("prompts", by_prompt), (f"responses: {shares}", by_rollout)]


# ---------------------------------------------------------------------- mismatch (ScaleRL, Figures 21 and 22)


def _mismatch(run: RunData, choice: Choice) -> tuple[str, Panels]:
    step, rows = _rows(run, "trainer_logprobs", choice)
    generator, trainer = _flat(rows, "logprobs"), _flat(rows, "trainer_logprobs")
    shown = _thinned(len(generator))

    def ratios(axes: Axes) -> None:
        axes.plot(generator[shown], (trainer - generator)[shown], ".", color=SERIES[0], markersize=3, alpha=0.5)
        axes.axhline(0.0, color=MUTED, linestyle=DOTTED)
        number_axis(axes)
        axes.set_xlabel("log π of the generator")
        axes.set_ylabel("log importance ratio")

    def both(axes: Axes) -> None:
        axes.plot(generator[shown], trainer[shown], ".", color=SERIES[0], markersize=3, alpha=0.5)
        axes.axline((0.0, 0.0), slope=1.0, color=MUTED, linestyle=DOTTED)
        axes.set_xlabel("log π of the generator")
        axes.set_ylabel("log π of the trainer")

    known = generator.std() > 0 and trainer.std() > 0
    correlation = f", correlation {np.corrcoef(generator, trainer)[0, 1]:.6f}" if known else ""
    return f"log-probs of step {step}", [("importance ratio", ratios), (f"both{correlation}", both)]


# ---------------------------------------------------------------------- values (Open-Reasoner-Zero, Figure 5)


class RepeatedValues(NamedTuple):
    """A step's mean value of the tokens from the first repetition of their completion on, and of all others."""

    step: int
    repeated: float | None
    other: float | None


def repeated_values(step: int, rows: Rows) -> RepeatedValues:
    """The means over the sampled tokens of rollouts that have a critic's values."""
    repeated, other = [], []
    for row in rows:
        values, kept, start = np.asarray(row["values"], np.float64), ~injected(row), _onset(row)
        repeated.append(values[start:][kept[start:]])
        other.append(values[:start][kept[:start]])
    means = [float(found.mean()) if len(found) else None for found in map(np.concatenate, (repeated, other))]
    return RepeatedValues(step, *means)


def _onset(row: Mapping[str, Any]) -> int:
    """The token of a rollout at which its first repetition begins; its length without one."""
    found = first_repetition(np.asarray(row["token_ids"], np.int32))
    return len(row["token_ids"]) if found is None else found


def _values(run: RunData, choice: Choice) -> tuple[str, Panels]:
    steps = run.folder.rollout_steps() if choice.step is None else [choice.step]
    of_steps = {step: [row for row in run.folder.read_rollouts(step) if row["values"]] for step in steps}
    found = [repeated_values(step, rows) for step, rows in of_steps.items() if rows]
    if not found:
        raise InputError(f"{run.path}: no rollout with values is recorded; {_WHY['values']}")
    longest = max(
        (row for rows in of_steps.values() for row in rows),
        key=lambda row: (len(row["token_ids"]) - _onset(row), len(row["token_ids"])),
    )

    def by_step(axes: Axes) -> None:
        for label, color in (("repeated", SERIES[4]), ("other", SERIES[0])):
            known = [(one.step, value) for one in found if (value := getattr(one, label)) is not None]
            if known:
                axes.plot(*zip(*known, strict=True), color=color, marker="o", markersize=2.4, label=label)
        number_axis(axes)
        step_axis(axes)
        axes.set_ylabel("mean V(s)")

    def one(axes: Axes) -> None:
        axes.plot(longest["values"], color=SERIES[0], linewidth=1.2)
        axes.axvspan(_onset(longest), len(longest["token_ids"]), color=SERIES[4], alpha=0.12, label="repeats")
        number_axis(axes)
        axes.set_xlabel("token")
        axes.set_ylabel("V(s)")

    return "values of the critic", [("all completions", by_step), (f"a completion of step {longest['step']}", one)]


# ---------------------------------------------------------------------- clip regions (Archer, Figure 7)


def clip_regions(loss: PolicyLoss, advantage: float, reasoning: bool) -> NDArray[np.int64]:
    """Where a loss cuts or caps a token's gradient, [CELLS, CELLS] by the probability now and that when it was sampled.

    0: it learns; 1, 2: it is clipped at the lower, the upper bound; 3: otherwise (dual clip). Each cell is a sequence
    of one token, high in entropy where `reasoning` is true.
    """
    middles = (torch.arange(CELLS) + 0.5) / CELLS
    now, old = (part.reshape(-1).log() for part in torch.meshgrid(middles, middles, indexing="ij"))
    found = loss.clipped(sequences_of_one(old, advantage, reasoning), now)
    return (found.low * 1 + found.high * 2 + found.other * 3).reshape(CELLS, CELLS).numpy()


def sequences_of_one(old: torch.Tensor, advantage: float, reasoning: bool) -> Tokens:
    """Tokens that are a sequence each, with log-prob `old` [M] when they were sampled."""
    place = torch.arange(len(old))
    return Tokens(
        sequence=place, position=torch.zeros_like(place), sample=place, version=torch.zeros_like(place),
        generator_logprob=old, anchor_logprob=old, advantage=torch.full_like(old, advantage),
        weight=torch.ones_like(old), reasoning=torch.full_like(place, reasoning, dtype=torch.bool),
    )  # fmt: skip


REGIONS = (("learns", "#dce9f5"), ("below", SERIES[1]), ("above", SERIES[2]), ("otherwise", GREY))


def _clip(run: RunData, choice: Choice) -> tuple[str, Panels]:
    if run.config is None:
        raise InputError(f"{run.path}: {run.unread or 'it has no configuration'}")
    loss = run.config.algorithm.loss
    if loss.needs_scores:
        raise InputError(f"{loss.piece_name()} chooses among all tokens of an update; it has no regions to draw")
    kinds = {"reasoning, ": True, "knowledge, ": False} if loss.needs_token_types else {"": False}
    return f"{loss.piece_name()}, where a token is clipped", [
        (f"{name}A {'>' if sign > 0 else '<'} 0", _map(clip_regions(loss, sign, kind)))
        for name, kind in kinds.items() for sign in ADVANTAGES
    ]  # fmt: skip


def _map(regions: NDArray[np.int64]) -> Draw:
    def draw(axes: Axes) -> None:
        from matplotlib.colors import ListedColormap

        colors = ListedColormap([color for _, color in REGIONS])
        axes.imshow(
            regions, origin="lower", extent=(0, 1, 0, 1), cmap=colors, vmin=0, vmax=3, aspect="auto", zorder=1,
            interpolation="nearest",
        )  # fmt: skip
        for place in np.unique(regions):
            axes.plot([], [], "s", color=REGIONS[place][1], label=REGIONS[place][0])
        axes.set_xlabel("probability when sampled")
        axes.set_ylabel("probability now")
        percent_axis(axes, "x")
        percent_axis(axes)

    return draw


FIGURES: Mapping[str, Callable[[RunData, Choice], tuple[str, Panels]]] = {
    "tokens": _token_entropies, "entropy": _entropy_levels, "clip": _clip, "mismatch": _mismatch, "values": _values,
}  # fmt: skip
