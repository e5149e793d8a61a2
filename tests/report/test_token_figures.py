"""Figures of single tokens: their numbers by value, and a picture of each from a real run."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.report.cases import row

from strop.algorithms.entropy_losses import ArcherClip
from strop.algorithms.losses import Cispo, PolicyLoss
from strop.base.types import InputError
from strop.report.runs import read_runs
from strop.report.token_figures import (
    CELLS,
    FIGURES,
    Choice,
    clip_regions,
    entropy_spread,
    plot_figure,
    repeated_values,
    token_kinds,
)


def rollout(ticket: int, tokens: list[int], entropies: list[float], **changes: Any) -> dict[str, Any]:
    return row(ticket, len(tokens), token_ids=tokens, entropies=entropies, **changes)


ROWS = [
    rollout(0, [7, 7, 8], [0.1, 0.3, 1.0]),
    rollout(0, [7, 8, 9], [0.2, 2.0, 9.0], injected=[{"start": 2, "end": 3}]),
    rollout(1, [8, 7], [0.6, 0.4]),
]


def test_tokens_are_ranked_by_mean_entropy_and_rare_or_injected_ones_left_out() -> None:
    assert [(k.token, k.seen, round(k.entropy, 6)) for k in token_kinds(ROWS, 1)] == [(8, 3, 1.2), (7, 4, 0.25)]
    assert [k.token for k in token_kinds(ROWS, 4)] == [7]


def test_mean_entropies_of_batch_prompts_and_rollouts() -> None:
    spread = entropy_spread(ROWS)
    assert spread.batch == pytest.approx(4.6 / 7)
    assert spread.prompts == pytest.approx({0: 3.6 / 5, 1: 0.5})
    np.testing.assert_allclose(spread.rollouts, [1.4 / 3, 1.1, 0.5])
    # The 80 % quantile of the seven is .92; the lowest quarter is the first rollout, the highest the second.
    assert spread.low == pytest.approx(1 / 3) and spread.high == 0.5


def test_values_of_repeated_tokens_and_of_others() -> None:
    loop = [*range(20), *range(20), 5]  # the first window that recurs begins at token 0
    late = row(0, 41, token_ids=[99, *[3] * 40], values=[1.0, 0.5, *[0.25] * 39])
    rows = [row(0, 41, token_ids=loop, values=[0.0] * 41), late]
    found = repeated_values(4, rows)
    assert found.step == 4
    onset = 20  # of the first; of the second token 2, whose window has begun at token 1
    repeated = (0.0 * (41 - onset) + 0.25 * 39) / (41 - onset + 39)
    assert found.repeated == pytest.approx(repeated)
    assert found.other == pytest.approx(1.5 / (onset + 2))
    assert repeated_values(1, [row(values=[0.5, 0.5, 0.5])]) == (1, None, 0.5)


@pytest.mark.parametrize(
    ("loss", "advantage", "reasoning", "now", "old", "expected"),
    [
        (ArcherClip(), 1.0, False, 0.61, 0.5, 2),
        (ArcherClip(), 1.0, True, 0.61, 0.5, 0),
        (ArcherClip(), 1.0, True, 0.76, 0.5, 2),
        (ArcherClip(), 1.0, False, 0.1, 0.5, 0),
        (ArcherClip(), -1.0, False, 0.39, 0.5, 1),
        (ArcherClip(), -1.0, True, 0.39, 0.5, 0),
        (ArcherClip(), -1.0, True, 0.95, 0.05, 3),
        (Cispo(max_ratio=2.0), -1.0, False, 0.9, 0.4, 2),
    ],
)
def test_regions_are_those_of_the_loss(
    loss: PolicyLoss, advantage: float, reasoning: bool, now: float, old: float, expected: int
) -> None:
    found = clip_regions(loss, advantage, reasoning)
    assert found[int(now * CELLS), int(old * CELLS)] == expected


@pytest.mark.parametrize("name", FIGURES)
def test_a_run_of_a_critic_has_every_figure(name: str, real_run: Path, tmp_path: Path) -> None:
    (run,) = read_runs([real_run])
    assert all(len(found["values"]) == len(found["token_ids"]) for found in run.folder.read_rollouts(1))
    written = plot_figure(run, name, tmp_path / "it.png", Choice(seen=2))
    assert written.read_bytes().startswith(b"\x89PNG")


def test_what_is_not_there_is_said(real_run: Path, tmp_path: Path) -> None:
    (run,) = read_runs([real_run])
    with pytest.raises(InputError, match="seen 99999 times; lower --seen"):
        plot_figure(run, "tokens", tmp_path / "it.png", Choice(seen=99_999))
    with pytest.raises(InputError, match="no rollouts of step 77"):
        plot_figure(run, "values", tmp_path / "it.png", Choice(step=77))
    with pytest.raises(InputError, match="--figure valeus: .*values"):
        plot_figure(run, "valeus", tmp_path / "it.png", Choice())
