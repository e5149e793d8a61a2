"""Writes the report of runs: reads them, draws the charts, renders the page."""

from __future__ import annotations

import base64
import hashlib
import math
import random
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, NamedTuple

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

import strop
from strop.base.files import write_text
from strop.base.progress import part
from strop.base.text import duration, number, percent
from strop.base.types import InputError
from strop.config.edits import flatten
from strop.report.audit import AUDIT, AuditSample, alert, rates
from strop.report.drawing import Chart, page_svg
from strop.report.rejudging import REJUDGED, example_rows, lines
from strop.report.runs import ABSENT, COMBINED, RunData, changes, clip, ends, read_runs, visible
from strop.report.samples import ShownCompletion, ShownToken, recorded_answers, tokenizer_of
from strop.report.training_figures import not_drawn, time_shares, training_charts
from strop.run.folder import RunFolder, read_changes

FLAT = 1e-6  # a flow this small has no direction worth showing
TURN_COLOURS = 6  # then they begin again
FLOW_POWER = 0.25  # flows span many orders of magnitude; their sign matters


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
    """Charts in a grid, each with its SVG."""

    figures: Sequence[tuple[Chart, str]]
    kind: str = "figures"


class Folded(NamedTuple):
    """A block that opens on a click; it is printed too, unless it is long."""

    summary: str
    block: Block
    is_open: bool = False
    is_long: bool = False
    kind: str = "folded"


class Samples(NamedTuple):
    """Completions whose tokens are coloured by a value that the reader chooses; `key` is unique in the page."""

    key: str
    origin: str
    answers: Sequence[ShownCompletion]
    kind: str = "samples"

    @property
    def choices(self) -> list[tuple[str, str, float]]:
        """The values that can colour tokens: key, name, and the value of the strongest colour, in nats."""
        tokens = [token for each in self.answers for token in each.tokens]
        values = {
            ("entropy", "Entropy"): [token.entropy for token in tokens if token.entropy is not None],
            ("flow", "ΔH sign"): [abs(token.flow) for token in tokens if token.flow is not None],
            ("surprise", "Surprise"): [-token.logprob for token in tokens if token.logprob is not None],
        }
        return [(*names, max(found) or 1.0) for names, found in values.items() if found]


Block = Table | Text | Figures | Folded | Samples


@dataclass
class Page:
    """A page that grows section by section.

    Attributes:
        title: of the page.
        intro: one line below it.
        sections: key, heading and blocks of each.
        left_out: what is missing and why, one line each.
    """

    title: str
    intro: str
    sections: list[tuple[str, str, Sequence[Block]]] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)

    def section(self, heading: str, blocks: Sequence[Block]) -> None:
        """Add a section, unless it has no block."""
        if blocks:
            self.sections.append((heading.lower().replace(" ", "-"), heading, blocks))

    def html(self) -> str:
        """The whole document. Its security policy allows only its own script, and no request."""
        written = time.strftime("%Y-%m-%d %H:%M")
        return rendered("report.html", "script.js", page=self, version=strop.__version__, written=written)


def rendered(template: str, script: str, **values: Any) -> str:
    """A document with its script; its security policy names the script's hash."""
    templates = Environment(
        loader=PackageLoader("strop.report"), autoescape=True, undefined=StrictUndefined, trim_blocks=True,
        lstrip_blocks=True, finalize=_finalize,
    )  # fmt: skip
    templates.filters |= {"clip": clip, "ends": ends, "shown": _shown}
    style, code = (_source(templates, name) for name in ("style.css", script))
    digest = base64.b64encode(hashlib.sha256(code.encode()).digest()).decode()
    return templates.get_template(template).render(style=style, script=code, script_hash=digest, **values)


def _finalize(value: Any) -> Any:
    return visible(value) if isinstance(value, str) and not isinstance(value, Markup) else value


def _source(templates: Environment, name: str) -> Markup:
    assert templates.loader is not None
    return Markup(templates.loader.get_source(templates, name)[0])


