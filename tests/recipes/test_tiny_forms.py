"""The tiny form of every recipe runs, and each of its pieces leaves a trace in the metrics."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.environments.runs import PLAYERS
from tests.recipes import bases

from strop.base.imports import allow_module
from strop.base.view import SilentView
from strop.config.parse import edit
from strop.config.schema import RunConfig, Stage
from strop.config.tiny import tiny
from strop.data.generators import ChainSum
from strop.recipes import build, catalogue
from strop.run.run import train

Row = dict[str, Any]
Rows = list[Row]
Runner = Callable[..., Rows]
ENTROPY = "state/algorithm.regularizers.0.coefficient"
# A worker may wait for another to make the base.
pytestmark = pytest.mark.timeout(600)
ALL = 512  # problems of a form without domains, an eighth of what the tiny forms draw


def rows_of(folder: Path) -> Rows:
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [row for row in rows if row["step"] > 0]


@pytest.fixture
def run(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch, forked: None
) -> Runner:
    """Trains the tiny form of a recipe for a few steps on a base made in seconds; its metrics."""
    basetemp = tmp_path_factory.getbasetemp()
    shared = basetemp.parent if basetemp.name.startswith("popen-") else basetemp

    def runs(
        name: str, steps: int = 2, sets: list[str] | tuple[str, ...] = (), stages: tuple[Stage, ...] | None = None
    ) -> Rows:
        recipe = build(name)
        small = tiny(recipe if stages is None else recipe.model_copy(update={"stages": stages}), steps)
        for base in (small.model.path, small.algorithm.reference.path):
            if base is not None:
                bases.make(base, shared, monkeypatch)
        measured = any("evaluation" in text for text in sets)
        few = [f"data.source.count={ALL}"] if isinstance(small.data.source, ChainSum) else []
        config = edit(small, [*few, *sets] if measured else ["evaluation.every=none", *few, *sets])
        out = tmp_path / (f"{name} again" if (tmp_path / name).exists() else name)
        train(config, out, SilentView())
        found = rows_of(out)
        assert len(found) == config.steps
        assert all(row["grad_norm"] > 0 for row in found if row["lr"] is not None)
        return found

    return runs


def column(rows: Rows, name: str) -> list[float]:
    """A metric's values, steps without it left out."""
    return [row[name] for row in rows if row.get(name) is not None]


# ---------------------------------------------------------------------- the controller of Skywork's entropy


def assert_controlled(rows: Rows, name: str) -> None:
    """The coefficient went up by Δ below the target entropy of 0.2, down elsewhere; released: from 0 to 0.005."""
    before, released = 0.0, name.endswith(".released")
    for row in rows:
        step = 1e-4 if released else 0.005
        expected = before + (step if row["entropy/sampled"] < 0.2 else -step)
        expected = min(max(expected, 0.0), 5e-3) if released else expected
        assert row[ENTROPY] == pytest.approx(expected)
        before = expected


# ---------------------------------------------------------------------- three steps of each set of pieces


def test_grpo_trains_every_group(run: Runner) -> None:
    rows = run("grpo")
    assert all(row["groups/trained"] == 16 and row["updates"] == 1 for row in rows)
    assert any(row["groups/zero_variance_share"] > 0 for row in rows)


def test_grpo_with_eight_updates_clips(run: Runner) -> None:
    rows = run("opefo.grpo", sets=["optim.warmup_steps=0"])
    assert all(row["updates"] == 8 and row["ratio/max"] > 1.1 for row in rows)
    assert max(column(rows, "ratio/clipped_share")) > 0


def test_clip_higher_clips_less_above(run: Runner) -> None:
    rows = run("clip_higher", sets=["optim.warmup_steps=0"])
    assert max(column(rows, "ratio/clipped_low_share")) > 0
    assert any(row["ratio/max"] > 1.28 for row in rows)


def test_an_entropy_bonus_keeps_more_entropy(run: Runner) -> None:
    without, bonus = run("opefo.grpo", 2), run("entropy_reg", 2)
    assert bonus[0]["pass_rate"] == without[0]["pass_rate"]  # the same completions
    assert bonus[0]["loss"] < without[0]["loss"]  # less what the bonus is worth


