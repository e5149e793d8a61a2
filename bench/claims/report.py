"""What came of the claims, told: tables in Markdown and figures, and both in docs/claims.md."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bench.claims.analysis import ERROR, LOOKS, Result, Verdict, false_verdicts, seeds_needed
from bench.claims.arms import ARMS
from bench.claims.claim import Claim
from bench.claims.fairness import differences
from bench.claims.figure import draw, draw_curves
from bench.claims.mechanisms import Check, checks_of
from bench.claims.record import Results, lines, path_in
from bench.claims.verdicts import finished

from strop.base.files import replacing
from strop.lab.ablation.power import MOST

Shown = Mapping[str, Mapping[int, float | None]]
BEGIN, END = "<!-- begin: {} -->", "<!-- end: {} -->"
ENDS = ("pass rate, first and last", "entropy, first and last")
PERCENT = ("pass rate", "share")
WORDS: Mapping[Verdict, str] = {"agrees": "agree", "disagrees": "disagree", "undecided": "are undecided"}


def table(claims: Sequence[Claim], results: Results) -> str:
    """The claims with what their arms differ in, their effects and verdicts, in Markdown."""
    rows = []
    for claim in claims:
        found = results[claim.name]
        said = f"{claim.paper}: {claim.quote}"
        measured = f"{claim.measured} ({_rule(claim)})"
        told = effect(claim, found), str(len(found.values)), _verdict(claim, found)
        rows.append((f"`{claim.name}`", said, measured, _apart(claim, found), *told))
    head = "claim", "what the paper says", "what was measured", "the arms differ in", "effect", "seeds", "verdict"
    return markdown(head, rows)


def _apart(claim: Claim, found: Result) -> str:
    """What the arms differ in, and what they must show besides."""
    if claim.choice is not None:
        return claim.choice.what
    apart = "one arm" if len(claim.arms) == 1 else f"`{differences(claim.arms)[0]}`"
    return "; ".join(text for text in (apart, _told(claim.compared, found.shown)) if text)


def _told(checks: Sequence[Check], shown: Shown) -> str:
    return "; ".join(f"{check.words}: {_shown(shown.get(check.words, {}))} ({check.bound})" for check in checks)


def _shown(by_seed: Mapping[int, float | None]) -> str:
    """The range of a check's numbers over the seeds."""
    known = [value for value in by_seed.values() if value is not None]
    if not known:
        return "not known"
    low, high = f"{min(known):.3g}", f"{max(known):.3g}"
    return low if low == high else f"{low} to {high}"


def markdown(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table."""
    told = [head, ["---"] * len(head), *rows]
    return "".join(f"| {' | '.join(cell.replace('|', '∣') for cell in row)} |\n" for row in told)


def _verdict(claim: Claim, found: Result) -> str:
    if not found.values and not found.untried:
        return "not run"
    if found.verdict == "not tried":
        return f"not tried: {found.untried}"
    if found.verdict != "undecided":
        return f"**{found.verdict}**"
    if len(found.values) < min(LOOKS):
        return found.verdict
    needed = seeds_needed(list(found.values.values()), claim.says, claim.margin)
    return f"undecided: needs {f'more than {MOST}' if needed is None else needed} seeds"


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
    """How many claims were tried and agree, disagree and stay undecided, and how many verdicts may be false."""
    run = [results[claim.name] for claim in claims if results[claim.name].values or results[claim.name].untried]
    tried = [found for found in run if found.verdict != "not tried"]
    few = sum(len(found.values) < min(LOOKS) for found in tried)
    left = {
        "not tried, since an arm does not show its mechanism": sum(found.verdict == "not tried" for found in run),
        "not run": len(claims) - len(run),
    }
    want = f", {few} of them for want of seeds or of fits" if few else ""
    told = [f"{len(tried)} claims tried: {_counted(tried)}{want}."]
    told.append(
        f"Each verdict is false with a probability of at most {100 * ERROR:.0f} %: of {len(tried)} at most "
        f"{false_verdicts(len(tried)):.1f} are expected to be."
    )
    if any(left.values()):
        told.append("Besides: " + ", ".join(f"{count} {words}" for words, count in left.items() if count) + ".")
    return "\n".join(told) + "\n"


def _counted(found: Sequence[Result]) -> str:
    counts = Counter(result.verdict for result in found)
    return ", ".join(f"{counts[name]} {word}" for name, word in WORDS.items())


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
    with replacing(path_in(docs)) as temporary:
        temporary.write_text(_results_text(told), encoding="utf-8")
    draw(claims, results, pictures / "claims.png")
    draw_curves(out, pictures / "curves.png")
    text = page.read_text(encoding="utf-8")
    text = between(text, "summary", summary(claims, results))
    text = between(text, "table", table(claims, results))
    text = between(text, "arms", arms_table(out, results, rows_of(text, "arms")))
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


def rows_of(text: str, name: str) -> list[list[str]]:
    """The cells of the rows of the table that stands between the marks of `name`; none where there is no table."""
    lines = text.split(BEGIN.format(name))[1].split(END.format(name))[0].strip().splitlines()
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines[2:]]


def arms_table(out: Path, results: Results, before: Sequence[Sequence[str]] = ()) -> str:
    """Every arm with the means over its seeds of what it came to, and what they showed, in Markdown.

    Args:
        out: where the curves are.
        results: of all claims: each has what its arms showed.
        before: the rows of the table until now; one stays, but for what was shown, where it is of the same arm and of
            more seeds.
    """
    shown: dict[str, dict[int, float | None]] = {}
    for found in results.values():
        for words, by_seed in found.shown.items():
            shown.setdefault(words, {}).update(by_seed)
    rows: list[Sequence[str]] = []
    known = {(row[0], row[1]): row for row in before}
    for name, arm in ARMS.items():
        curves = finished(out, name).values()
        old = known.get((f"`{name}`", arm.about))
        told = _told(checks_of([name]), shown).replace(f" of `{name}`", "")
        if old is not None and int(old[2]) > len(curves):
            rows.append((*old[:5], told))
            continue
        cells = []
        for metric in ("evaluation/pass_rate", "evaluation/entropy"):
            ends = [(series[0][1], series[-1][1]) for curve in curves if (series := curve.series(metric))]
            first_last = (sum(values) / len(values) for values in zip(*ends, strict=True))
            cells.append(", ".join(f"{value:.3f}" for value in first_last))
        rows.append((f"`{name}`", arm.about, str(len(curves)), *cells, told))
    return markdown(("arm", "what it is", "seeds", *ENDS, "its runs show"), rows)
