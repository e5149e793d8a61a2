"""The page of all pieces is today's, and the gradients on it are those of the losses."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from strop.algorithms.losses import Cispo, Gspo, PolicyLoss, PpoClip, Reinforce
from strop.algorithms.proximal_losses import Dppo
from strop.cli import app
from strop.report.pieces import gradient, page, used

PAGE = Path(__file__).parents[2] / "docs" / "algorithms.md"
RATIOS = (0.5, 0.9, 1.0, 1.1, 2.0)


def test_the_page_is_todays() -> None:
    assert PAGE.read_text() == page(), "write it anew: strop pieces --out docs/algorithms.md"


@pytest.mark.parametrize(
    ("loss", "rewarded", "punished"),
    [
        (Reinforce(), (1, 1, 1, 1, 1), (1, 1, 1, 1, 1)),
        (Cispo(max_ratio=1.5), (0.5, 0.9, 1, 1.1, 1.5), (0.5, 0.9, 1, 1.1, 1.5)),
        (PpoClip(dual_clip=1.5), (0.5, 0.9, 1, 1.1, 0), (0, 0.9, 1, 1.1, 0)),
        (Gspo(clip_low=0.05, clip_high=0.2), (0.5, 0.9, 1, 1.1, 0), (0, 0, 1, 1.1, 2)),
        (Dppo(low=0.2, high=0.2), (0.5, 0.9, 1, 1.1, 0), (0.5, 0.9, 1, 1.1, 2)),  # .3 to .15, and to .6
    ],
)
def test_gradients_by_the_ratio(
    loss: PolicyLoss, rewarded: tuple[float, ...], punished: tuple[float, ...]
) -> None:
    assert gradient(loss, RATIOS, 1.0) == pytest.approx(rewarded)
    assert -gradient(loss, RATIOS, -1.0) == pytest.approx(punished)


def test_losses_of_one_gradient_are_shown_once_and_all_are_drawn(tmp_path: Path) -> None:
    users, losses = used()
    assert {"grpo", "dapo", "field.ipo"} <= losses.keys() and "clip_higher" not in losses
    assert "clip_higher" in users["PpoClip"] and "scalerl" in users["PromptMean"]
    done = CliRunner().invoke(app, ["pieces", "plot", "--out", str(tmp_path / "losses.png")])
    assert done.exit_code == 0 and (tmp_path / "losses.png").read_bytes()[:4] == b"\x89PNG"