# ---------------------------------------------------------------------- tokens


class TokenElement(NamedTuple):
    """A token as an HTML element; line ends in its text are visible."""

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


RATE = "evaluation/pass_rate"


def summary(runs: Sequence[RunData], left_out: list[str]) -> list[Block]:
    """The facts of the runs side by side, and their settings; missing facts are added to `left_out`."""
    blocks: list[Block] = []
    facts = _facts(runs)
    if facts:
        blocks.append(Table(("", *(run.name for run in runs)) if len(runs) > 1 else ("",), facts))
    for run in runs:
        blocks += _settings(run, left_out, f"{run.name}: " if len(runs) > 1 else "")
        if run.unread and run.recipe != "fine-tuning":
            left_out.append(f"{run.name}: {run.unread}")
    return blocks


def _facts(runs: Sequence[RunData]) -> list[tuple[str, ...]]:
    """Rows of facts, one column per run; facts that no run has are left out."""
    facts: dict[str, Callable[[RunData], str]] = {
        "recipe": lambda run: run.recipe,
        "seed": lambda run: str(run.raw.get("seed", ABSENT)),
        "outcome": lambda run: run.outcome(),
        "held-out pass rate, first (95 %)": lambda run: _rate(run, 0),
        "held-out pass rate, last (95 %)": lambda run: _rate(run, -1),
        "points gained (95 %)": _gain,
        "best step": lambda run: str(run.summary.get("best_step") or ABSENT),
        "pass rate in training, last": lambda run: _percent(run.last("pass_rate")),
        "loss, last": lambda run: ABSENT if run.series("pass_rate")[0] else _number(run.last("loss")),
        "entropy, first to last": lambda run: _from_to(run, "entropy"),
        "mean length, first to last": lambda run: _from_to(run, "length/mean"),
        "truncated, last": lambda run: _percent(run.last("truncation_rate")),
        "mismatch k3, last": lambda run: _number(run.last("mismatch/k3")),
        "time": lambda run: run.took(),
        "t_R, t_T, t_O": _times,
        "device-seconds": lambda run: _number(run.last("compute/device_seconds")),
        "device-seconds of evaluations, apart": lambda run: _number(run.last("compute/evaluator_seconds")),
        "estimated FLOPs": lambda run: _number(run.last("compute/flops")),
        "generated tokens": lambda run: _number(sum(run.series("tokens/generated")[1]) or None),
    }
    rows = [(name, *(value(run) for run in runs)) for name, value in facts.items()]
    return [row for row in rows if any(cell != ABSENT for cell in row[1:])]


def _rate(run: RunData, place: int) -> str:
    steps, rates = run.series(RATE)
    if not rates:
        return ABSENT
    return f"{_with_interval(run, steps[place], 'evaluation')}, step {steps[place]}"


def _gain(run: RunData) -> str:
    steps = run.series(RATE)[0]
    points, interval = (run.gain(steps[-1]) if len(steps) > 1 else None) or (ABSENT, "")
    return f"{points} ({interval})" if interval else points


def _with_interval(run: RunData, step: int, prefix: str) -> str:
    rate, interval = run.by_step(f"{prefix}/pass_rate").get(step), run.interval(step, prefix)
    return ABSENT if rate is None else f"{percent(rate)} ({interval})" if interval else percent(rate)


def _percent(value: float | None) -> str:
    return ABSENT if value is None else percent(value)


def _number(value: float | None) -> str:
    return ABSENT if value is None else number(value)


def _from_to(run: RunData, metric: str) -> str:
    values = run.series(metric)[1]
    return f"{number(values[0])} to {number(values[-1])}" if values else ABSENT


def _times(run: RunData) -> str:
    if run.seconds is None:
        return ABSENT
    seconds = {name: share * run.seconds for name, share in time_shares(run).items()}
    parts = (seconds["rollout"], seconds["update"], seconds["verify"] + seconds["other"])
    return ", ".join(duration(part) for part in parts)


