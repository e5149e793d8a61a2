"""Gradients under other settings, at the weights and on the rollouts of a run."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from tests.lab.test_replay import distilling, one_bit, rewrite, small
from tests.run.test_stages import staged
from tests.runs import metrics
from typer.testing import CliRunner

from strop.base.types import InputError, StropError
from strop.base.view import SilentView
from strop.cli import app
from strop.lab.what_if import LEAST, Alternative, Comparison, what_if
from strop.run.folder import RunFolder
from strop.run.run import train

TERM = "algorithm.regularizers=[{{piece='EntropyBonus', coefficient={}}}]"


def compared(run: Path, *sets: str, end: int | None = None) -> list[list[Comparison]]:
    others = [Alternative(text, (text,)) for text in sets]
    return list(what_if(RunFolder.open(run), others, SilentView(), 0, end))


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("runs") / "what-if"
    loss = 'algorithm.loss={piece="PpoClip", clip_low=0.02, clip_high=0.02}'
    train(small(loss, "batch.updates_per_step=2", "batch.passes_per_batch=2", "optim.lr=2e-5"), out, SilentView())
    return out


def test_what_was_recorded_is_what_is_compared_with(run: Path) -> None:
    """And the replay goes on to the same weights, or it would raise."""
    found = compared(run, "algorithm.loss.clip_high=0.5")
    for row, [one] in zip(metrics(run), found, strict=True):
        assert one.recorded_clipped == pytest.approx(row["ratio/clipped_share"], rel=1e-9)
        assert one.recorded_trained_tokens == one.trained_tokens == row["trained_tokens"]
        assert one.clipped is not None and one.clipped <= row["ratio/clipped_share"]
        assert LEAST < one.effective < 1
    assert any(one.recorded_clipped for [one] in found)


def test_the_first_step_is_that_of_a_run_with_the_other_settings(run: Path, tmp_path: Path) -> None:
    """Its first update has the same weights and rollouts."""
    sets = ("algorithm.loss=Cispo", "algorithm.advantage.normalization=none", TERM.format(0.1))
    train(small("algorithm.loss=PpoClip"), tmp_path / "one", SilentView())
    train(small("steps=1", *sets), tmp_path / "other", SilentView())
    [[one]] = what_if(RunFolder.open(tmp_path / "one"), [Alternative("x", sets)], SilentView(), 0, 1)
    (other,), row = metrics(tmp_path / "other"), metrics(tmp_path / "one")[0]
    assert one.norm == pytest.approx(other["grad_norm"], rel=1e-6)
    assert one.recorded_norm == pytest.approx(row["grad_norm"], rel=1e-6) and one.norm != one.recorded_norm
    assert one.cosine is not None and 0 < one.cosine < 1


def test_the_cosine_is_that_of_the_norms(tmp_path: Path) -> None:
    """For a term added once and twice, the law of cosines gives it from three norms."""
    train(small("steps=1"), tmp_path / "run", SilentView())
    [[once, twice]] = compared(tmp_path / "run", TERM.format(0.5), TERM.format(1.0))
    zero, one, two = (float(norm or 0) ** 2 for norm in (once.recorded_norm, once.norm, twice.norm))
    own = (two - 2 * one + zero) / 2
    assert once.cosine is not None and twice.cosine is not None
    assert once.cosine == pytest.approx((zero + (one - zero - own) / 2) / (zero * one) ** 0.5, abs=1e-4)
    assert twice.cosine < once.cosine < 0.999


def test_a_loss_that_is_the_same_on_policy_has_the_same_gradient(tmp_path: Path) -> None:
    train(small("steps=1", "algorithm.loss=PpoClip"), tmp_path / "run", SilentView())
    [[one]] = compared(tmp_path / "run", "algorithm.loss=Reinforce")
    assert one.cosine == pytest.approx(1, abs=1e-5) and one.norm == pytest.approx(one.recorded_norm, rel=1e-4)
    assert one.effective == pytest.approx(1, abs=1e-3)


def test_twice_the_distillation_is_twice_the_gradient(tmp_path: Path) -> None:
    """The teacher's prompt has what only the problem knows."""
    train(small("steps=1", *distilling(tmp_path)), tmp_path / "run", SilentView())
    [[one]] = compared(tmp_path / "run", "algorithm.kl_in_reward.beta=1.0")
    assert one.recorded_norm == pytest.approx(metrics(tmp_path / "run")[0]["grad_norm"], rel=1e-6)
    assert one.recorded_norm and one.norm == pytest.approx(2 * one.recorded_norm, rel=1e-3)
    assert one.cosine == pytest.approx(1, abs=1e-4)


