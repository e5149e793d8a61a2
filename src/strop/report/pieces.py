"""Every piece of an algorithm on one page, from the classes and the recipes, and the gradients of the losses."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import BaseModel

from strop.algorithms.advantages import Advantage
from strop.algorithms.aggregation import Aggregation
from strop.algorithms.allocation import Allocation
from strop.algorithms.losses import Correction, PolicyLoss
from strop.algorithms.regularizers import Regularizer
from strop.algorithms.rewards import LengthShaping, Reward
from strop.base.pieces import Piece, choices
from strop.base.text import markdown_table
from strop.recipes import build, catalogue, field
from strop.report.drawing import MUTED, SERIES, Draw, log_axis, number_axis, short_number, write_panels
from strop.report.reference import docstring
from strop.report.token_figures import ADVANTAGES, sequences_of_one

if TYPE_CHECKING:
    from matplotlib.axes import Axes

HEAD = """# Every piece of an algorithm

Written by `strop pieces --out docs/algorithms.md` from the classes and the recipes, and held against them by a test.
Fields and defaults stand in [every setting](settings.md#pieces). Peers had it in August 2026.

The tables of losses show −∂loss / ∂ log π of a token by its ratio ρ, as `strop pieces plot` draws it. The token is a
sequence of one, had probability 0.3 when it was sampled, and is a reasoning token where a loss distinguishes types. A
loss that goes by the whole update has no such table, nor has one that no recipe uses.

![The gradient of every loss by the ratio](losses.png)
"""
FAMILIES: tuple[type[Piece], ...] = (
    PolicyLoss, Correction, Regularizer, Advantage, Aggregation, Allocation, Reward, LengthShaping,
)  # fmt: skip
PEERS = {
    "Sapo": "AReaL, Axolotl, SkyRL, ms-swift, TRL, Unsloth, verl",
    "Dppo": "SkyRL, verl; the IPO form in prime-rl, KPop in AReaL",
    "Gmpo": "TRL, verl",
    "Vespo": "TRL, Unsloth",
    "OffPolicySequenceMask": "miles, ms-swift, slime, TRL",
}
SAMPLED = 0.3  # probability of the token when it was sampled
RATIOS = (0.25, 0.5, 0.8, 1.0, 1.25, 2.0, 3.0)
DRAWN = np.geomspace(0.2, 3.2, 601)
NAMED = 4  # recipes of a piece

Users = Mapping[str, Sequence[str]]


def page() -> str:
    """The Markdown page of all pieces, by family."""
    users, losses = used()
    lines = [HEAD]
    for family in FAMILIES:
        lines.append(f"\n## {family.__name__}\n\n{_paragraphs(family)[0]}")
        for name, piece in sorted(choices(family).items()):
            if ":" not in name:
                lines += [f"\n### {name}\n", *_entry(piece, users), *_gradient_table(piece, losses)]
    lines.append(f"\n## Recipes of the field\n\n{(field.__doc__ or '').strip()}\n")
    changes = [(f"`{name}`", ", ".join(f"`{each}`" for each in sets)) for name, (_, _, *sets) in field.VARIANTS.items()]
    lines.append(markdown_table(("recipe", f"changes of `{field.BASE}`"), changes))
    return "\n".join(lines).rstrip() + "\n"


@cache
def used() -> tuple[Users, Mapping[str, PolicyLoss]]:
    """The recipes that use each piece, shortest names first, and their losses by the first recipe of each gradient."""
    users: dict[str, list[str]] = defaultdict(list)
    losses: dict[tuple[str, bytes], tuple[str, PolicyLoss]] = {}
    for name in sorted((recipe.name for recipe in catalogue()), key=lambda name: (len(name), name)):
        algorithm = build(name).algorithm
        for piece in {type(found) for found in _pieces(algorithm)}:
            users[piece.__name__].append(name)
        loss = algorithm.loss
        if not loss.needs_scores:
            shape = b"".join(gradient(loss, DRAWN, advantage).tobytes() for advantage in ADVANTAGES)
            losses.setdefault((type(loss).__name__, shape), (name, loss))
    return users, dict(losses[key] for key in sorted(losses, key=lambda key: (key[0], losses[key][0])))


def gradient(loss: PolicyLoss, ratios: Sequence[float] | NDArray[np.float64], advantage: float) -> NDArray[np.float64]:
    """−∂loss / ∂ log π at these ratios, each of a sequence of one token."""
    old = torch.full((len(ratios),), SAMPLED, dtype=torch.float64).log()
    logprob = (old + torch.tensor(ratios, dtype=torch.float64).log()).requires_grad_()
    loss(sequences_of_one(old, advantage, reasoning=True), logprob)[0].sum().backward()
    assert logprob.grad is not None
    return -logprob.grad.numpy()


def plot(target: Path) -> Path:
    """Draw the gradient of every loss of a recipe as a PNG, a panel each."""
    panels = [(f"{type(loss).__name__} ({name})", _curves(loss)) for name, loss in used()[1].items()]
    return write_panels(target, "−∂loss / ∂ log π by the ratio", panels, columns=4)


def _curves(loss: PolicyLoss) -> Draw:
    def draw(axes: Axes) -> None:
        for advantage, color in zip(ADVANTAGES, SERIES, strict=False):
            axes.plot(DRAWN, gradient(loss, DRAWN, advantage), color=color, label=f"A = {short_number(advantage)}")
        axes.axvline(1.0, color=MUTED, linewidth=0.8)
        axes.set_xlabel("ρ")
        axes.set_xlim(DRAWN[0], DRAWN[-1])
        log_axis(axes, "x")
        number_axis(axes)

    return draw


def _gradient_table(piece: type[Piece], losses: Mapping[str, PolicyLoss]) -> Iterator[str]:
    rows = [
        (f"`{name}`", short_number(advantage), *(f"{each:.2f}" for each in gradient(loss, RATIOS, advantage) + 0.0))
        for name, loss in losses.items() if type(loss) is piece for advantage in ADVANTAGES
    ]  # fmt: skip
    if rows:
        yield "\n" + markdown_table(("as in", "A", *(f"ρ = {ratio:g}" for ratio in RATIOS)), rows)


def _entry(piece: type[Piece], users: Users) -> Iterator[str]:
    """The docstring down to its fields, then papers, peers and recipes."""
    text = "\n\n".join(_paragraphs(piece))
    yield text
    papers = dict.fromkeys(re.findall(r"arXiv (\d{4}\.\d{5})", text))
    facts = {
        "Paper": ", ".join(f"[arXiv {number}](https://arxiv.org/abs/{number})" for number in papers),
        "Peers": PEERS.get(piece.__name__, ""),
        "Recipes": _listed(users.get(piece.__name__, ())),
    }
    if any(facts.values()):
        yield ""
    yield from (f"- {title}: {said}" for title, said in facts.items() if said)


def _listed(names: Sequence[str]) -> str:
    shown = ", ".join(f"`{name}`" for name in names[:NAMED])
    return shown + (f" and {len(names) - NAMED} more" if len(names) > NAMED else "")


def _paragraphs(piece: type[Piece]) -> list[str]:
    """The paragraphs of a docstring before its list of fields, with formulas indented, as Markdown shows code."""
    return [part.strip("\n") for part in re.split(r"\n\s*\n", docstring(piece)) if part.strip()]


def _pieces(settings: BaseModel) -> Iterator[Piece]:
    """All pieces in the fields of settings, and those in theirs."""
    for value in vars(settings).values():
        for member in value if isinstance(value, tuple) else (value,):
            if isinstance(member, Piece):
                yield member
            if isinstance(member, BaseModel):
                yield from _pieces(member)
