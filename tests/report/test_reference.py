"""The page of all settings is today's, and says of each setting what it does."""

from __future__ import annotations

from pathlib import Path

import pytest

from strop.base.types import InputError
from strop.config.edits import flatten
from strop.model.settings import ModelSettings
from strop.recipes import build
from strop.report.reference import reference
from strop.run.sft_config import SftConfig

PAGE = Path(__file__).parents[2] / "docs" / "settings.md"


def cells(text: str) -> list[list[str]]:
    """The rows of all tables, without their heads."""
    rows = [line.strip("| ").split(" | ") for line in text.splitlines() if line.startswith("| `")]
    return [[cell.strip("`") for cell in row] for row in rows]


def test_the_page_is_todays() -> None:
    assert PAGE.read_text() == reference(), "write it anew: strop settings --out docs/settings.md"


def test_every_setting_of_a_recipe_stands_on_the_page() -> None:
    keys = {row[0] for row in cells(reference())}
    pieces = (
        "data.source", "data.template", "data.held_out.source", "verifier", "algorithm.", "engine", "optim.schedule"
    )  # fmt: skip
    for key, _ in flatten(build("quickstart").model_dump(mode="json")):
        assert key in keys or key.startswith(pieces), key
    assert {".max_ratio", ".slots", ".tensor_parallel", ".clip_high", ".members"} <= keys


def test_a_row_says_what_may_stand_there_and_the_default() -> None:
    rows = {row[0]: row for row in cells(reference())}
    assert rows["optim.lr"][1:3] == ["number, > 0", "1e-06"]
    assert rows["data.held_out.count"][1:3] == ["integer, ≥ 1 or none", "none"]
    assert rows["algorithm.loss"][1] == "[PolicyLoss](#policyloss)"
    assert rows["steps"][2] == "*required*"
    assert all(row[3] for key, row in rows.items() if not key.startswith("."))


def test_a_part_has_its_own_rows_alone() -> None:
    assert {row[0].split(".")[0] for row in cells(reference("orchestration"))} == {"orchestration"}
    assert ".max_ratio" in reference("Cispo") and "clip_knowledge" not in reference("Cispo")
    with pytest.raises(InputError, match="optim.lr"):
        reference("optim.lrr")


def test_fine_tunings_own_settings_have_rows_with_its_own_defaults() -> None:
    rows = {row[0]: row for row in cells(reference("training"))}
    assert rows.keys() > {"training.epochs", "training.optimizer.lr"}
    assert all(key.startswith("training.") for key in rows)
    own = SftConfig(model=ModelSettings(path="MODEL"), demonstrations="FILE").training
    assert rows["training.epochs"][2] == f"{own.epochs}" and rows["training.optimizer.lr"][2] == f"{own.optimizer.lr}"
    assert rows["training.tokens_per_batch"][2] == f"{own.tokens_per_batch}"
    assert cells(reference("model.path")) == [row for row in cells(reference()) if row[0] == "model.path"], "once"


@pytest.mark.parametrize(
    ("step", "keys"),
    [("Judges", {".judges", ".judges.url", ".votes", ".max_tokens"}), ("DeduplicateByEmbedding", {".model", ".batch"})],
)
def test_a_step_of_a_preparation_has_its_rows_and_stands_on_no_page_of_a_run(step: str, keys: set[str]) -> None:
    rows = {row[0]: row for row in cells(reference(step))}
    assert keys <= rows.keys() and all(row[3] for key, row in rows.items() if key in keys)
    assert all(line.startswith("| ") for line in reference(step).splitlines()), "a table has a row a line"
    assert f"**`{step}`**" not in reference()
    with pytest.raises(InputError, match=f"did you mean '{step}'"):
        reference(step[:-1] + "x")
