"""The record of verdicts, docs/claims/results.json: one object a claim, and how it is carried on.

Curves are not kept with the source, so a claim keeps the seeds of its line whose runs are not at hand; all are judged
together, by today's rule. A line is carried on only while the claim measures what it measured then, on arms that still
resolve to the same settings.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any

from bench.claims.analysis import Result, judge
from bench.claims.claim import Claim
from bench.claims.fairness import config

from strop.config.schema import RunConfig

Results = Mapping[str, Result]


def path_in(docs: Path) -> Path:
    """Where the record lies in a folder of documentation."""
    return docs / "claims" / "results.json"


def lines(claims: Sequence[Claim], results: Results) -> Iterator[dict[str, Any]]:
    """One JSON-able object a claim."""
    for claim in claims:
        found = results[claim.name]
        effect = found.effect
        bounded = effect if effect is not None and effect.interval is not None else None
        yield _test(claim) | {
            "bench": "claims",
            "claim": claim.name,
            "paper": claim.paper,
            "quote": claim.quote,
            "unit": claim.unit,
            "verdict": found.verdict,
            "untried": found.untried or None,
            "made": found.made or None,
            "effect": None if effect is None else round(effect.value, 5),
            "interval": None if bounded is None else [round(v, 5) for v in bounded.interval or ()],
            "level": None if bounded is None else bounded.level,
            "values": {str(seed): round(value, 5) for seed, value in found.values.items()},
            "shown": {words: _short(by_seed) for words, by_seed in found.shown.items()},
        }


def _short(by_seed: Mapping[int, float | None]) -> dict[str, float | None]:
    return {str(seed): None if value is None else float(f"{value:.5g}") for seed, value in by_seed.items()}


def _test(claim: Claim) -> dict[str, Any]:
    """What must be alike for two lines to be of one test."""
    arms = {arm: key(config(arm)) for arm in claim.arms}
    return {"measured": claim.measured, "says": claim.says, "margin": claim.margin, "arms": arms}


def key(run: RunConfig) -> str:
    """A digest of what a run is configured to do; a setting that is added with a default changes none."""
    chosen = run.model_dump(mode="json", exclude_defaults=True, exclude={"recipe"})
    return sha256(json.dumps(chosen, sort_keys=True).encode()).hexdigest()[:12]


def completed(results: Results, claims: Sequence[Claim], docs: Path) -> dict[str, Result]:
    """`results`, with the seeds that only the record has."""
    path = path_in(docs)
    kept = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else []
    by_name = {line["claim"]: line for line in kept}
    return {claim.name: _completed(results[claim.name], claim, by_name.get(claim.name)) for claim in claims}


def _completed(found: Result, claim: Claim, line: Mapping[str, Any] | None) -> Result:
    test = _test(claim)
    if line is None or {key: line.get(key) for key in test} != test:
        return found
    untried = found.untried or line["untried"] or ""
    shown = {words: _by_seed(kept) | dict(found.shown.get(words, {})) for words, kept in line["shown"].items()}
    result = judge(_by_seed(line["values"]) | found.values, claim.says, claim.margin)
    result = result._replace(made=max(found.made, line["made"] or ""), untried=untried, shown=shown)
    return result._replace(verdict="not tried") if untried else result


def _by_seed(kept: Mapping[str, Any]) -> dict[int, Any]:
    return {int(seed): value for seed, value in kept.items()}
