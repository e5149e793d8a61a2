"""Configurations: edited, refused in one line that names the key and the nearest choice, and written down whole."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from strop import recipes
from strop.algorithms.advantages import GroupRelative
from strop.algorithms.losses import Cispo, PpoClip
from strop.base.types import InputError
from strop.config.edits import flatten, parse_set
from strop.config.parse import edit, parse, validated
from strop.config.schema import RunConfig
from strop.data.rows import JsonLines
from strop.model.settings import FreshModel
from strop.recipes.resolve import resolve

NAMES = [info.name for info in recipes.catalogue()]


@pytest.mark.parametrize("name", NAMES)
def test_every_recipe_survives_json(name: str) -> None:
    config = resolve(name)
    assert parse(json.loads(config.model_dump_json()), "config.json") == config
    assert config.recipe == name


@pytest.mark.parametrize("info", recipes.catalogue(), ids=lambda info: info.name)
def test_every_recipe_says_what_it_is(info: recipes.RecipeInfo) -> None:
    assert 20 < len(info.summary) < 140


def test_set_reads_toml_values_and_bare_strings() -> None:
    assert parse_set("optim.lr=2e-6") == {"optim": {"lr": 2e-6}}
    assert parse_set("trackers=['wandb']") == {"trackers": ["wandb"]}
    assert parse_set("data.source=gsm8k") == {"data": {"source": "gsm8k"}}
    assert parse_set("data.held_out=none") == {"data": {"held_out": None}}
    assert parse_set('a="x=y"') == {"a": "x=y"}


def test_edits_reach_into_pieces() -> None:
    config = edit(resolve("scalerl"), ["algorithm.loss.max_ratio=8", "optim.lr=2e-6", "batch.prompts_per_step=32"])
    assert config.algorithm.loss == Cispo(max_ratio=8.0)
    assert config.optim.lr == 2e-6 and config.optim.eps == 1e-15
    assert config.batch.prompts_per_step == 32 and config.batch.samples_per_prompt == 16


def test_another_piece_resets_its_siblings() -> None:
    config = edit(resolve("grpo"), ["algorithm.loss.clip_high=0.28"])
    assert config.algorithm.loss == PpoClip(clip_low=0.2, clip_high=0.28)
    swapped = edit(edit(config, ["algorithm.loss=Cispo"]), ["algorithm.loss.piece=PpoClip"])
    assert swapped.algorithm.loss == PpoClip()


def test_a_source_by_its_short_name_and_path() -> None:
    config = edit(resolve("grpo"), ["data.source=train.jsonl"])
    assert config.data.source == JsonLines(path="train.jsonl")


def test_a_path_takes_the_fresh_model_back() -> None:
    config = edit(resolve("grpo"), ["model.path=some/model"])
    assert config.model.path == "some/model" and config.model.fresh is None
    again = edit(config, ["model.fresh.layers=3", "model.fresh.heads=8"])
    assert again.model.path is None and again.model.fresh == FreshModel(layers=3, heads=8)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("optim.nope=3", r"optim\.nope=3.*optim\.lr"),
        ("optim.lrr=3", r"optim\.lrr=3.*optim\.lr\?"),
        ("algoritm.loss=Cispo", r"algoritm=.*algorithm\?"),
        ("algorithm.loss=Cipso", r"algorithm\.loss='Cipso'.*'Cispo'"),
        ("algorithm.loss.clip_hihg=1", r"loss\.clip_hihg=1.*algorithm\.loss\.clip_high"),
        ("optim.lr=fast", r"optim\.lr='fast'"),
        ("optim.lr=-1", r"optim\.lr=-1"),
        ("batch.prompts_per_step=0", r"batch\.prompts_per_step=0"),
        ("batch.updates_per_step=17", r"updates_per_step=17.*batch\.prompts_per_step=16"),
        ("sampling.top_p=0.9", r"sampling\.top_p=1"),
        ("sampling.temperature=0", r"sampling\.temperature"),
        ("data.source=gsm9k", r"data\.source='gsm9k'.*'gsm8k'"),
        ("data.held_out=none", r"data\.held_out\.count"),
        ("evaluation.benchmarks=[{name='aime24', evry=3}]", r"evaluation\.benchmarks\.0\.evry=3"),
        ("evaluation.asynchronous=sometimes", "evaluation.asynchronous.*sometimes"),
        ("algorithm.reward.correct=0", r"algorithm\.reward"),
        ("steps", "key=value"),
    ],
)
def test_bad_settings_are_refused_in_one_line(text: str, message: str) -> None:
    with pytest.raises(InputError, match=message) as caught:
        edit(resolve("grpo"), ["evaluation.every=5", text])
    assert "\n" not in str(caught.value)


def test_benchmarks_are_named_or_spelled_out() -> None:
    given = 'evaluation.benchmarks=["aime24", {name="math500", every=20, samples_per_problem=1}]'
    config = edit(resolve("grpo"), ["evaluation.every=5", given])
    one, other = config.evaluation.benchmarks
    assert (one.name, one.every, one.samples_per_problem) == ("aime24", None, None)
    assert (other.name, other.every, other.samples_per_problem) == ("math500", 20, 1)
    assert edit(resolve("grpo"), ["evaluation.benchmarks=aime24", "evaluation.every=5"]).evaluation.benchmarks == (one,)
    assert RunConfig.model_validate(config.model_dump(mode="json")) == config
    alone = ["data.held_out=none", 'evaluation.benchmarks=[{name="aime24", every=2}]', "evaluation.every=none"]
    assert edit(resolve("grpo"), alone).evaluation.every is None
    with pytest.raises(InputError, match=r"evaluation\.benchmarks\.0"):
        edit(resolve("grpo"), ["evaluation.every=none", "evaluation.benchmarks=aime24"])


def test_a_worker_evaluates_where_workers_generate() -> None:
    plain = edit(resolve("grpo"), [])
    assert not plain.evaluates_apart and resolve("scalerl").evaluates_apart
    assert edit(plain, ["orchestration.executor=embedded"]).evaluates_apart
    assert edit(plain, ["evaluation.asynchronous=true"]).evaluates_apart
    assert not edit(resolve("scalerl"), ["evaluation.asynchronous=false"]).evaluates_apart
    assert not edit(resolve("scalerl"), ["engine=Vllm", "evaluation.asynchronous=true"]).evaluates_apart


def test_none_is_a_choice_where_one_is_called_so() -> None:
    config = edit(resolve("scalerl"), ["algorithm.truncation_mask=none", "algorithm.advantage.normalization=none"])
    assert config.algorithm.truncation_mask == "none" and config.algorithm.advantage == GroupRelative(
        normalization="none", ddof=0, batch="all"
    )
    assert edit(config, ["evaluation.every=none"]).evaluation.every is None


def test_an_unknown_recipe_names_the_nearest() -> None:
    with pytest.raises(InputError, match="'scalerl'"):
        resolve("scalrl")


def test_toml_changes_a_recipe(tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    file.write_text('recipe = "scalerl"\nsteps = 7\n[algorithm.loss]\nmax_ratio = 4.0\n')
    config = resolve(str(file), ["seed=3"])
    assert (config.steps, config.seed, config.algorithm.loss) == (7, 3, Cispo(max_ratio=4.0))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("steps = 7\n", "recipe"),
        ('recipe = "scalerl"\nstep = 7\n', r"mine\.toml: .*step=7.*steps\?"),
        ("recipe = ", "mine.toml: not TOML"),
        ('recipe = "scalerl"\nsteps = 0\n', "mine.toml: steps=0"),
        (
            'recipe = "grpo"\nverifier = "MathVerifier"\nverifier.extract = "any"\n',
            r'mine\.toml: .*verifier\.piece = "MathVerifier"',
        ),
        (
            'recipe = "grpo"\n[data.source]\npath = "x.csv"\n',
            r"data\.source\.path='x\.csv'.*data\.source\.piece",
        ),
    ],
)
def test_bad_toml_names_the_file(tmp_path: Path, text: str, message: str) -> None:
    file = tmp_path / "mine.toml"
    file.write_text(text)
    with pytest.raises(InputError, match=message):
        resolve(str(file))


def test_json_of_a_run_is_a_configuration(tmp_path: Path) -> None:
    file = tmp_path / "config.json"
    file.write_text(resolve("scalerl").model_dump_json())
    assert resolve(str(file)) == resolve("scalerl")
    file.write_text('{"recipe": "x",\n oops}')
    with pytest.raises(InputError, match=r"config\.json, line 2"):
        resolve(str(file))


def test_a_python_file_is_a_recipe(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text(
        "from strop.config.parse import edit\nfrom strop.recipes.resolve import resolve\n"
        "def recipe():\n    return edit(resolve('grpo'), ['steps=5'])\n"
    )
    assert resolve(str(file)).steps == 5
    bad = tmp_path / "bad_recipe.py"
    bad.write_text("recipe = 3\n")
    with pytest.raises(InputError, match=r"recipe\(\)"):
        resolve(str(bad))


def test_a_piece_of_a_python_recipe_can_be_edited_and_read_back(tmp_path: Path) -> None:
    file = tmp_path / "own_reward_recipe.py"
    file.write_text(
        "from strop.algorithms.rewards import BinaryReward\nfrom strop.recipes.resolve import resolve\n"
        "class Doubled(BinaryReward):\n    factor: float = 2.0\n"
        "def recipe():\n"
        "    base = resolve('grpo')\n"
        "    algorithm = base.algorithm.model_copy(update={'reward': Doubled()})\n"
        "    return base.model_copy(update={'algorithm': algorithm})\n"
    )
    config = resolve(str(file), ["algorithm.reward.factor=3"])
    written = json.loads(config.model_dump_json())
    assert written["algorithm"]["reward"]["piece"] == "own_reward_recipe:Doubled"
    assert parse(written, "config.json") == config


def test_a_missing_file_is_named() -> None:
    with pytest.raises(InputError, match=r"nowhere\.toml"):
        resolve("nowhere.toml")


def test_validate_returns_the_configuration() -> None:
    config = resolve("grpo")
    assert validated(config) is config


def test_toml_says_none_wherever_it_is_allowed(tmp_path: Path) -> None:
    file = tmp_path / "none.toml"
    file.write_text(
        'recipe = "grpo"\ndata.held_out = "none"\noptim.max_grad_norm = "None"\nalgorithm.truncation_mask = "none"\n'
        'data.limit = "none"\nstages = [{steps = 3, problems = "none"}, {steps = "none"}]\n'
        'evaluation.benchmarks = [{name = "aime24", every = 10, limit = "none"}]\n'
    )
    config = resolve(str(file))
    assert config.data.held_out is None and config.optim.max_grad_norm is None and config.data.limit is None
    assert config.algorithm.truncation_mask == "none"  # there it is a choice
    assert config.stages[0].problems is None and config.stages[1].steps is None
    assert config.evaluation.benchmarks[0].limit is None
    file.write_text('recipe = "grpo"\nsteps = "none"\n')
    with pytest.raises(InputError, match="steps"):
        resolve(str(file))


def test_a_tiny_form_takes_its_executor_and_held_out_problems_from_what_is_set() -> None:
    assert resolve("grpo", [], small=True).orchestration.executor == "in_process"
    assert resolve("grpo", ["orchestration.generators=2"], small=True).orchestration.executor == "auto"
    with pytest.raises(InputError, match=r"orchestration\.executor=in_process"):
        resolve("grpo", ["orchestration.generators=2", "orchestration.executor=in_process"], small=True)
    held_out = resolve("grpo", ["data.source=train.jsonl"], small=True).data.held_out
    assert held_out is not None and held_out.source is None and held_out.count == 16
    own = resolve("grpo", ["data.source=a.jsonl", "data.held_out.source=b.jsonl"], small=True).data.held_out
    assert own is not None and own.source is not None and own.source.label == "b.jsonl"


WRONG = ["word", "-1", "0", "1.5", "1e400", "true", "none", "", "[]", "[1]", "[[1]]", "{}", "{a=1}", "{piece=3}",]
WRONG += ["9" * 25, "x" * 300]


@pytest.mark.parametrize("recipe", ["grpo", "scalerl", "open_reasoner_zero.7b", "skywork_or1.math_7b", "archer.math"])
def test_whatever_a_setting_is_given_is_taken_or_refused_in_words(recipe: str) -> None:
    """`data.source=3` was a traceback, and `model=Qwen/Qwen3-0.6B` named the class of the settings."""
    config = resolve(recipe)
    for key, _ in flatten(config.model_dump(mode="json")):
        for value in WRONG:
            try:
                edit(config, [f"{key}={value}"])
            except InputError as error:
                said = str(error)
                assert not re.search("input should|instance of", said), said
                assert "\n" not in said
