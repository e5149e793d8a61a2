"""The page: what its sections are made of, and the template that turns them into one HTML file.

The template escapes every text, and characters that would not be seen or would turn the text around are written out.
"""

from __future__ import annotations

import base64
import hashlib
import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

import strop
from strop.report.figures.tokens import TokenLists
from strop.report.figures.writer import PageFigure
from strop.report.samples import ShownCompletion, ShownToken
from strop.report.texts import clip, visible

FLAT = 1e-6  # a flow this small has no direction worth showing
TURN_COLOURS = 6  # then they begin again
FLOW_POWER = 0.25  # flows span many orders of magnitude, and it is their sign that matters


class Numbers(NamedTuple):
    """Large numbers, each with what it is below."""

    cards: Sequence[tuple[str, str]]
    kind: str = "numbers"


class Table(NamedTuple):
    """A table of texts; the first cell of a row is its heading."""

    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    mono: bool = False
    kind: str = "table"


class Text(NamedTuple):
    """A heading within a section, or a note in the page's quieter colour."""

    text: str
    kind: Literal["heading", "note"] = "note"


class Figures(NamedTuple):
    """Figures in a grid, each with a link to its PNG."""

    figures: Sequence[PageFigure]
    kind: str = "figures"


class Kinds(NamedTuple):
    """The most and the least certain tokens side by side."""

    lists: TokenLists
    kind: str = "kinds"


class Folded(NamedTuple):
    """A block that opens at a click; it is printed too, unless it is long."""

    summary: str
    block: Block
    is_open: bool = False
    is_long: bool = False
    kind: str = "folded"


class Samples(NamedTuple):
    """Completions whose tokens are coloured by what the reader chooses; `key` is the run's, unique in the page."""

    key: str
    origin: str
    answers: Sequence[ShownCompletion]
    kind: str = "samples"

    @property
    def choices(self) -> list[tuple[str, str, float]]:
        """By what tokens can be coloured: its key, its name, and what the strongest colour stands for, in nats."""
        tokens = [token for each in self.answers for token in each.tokens]
        values = {
            ("entropy", "Entropy"): [token.entropy for token in tokens if token.entropy is not None],
            ("flow", "ΔH sign"): [abs(token.flow) for token in tokens if token.flow is not None],
            ("surprise", "Surprise"): [-token.logprob for token in tokens if token.logprob is not None],
        }
        return [(*names, max(found) or 1.0) for names, found in values.items() if found]


Block = Numbers | Table | Text | Figures | Kinds | Folded | Samples


@dataclass
class Page:
    """A page that grows section by section.

    Attributes:
        title: of the page.
        intro: one line below it.
        sections: key, heading and blocks of each.
        left_out: what is not in it, and why; a line each.
    """

    title: str
    intro: str
    sections: list[tuple[str, str, Sequence[Block]]] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)

    def section(self, heading: str, blocks: Sequence[Block]) -> None:
        """Add a section; nothing where there is no block."""
        if blocks:
            self.sections.append((heading.lower().replace(" ", "-"), heading, blocks))

    def html(self) -> str:
        """The whole document. Its policy allows no script but ours, nothing from anywhere, and nothing to be sent."""
        templates = Environment(
            loader=PackageLoader("strop.report"), autoescape=True, undefined=StrictUndefined, trim_blocks=True,
            lstrip_blocks=True, finalize=_finalize,
        )  # fmt: skip
        templates.filters |= {"clip": clip, "shown": _shown}
        style, script = (_source(templates, name) for name in ("style.css", "script.js"))
        return templates.get_template("report.html").render(
            page=self,
            style=style,
            script=script,
            script_hash=base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
            version=strop.__version__,
            written=time.strftime("%Y-%m-%d %H:%M"),
        )


def _finalize(value: Any) -> Any:
    return visible(value) if isinstance(value, str) and not isinstance(value, Markup) else value


def _source(templates: Environment, name: str) -> Markup:
    assert templates.loader is not None
    return Markup(templates.loader.get_source(templates, name)[0])


# ---------------------------------------------------------------------- tokens


class TokenElement(NamedTuple):
    """A token as an element: classes, style and title, and its text with line ends made visible."""

    classes: str
    style: str
    title: str
    text: str


def _shown(token: ShownToken, choices: Sequence[tuple[str, str, float]]) -> TokenElement:
    if token.said and token.turn is not None:
        return TokenElement("env", "", f"the environment, after turn {token.turn + 1}", token.text)
    if token.injected:
        return TokenElement("inj", "", "forced into the context, not sampled", token.text)
    top = {key: value for key, _, value in choices}
    marks, style, facts = [], [], []
    if token.turn is not None:
        marks.append(f"t t{token.turn % TURN_COLOURS}")
        facts.append(f"turn {token.turn + 1}")
    if token.entropy is not None:
        style.append(f"--e:{_strength(token.entropy, top['entropy'])}")
        facts.append(f"entropy {token.entropy:.3f}")
        if token.reasoning:
            marks.append("hi")
    if token.logprob is not None:
        style.append(f"--p:{_strength(-token.logprob, top['surprise'])}")
        facts.append(f"p {math.exp(min(token.logprob, 0.0)):.3f}")
    if token.flow is not None:
        facts.append(f"ΔH {token.flow:+.4f}")
        if abs(token.flow) > FLAT:
            marks.append("up" if token.flow > 0 else "dn")
            style.append(f"--f:{_strength(abs(token.flow), top['flow'], FLOW_POWER)}")
    return TokenElement(" ".join(marks), ";".join(style), " · ".join(facts), token.text.replace("\n", "↵\n"))


def _strength(value: float, top: float, power: float = 0.5) -> str:
    """The strength of a colour: a root of the share, since most tokens are near 0."""
    return f"{min(max(value, 0.0) / top, 1.0) ** power:.2f}".rstrip("0").rstrip(".")
