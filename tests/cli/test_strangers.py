"""A stranger's files and run folders run nothing until the user of the command says so."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.runs import small_config
from tests.tiny import byte_tokenizer, tiny_qwen3
from typer.testing import CliRunner

from strop.base import imports
from strop.base.imports import CODE
from strop.base.types import InputError, StropError
from strop.cli import app
from strop.config.parse import edit
from strop.model.files import export
from strop.prepare.config import load_config
from strop.recipes.resolve import resolve
from strop.run.folder import RunFolder
from strop.training import checkpoint


@pytest.fixture(autouse=True)
def nothing_allowed() -> Iterator[None]:
    """What a command allows ends with its process; here with the test."""
    imports._settings.clear()
    yield
    imports._settings.clear()


def strop(*arguments: object) -> str:
    """What a command prints."""
    result = CliRunner().invoke(app, [*map(str, arguments)])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.output


EVIL = """
from pathlib import Path
Path({mark!r}).write_text("code of the model has run")
from transformers import Qwen3Config, Qwen3ForCausalLM
class Config(Qwen3Config): model_type = "stranger"
class Model(Qwen3ForCausalLM): config_class = Config
"""


@pytest.fixture
def mark(tmp_path: Path) -> Path:
    """What the stranger's code writes."""
    return tmp_path / "has-run"


@pytest.fixture
def stranger(tmp_path: Path, mark: Path) -> Path:
    """A run folder as a stranger hands it on, with a model of its own code and a checkpoint."""
    folder, base = tmp_path / "stranger", tmp_path / "base"
    settings = [f"model.path={base}", "model.trust_remote_code=true"]
    RunFolder.create(folder, edit(small_config(), settings).model_dump(mode="json")).close()
    imports._settings.clear()
    for place in (folder / "model", base):
        policy = tiny_qwen3()
        export(policy.model, byte_tokenizer(), place)
        (place / "evil.py").write_text(EVIL.format(mark=str(mark)))
        config = json.loads((place / "config.json").read_text())
        auto = {"AutoConfig": "evil.Config", "AutoModelForCausalLM": "evil.Model"}
        del config["architectures"]
        (place / "config.json").write_text(json.dumps(config | {"model_type": "stranger", "auto_map": auto}))
    weights = {"policy": dict(policy.weights())}
    checkpoint.save(checkpoint.CheckpointEntry(folder / "checkpoints", 1, {"loop": {}}), weights)
    return folder


COMMANDS: list[tuple[Any, ...]] = [
    ("sample", "{run}", "--prompt", "1+1="),
    ("sample", "{run}@1", "--prompt", "1+1="),
    ("sample", "{run}/model", "--prompt", "1+1="),
    ("eval", "{run}", "--limit", 1),
    ("eval", "{run}@1", "--limit", 1),
    ("serve", "{run}", "--port", 0),
    ("export", "{run}", "--out", "{run}-out"),
    ("report", "{run}"),
    ("status", "{run}"),
    ("plan", "{run}/config.json"),
    ("recipes", "check", "{run}"),
    ("recipes", "check", "{run}/config.json"),
    ("train", "{run}/config.json", "--out", "{run}-out"),
    ("train", "--resume", "{run}"),
    ("ablate", "{run}/config.json", "--out", "{run}-out", "--vary", "optim.lr=1e-4,1e-5"),
]


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: " ".join(map(str, command[:2])))
def test_a_run_folder_runs_nothing_by_itself(stranger: Path, mark: Path, command: tuple[Any, ...]) -> None:
    try:
        strop(*(str(word).format(run=stranger) for word in command))
    except StropError as error:
        assert "\n" not in str(error)
        if command[0] in ("train", "serve", "eval", "export"):
            assert "model.trust_remote_code runs" in str(error) and "--allow model.trust_remote_code" in str(error)
    assert not mark.exists()


@pytest.mark.parametrize("how", ["--allow", "--set", "--set other", "--set false"])
def test_the_user_of_today_can_allow_it(stranger: Path, mark: Path, how: str) -> None:
    ask = ["sample", f"{stranger}@1", "--prompt", "1+1=", "--max-new-tokens", 2]
    if how == "--allow":
        strop("--allow", "model.trust_remote_code", *ask)
    elif how == "--set":
        strop(*ask, "--set", "model.trust_remote_code=true")
    else:
        with pytest.raises(InputError):
            strop(*ask, "--set", "seed=1" if how == "--set other" else "model.trust_remote_code=false")
    assert mark.exists() == (how in ("--allow", "--set"))


