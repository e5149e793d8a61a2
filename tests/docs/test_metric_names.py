"""docs/metrics.md names every metric that a run writes."""

from __future__ import annotations

import re
from fnmatch import fnmatchcase
from pathlib import Path

import pytest

from strop.base.metrics_file import read_metrics
from strop.base.view import SilentView
from strop.config.parse import edit
from strop.config.tiny import tiny
from strop.recipes.resolve import resolve
from strop.run.run import train

PAGE = Path(__file__).parents[2] / "docs" / "metrics.md"
# Between them: stages, a critic, a reference, types of tokens, entropy losses, interruptions, lag, covariances.
RECIPES = ("skywork_or1.math_7b", "open_reasoner_zero.7b", "archer.math", "opefo.qwen25_math_7b", "scalerl", "kl_cov")


def named() -> list[str]:
    """The table's names as patterns: `…_b` and `…/b` end names of the row's first group, and capitals are anything."""
    found = []
    for line in PAGE.read_text().splitlines():
        if line.startswith("| `"):
            first, *others = re.findall(r"`([^`]+)`", line.split("|")[1])
            group = first.rpartition("/")[0]
            whole = [first, *(name.replace("…/", f"{group}/").replace("…_", f"{group}/*_") for name in others)]
            found += [re.sub("[A-Z]+", "*", name).replace("…", "*") for name in whole]
    return found


@pytest.mark.parametrize("recipe", RECIPES)
def test_every_metric_of_a_run_is_explained(recipe: str, tmp_path: Path) -> None:
    sets = ["evaluation.every=1", "data.held_out.count=4", "evaluation.samples_per_problem=1"]
    train(edit(tiny(resolve(recipe), 2), sets), tmp_path / "run", SilentView())
    written = {name for row in read_metrics(tmp_path / "run" / "metrics.jsonl") for name in row}
    assert len(written) > 80
    patterns = named()
    unexplained = [name for name in written - {"step"} if not any(fnmatchcase(name, each) for each in patterns)]
    assert not unexplained, f"docs/metrics.md lacks {sorted(unexplained)}"