@pytest.mark.parametrize("name", ["clip_cov", "kl_cov"])
def test_tokens_of_high_covariance_are_held_back(run: Runner, name: str) -> None:
    rows = run(name)
    assert all(row["updates"] == 8 and 0 < row["covariance/chosen_share"] < 0.05 for row in rows)


def test_strictly_on_policy_there_is_no_ratio(run: Runner) -> None:
    for row in run("grpo_on_policy", 1):
        assert row["ratio/min"] == pytest.approx(1, abs=1e-3) and row["ratio/max"] == pytest.approx(1, abs=1e-3)
        assert row["lag/max"] == 0 and row["updates"] == 1


def test_opefo_balances_the_flow_of_entropy(run: Runner) -> None:
    for row in run("opefo.qwen25_math_7b"):
        up, down = row["opefo/positive"], -row["opefo/negative"]
        assert up > 0 and down > 0
        assert row["opefo/lambda"] == pytest.approx((down - up) / (down + up), rel=1e-6) and row["opefo/lambda"] != 0
        assert row["ratio/max"] == pytest.approx(1, abs=1e-3)


@pytest.mark.parametrize(
    ("name", "applied"),
    [("static_scaling", 0.001), ("one_side_increasing", None), ("one_side_decreasing", None)],
)
def test_ablations_of_opefo(run: Runner, name: str, applied: float | None) -> None:
    (row,) = run(f"opefo.{name}", 1)
    assert row["opefo/lambda"] == (applied if applied is not None else pytest.approx(row["entropy_flow/lambda"]))


def test_dapo_refills_its_batch_and_shapes_long_answers(run: Runner) -> None:
    rows = run("dapo", 2)
    assert all(row["groups/trained"] == 16 and row["effective_batch/prompts_share"] < 1 for row in rows)
    assert all(row["updates"] == 8 for row in rows)
    # ±1 for the verdict alone would come to 2 · pass rate − 1.
    assert all(row["reward/mean"] < 2 * row["pass_rate"] - 1 - 1e-3 for row in rows)
    assert max(column(rows, "ratio/clipped_share")) > 0


def test_skywork_goes_through_its_stages(run: Runner) -> None:
    # Two samples a prompt and many prompts, so that some problems are solved in all of them.
    pairs = [
        stage.model_copy(update={"set": stage.set | {"batch.samples_per_prompt": 2, "batch.prompts_per_step": 1024}})
        for stage in build("skywork_or1.math_7b").stages
    ]
    rows = run("skywork_or1.math_7b", 4, stages=tuple(pairs))
    assert column(rows, "stage") == [0, 1, 2, 3]
    lengths = column(rows, "length/max")
    assert lengths[0] <= 29 < lengths[-1] <= 38 and rows[0]["truncation_rate"] > rows[-1]["truncation_rate"]
    assert all(row["updates"] == 2 and row["groups/trained"] < 64 for row in rows)  # rejected, not refilled
    assert rows[-1]["problems/left"] < ALL  # solved in every attempt of a stage
    assert_controlled(rows, "skywork_or1.math_7b")


def test_skywork_mixes_domains(run: Runner) -> None:
    (_, row) = run("skywork_or1.7b", 2)
    assert row["pass_rate/math"] is not None and row["pass_rate/code"] is not None and row["updates"] == 1


def test_open_reasoner_zero_teaches_its_critic(run: Runner) -> None:
    rows = run("open_reasoner_zero.7b")
    assert all(row["critic/updates"] == 12 and row["updates"] == 1 for row in rows)
    assert rows[-1]["value/error"] < rows[0]["value/error"]
    assert all(row["advantage/std"] == pytest.approx(1, abs=1e-3) for row in rows)
    assert all(row["advantage/mean"] == pytest.approx(0, abs=1e-3) for row in rows)
    assert all(row["groups/trained"] == 16 for row in rows)


def test_open_reasoner_zero_anneals_on_hard_problems(run: Runner) -> None:
    first, annealing = build("open_reasoner_zero.32b").stages
    halves = (first.model_copy(update={"steps": 600}), annealing)
    rows = run("open_reasoner_zero.32b", 4, ["optim.warmup_steps=0", "critic.updates_per_step=2"], halves)
    assert [row["stage"] for row in rows] == [0, 0, 1, 1]
    assert rows[0]["problems/left"] == ALL and 0 < rows[-1]["problems/left"] <= 32  # of those visited
    assert rows[1]["lr"] == rows[2]["lr"] > rows[3]["lr"]