def _settings(run: RunData, left_out: list[str], prefix: str) -> Iterator[Block]:
    """The settings that differ from the recipe, those that a resume changed, and a folded list of all."""
    if run.config is not None:
        try:
            base, rows = changes(run)
            differ = "1 setting that differs" if len(rows) == 1 else f"{len(rows)} settings that differ"
            table = Table(("setting", "recipe", "run"), rows, mono=True)
            same = Text(f"{prefix}every setting is that of {base}")
            yield Folded(f"{prefix}{differ} from {base}", table, is_open=len(rows) <= 12) if rows else same
        except InputError as error:
            left_out.append(f"{run.name}: its settings are not compared with a recipe: {error}")
    for change in read_changes(run.folder):
        yield Text(f"{prefix}went on with other settings {change.said()}")
    every = list(flatten(dict(run.raw)))
    if every:
        yield Folded(f"{prefix}every setting", Table(("setting", ""), every, mono=True), is_long=True)


def evaluations(runs: Sequence[RunData], left_out: list[str]) -> list[Block]:
    """A table of each run's evaluations on held-out problems, and one of its benchmarks."""
    blocks: list[Block] = []
    for run in runs:
        tables = [table for table in (_held_out(run), _benchmarks(run)) if table is not None]
        if not run.series(RATE)[0]:
            left_out.append(f"{run.name}: it was not evaluated on held-out problems (evaluation.every)")
        if tables:
            blocks += [Text(run.name, "heading")] if len(runs) > 1 else []
            blocks += tables
    return blocks


def _held_out(run: RunData) -> Table | None:
    """One row per evaluation: pass rate and points gained with their intervals, and the rate of each domain."""
    rates = run.by_step(RATE)
    if not rates:
        return None
    domains = sorted({name for row in run.rows for name in row if name.startswith(f"{RATE}/")})
    by_domain = [run.by_step(name) for name in domains]
    rows = [
        (
            str(step), percent(rate), run.interval(step) or ABSENT,
            *(part or ABSENT for part in run.gain(step) or ("", "")),
            *(_percent(values.get(step)) for values in by_domain),
        )
        for step, rate in rates.items()
    ]  # fmt: skip
    labels = [name.removeprefix(f"{RATE}/") for name in domains]
    return Table(("step", "pass rate", "95 % interval", "points gained", "95 % interval", *labels), rows)


def _benchmarks(run: RunData) -> Table | None:
    """One row per step, one column per benchmark and their mean; None if training measured no benchmark."""
    measured = {name: f"evaluation/{name}" for name in run.benchmarks}
    steps = sorted({step for prefix in measured.values() for step in run.by_step(f"{prefix}/pass_rate")})
    combined = run.by_step(COMBINED)
    rows = [
        (str(step), *(_with_interval(run, step, prefix) for prefix in measured.values()),
         *([_percent(combined.get(step))] if combined else []))
        for step in steps
    ]  # fmt: skip
    heads = ("step", *(f"{name} (95 %)" for name in run.benchmarks), *(["mean"] if combined else []))
    return Table(heads, rows) if rows else None


def audits(run: RunData, named: bool) -> Iterator[Block]:
    """What `strop audit` and `strop rejudge` found, where they have looked at the run."""
    if (run.path / AUDIT).is_file():
        found = run.folder.read_json(AUDIT)
        yield from [Text(run.name, "heading")] if named else []
        yield Table(("judged by " + found["by"], "", "95 % interval"), rates(found))
        yield Text(alert(found))
        counts = [tuple(map(str, one.values())) for one in found["strata"]]
        yield Folded("by verdict and kind", Table(tuple(found["strata"][0]), counts))
    if (run.path / REJUDGED).is_file():
        found = run.folder.read_json(REJUDGED)
        yield Table(("under " + ", ".join(found["settings"]), "was", "now"), lines(found))
        heads = ("step", "question", "reference", "completion", "was", "now")
        title = "completions that it judges otherwise, or whose advantage has the other sign"
        yield Folded(title, Table(heads, example_rows(found)))


