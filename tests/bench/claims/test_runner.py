"""The runner on two-step runs of a tiny random model: what is finished is not run again, and what came out is told."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from bench.claims.arms import ARMS, Arm
from bench.claims.catalogue import CLAIMS
from bench.claims.claim import Claim
from bench.claims.command import main
from bench.claims.execute import curve_path, load

from bench.claims import measures as m
from bench.claims import report

SMALL = (
    "steps=2", "evaluation.every=1", "model.path=none", "model.fresh.hidden_size=32", "model.fresh.layers=1",
    "model.fresh.heads=2", "model.fresh.kv_heads=1", "model.fresh.head_dim=8", "model.fresh.intermediate_size=32",
    "model.fresh.max_positions=128", "model.fresh.initializer_range=0.2", "data.source.terms=2", "data.source.count=16",
    "data.held_out.source.count=4", "data.held_out.source.terms=2", "batch.prompts_per_step=2",
    "batch.samples_per_prompt=2", "sampling.max_new_tokens=8", "engine.slots=16",
    "algorithm.selection.zero_variance=keep",
)  # fmt: skip
NAME = "entropy-of-small"


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """An arm and a claim about it."""
    monkeypatch.setitem(ARMS, "small", Arm("a tiny model", SMALL))
    effect = m.of(m.first("entropy/sampled"), "small")
    claim = Claim(NAME, "nobody 1", "“high | low”", ("small",), "entropy", effect, "above", 0.01, "nats")
    monkeypatch.setitem(CLAIMS, NAME, claim)


def times(out: Path) -> dict[str, int]:
    return {path.name: path.stat().st_mtime_ns for path in (out / "curves").iterdir()}


def test_what_is_finished_is_not_run_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    command = [NAME, "--out", str(tmp_path)]
    assert main(command) == 0
    said = capsys.readouterr()
    (line,) = map(json.loads, said.out.splitlines())
    assert line["claim"] == NAME and line["verdict"] == "agrees" and list(line["values"]) == ["0", "1", "2"]
    assert "3/3 small, seed 2" in said.err
    kept = load(tmp_path, "small", 0)
    assert kept is not None and [row["step"] for row in kept.rows] == [0, 1, 2]
    assert len(kept.series("evaluation/entropy")) == 3
    assert line["values"]["0"] == pytest.approx(kept.rows[1]["entropy/sampled"], abs=1e-4)
    assert not any((tmp_path / "runs").iterdir())

    before = times(tmp_path)
    curve_path(tmp_path, "small", 1).unlink()
    assert main(command) == 0
    assert "1/1 small, seed 1" in capsys.readouterr().err
    assert {name for name, at in times(tmp_path).items() if before[name] != at} == {"small-seed1.json"}

    before = times(tmp_path)
    monkeypatch.setitem(ARMS, "small", Arm("another rate", (*SMALL, "optim.lr=1e-4")))
    assert main([*command, "--seeds", "1"]) == 0
    assert {name for name, at in times(tmp_path).items() if before[name] != at} == {"small-seed0.json"}
    assert main([*command, "--seeds", "1"]) == 0 and capsys.readouterr().err.count("seed") == 1


def test_a_curve_counts_although_settings_were_added_since(tmp_path: Path) -> None:
    config, changed = ARMS["small"].config(0), Arm("another rate", (*SMALL, "optim.lr=1e-4")).config(0)
    path = curve_path(tmp_path, "small", 0)
    path.parent.mkdir(parents=True)

    def kept(base: str | None = None, **sections: object) -> bool:
        """Whether the curve of a configuration with these sections is taken for that of `config`, not of `changed`."""
        stored = {"arm": "small", "seed": 0, "base": base, "seconds": 1.0, "made": "2026-01-02"}
        stored |= {"config": config.model_dump(mode="json") | sections}
        path.write_text(json.dumps(stored | {"rows": [{"step": 0}]}))
        assert load(tmp_path, "small", 0, changed) is None and load(tmp_path, "small", 0) is not None
        return load(tmp_path, "small", 0, config) is not None

    data = config.model_dump(mode="json")
    assert kept()
    before = {key: value for key, value in data["data"].items() if key not in ("limit", "weights")}
    assert data["data"] != before and kept(data=before)  # as written before these two were there
    assert not kept(data=before | {"max_prompt_tokens": 7})
    assert not kept(base="another")
    assert not kept(gone=True)  # a setting that no longer exists: what it did cannot be told


def test_a_claim_that_was_not_run_is_told_as_such(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([NAME, "--tell", "--out", str(tmp_path)]) == 0
    (line,) = map(json.loads, capsys.readouterr().out.splitlines())
    assert line["verdict"] == "undecided" and line["effect"] is None and line["values"] == {}
    told = (tmp_path / "claims.md").read_text()
    assert "Besides: 1 not run." in told and "| not run |" in told and "high ∣ low" in told


def test_an_unknown_claim_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["no-such-claim"]) == 2
    assert "no-such-claim" in capsys.readouterr().err


def test_the_page_is_changed_between_its_marks_alone() -> None:
    page = "a\n<!-- begin: table -->\nold\n<!-- end: table -->\nb\n"
    assert report.between(page, "table", "new\n") == page.replace("old", "new")
    with pytest.raises(ValueError, match="no pair of marks"):
        report.between("a\n", "table", "new\n")


def test_the_page_in_docs_has_its_marks() -> None:
    page = Path(__file__).parents[3] / "docs" / "claims.md"
    for name in ("summary", "table", "arms"):
        report.between(page.read_text(encoding="utf-8"), name, "")


def test_the_page_says_why_each_claim_disagrees() -> None:
    docs = Path(__file__).parents[3] / "docs"
    record = json.loads((docs / "claims" / "results.json").read_text(encoding="utf-8"))
    page = (docs / "claims.md").read_text(encoding="utf-8")
    why = page.split("## Why claims disagree")[1].split("\n## ")[0]
    named = [name for name in re.findall(r"`([\w-]+)`", why) if name in CLAIMS]
    disagreeing = {line["claim"] for line in record if line["verdict"] == "disagrees"}
    assert disagreeing <= set(named) and len(named) == len(set(named))


def test_rows_of_runs_that_are_not_at_hand_stay(tmp_path: Path) -> None:
    """An arm of more seeds than there are curves keeps its row, unless it is another arm now."""
    about = ARMS["base"].about
    page = "<!-- begin: arms -->\n| arm | what it is | seeds | a | b |\n| --- | --- | --- | --- | --- |\n"
    page += f"| `base` | {about} | 5 | 0.288, 0.800 | 0.264, 0.046 |\n| `kl` | another | 5 | 1, 1 | 1, 1 |\n"
    told = report.arms_table(tmp_path, {}, report.rows_of(page + "<!-- end: arms -->\n", "arms"))
    assert f"| `base` | {about} | 5 | 0.288, 0.800 | 0.264, 0.046 |" in told
    assert f"| `kl` | {ARMS['kl'].about} | 0 |  |  |" in told and len(told.splitlines()) == 2 + len(ARMS)