def test_archer_treats_two_kinds_of_tokens_apart(run: Runner) -> None:
    rows = run("archer.math.released", 2, ["optim.warmup_steps=0"])
    for row in rows:
        assert row["updates"] == 6
        assert 0.15 < row["token_types/reasoning_share"] < 0.35
        assert row["kl/knowledge"] > 0 and row["kl/reasoning"] > 0
    assert max(column(rows, "token_types/clipped_knowledge")) > 0
    assert all(row["reward/mean"] == row["pass_rate"] for row in rows)  # length is not shaped
    assert any(row["groups/trained"] < 16 for row in rows)


def test_dapo_beside_archer_has_neither_types_nor_reference(run: Runner) -> None:
    rows = run("archer.dapo_math", 2, ["optim.warmup_steps=0"])
    for row in rows:
        assert row["updates"] == 2 and row["groups/trained"] == 16
        assert "kl/knowledge" not in row and "token_types/reasoning_share" not in row
    assert max(column(rows, "ratio/clipped_share")) > 0


def test_grpo_of_open_reasoner_zero_has_no_critic(run: Runner) -> None:
    for row in run("open_reasoner_zero.7b_grpo.released", 2):
        assert "critic/loss" not in row and row["updates"] == 1 and row["groups/trained"] == 16
        assert row["advantage/mean"] == pytest.approx(0, abs=1e-3)
        assert row["advantage/std"] == pytest.approx(1, abs=1e-3)


def test_scalerl_on_stale_tokens_with_interruptions(run: Runner) -> None:
    rows = run("scalerl", 3, ["optim.warmup_steps=0"])
    assert column(rows, "lag/max") == [0, 1, 2] and max(column(rows, "ratio/max")) > 1.1
    # What is done first is short, so that the first batch may hold nothing that was interrupted.
    assert all(0 < row["interruption/share"] < 1 and row["tokens/injected"] > 0 for row in rows[1:])
    assert all(26 <= position <= 32 for position in column(rows, "interruption/position"))
    assert any(row["groups/trained"] < 16 for row in rows)  # those without variance are left out


def test_scalerl_never_asks_again_what_was_solved(run: Runner) -> None:
    rows = run("scalerl", sets=["batch.samples_per_prompt=2", "batch.prompts_per_step=32"])
    left = column(rows, "problems/left")
    assert ALL > left[-1] >= ALL - 3 * 32 and left == sorted(left, reverse=True)


def test_scalerl_with_a_length_penalty_does_not_interrupt(run: Runner) -> None:
    rows = run("scalerl.loo_lp")
    assert all(row["tokens/injected"] == 0 for row in rows)
    assert any(row["reward/mean"] < 2 * row["pass_rate"] - 1 - 1e-4 for row in rows)


def test_scalerl_off_policy_8_takes_eight_updates(run: Runner) -> None:
    rows = run("scalerl.loo_8op", 2, ["batch.prompts_per_step=32"])  # of which some teach nothing
    assert all(row["updates"] == 8 and row["lag/max"] == 0 for row in rows), rows
    assert max(column(rows, "ratio/max")) > 1.05


def test_without_a_float32_head_generator_and_trainer_disagree(run: Runner) -> None:
    rough, exact = tiny(build("scalerl.loo_fp32")), tiny(build("scalerl"))
    heads = ["model.trainer_fp32_head=true", "model.generator_fp32_head=true"]
    assert edit(rough, [*heads, "recipe=scalerl"]) == exact  # nothing else is different
    in_turn = ["orchestration.max_lag=0", "optim.warmup_steps=0"]  # so that weights are the same on both sides
    gaps = {name: column(run(name, sets=in_turn), "mismatch/k3") for name in ("scalerl.loo_fp32", "scalerl")}
    assert all(one > 2 * other for one, other in zip(*gaps.values(), strict=True))


def test_scalerl_with_the_loss_of_dapo_cuts_gradients(run: Runner) -> None:
    rows = run("scalerl.loo_dapo", sets=["optim.lr=1e-3", "optim.warmup_steps=0"])
    assert max(column(rows, "ratio/clipped_share")) > 0


