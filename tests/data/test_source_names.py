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
    ("text", "source"),
    [
        ("gsm8k", HubDataset(dataset="openai/gsm8k", subset="main")),
        ("chain_sum", ChainSum()),
        ("ChainSum", ChainSum()),
        ("reasoning-gym:chain_sum", ReasoningGym(task="chain_sum")),
        ("some/where/a.jsonl", JsonLines(path="some/where/a.jsonl")),
        ("a.jsonl.gz", JsonLines(path="a.jsonl.gz")),
        ("a.parquet", ParquetFile(path="a.parquet")),
        ("openai/gsm8k", HubDataset(dataset="openai/gsm8k")),
        ("hub:squad", HubDataset(dataset="squad")),
    ],
)
def test_short_names(text: str, source: ProblemSource) -> None:
    assert parse_source(text) == source
    settings = DataSettings.model_validate({"source": text})
    assert settings.source == source
    assert DataSettings.model_validate(settings.model_dump(mode="json")) == settings


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("gsm8", "gsm8k"),
        ("data/train.txt", "data/train.txt"),
        ("JsonLines", "path"),
        ("not_allowed:Source", "--import not_allowed"),
    ],
)
def test_refusals(text: str, complaint: str) -> None:
    with pytest.raises(InputError, match=complaint) as caught:
        parse_source(text)
    assert "\n" not in str(caught.value)
    with pytest.raises(ValidationError):
        DataSettings.model_validate({"source": text})


def test_held_out_settings() -> None:
    settings = DataSettings.model_validate({"held_out": {"source": "test.jsonl"}})
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
