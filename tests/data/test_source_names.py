"""Short names of sources, and how they and `path` resolve in the settings."""

from __future__ import annotations

from pathlib import Path

import pytest
from pydantic import ValidationError

from strop.base.types import InputError
from strop.data.generators import ChainSum, ReasoningGym
from strop.data.rows import HubDataset, JsonLines, ParquetFile
from strop.data.settings import DataSettings, HeldOutSettings
from strop.data.source import ProblemSource, parse_source
from strop.data.templates import OpenReasonerZero


@pytest.mark.parametrize(
    ("text", "path", "source"),
    [
        ("gsm8k", "a.jsonl", JsonLines(path="a.jsonl")),
        ("gsm8k", None, HubDataset(dataset="openai/gsm8k", subset="main")),
        ("chain_sum", None, ChainSum()),
        ("ChainSum", None, ChainSum()),
        ("reasoning-gym:chain_sum", None, ReasoningGym(task="chain_sum")),
        ("jsonl", "a.txt", JsonLines(path="a.txt")),
        ("some/where/a.jsonl", None, JsonLines(path="some/where/a.jsonl")),
        ("a.jsonl.gz", None, JsonLines(path="a.jsonl.gz")),
        ("a.parquet", None, ParquetFile(path="a.parquet")),
        ("openai/gsm8k", None, HubDataset(dataset="openai/gsm8k")),
        ("hub:squad", None, HubDataset(dataset="squad")),
    ],
)
def test_short_names(text: str, path: str | None, source: ProblemSource) -> None:
    assert parse_source(text, path) == source
    settings = DataSettings.model_validate({"source": text, "path": path})
    assert settings.source == source and settings.path is None
    assert DataSettings.model_validate(settings.model_dump(mode="json")) == settings


@pytest.mark.parametrize(
    ("text", "path", "complaint"),
    [
        ("gsm8", None, "gsm8k"),
        ("data/train.txt", None, "data/train.txt"),
        ("chain_sum", "a.jsonl", "path='a.jsonl'"),
        ("a.jsonl", "b.jsonl", "path='b.jsonl'"),
        ("jsonl", None, "path"),
        ("not_allowed:Source", None, "--import not_allowed"),
    ],
)
def test_refusals(text: str, path: str | None, complaint: str) -> None:
    with pytest.raises(InputError, match=complaint) as caught:
        parse_source(text, path)
    assert "\n" not in str(caught.value)
    with pytest.raises(ValidationError):
        DataSettings.model_validate({"source": text, "path": path})


def test_path_replaces_that_of_the_source() -> None:
    assert DataSettings.model_validate({"path": "a.jsonl"}).source == JsonLines(path="a.jsonl")
    written = DataSettings.model_validate({"source": JsonLines(path="a.jsonl")}).model_dump(mode="json")
    assert DataSettings.model_validate({**written, "path": "b.jsonl"}).source == JsonLines(path="b.jsonl")
    with pytest.raises(ValidationError, match="path="):
        DataSettings.model_validate({"source": ChainSum(), "path": "b.jsonl"})


def test_held_out_settings() -> None:
    settings = DataSettings.model_validate({"held_out": {"source": "gsm8k", "path": "test.jsonl"}})
    assert settings.held_out == HeldOutSettings(source=JsonLines(path="test.jsonl"))
    with pytest.raises(ValidationError, match="held_out.count"):
        HeldOutSettings()


def test_templates_are_found_by_name() -> None:
    assert DataSettings.model_validate({"template": "OpenReasonerZero"}).template == OpenReasonerZero()


def test_a_folder_is_read_by_the_package_datasets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "sums").mkdir()
    for text in (f"{tmp_path}/sums", "~/sums"):
        assert parse_source(text) == HubDataset(dataset=f"{tmp_path}/sums")