def test_scalerl_on_two_domains_has_a_curve_for_each(run: Runner) -> None:
    rows = run("scalerl.math_code", 2, ["evaluation.every=1", "evaluation.top_p=0.7"])
    for row in rows:
        assert row["pass_rate/math"] is not None and row["pass_rate/code"] is not None
        assert 0 <= row["evaluation/pass_rate/math"] <= 1 and 0 <= row["evaluation/pass_rate/code"] <= 1


def test_scout_trains_a_mixture_of_experts(run: Runner, tmp_path: Path) -> None:
    run("scalerl.scout", 2)
    model = json.loads((tmp_path / "scalerl.scout" / "model" / "config.json").read_text())
    assert model["architectures"] == ["Qwen3MoeForCausalLM"] and model["num_experts_per_tok"] == 2


def test_the_base_of_scalerl_trains_groups_without_variance(run: Runner) -> None:
    rows = run("scalerl_base", 2)
    assert all(row["updates"] == 8 and row["groups/trained"] == 16 for row in rows)
    assert all(0 < row["interruption/share"] < 1 for row in rows)
    assert rows[-1]["problems/left"] == ALL


def test_gspo_clips_whole_sequences(run: Runner) -> None:
    rows = run("scalerl_base.gspo", sets=["optim.warmup_steps=0"])
    assert max(column(rows, "ratio/clipped_share")) > 0.01


def test_a_distilled_policy_comes_nearer_to_its_teacher(run: Runner) -> None:
    for name, metric in (("distill", "kl/reference_k1"), ("distill.top_k", "kl/top")):
        gaps = column(run(name, 6), metric)
        assert 0 < gaps[-1] < 0.7 * gaps[0]


def test_a_policy_learns_from_itself_with_the_answer_in_its_prompt(run: Runner) -> None:
    rows = run("self_distill", 6)
    assert rows[-1]["length/mean"] > 1.2 * rows[0]["length/mean"]  # it works out what it guessed
    assert rows[0]["reward/mean"] > 0 and rows[-1]["kl/reference_k1"] < 0.7 * rows[0]["kl/reference_k1"]


FIELD = {
    "field.sapo": "ratio/max", "field.dppo": "ratio/clipped_share", "field.gmpo": "ratio/clipped_share",
    "field.vespo": "ratio/max", "field.deepseek_v32": "kl/penalised", "field.maxrl": "advantage/max",
    "field.luspo": "ratio/clipped_share", "field.gdpo": "advantage/max", "field.dr_grpo": "advantage/max",
    "just_rl": "ratio/clipped_share", "prorl_v2": "kl/penalised", "olmo3_zero": "lag/max",
}  # fmt: skip


@pytest.mark.parametrize("name", FIELD)
def test_a_loss_of_the_field_trains(run: Runner, name: str) -> None:
    rows = run(name, sets=["optim.warmup_steps=0"])
    assert max(column(rows, FIELD[name])) > 0


def test_more_completions_where_the_outcome_is_less_certain(run: Runner) -> None:
    terms = (2, 3, 5, 8)
    sources = ", ".join(f'{{piece="ChainSum", part="train", count=50, terms={each}, seed=1}}' for each in terms)
    mixture = f'data.source={{piece="Mixture", domains={[str(each) for each in terms]}, sources=[{sources}]}}'
    rows = run("field.vip", 3, sets=[mixture, "optim.warmup_steps=0"])
    assert [row["sequences"] for row in rows] == [128] * 3
    assert rows[0]["groups/largest"] == 8 < rows[2]["groups/largest"]


# ---------------------------------------------------------------------- siblings: the same pieces, other numbers

RUN_ABOVE = {
    "grpo", "opefo.grpo", "clip_higher", "entropy_reg", "clip_cov", "kl_cov", "grpo_on_policy", "opefo.qwen25_math_7b",
    "opefo.static_scaling", "opefo.one_side_increasing", "opefo.one_side_decreasing", "dapo", "skywork_or1.math_7b",
    "skywork_or1.7b", "open_reasoner_zero.7b", "open_reasoner_zero.7b_grpo.released", "open_reasoner_zero.32b",
    "archer.math.released",
    "archer.dapo_math", "scalerl", "scalerl.loo_lp",
    "scalerl.loo_8op", "scalerl.loo_fp32", "scalerl.loo_dapo", "scalerl.math_code", "scalerl.scout", "scalerl_base",
    "scalerl_base.gspo", "distill", "distill.top_k", "self_distill", "field.vip", *FIELD,
}  # fmt: skip
ELSEWHERE = {"quickstart", "quickstart.calculator"}  # have tests of their own


