"""Every recipe is found by its public name, validates, survives JSON, and differs from others where it says so."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

import strop
from strop.algorithms.aggregation import ConstantDenominator
from strop.base.types import InputError
from strop.config.edits import flatten
from strop.config.parse import edit, parse
from strop.config.schema import RunConfig
from strop.config.tiny import tiny
from strop.recipes import build, catalogue
from strop.recipes.resolve import resolve

NAMES = [recipe.name for recipe in catalogue()]
ASKED_FOR = {
    "grpo", "grpo_on_policy", "dapo", "entropy_reg", "clip_higher", "clip_cov", "kl_cov", "quickstart",
    "skywork_or1.math_7b", "skywork_or1.7b", "skywork_or1.32b", "open_reasoner_zero.7b", "open_reasoner_zero.32b",
    "open_reasoner_zero.0.5b", "open_reasoner_zero.1.5b", "open_reasoner_zero.r1_distill_14b", "archer.math",
    "archer.code", "opefo.qwen25_math_7b", "opefo.qwen3_4b", "scalerl_base", "scalerl", "scalerl.32k",
    "scalerl.bs512", "scalerl.bs2048", "scalerl.8gen", "scalerl.24gen", "scalerl.32gen", "scalerl.math_code",
    "scalerl.scout", "scalerl.loo_plan", "scalerl.loo_lp", "scalerl.loo_batch", "scalerl.loo_8op",
    "scalerl.loo_fp32", "scalerl.loo_savg", "scalerl.loo_dapo", "scalerl.loo_uniform", "deepseek_grpo", "qwen_dapo",
    "magistral", "minimax", "archer.dapo_math", "archer.dapo_code", "open_reasoner_zero.7b_grpo",
    "opefo.grpo_qwen3_4b", "opefo.grpo_on_policy_qwen3_4b", "opefo.entropy_reg_qwen3_4b", "opefo.clip_higher_qwen3_4b",
    "opefo.clip_cov_qwen3_4b", "opefo.kl_cov_qwen3_4b",
}  # fmt: skip


def settings(config: RunConfig) -> dict[str, str]:
    return dict(flatten(config.model_dump(mode="json")))


def changed(name: str, base: str) -> set[str]:
    """The keys in which two recipes differ."""
    one, other = settings(resolve(name)), settings(resolve(base))
    return {key for key in one.keys() | other.keys() if one.get(key) != other.get(key)} - {"recipe"}


def test_the_recipes_that_were_asked_for_are_there() -> None:
    assert set(NAMES) >= ASKED_FOR
    assert all(recipe.summary.endswith(".") for recipe in catalogue())


@pytest.mark.parametrize("name", NAMES)
def test_a_recipe_validates_and_survives_json(name: str) -> None:
    for small in (False, True):
        config = resolve(name, (), small)
        assert config.recipe == name
        assert parse(json.loads(config.model_dump_json()), name) == config


def test_a_family_without_a_recipe_of_its_own_names_its_variants() -> None:
    with pytest.raises(InputError, match=r"skywork_or1\.32b, .*skywork_or1\.7b,"):
        build("skywork_or1")
    with pytest.raises(InputError, match=r"open_reasoner_zero\.7b"):
        build("open_reasoner_zero_7b")


def test_swapping_the_loss_is_one_line() -> None:
    for name, loss in (("scalerl", "Gspo"), ("archer.math", "PpoClip"), ("open_reasoner_zero.7b", "Reinforce")):
        before, after = resolve(name), edit(resolve(name), [f"algorithm.loss={loss}"])
        assert after.algorithm.loss.piece_name() == loss
        assert after.algorithm.model_copy(update={"loss": before.algorithm.loss}) == before.algorithm
        assert after.model_copy(update={"algorithm": before.algorithm}) == before


def test_a_loss_is_one_line_in_the_file_of_its_recipe() -> None:
    folder = Path(strop.__file__).parent / "recipes"
    for file in ("archer", "grpo", "open_reasoner_zero", "opefo", "scalerl", "skywork_or1"):
        lines = (folder / f"{file}.py").read_text().splitlines()
        recipes = 2 if file == "grpo" else 1  # DAPO is there too
        assert sum(bool(re.match(r" +loss=\w+\(.*\),$", line)) for line in lines) == recipes, file


def test_the_loop_and_what_it_drives_know_no_paper() -> None:
    root = Path(strop.__file__).parent
    words = {name.split(".")[0] for name in NAMES if "_" in name or name in ("dapo", "archer", "opefo", "scalerl")}
    words |= {"archer", "opefo", "skywork_or1", "open_reasoner_zero"}
    for file in (
        "run/loop", "training/learner", "run/curriculum", "run/assembly", "run/run", "training/samples", "base/pieces",
        "training/step",
    ):  # fmt: skip
        code = re.sub(r'""".*?"""|#.*', "", (root / f"{file}.py").read_text(), flags=re.DOTALL).lower()
        found = [word for word in words if word in code]
        assert not found, f"{file}.py names {found}"
        assert "config.recipe" not in code


LEFT_OUT = {
    "plan": {"algorithm.advantage.normalization", "algorithm.advantage.ddof"},
    "lp": {"algorithm.shaping", "sampling.interruption.after", "sampling.interruption.phrase", "sampling.interruption",
           "sampling.thinking_tokens", "sampling.answer_tokens"},
    "batch": {"algorithm.selection.zero_variance"},
    # With 8 gradient updates a step the same compute is an eighth of the steps.
    "8op": {"orchestration.max_lag", "batch.prompts_per_step", "batch.updates_per_step", "steps", "evaluation.every"},
    "fp32": {"model.trainer_fp32_head", "model.generator_fp32_head"},
    "savg": {"algorithm.aggregation.piece"},
    "dapo": {f"algorithm.loss.{field}" for field in ("piece", "max_ratio", "clip_low", "clip_high", "dual_clip")},
    "uniform": {"algorithm.selection.no_positive_resampling"},
}  # fmt: skip


@pytest.mark.parametrize("name", LEFT_OUT)
def test_a_leave_one_out_variant_reverts_one_choice(name: str) -> None:
    assert changed(f"scalerl.loo_{name}", "scalerl") == LEFT_OUT[name]


ABLATED = {
    "cispo": LEFT_OUT["dapo"],
    "gspo": {"algorithm.loss.piece", "algorithm.loss.clip_low", "algorithm.loss.clip_high", "algorithm.loss.dual_clip"},
    "fp32": LEFT_OUT["fp32"],
    "prompt_average": LEFT_OUT["savg"],
    "token_average": LEFT_OUT["savg"],
    "batch_normalization": LEFT_OUT["plan"],
    "no_normalization": {"algorithm.advantage.normalization"},
    "effective_batch": LEFT_OUT["batch"],
    "no_positive_resampling": LEFT_OUT["uniform"],
    "dapo_0.26": {"algorithm.loss.clip_high"},
    "length_penalty": LEFT_OUT["lp"],
    "pipeline_1": {"orchestration.max_lag"},
    "pipeline_4": {"orchestration.max_lag"},
    "ppo_off_policy_1": {"orchestration.max_lag"},
}


@pytest.mark.parametrize("name", ABLATED)
def test_a_forward_ablation_changes_one_choice_of_the_baseline(name: str) -> None:
    assert changed(f"scalerl_base.{name}", "scalerl_base.pipeline_8") == ABLATED[name]


BASELINES = {
    "clip_higher": {"algorithm.loss.clip_high"},
    "entropy_reg": {"algorithm.regularizers"},
    "clip_cov": {f"algorithm.loss.{field}" for field in ("piece", "share", "low", "high", "clip_low", "clip_high",
                                                        "dual_clip")},
    "kl_cov": {f"algorithm.loss.{field}" for field in ("piece", "share", "coefficient", "clip_low", "clip_high",
                                                      "dual_clip")},
}  # fmt: skip


@pytest.mark.parametrize("name", BASELINES)
def test_a_baseline_changes_one_thing_of_grpo(name: str) -> None:
    assert changed(name, "opefo.grpo") == BASELINES[name]


QWEN3_4B = {
    "qwen25_math_7b": "qwen3_4b", "grpo": "grpo_qwen3_4b", "grpo_on_policy": "grpo_on_policy_qwen3_4b",
    "entropy_reg": "entropy_reg_qwen3_4b", "clip_higher": "clip_higher_qwen3_4b", "clip_cov": "clip_cov_qwen3_4b",
    "kl_cov": "kl_cov_qwen3_4b",
}  # fmt: skip


@pytest.mark.parametrize("method", QWEN3_4B)
def test_the_second_model_of_table_1_changes_nothing_else(method: str) -> None:
    first = method if method in NAMES and method != "grpo" else f"opefo.{method}"
    assert changed(f"opefo.{QWEN3_4B[method]}", first) == {"model.path", "sampling.max_new_tokens"}


def test_archers_baseline_has_no_token_types_and_no_kl() -> None:
    loss = {f"algorithm.loss.{name}" for name in ("piece", "clip_knowledge", "clip_reasoning", "log_ratio_limit",
                                                  "clip_low", "clip_high")}  # fmt: skip
    types = {f"algorithm.token_types.{name}" for name in ("piece", "quantile", "scope", "boundary", "when")}
    for domain in ("math", "code"):
        found = changed(f"archer.dapo_{domain}", f"archer.{domain}")
        assert found == loss | types | {"algorithm.token_types", "algorithm.regularizers", "algorithm.shaping"}


RELEASED = {
    "skywork_or1.math_7b": {"evaluation.temperature", "algorithm.regularizers"},
    "archer.math": {"batch.passes_per_batch", "optim.warmup_steps", "algorithm.loss.dual_clip",
                    "algorithm.loss.log_ratio_limit", "algorithm.selection.refill", "algorithm.regularizers",
                    "algorithm.token_types.boundary", "algorithm.token_types.when", "evaluation.benchmarks"},
    "archer.dapo_math": {"batch.passes_per_batch", "optim.warmup_steps", "algorithm.loss.dual_clip",
                         "algorithm.selection.refill", "algorithm.shaping", "evaluation.benchmarks"},
    "open_reasoner_zero.7b": {"data.template.wording", "verifier.box_required", "critic.loss.clip",
                              "critic.loss.scale"},
    "open_reasoner_zero.7b_grpo": {"data.template.wording", "verifier.box_required",
                                   "algorithm.advantage.normalization", "algorithm.advantage.eps"},
    "scalerl": {"algorithm.advantage.batch"},
}  # fmt: skip


@pytest.mark.parametrize("name", RELEASED)
def test_released_code_differs_from_its_paper_where_the_page_says(name: str) -> None:
    assert changed(f"{name}.released", name) == RELEASED[name]


def test_grpo_takes_the_critics_place_alone() -> None:
    found = changed("open_reasoner_zero.7b_grpo", "open_reasoner_zero.7b")
    assert {key.partition(".")[0] for key in found} == {"critic", "algorithm"}
    assert {key for key in found if key.startswith("algorithm")} == {
        f"algorithm.advantage.{name}"
        for name in ("piece", "gamma", "lam", "normalization", "baseline", "ddof", "batch", "eps")
    }


@pytest.mark.parametrize(("tokens", "small"), [(4096, 38), (2048, 19), (8192, 76), (1, 1)])
def test_a_fixed_denominator_shrinks_with_the_completions(tokens: int, small: int) -> None:
    fixed = f"algorithm.aggregation={{piece='ConstantDenominator', tokens={tokens}}}"
    config = edit(resolve("grpo"), [fixed, "sampling.max_new_tokens=4096"])
    assert tiny(config).algorithm.aggregation == ConstantDenominator(tokens=small)
