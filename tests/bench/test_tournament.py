"""The tournament's plan and verdicts by value, and what it tells of finished runs."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from bench.claims.execute import base_of, curve_path
from bench.tournament import ENTRANTS, FINAL, PILOT, TUNING, chance, holm, judged, main, named, plan, pooled, sees
from scipy.stats import ttest_1samp

from bench import tournament
from strop.algorithms.losses import PolicyLoss
from strop.base.pieces import choices


def test_every_loss_takes_part_on_as_many_completions() -> None:
    configs = {name: entrant.arm(entrant.rates[0]).config(0) for name, entrant in ENTRANTS.items()}
    assert set(ENTRANTS) == {name for name in choices(PolicyLoss) if ":" not in name}  # the others are of users
    assert all(config.algorithm.loss.piece_name() == name for name, config in configs.items())
    sizes = {(c.steps, c.batch.prompts_per_step, c.batch.samples_per_prompt) for c in configs.values()}
    assert len(sizes) == 1 and not {TUNING, PILOT} & set(FINAL)
    assert all(config.batch.updates_per_step == ENTRANTS[name].updates for name, config in configs.items())
    assert len({len(entrant.rates) for entrant in ENTRANTS.values()}) == 1


def test_holm_corrects_for_those_that_are_not_smaller() -> None:
    found = holm({"a": 0.01, "b": 0.04, "c": 0.03, "d": 0.005})
    assert found == pytest.approx({"d": 0.02, "a": 0.03, "c": 0.06, "b": 0.06})
    assert holm({"a": 0.6, "b": 0.9}) == {"a": 1.0, "b": 1.0}


def test_a_chance_is_that_of_students_t() -> None:
    values = [0.01, 0.05, -0.02, 0.04]
    assert chance(values) == pytest.approx(ttest_1samp(values, 0.0).pvalue)
    assert chance([0.3]) == 1.0


def test_a_pooled_deviation_is_that_within_samples() -> None:
    draws = np.random.default_rng(0).normal([[0.1], [0.5]], 0.03, (2, 50)).tolist()
    assert pooled(draws) == pytest.approx(np.sqrt(np.mean(np.var(draws, axis=1, ddof=1))))


def test_the_plan_sees_with_the_probability_it_says() -> None:
    """Simulated finals: the difference it names is told from 0 in four of five, as the hardest of all comparisons."""
    seen = sees(0.03, 14, 8)
    draws = np.random.default_rng(0).normal(seen, 0.03, (500, 8))
    share = np.mean([chance(list(values)) * (len(ENTRANTS) - 1) <= tournament.ERROR for values in draws])
    assert 0.75 < share < 0.97


def test_verdicts_are_corrected_for_their_number() -> None:
    gaps = {"a": [0.1, 0.11, 0.09, 0.1], "b": [-0.1, -0.1, -0.12, -0.11], "c": [0.05, 0.01, 0.04, 0.03]}
    results = judged({name: dict(enumerate(values)) for name, values in gaps.items()})
    assert [results[name][0].verdict for name in "abc"] == ["agrees", "disagrees", "agrees"]
    results = judged({f"{name}{copy}": dict(enumerate(gaps["c"])) for name in "abc" for copy in range(3)})
    assert {result.verdict for result, _ in results.values()} == {"undecided"}  # one of nine with the same p


def kept(out: Path, name: str, rate: float, seed: int, late: float) -> None:
    """Write the curve of a finished run."""
    config = ENTRANTS[name].arm(rate).config(seed)
    stored = {"arm": named(name, rate), "seed": seed, "base": base_of(config), "seconds": 1.0, "made": "2026-01-02"}
    rows = [
        {"step": step, "pass_rate": late if step > 9 else 0.3, "entropy": 0.1, "ratio/clipped_share": 0.01}
        for step in range(1, 13)
    ]
    path = curve_path(out, named(name, rate), seed)
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(stored | {"config": config.model_dump(mode="json"), "rows": rows}))


def test_rates_are_chosen_on_another_seed_and_the_final_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(tournament, "ENTRANTS", {name: ENTRANTS[name] for name in ("PpoClip", "Sapo", "Vespo")})
    monkeypatch.setattr(tournament, "FINAL", (0, 1, 2))
    out, docs = tmp_path / "out", tmp_path / "docs"
    docs.mkdir()
    out.mkdir()
    (docs / "claims.md").write_text("<!-- begin: tournament -->\n<!-- end: tournament -->\n")
    best = {"PpoClip": 1e-4, "Sapo": 3e-4, "Vespo": 1e-4}
    for name, chosen in best.items():
        for rate in ENTRANTS[name].rates:
            kept(out, name, rate, TUNING, 0.7 if rate == chosen else 0.5)
        kept(out, name, chosen, PILOT, 0.73 if name == "Sapo" else 0.7)
        for seed in (0, 1, 2):
            kept(out, name, chosen, seed, 0.7 - 0.2 * (name == "Vespo") + 0.002 * seed * (name != "PpoClip"))
    assert main(["--out", str(out), "--docs", str(docs)]) == 0  # nothing is left to run
    assert plan(out)["rates"] == best and plan(out)["deviation"] == 0.015  # √((0.03² / 2 + 0) / 2)
    record = json.loads((docs / "claims" / "tournament.json").read_text())
    assert [line["entrant"] for line in record["final"]] == ["Sapo", "PpoClip", "Vespo"]
    last = record["final"][-1]
    assert last["effect"] == pytest.approx(-0.198) and last["verdict"] == "disagrees"
    assert len(last["values"]) == 3 and record["final"][1]["effect"] is None
    told = capsys.readouterr().out
    assert "| `Sapo` | `field.sapo` | 50.0, 50.0, 70.0 at 0.0003 | 70.2 | +0.2" in told and "**worse**" in told
    assert told.strip() in (docs / "claims.md").read_text()
    assert (docs / "claims" / "tournament.png").stat().st_size > 1000
    written = (out / "plan.json").read_text()
    kept(out, "Sapo", 1e-4, TUNING, 0.99)
    assert main(["--out", str(out), "--tell"]) == 0 and (out / "plan.json").read_text() == written  # it is kept
