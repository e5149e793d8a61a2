"""What came of the claims, told: JSON lines, a table in Markdown, a figure, and both in docs/claims.md."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from bench.claims.analysis import ENOUGH_SEEDS, LEVEL, Result
from bench.claims.arms import ARMS
from bench.claims.catalogue import Claim
from bench.claims.execute import load
from bench.claims.figure import draw, draw_curves
from bench.claims.measures import half_fit

from strop.base.files import replacing

BEGIN, END = "<!-- begin: {} -->", "<!-- end: {} -->"
LONG_ARMS = ("long", "long4")
PERCENT = ("pass rate", "share")

Results = Mapping[str, Result]


def lines(claims: Sequence[Claim], results: Results) -> Iterator[dict[str, Any]]:
    """One JSON-able object a claim."""
    for claim in claims:
        found = results[claim.name]
        effect = found.effect
        yield {
            "bench": "claims",
            "claim": claim.name,
            "paper": claim.paper,
            "quote": claim.quote,
            "measured": claim.measured,
            "says": claim.says,
            "margin": claim.margin,
            "unit": claim.unit,
            "verdict": found.verdict,
            "effect": None if effect is None else round(effect.value, 5),
            "interval": None if effect is None or effect.interval is None else [round(v, 5) for v in effect.interval],
            "level": LEVEL,
            "values": {str(seed): round(value, 5) for seed, value in found.values.items()},
        }


def table(claims: Sequence[Claim], results: Results) -> str:
    """The claims with their effects and verdicts, in Markdown."""
    rows = ["| claim | what the paper says | what was measured | effect | seeds | verdict |", "| --- " * 6 + "|"]
    for claim in claims:
        found = results[claim.name]
        said = f"{claim.paper}: {claim.quote}"
        measured = f"{claim.measured} ({_rule(claim)})"
        cells = (f"`{claim.name}`", said, measured, effect(claim, found), str(len(found.values)), _verdict(found))
        rows.append(f"| {' | '.join(cell.replace('|', '∣') for cell in cells)} |")
    return "\n".join(rows) + "\n"


def _verdict(found: Result) -> str:
    if not found.values:
        return "not run"
    return f"**{found.verdict}**" if found.verdict != "undecided" else found.verdict


def _rule(claim: Claim) -> str:
    """What the claim says of the effect, such as `> 2`."""
    margin = number(claim, claim.margin, signed=False)
    return {
        "above": f"above 0, at least {margin}" if claim.margin else "above 0",
        "same": f"within ± {margin}",
        "apart": f"beyond ± {margin}",
        "not above": f"below {margin}",
    }[claim.says]


def number(claim: Claim, value: float, signed: bool = True) -> str:
    """A value in the claim's unit: pass rates and shares in points of a hundred."""
    if claim.unit in PERCENT:
        return f"{100 * value:{'+' if signed else ''}.1f}"
    return f"{value:{'+' if signed else ''}.2f}"


def effect(claim: Claim, found: Result) -> str:
    """The mean with its interval, and where it is a log ratio the factor it stands for."""
    if found.effect is None:
        return ""
    text = number(claim, found.effect.value)
    if found.effect.interval is not None:
        low, high = (number(claim, value) for value in found.effect.interval)
        text += f" ({low} to {high})"
    return text + (f", × {math.exp(found.effect.value):.2g}" if claim.unit == "log ratio" else "")


def summary(claims: Sequence[Claim], results: Results) -> str:
    """How many agree, disagree and stay undecided."""
    run = [claim for claim in claims if results[claim.name].values]
    counts = Counter(results[claim.name].verdict for claim in run)
    told = ", ".join(f"{counts[name]} {name}" for name in ("agrees", "disagrees", "undecided"))
    few = sum(len(results[claim.name].values) < ENOUGH_SEEDS for claim in run)
    short = f", {few} of them for want of seeds or of fits" if few else ""
    left = f"; {len(claims) - len(run)} were not run" if len(run) < len(claims) else ""
    return f"{len(run)} claims: {told}{short}{left}.\n"