def pieces(config: RunConfig) -> set[str]:
    """The names of all pieces of a configuration, and the settings that choose between ways of training."""
    found: set[str] = set()

    def walk(value: Any) -> None:
        if isinstance(value, dict):
            found.update([value["piece"]] if "piece" in value else [])
            for inner in value.values():
                walk(inner)
        elif isinstance(value, list):
            for inner in value:
                walk(inner)

    algorithm = config.algorithm
    walk([algorithm.model_dump(mode="json"), [stage.model_dump(mode="json") for stage in config.stages]])
    several = config.batch.updates_per_step * config.batch.passes_per_batch > 1
    ways = {
        "pipeline": config.orchestration.max_lag > 0, "several updates": several,
        "interruption": config.sampling.interruption is not None, "critic": config.critic is not None,
        "refill": algorithm.selection.refill, "dropped": algorithm.selection.zero_variance == "drop",
        "retired": algorithm.selection.no_positive_resampling is not None, "stop": bool(config.sampling.stop),
        "bfloat16 head": not config.model.trainer_fp32_head, "experts": config.model.mixture_of_experts,
        f"anchor {algorithm.anchor}": True, f"mask {algorithm.truncation_mask}": True,
    }  # fmt: skip
    if "GroupRelative" in found:
        advantage = algorithm.advantage.model_dump()
        found.add(f"normalization {(advantage.get('outcome') or advantage)['normalization']}")
    return found | {way for way, chosen in ways.items() if chosen}


def test_the_runs_above_cover_every_piece_of_every_recipe() -> None:
    names = {recipe.name for recipe in catalogue()}
    assert names > RUN_ABOVE
    covered = set().union(*(pieces(tiny(build(name))) for name in RUN_ABOVE))
    for name in names - ELSEWHERE:
        assert pieces(tiny(build(name))) == pieces(build(name)), f"the tiny form of {name} has other pieces"
        assert pieces(build(name)) <= covered | {"normalization none"}, name


@pytest.mark.parametrize("name", ["minimax", "scalerl_base.no_normalization", "magistral"])
def test_siblings_train(run: Runner, name: str) -> None:
    (row,) = run(name, 1)
    assert row["groups/trained"] > 0


# ---------------------------------------------------------------------- as users run them: 20 steps on the full base


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(recipe.name for recipe in catalogue() if recipe.name not in ELSEWHERE))
def test_twenty_steps(tmp_path: Path, name: str) -> None:
    config = tiny(build(name))
    train(config, tmp_path / "run", SilentView())
    rows = rows_of(tmp_path / "run")
    assert len(rows) == 20
    measured = column(rows, "evaluation/pass_rate")
    assert measured[-1] > 0.05
    if name == "scalerl":
        assert rows[-1]["problems/left"] < rows[0]["problems/left"]
    if config.orchestration.max_lag:
        assert 2 <= max(column(rows, "lag/max")) <= config.orchestration.max_lag or config.orchestration.max_lag == 1
    if "AdaptiveEntropy" in pieces(config):
        assert_controlled(rows, name)


# ---------------------------------------------------------------------- a verifier is an environment of one turn


@pytest.mark.slow
@pytest.mark.parametrize("name", [info.name for info in catalogue() if build(info.name).environment is None])
def test_an_environment_of_one_turn_changes_no_number(run: Runner, name: str) -> None:
    """Synchronously, for otherwise two runs of the same recipe differ."""
    timed = ("time", "seconds", "tokens_per_second", "compute", "idle")
    allow_module(PLAYERS)
    without, within = (
        run(name, 1, ["orchestration.max_lag=0", *sets]) for sets in ((), (f"environment={PLAYERS}:OneTurn",))
    )
    assert [{k: v for k, v in row.items() if not k.startswith(timed)} for row in without] == [
        {k: v for k, v in row.items() if not k.startswith(timed)} for row in within
    ]