def test_a_setting_that_an_edit_replaces_is_not_the_strangers(tmp_path: Path) -> None:
    file = tmp_path / "stranger.toml"
    file.write_text('recipe = "grpo"\n[engine]\npiece = "Vllm"\npython = "/evil"\n')
    with pytest.raises(InputError, match=r"engine\.python"):
        resolve(str(file), ["seed=1"])
    assert resolve(str(file), ["engine.python=/mine"]).model_dump()["engine"]["python"] == "/mine"
    assert resolve(str(file), ["engine.python=none"]).model_dump()["engine"]["python"] is None


@pytest.mark.parametrize(
    ("named", "changes"),
    [
        ("model.trust_remote_code", "[model]\npath = 'x'\ntrust_remote_code = true"),
        ("engine.python", "[engine]\npiece = 'Vllm'\npython = '/tmp/evil'"),
        ("engine.arguments", "[engine]\npiece = 'Vllm'\narguments = {worker_cls = 'evil.Worker'}"),
        ("verifier.allow_unsafe_sandbox", "[verifier]\npiece = 'CodeVerifier'\nallow_unsafe_sandbox = true"),
    ],
)
def test_a_file_starts_no_program(tmp_path: Path, named: str, changes: str) -> None:
    toml, copy = tmp_path / "stranger.toml", tmp_path / "stranger.json"
    toml.write_text(f'recipe = "grpo"\n{changes}\n')
    imports.allow_settings([named])
    copy.write_text(resolve(str(toml)).model_dump_json())
    imports._settings.clear()
    for file in (toml, copy):
        with pytest.raises(InputError, match=f"--allow {named}"):
            resolve(str(file))
        with pytest.raises(InputError, match=f"--allow {named}"):
            strop("train", file, "--out", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_every_setting_that_runs_code_is_one_of_the_configuration() -> None:
    config = resolve("grpo", ["engine=Vllm", "verifier=CodeVerifier"]).model_dump(mode="json")

    def keys(value: Any, prefix: str = "") -> Iterator[str]:
        for name, part in value.items() if isinstance(value, dict) else ():
            yield f".{prefix}{name}"
            yield from keys(part, f"{prefix}{name}.")

    assert all(any(key.endswith(f".{end}") for key in keys(config)) for end in CODE)


@pytest.mark.parametrize("name", ["../../x", "a/b", "..", "", "\u001b[31mred", "a\nb", "a\u202eb"])
def test_a_recipe_is_a_name(tmp_path: Path, name: str) -> None:
    config = json.loads(small_config().model_dump_json())
    (tmp_path / "x.json").write_text(json.dumps(config | {"recipe": name}))
    with pytest.raises(InputError, match="recipe") as caught:
        resolve(str(tmp_path / "x.json"))
    assert str(caught.value).isprintable()


DEEP: dict[str, Callable[[int], str]] = {
    "x.json": lambda depth: "[" * depth,
    "y.json": lambda depth: '{"model":' * depth + "1" + "}" * depth,
    "x.toml": lambda depth: 'recipe = "grpo"\nx = ' + "[" * depth + "]" * depth,
    "y.toml": lambda depth: 'recipe = "grpo"\nstages = ' + "[" * depth + "]" * depth,
    "z.toml": lambda depth: 'recipe = "grpo"\n[' + ".".join(["a"] * depth) + "]\nb = 1",
}


@pytest.mark.parametrize("depth", [150, 900, 20_000])
@pytest.mark.parametrize("name", DEEP)
def test_nesting_is_one_line(tmp_path: Path, name: str, depth: int) -> None:
    file = tmp_path / name
    file.write_text(DEEP[name](depth))
    with pytest.raises(InputError) as caught:
        resolve(str(file))
    assert "\n" not in str(caught.value) and len(str(caught.value)) < 2_000
    if name.endswith(".toml"):
        with pytest.raises(InputError):
            load_config(file)


@pytest.mark.parametrize("depth", [900, 100_000])
@pytest.mark.parametrize("name", ["run.json", "config.json", "metrics.jsonl", "summary.json", "processes.json"])
def test_deep_files_of_a_run_folder_are_one_line(tmp_path: Path, name: str, depth: int) -> None:
    folder = tmp_path / "run"
    RunFolder.create(folder, small_config().model_dump(mode="json")).close()
    (folder / name).write_text('{"a":' * depth + "1" + "}" * depth + "\n")
    for command in ("status", "report", "export"):
        try:
            strop(command, folder)
        except StropError as error:
            assert "\n" not in str(error)