def write(out: Path, claims: Sequence[Claim], results: Results, docs: Path | None = None) -> None:
    """Write results.json, claims.md and claims.png into `out`; and into `docs`, where that is given."""
    out.mkdir(parents=True, exist_ok=True)
    told = list(lines(claims, results))
    with replacing(out / "results.json") as temporary:
        temporary.write_text(_results_text(told), encoding="utf-8")
    with replacing(out / "claims.md") as temporary:
        temporary.write_text(summary(claims, results) + "\n" + table(claims, results), encoding="utf-8")
    draw(claims, results, out / "claims.png")
    if docs is None:
        return
    page, pictures = docs / "claims.md", docs / "claims"
    pictures.mkdir(parents=True, exist_ok=True)
    with replacing(pictures / "results.json") as temporary:
        temporary.write_text(_results_text(told), encoding="utf-8")
    draw(claims, results, pictures / "claims.png")
    draw_curves(out, pictures / "curves.png")
    text = page.read_text(encoding="utf-8")
    text = between(text, "summary", summary(claims, results))
    text = between(text, "table", table(claims, results))
    text = between(text, "arms", arms_table(out))
    text = between(text, "halves", halves_table(out))
    with replacing(page) as temporary:
        temporary.write_text(text, encoding="utf-8")


def _results_text(told: Sequence[dict[str, Any]]) -> str:
    return "[\n" + ",\n".join(json.dumps(line, ensure_ascii=False) for line in told) + "\n]\n"


def between(text: str, name: str, new: str) -> str:
    """`text` with what stands between the marks of `name` replaced.

    Raises:
        ValueError: the marks are not there.
    """
    begin, end = BEGIN.format(name), END.format(name)
    if text.count(begin) != 1 or text.count(end) != 1:
        raise ValueError(f"the page has no pair of marks {begin} … {end}")
    head, rest = text.split(begin)
    return f"{head}{begin}\n{new}{end}{rest.split(end)[1]}"


def halves_table(out: Path) -> str:
    """Of every long run the errors on its second half of what was fitted to its first, in Markdown."""
    rows = ["| run | over | mean error | mean ∣error∣ | largest | power law, mean ∣error∣ |", "| --- " * 6 + "|"]
    for arm, seed in ((arm, seed) for arm in LONG_ARMS for seed in range(100)):
        curve = load(out, arm, seed)
        if curve is None:
            continue
        for x in ("steps", "tokens"):
            found = half_fit(curve, x)
            if isinstance(found, str):
                cells = [f"refused: {found.split(':')[0]}", "", "", ""]
            else:
                signed = [f"{found['mean']:+.3f}", f"{found['mean_absolute']:.3f}", f"{found['largest']:+.3f}"]
                cells = [*signed, f"{found['power_law']:.3f}"]
            rows.append(f"| `{arm}`, seed {seed} | {x} | {' | '.join(cells)} |")
    return "\n".join(rows) + "\n"


def arms_table(out: Path) -> str:
    """Every arm with the means over its seeds of what it came to, in Markdown."""
    names = ("evaluation/pass_rate", "evaluation/entropy")
    rows = ["| arm | what it is | seeds | pass rate, first and last | entropy, first and last |", "| --- " * 5 + "|"]
    for name, arm in ARMS.items():
        curves = [curve for seed in range(100) if (curve := load(out, name, seed)) is not None]
        if not curves:
            continue
        cells = []
        for metric in names:
            ends = [(series[0][1], series[-1][1]) for curve in curves if (series := curve.series(metric))]
            first, last = (sum(values) / len(values) for values in zip(*ends, strict=True))
            cells.append(f"{first:.3f}, {last:.3f}")
        rows.append(f"| `{name}` | {arm.about} | {len(curves)} | {' | '.join(cells)} |")
    return "\n".join(rows) + "\n"