def test_a_critic_and_stages_are_replayed_with_it(tmp_path: Path) -> None:
    """A step that teaches only the critic has no gradient of the policy."""
    critic = ("algorithm.advantage=Gae", "critic.warmup_steps=1", "critic.optim.lr=1e-2")
    for name, config in {"critic": small(*critic), "stages": staged()}.items():
        train(config, tmp_path / name, SilentView())
        rows = [row for row in metrics(tmp_path / name) if "grad_norm" in row]
        found = [one for step in compared(tmp_path / name, "algorithm.loss=Cispo") for one in step]
        assert [one.step for one in found] == [row["step"] for row in rows]
        assert [one.recorded_norm for one in found] == pytest.approx([row["grad_norm"] for row in rows], rel=1e-6)


def test_groups_that_the_other_settings_drop_are_not_trained_on(tmp_path: Path) -> None:
    train(small(), tmp_path / "run", SilentView())  # it keeps groups without variance
    found = [one for [one] in compared(tmp_path / "run", "algorithm.selection.zero_variance=drop")]
    for row, one in zip(metrics(tmp_path / "run"), found, strict=True):
        tokens, all_of_them = one.trained_tokens, one.recorded_trained_tokens
        assert tokens is not None and all_of_them is not None
        assert (tokens < all_of_them) == (row["groups/zero_variance_share"] > 0)


def test_a_step_far_from_its_rollouts_is_not_compared(tmp_path: Path) -> None:
    train(small("steps=1", "batch.updates_per_step=2", "optim.lr=0.3"), tmp_path / "run", SilentView())
    [[one]] = compared(tmp_path / "run", "algorithm.loss=Reinforce")
    assert one.effective < LEAST and one.cosine is one.norm is one.clipped is None


@pytest.mark.parametrize(
    ("sets", "message"),
    [
        ("batch.updates_per_step=3", "only for settings of the algorithm"),
        ("algorithm.shaping=[{piece='OverlongShaping'}]", "strop rejudge"),
        ("algorithm.loss.clip_high=0.02", "name others"),
        ("algorithm.regularizers=[{piece='KlPenalty', beta=0.1}]", "this run kept none"),
    ],
)
def test_what_rollouts_cannot_answer_is_refused(run: Path, sets: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        compared(run, sets)


def test_rollouts_that_were_changed_are_not_compared(run: Path, tmp_path: Path) -> None:
    other = Path(shutil.copytree(run, tmp_path / "run"))
    rewrite(RunFolder.open(other).rollouts_path(1), lambda table: one_bit(table, "logprobs"))
    with pytest.raises(StropError, match="step 1 does not replay"):
        compared(other, "algorithm.loss=Cispo")


def test_the_command_compares_several_and_draws_them(run: Path, tmp_path: Path) -> None:
    asked = ["replay", str(run), "--set", "algorithm.loss=Cispo", "--variant", "wide:algorithm.loss.clip_high=0.5"]
    done = CliRunner().invoke(app, [*asked, "--to", "2", "--json", "--plot", str(tmp_path / "picture.png")])
    rows = json.loads(done.stdout)
    assert done.exit_code == 0 and [(row["step"], row["alternative"]) for row in rows] == [
        (step, name) for step in (1, 2) for name in ("loss=Cispo", "wide")
    ]
    assert (tmp_path / "picture.png").read_bytes().startswith(b"\x89PNG")
    done = CliRunner().invoke(app, [*asked, "--to", "1"])
    assert done.exit_code == 0 and "loss=Cispo" in done.stdout and "step 1, wide: cosine" in done.stderr
