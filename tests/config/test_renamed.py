"""Configurations of earlier versions: a setting that was renamed or removed costs one line, and the run goes on."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from strop.base.types import InputError
from strop.config import renamed
from strop.config.checks import edit, parse
from strop.config.renamed import CHANGES, Change, accepted, translated
from strop.recipes.resolve import resolve
from strop.run.folder import RunFolder
from strop.run.sft_config import configure, stored_config

# What an earlier version wrote or took, each with a value that it had.
REMOVED: dict[str, Any] = {
    "model.gpu_kernels": False, "engine.cache": "paged", "engine.page_tokens": 32, "engine.cache_memory": 0.7,
    "engine.cache_pages": 100, "orchestration.weights": "collective",
}  # fmt: skip


@pytest.fixture(autouse=True)
def _nothing_printed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(renamed, "_printed", set())


def notes(capsys: pytest.CaptureFixture[str]) -> list[str]:
    captured = capsys.readouterr()
    assert captured.out == ""
    lines = captured.err.splitlines()
    assert all(line.startswith("note: ") for line in lines)
    return lines


def old_config() -> dict[str, Any]:
    """A configuration as an earlier version wrote it, with every setting that has gone since."""
    data = resolve("grpo", ["orchestration.executor=embedded"]).model_dump(mode="json")
    for key, value in REMOVED.items():
        section, name = key.split(".")
        data[section][name] = value
    return data


def test_every_removed_setting_costs_a_line_and_is_left_out() -> None:
    removed = [change for change in CHANGES if change.new is None]
    assert {change.old.partition("=")[0] for change in removed} == REMOVED.keys()
    data = old_config()
    before = json.dumps(data)
    found, lines = translated(data)
    assert json.dumps(data) == before and len(lines) == len(REMOVED)
    for line, change in zip(lines, removed, strict=True):
        assert change.old in line and change.reason in line and "\n" not in line
    assert parse(found, "config.json") == resolve("grpo", ["orchestration.executor=embedded"])
    assert translated(found) == (found, [])


def test_removed_settings_at_their_defaults_cost_no_line() -> None:
    data = old_config()
    data["orchestration"]["weights"] = "auto"
    data["model"]["gpu_kernels"] = True
    data["engine"] |= {"cache": "auto", "page_tokens": 64, "cache_memory": 0.5, "cache_pages": None}
    found, lines = translated(data)
    assert lines == [] and parse(found, "config.json") == resolve("grpo", ["orchestration.executor=embedded"])


def test_a_stored_configuration_is_read_and_a_line_is_printed_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps(old_config()))
    wanted = resolve("grpo", ["orchestration.executor=embedded"])
    assert resolve(str(path)) == wanted
    assert len(notes(capsys)) == len(REMOVED)
    assert resolve(str(path)) == wanted == parse(json.loads(path.read_text()), str(path))
    assert notes(capsys) == []


def test_a_toml_file_may_name_them(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "own.toml"
    path.write_text(
        'recipe = "grpo"\nsteps = 7\nengine.cache = "slots"\nengine.slots = 32\n[model]\ngpu_kernels = false\n'
    )
    assert resolve(str(path)) == resolve("grpo", ["steps=7", "engine.slots=32"])
    assert [line.split()[1] for line in notes(capsys)] == ["model.gpu_kernels", "engine.cache"]


@pytest.mark.parametrize("key", REMOVED)
def test_a_command_may_set_them(key: str, capsys: pytest.CaptureFixture[str]) -> None:
    value = REMOVED[key]
    assert resolve("grpo", [f"{key}={value}", "steps=7"]) == resolve("grpo", ["steps=7"])
    (line,) = notes(capsys)
    assert line.startswith(f"note: {key}") and "is left out" in line


def test_what_is_unknown_stays_an_error_and_values_that_stand_are_kept(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(InputError, match="unknown setting model.gpu_kernel="):
        resolve("grpo", ["model.gpu_kernel=true"])
    sets = ["orchestration.executor=embedded", "orchestration.weights=files"]
    assert resolve("grpo", sets).orchestration.weights == "files"
    assert notes(capsys) == []


@pytest.mark.parametrize("text", ["[1, 2]", "7", '{"model": "base", "engine": [], "orchestration": {"weights": [1]}}'])
def test_what_has_another_shape_is_left_for_validation_to_refuse(text: str, tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text(text)
    with pytest.raises(InputError) as caught:
        resolve(str(path))
    assert str(caught.value).startswith(str(path)) and "\n" not in str(caught.value)


def test_fine_tuning_reads_them_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = configure("fresh", Path("worked.jsonl"), ["model.gpu_kernels=false"])
    assert config == configure("fresh", Path("worked.jsonl"))
    data = config.model_dump(mode="json")
    data["model"]["gpu_kernels"] = False
    folder = RunFolder.create(tmp_path / "run", data)
    try:
        assert stored_config(folder) == config
    finally:
        folder.close()
    assert len(notes(capsys)) == 1


def test_a_renamed_setting_keeps_its_value(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    changes = (Change("model.width", "engine.slots"), Change("rounds", "batch.updates_per_step"))
    monkeypatch.setattr(renamed, "CHANGES", changes)
    assert accepted({"model": {"width": 32}, "rounds": 2}) == {
        "model": {}, "engine": {"slots": 32}, "batch": {"updates_per_step": 2},
    }  # fmt: skip
    assert notes(capsys) == [
        "note: model.width is now called engine.slots", "note: rounds is now called batch.updates_per_step",
    ]  # fmt: skip
    assert accepted({"model": {"width": 32}, "engine": {"slots": 64}})["engine"] == {"slots": 64}  # both are given
    assert accepted({"model": "base"}) == {"model": "base"}
    with pytest.raises(InputError, match="engine.slots=32 does not go with engine='Vllm'"):
        accepted({"model": {"width": 32}, "engine": "Vllm"})
    assert edit(resolve("grpo"), ["model.width=48"]).engine.slots == 48


def test_a_renamed_value_of_a_setting(capsys: pytest.CaptureFixture[str]) -> None:
    masks = {mask: resolve("grpo", [f"algorithm.truncation_mask={mask}"]) for mask in ("after", "before", "zero")}
    assert {mask: config.algorithm.truncation_mask for mask, config in masks.items()} == {
        "after": "drop", "before": "drop_before", "zero": "zero",
    }  # fmt: skip
    assert notes(capsys) == [
        "note: algorithm.truncation_mask=after is now called algorithm.truncation_mask=drop",
        "note: algorithm.truncation_mask=before is now called algorithm.truncation_mask=drop_before",
    ]
