"""What a user can get wrong: one line that names it, and no run folder left behind."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from safetensors.torch import load_file, save_file
from tests.runs import small_config
from tests.tiny import byte_tokenizer, tiny_qwen3
from typer.testing import CliRunner

from strop.base.types import InputError, StropError
from strop.base.view import SilentView
from strop.cli import app
from strop.config.parse import edit
from strop.model.files import export
from strop.model.policy import load_policy
from strop.model.settings import Lora, ModelSettings
from strop.recipes.resolve import resolve
from strop.run.measuring import evaluate_model
from strop.run.models import configure
from strop.run.run import train


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A whole model folder."""
    folder = tmp_path / "model"
    export(tiny_qwen3().model, byte_tokenizer(), folder)
    return folder


def test_a_model_without_one_of_its_weights(model: Path) -> None:
    weights = load_file(model / "model.safetensors")
    name = next(name for name in weights if "q_proj" in name)
    save_file({k: v for k, v in weights.items() if k != name}, model / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(InputError, match="q_proj"):
        load_policy(ModelSettings(path=str(model)))


def test_a_model_file_cut_short(model: Path) -> None:
    content = (model / "model.safetensors").read_bytes()
    (model / "model.safetensors").write_bytes(content[: len(content) // 2])
    with pytest.raises(InputError):
        load_policy(ModelSettings(path=str(model)))


def test_a_model_without_a_tokenizer(model: Path) -> None:
    for file in model.glob("tokenizer*"):
        file.unlink()
    with pytest.raises(InputError):
        load_policy(ModelSettings(path=str(model)))


def test_a_run_in_place_of_its_model(tmp_path: Path) -> None:
    train(small_config("steps=1", "evaluation.every=none"), tmp_path / "run", SilentView())
    with pytest.raises(InputError, match="run/model"):
        load_policy(ModelSettings(path=str(tmp_path / "run")))


def test_a_run_can_be_measured_on_other_problems(tmp_path: Path) -> None:
    train(small_config("steps=1"), tmp_path / "run", SilentView())
    config = configure(str(tmp_path / "run"), source="chain_sum", limit=3)
    assert evaluate_model(config, 1, SilentView())["problems"] == 3


@pytest.mark.parametrize("base", ["stored", "embedded"])
def test_a_dry_run_refuses_adapters_of_layers_that_the_model_has_not(model: Path, base: str) -> None:
    lora = "model.lora={rank = 4, target_modules = ['q_proj', 'experts.down_proj']}"
    sets = ["--set", f"model.path={model if base == 'stored' else base}", "--set", lora]
    dry = CliRunner().invoke(app, ["train", "grpo", "--tiny", *sets, "--dry-run"])
    assert isinstance(dry.exception, InputError)
    assert str(dry.exception).startswith(
        "model.lora.target_modules: Qwen3ForCausalLM has no linear layer experts.down_proj; choose from q_proj, "
    )
    with pytest.raises(InputError) as real:
        load_policy(ModelSettings(path=str(model), lora=Lora(rank=4, target_modules=("q_proj", "experts.down_proj"))))
    assert str(real.value) == str(dry.exception)


def test_a_dry_run_of_a_model_for_another_machine_is_a_warning(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("strop.run.memory.room_of", lambda device: 1024)
    dry = CliRunner().invoke(app, ["train", "grpo", "--tiny", "--set", f"model.path={model}", "--dry-run"])
    assert dry.exit_code == 0 and "on this machine this run needs about" in " ".join(dry.output.split())


def test_completions_end_where_the_model_does(model: Path) -> None:
    asked = configure(
        str(model), sets=["sampling.max_new_tokens=4000", "engine.slots=16"], source="chain_sum", limit=2
    )
    assert evaluate_model(asked, 1, SilentView())["mean_length"] <= 512


def test_answers_the_verifier_can_never_judge(tmp_path: Path) -> None:
    file = tmp_path / "q.jsonl"
    file.write_text('{"prompt": "1+1=", "answer": [2]}\n')
    sets = (f"data.source={json.dumps(str(file))}", "data.held_out=none", "evaluation.every=none")
    with pytest.raises(InputError, match=r"data\.source\.columns\.answer_json"):
        train(edit(small_config("evaluation.every=none"), sets), tmp_path / "run", SilentView())
    assert not (tmp_path / "run").exists()
    taken = edit(small_config(), [*sets, "data.source.columns.answer_json=true"])
    assert [problem.reference for problem in taken.data.source.load()] == [2]


def fails(problem: object, text: str) -> bool:
    """A verifier with a bug."""
    raise RuntimeError("boom")


def test_a_verifier_that_always_fails_says_why(tmp_path: Path) -> None:
    from strop.base.imports import allow_module

    allow_module(__name__)
    function = f"verifier.function={__name__}:fails"
    sets = ("evaluation.every=none", "verifier=PythonFunction", function, "verifier.isolation=none")
    refill = ("algorithm.selection.zero_variance=drop", "algorithm.selection.refill=true")
    for name, more in (("plain", ()), ("refill", refill)):
        with pytest.raises(StropError, match="boom"):
            train(small_config(*sets, *more), tmp_path / name, SilentView())


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("def recipe(:\n", r"broken_0.py, line 1: SyntaxError"),
        ("import no_such_module\n", r"broken_1.py, line 1: ModuleNotFoundError"),
        ("\ndef recipe():\n    return 1 / 0\n", r"broken_2.py, line 3: ZeroDivisionError"),
        ("from strop.algorithms.losses import *\nCispo(max_ratio=-1)\n", r"broken_3.py: max_ratio=-1"),
    ],
)
def test_a_python_recipe_that_fails(
    tmp_path: Path, text: str, message: str, request: pytest.FixtureRequest
) -> None:
    file = tmp_path / f"{message.split('.py')[0]}.py"
    file.write_text(text)
    with pytest.raises(InputError, match=message) as caught:
        resolve(str(file))
    assert "\n" not in str(caught.value)


def test_configurations_in_another_encoding(tmp_path: Path) -> None:
    for name in ("a.toml", "a.json"):
        (tmp_path / name).write_bytes(b"\xff\xfe")
        with pytest.raises(InputError, match="UTF-8"):
            resolve(str(tmp_path / name))
    (tmp_path / "bom.toml").write_bytes(b'\xef\xbb\xbfrecipe = "grpo"\n')
    assert resolve(str(tmp_path / "bom.toml")).recipe == "grpo"


@pytest.mark.parametrize("line", ['{"prompt": "\\ud800", "answer": "2"}', "[" * 100_000, '{"a": ' + "9" * 5000 + "}"])
def test_odd_json_lines(tmp_path: Path, line: str) -> None:
    file = tmp_path / "odd.jsonl"
    file.write_text(line + "\n")
    with pytest.raises(InputError, match="odd.jsonl"):
        small = edit(resolve("grpo"), [f"data.source={json.dumps(str(file))}", "data.held_out=none"])
        small.data.source.load()


def test_the_current_folder_is_no_run_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError):
        train(small_config(), Path(), SilentView())


def test_one_value_may_stand_for_a_list() -> None:
    assert edit(resolve("grpo"), ["trackers=tensorboard"]).trackers == ("tensorboard",)
