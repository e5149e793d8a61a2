"""Splits of GPUs between trainers and generators that memory allows."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.run.paper import on_paper
from typer.testing import CliRunner

from strop.base.machine import GIB
from strop.base.types import InputError
from strop.cli import app
from strop.engines.settings import Vllm
from strop.lab.planning.costs import splits
from strop.run.devices import width_of
from strop.run.memory import Room

LARGE = Room(80 * GIB, 1024 * GIB)


def test_every_split_has_room_and_servers_are_as_narrow_as_the_model_fits(tmp_path: Path) -> None:
    config = on_paper(tmp_path, "Qwen3-32B", "engine=Vllm")
    found = list(splits(config, 8, LARGE))
    shapes = [each.config.orchestration for each in found]
    assert [(shape.trainers, shape.generators) for shape in shapes] == [(1, 3), (2, 3), (4, 2)]
    assert all(width_of(each.config) == 2 and each.finding.level == "ok" for each in found)
    assert not list(splits(on_paper(tmp_path, "Qwen3-0.6B", "engine=Vllm"), 4, Room(4 * GIB, GIB)))


def test_the_command_compares_splits(tmp_path: Path) -> None:
    config = on_paper(tmp_path, "Qwen3-0.6B", "engine=Vllm")
    assert isinstance(config.engine, Vllm)
    (tmp_path / "plan.json").write_text(config.model_dump_json())
    asked = ["plan", str(tmp_path / "plan.json"), "--gpus", "4", "--steps", "2", "--json"]
    result = CliRunner().invoke(app, asked)
    value = json.loads(result.stdout)
    shapes = [(split["generators"], split["trainers"]) for split in value["memory"]]
    assert shapes == [(3, 1), (2, 2)] and len(value["plans"]) == 2
    assert all(row["tokens_per_second"] > 0 for row in value["plans"])


@pytest.mark.parametrize("counts", ["1", "8,x"])
def test_numbers_that_are_none_are_refused(counts: str) -> None:
    result = CliRunner().invoke(app, ["plan", "grpo", "--gpus", counts])
    assert isinstance(result.exception, InputError) and "such as 8,32" in str(result.exception)
