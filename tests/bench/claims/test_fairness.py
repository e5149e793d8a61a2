"""The three questions about a claim: one difference, the mechanism in the arms' own metrics, measured alike."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from bench.claims.analysis import Result, judge
from bench.claims.arms import ARMS
from bench.claims.catalogue import CLAIMS
from bench.claims.claim import Claim
from bench.claims.execute import Curve
from bench.claims.fairness import config, differences, measured_alike
from bench.claims.mechanisms import SHOWS, Check, same_run, untried

from bench.claims import measures as m
from bench.claims import record, report

COMPARED = [claim for claim in CLAIMS.values() if len(claim.arms) > 1]


@pytest.mark.parametrize("claim", COMPARED, ids=lambda claim: claim.name)
def test_arms_differ_in_one_setting_or_one_choice_and_are_measured_alike(claim: Claim) -> None:
    apart = differences(claim.arms)
    assert len(apart) == 1 if claim.choice is None else len(apart) > 1 and claim.choice.settings >= set(apart), apart
    assert measured_alike(claim.arms)


def test_every_arm_that_has_a_mechanism_of_its_own_must_show_it() -> None:
    """Those without differ in a size or a form that is there by being set: their runs must differ."""
    sizes = {"group4", "batch8", "few", "temp06", "temp1", "batch_std", "no_std", "bonus_low", "bonus_high"}
    assert set(SHOWS) | sizes == set(ARMS) and sizes.isdisjoint(SHOWS)


def test_differences_name_the_settings() -> None:
    assert differences(["clip25", "nsgd4"]) == ("algorithm.loss.clip_high",)
    assert differences(["opefo", "base"]) == ("algorithm.loss",)  # of another kind: one choice
    assert differences(["base", "base"]) == ()
    assert not measured_alike(["temp06", "base"])


def curve(arm: str, **columns: list[float]) -> Curve:
    """A curve whose columns are given from step 0 on; `__` in a name stands for a slash."""
    length = len(next(iter(columns.values())))
    names = {"step": [*map(float, range(length))]} | {name.replace("__", "/"): v for name, v in columns.items()}
    rows: list[dict[str, float | None]] = [{name: names[name][step] for name in names} for step in range(length)]
    return Curve(arm, 0, None, 1.0, tuple(rows))


def test_two_identical_runs_try_nothing() -> None:
    """Caps of 4 and 8 that no ratio reaches make one run, of which any two numbers agree."""
    same = {"evaluation__pass_rate": [0.2, 0.8], "grad_norm": [0.5, 0.4]}
    curves = {"cispo4": curve("cispo4", **same), "cispo8": curve("cispo8", **same)}
    assert same_run(curves["cispo4"], curves["cispo8"])
    assert "made the same run" in untried(curves, [])
    curves["cispo8"] = curve("cispo8", evaluation__pass_rate=[0.2, 0.8], grad_norm=[0.5, 0.3])
    assert untried(curves, []) == ""


def test_a_cap_that_is_not_reached_is_not_tried() -> None:
    checks = CLAIMS["cispo-cap-4-and-8"].checks
    curves = {arm: curve(arm, ratio__max=[1.0, 9.0], grad_norm=[1.0, float(place)])
              for place, arm in enumerate(("cispo4", "cispo8"))}  # fmt: skip
    assert untried(curves, checks) == ""
    curves["cispo4"] = curve("cispo4", ratio__max=[1.0, 3.9], grad_norm=[1.0, 0.0])
    assert untried(curves, checks) == "largest importance ratio of `cispo4`: 3.9, not > 4"


def test_a_controller_whose_coefficient_only_rises_is_not_tried() -> None:
    regulates = CLAIMS["adaptive-keeps-target"].checks[0]
    name = "state/algorithm.regularizers.0.coefficient".replace("/", "__")
    rises, turns = ({"adaptive_one": curve("adaptive_one", **{name: c})} for c in ([0.0, 0.1, 0.2], [0.0, 0.1, 0.05]))
    assert untried(rises, [regulates]) and not untried(turns, [regulates])


def test_a_check_says_what_it_asks_and_what_was_found() -> None:
    check = Check("lag of `a`", m.of(m.last("lag"), "a"), 2.0, 4.0)
    assert check.bound == "> 2 and < 4"
    assert check.holds(3.0) and not check.holds(2.0) and not check.holds(4.0) and not check.holds(None)
    assert untried({"a": curve("a", other=[1.0])}, [check]) == "lag of `a`: not measured, not > 2 and < 4"


def test_a_verdict_without_its_runs_is_carried_on_with_its_day(tmp_path: Path) -> None:
    """Further seeds join it. What was measured otherwise is not carried on."""
    claim = CLAIMS["group-size-passes-more"]
    values = {0: 0.1, 1: 0.1001, 2: 0.0999}
    shown = {"a check": {0: 1.0, 1: None, 2: 2.0}}
    kept = judge(values, claim.says, claim.margin)._replace(made="2026-01-02", shown=shown)
    (line,) = record.lines([claim], {claim.name: kept})
    path = record.path_in(tmp_path)
    path.parent.mkdir()

    def carried(changed: dict[str, object], fresh: dict[int, float] | None = None) -> Result:
        path.write_text(json.dumps([line | changed]))
        results = {claim.name: judge(fresh or {}, claim.says, claim.margin)}
        return record.completed(results, [claim], tmp_path)[claim.name]

    whole = carried({})
    assert whole.values == values and whole.verdict == "agrees" and whole.made == "2026-01-02"
    assert whole.shown == shown
    assert carried({"verdict": "not tried", "untried": "seed 0: no"}).verdict == "not tried"
    assert not carried({"measured": "another thing"}).values
    assert not carried({"arms": {}}).values
    assert carried({}, {2: 0.31, 3: 0.3}).values == {0: 0.1, 1: 0.1001, 2: 0.31, 3: 0.3}


def test_the_record_notices_an_arm_that_changed_with_its_recipe() -> None:
    run = ARMS["archer"].config(0)
    assert record.key(run) == record.key(run.model_copy(update={"recipe": "another.name"}))
    one_pass = run.batch.model_copy(update={"passes_per_batch": 1})
    assert record.key(run.model_copy(update={"batch": one_pass})) != record.key(run) != record.key(config("archer_kl0"))


def test_the_answers_stand_beside_each_claim() -> None:
    claim = CLAIMS["kl-pulls-back"]
    shown = {check.words: {0: 0.031, 1: 0.045} for check in claim.checks}
    result = Result({0: 0.5}, None, "undecided", shown=shown)
    told = report.table([claim], {claim.name: result})
    assert "| `stages.1.set.algorithm.regularizers.0.beta`; log of the fall" in told
    assert "in `kl0`: 0.031 to 0.045 (< 0.2) |" in told


def test_what_is_expected_to_be_false_is_said_of_what_was_tried() -> None:
    claims = [CLAIMS["kl-pulls-back"], CLAIMS["kl-loss-harms"], CLAIMS["gae-lambda-1"]]
    values = {seed: 0.5 + 0.001 * seed for seed in range(3)}
    tried = judge(values, "above", 0.02)
    untried_one = tried._replace(verdict="not tried", untried="seed 0: no")
    kinds = (tried, untried_one, Result({}, None, "undecided"))
    told = report.summary(claims, {claim.name: found for claim, found in zip(claims, kinds, strict=True)})
    assert "1 claims tried: 1 agree, 0 disagree, 0 are undecided." in told
    assert "at most 5 %: of 1 at most 0.1 are expected" in told
    assert "1 not tried" in told and "1 not run" in told