def audit_page(run: RunFolder, drawn: AuditSample, advice: str) -> str:
    """A page of the completions in random order, where one clicks right or wrong and saves the labels."""
    shown = [
        {"id": one.id, "question": one.sampled.problem.question, "reference": str(one.sampled.problem.reference),
         "text": one.sampled.text}
        for one in drawn.completions
    ]  # fmt: skip
    random.Random(0).shuffle(shown)
    return rendered("audit.html", "audit.js", title=f"Audit of {run.path.name}", completions=shown, advice=advice)


PAGE = "report.html"
SAMPLES = 8
ORIGIN = "Rollouts of the first and of the last step; of a prompt a right and a wrong one, where there are both."


@dataclass(frozen=True)
class Written:
    """The page, and what is not in it, one line each."""

    page: Path
    left_out: tuple[str, ...]


def write_report(
    paths: Sequence[Path], out: Path | None = None, samples: int = SAMPLES
) -> Written:
    """Write the report of one or several runs as one HTML file.

    Args:
        paths: run folders.
        out: a folder, or a file that ends in .html; None for RUN/report of a single run and `report` for several.
        samples: completions of each run that are shown token by token; 0 for none.

    Raises:
        InputError: a folder is no run, no run has anything to show, or `out` cannot be written to.
    """
    runs = read_runs(paths)
    target = target_of(runs, out)
    if not any(run.rows or run.folder.rollout_steps() for run in runs):
        names = ", ".join(str(run.path) for run in runs)
        raise InputError(f"{names}: no metrics.jsonl and no rollouts to report yet; let the run make a step first")
    page = Page(" · ".join(run.name for run in runs), _intro(runs))
    page.section("Summary", summary(runs, page.left_out))
    page.section("Evaluations", evaluations(runs, page.left_out))
    page.section("Verifier", [block for run in runs for block in audits(run, len(runs) > 1)])
    for heading, charts in training_charts(runs):
        page.section(heading, [Figures([(chart, page_svg(chart)) for chart in charts])])
    absent, zero = not_drawn(runs)
    page.left_out += ["0 at every step: " + "; ".join(zero)] if zero else []
    page.left_out += ["without a metric: " + "; ".join(absent)] if absent else []
    _add_samples(runs, page, samples)
    write_text(target, page.html())
    return Written(target, tuple(page.left_out))


def target_of(runs: Sequence[RunData], out: Path | None) -> Path:
    """The file to write.

    Raises:
        InputError: a file or folder of another kind has that name.
    """
    if out is None:
        out = runs[0].path / "report" if len(runs) == 1 else Path("report")
    named = out.suffix == ".html"
    if out.exists() and out.is_dir() == named:
        raise InputError(f"--out {out}: name a folder, or a file that ends in .html")
    return out if named else out / PAGE


def _intro(runs: Sequence[RunData]) -> str:
    if len(runs) > 1:
        return f"{len(runs)} runs compared"
    run = runs[0]
    began = str(run.folder.read_json("run.json").get("began", ""))[:16].replace("T", " ")
    return f"{run.recipe}, {run.outcome()}, begun {began}"


def _add_samples(runs: Sequence[RunData], page: Page, count: int) -> None:
    """Add the section of recorded completions."""
    blocks: list[Block] = []
    for place, run in enumerate(runs if count else ()):
        part("rollouts of runs", place, len(runs))
        tokenizer = tokenizer_of(run)
        if tokenizer is None:
            page.left_out.append(f"{run.name}: samples: its tokenizer is not on this machine")
            continue
        answers = recorded_answers(run, tokenizer, count)
        if answers:
            blocks += [Text(run.name, "heading")] if len(runs) > 1 else []
            blocks.append(Samples(f"r{place}", ORIGIN, answers))
        else:
            page.left_out.append(f"{run.name}: samples: it has no rollouts")
    page.section("Samples", blocks)
