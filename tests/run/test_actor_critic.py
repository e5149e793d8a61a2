"""Runs with a critic, a reference policy, recomputed anchors: each acts, and each survives a resume bit for bit."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from tests.run.test_run import StopsAfter
from tests.runs import assert_same_run, metrics, parameters, small_config

from strop.base.types import InputError
from strop.base.view import SilentView
from strop.recipes.resolve import resolve
from strop.run.run import Interrupted, resume, train
from strop.training import checkpoint

CRITIC = (
    "algorithm.advantage=Gae", "critic.updates_per_step=3", "critic.optim.lr=1e-2", "evaluation.every=none",
    "algorithm.selection.zero_variance=keep",
)  # fmt: skip
KL = (
    'algorithm.regularizers=[{piece="KlPenalty", beta=0.1}]', "batch.updates_per_step=2", "evaluation.every=none",
    "algorithm.selection.zero_variance=keep",
)  # fmt: skip


def test_a_critic_learns_and_is_resumed(tmp_path: Path) -> None:
    config = small_config(*CRITIC, "checkpoint.every=10")
    train(config, tmp_path / "whole", SilentView())
    rows = metrics(tmp_path / "whole")
    assert all(row["critic/updates"] == 3 and row["updates"] == 1 for row in rows)
    assert rows[-1]["value/error"] < rows[0]["value/error"]
    assert 0.0 <= rows[-1]["value/target"] <= 1.0
    with pytest.raises(Interrupted):
        train(config, tmp_path / "parts", StopsAfter(2, signal.SIGINT))
    saved = checkpoint.load(tmp_path / "parts" / "checkpoints").tensors
    assert "value_head.weight" in saved["critic"] and saved["critic-optimizer"]
    resume(tmp_path / "parts", SilentView())
    assert_same_run(tmp_path / "whole", tmp_path / "parts")
    assert (tmp_path / "whole" / "critic" / "value_head.safetensors").is_file()


def test_while_the_critic_warms_up_the_policy_stays(tmp_path: Path) -> None:
    config = small_config(*CRITIC, "critic.warmup_steps=2", "steps=3", "checkpoint.keep=3")
    train(config, tmp_path / "run", SilentView())
    one, two, three = (
        checkpoint.load(tmp_path / "run" / "checkpoints", step).tensors["policy"] for step in (1, 2, 3)
    )  # fmt: skip
    assert all(torch.equal(one[name], two[name]) for name in one)
    assert any(not torch.equal(two[name], three[name]) for name in two)
    assert "updates" not in metrics(tmp_path / "run")[1]


def test_a_controller_of_entropy_waits_for_the_policy(tmp_path: Path) -> None:
    adaptive = 'algorithm.regularizers=[{piece="AdaptiveEntropy", target=99.0}]'
    train(small_config(*CRITIC, "critic.warmup_steps=2", "steps=3", adaptive), tmp_path / "run", SilentView())
    found = [row["state/algorithm.regularizers.0.coefficient"] for row in metrics(tmp_path / "run")]
    assert found == pytest.approx([0, 0, 1e-4])


def test_a_critic_may_start_from_another_model_or_critic(tmp_path: Path) -> None:
    still = (*CRITIC, "steps=1", "critic.optim.lr=1e-12")
    train(small_config(*CRITIC, "steps=1", "seed=7"), tmp_path / "first", SilentView())
    for name in ("model", "critic"):
        path = tmp_path / "first" / name
        train(small_config(*still, f"critic.path={path}"), tmp_path / name, SilentView())
    first = load_file(tmp_path / "first" / "critic" / "model.safetensors")
    policy = parameters(tmp_path / "first")
    model, critic = (load_file(tmp_path / name / "critic" / "model.safetensors") for name in ("model", "critic"))
    assert all(torch.allclose(critic[name], first[name], atol=1e-6) for name in first)
    assert all(torch.allclose(model[name], policy[f"model.{name}"], atol=1e-6) for name in model)
    heads = [load_file(tmp_path / name / "critic" / "value_head.safetensors")["weight"] for name in ("first", "critic")]
    torch.testing.assert_close(*heads)
    with pytest.raises(InputError, match=r"critic.path.*/no/such"):
        train(small_config(*still, "critic.path=/no/such"), tmp_path / "none", SilentView())


def test_what_the_critic_computes_is_counted(tmp_path: Path) -> None:
    train(small_config(*CRITIC, "steps=1"), tmp_path / "run", SilentView())
    row = json.loads((tmp_path / "run" / "metrics.jsonl").read_text())
    assert row["critic/tokens"] == row["tokens"] > 0
    assert row["critic/pairs"] == row["pairs"] > 0
    spent = 2 * row["tokens/generated"] + 6 * (row["tokens"] + row["critic/tokens"])
    shape = json.loads((tmp_path / "run" / "model" / "config.json").read_text())
    width = shape["num_hidden_layers"] * shape["num_attention_heads"] * shape["head_dim"]
    attended = 4 * width * (row["pairs/generated"] + 3 * (row["pairs"] + row["critic/pairs"]))
    assert (row["compute/flops"] - attended) % spent == 0


def test_a_reference_that_was_reset_in_an_earlier_stage_is_resumed(tmp_path: Path) -> None:
    stages = (
        'stages=[{steps=2, set={"algorithm.reference.reset_every"=2}}, '
        '{set={"algorithm.reference.reset_every"="none"}}]'
    )
    config = small_config(*KL, "optim.lr=3e-3", "checkpoint.every=10", stages)
    train(config, tmp_path / "whole", SilentView())
    with pytest.raises(Interrupted):
        train(config, tmp_path / "parts", StopsAfter(3, signal.SIGINT))
    assert "reference" in checkpoint.load(tmp_path / "parts" / "checkpoints").tensors
    resume(tmp_path / "parts", SilentView())
    assert_same_run(tmp_path / "whole", tmp_path / "parts")


def test_a_reference_holds_the_policy_and_can_be_reset(tmp_path: Path) -> None:
    free = small_config(*KL, "algorithm.regularizers=[]", "optim.lr=3e-3")
    held = small_config(*KL, 'algorithm.regularizers=[{piece="KlPenalty", beta=20.0}]', "optim.lr=3e-3")
    reset = small_config(*KL, "optim.lr=3e-3", "algorithm.reference.reset_every=2", "checkpoint.every=10")
    for name, config in (("free", free), ("held", held), ("reset", reset)):
        train(config, tmp_path / name, SilentView())
    start = metrics(tmp_path / "held")
    assert start[0]["kl/reference"] == pytest.approx(0, abs=1e-2) and start[-1]["kl/reference"] > 0
    kl = [row["kl/reference"] for row in metrics(tmp_path / "reset")]
    assert kl[2] < kl[1]  # the reference has just become the policy
    apart = [
        sum(float((a - b).square().sum()) for a, b in zip(parameters(tmp_path / n).values(), first, strict=True))
        for first in [list(_starting(tmp_path).values())]
        for n in ("free", "held")
    ]
    assert apart[0] > 0 and apart[1] > 0
    with pytest.raises(Interrupted):
        train(reset, tmp_path / "parts", StopsAfter(3, signal.SIGINT))
    resume(tmp_path / "parts", SilentView())
    assert_same_run(tmp_path / "reset", tmp_path / "parts")


def _starting(tmp_path: Path) -> dict[str, torch.Tensor]:
    """The parameters the runs began with: a step of next to no length."""
    train(small_config("steps=1", "optim.lr=1e-12", "evaluation.every=none"), tmp_path / "start", SilentView())
    return parameters(tmp_path / "start")


def test_kl_in_the_reward_reaches_the_advantages(tmp_path: Path) -> None:
    sets = ("evaluation.every=none", "batch.updates_per_step=2", "algorithm.selection.zero_variance=keep")
    train(small_config(*sets), tmp_path / "plain", SilentView())
    train(small_config(*sets, "algorithm.kl_in_reward={beta=1.0}"), tmp_path / "kl", SilentView())
    # With one version the policy is the reference, and nothing changes but rounding; afterwards it does.
    left, right = parameters(tmp_path / "plain"), parameters(tmp_path / "kl")
    assert any(not torch.allclose(left[name], right[name], atol=1e-6) for name in left)


@pytest.mark.usefixtures("forked")
def test_a_recomputed_anchor_is_the_policy_at_the_start_of_the_batch(tmp_path: Path) -> None:
    sets = (
        "evaluation.every=none", "orchestration.max_lag=2", "algorithm.selection.zero_variance=keep", "optim.lr=3e-3",
    )  # fmt: skip
    train(small_config(*sets), tmp_path / "generator", SilentView())
    train(
        small_config(*sets, "algorithm.anchor=recomputed", 'algorithm.correction={piece="TokenTis", cap=2.0}'),
        tmp_path / "recomputed",
        SilentView(),
    )
    stale, fresh = metrics(tmp_path / "generator")[-1], metrics(tmp_path / "recomputed")[-1]
    assert stale["lag/max"] > 0 and fresh["lag/max"] > 0
    assert fresh["ratio/max"] == pytest.approx(1, abs=1e-4)  # one update a batch: the cap would be inert
    assert stale["ratio/max"] > 1.01
    assert fresh["mismatch/max"] > 1e-3  # the lag is still seen between generator and trainer


@pytest.mark.usefixtures("forked")
@pytest.mark.parametrize("lag", [1, 3])
def test_a_pipeline_stays_within_its_lag_and_has_completions_across_versions(tmp_path: Path, lag: int) -> None:
    from strop.run.folder import RunFolder

    config = small_config(  # completions long enough that some are under way whenever a step is trained
        f"orchestration.max_lag={lag}", "steps=8", "batch.prompts_per_step=3", "sampling.max_new_tokens=100",
        "algorithm.selection.zero_variance=keep", "evaluation.every=4",
    )  # fmt: skip
    train(config, tmp_path / "run", SilentView())
    rows = metrics(tmp_path / "run")
    assert 0 < max(row["lag/max"] for row in rows if "lag/max" in row) <= lag
    assert [row["step"] for row in rows] == list(range(9))
    found = [row for step in range(1, 9) for row in RunFolder.open(tmp_path / "run").read_rollouts(step)]
    assert any(len(row["versions"]) > 1 for row in found)
    tickets = [(row["ticket"], row["sample"]) for row in found]
    assert len(tickets) == len(set(tickets)) == 8 * 3 * 4


REFUSED = [
    (["algorithm.advantage=Gae"], "reads a critic's values; give the run one"),
    (["critic.updates_per_step=2"], "GroupRelative never reads the critic"),
    (["algorithm.loss=Opefo", "batch.updates_per_step=2"], "right only strictly on-policy"),
    (["algorithm.loss=Opefo", "orchestration.max_lag=1"], "right only strictly on-policy"),
    (["algorithm.loss=ArcherClip"], "algorithm.token_types=EntropyQuantile"),
    (["algorithm.correction=TokenTis"], "set algorithm.anchor=recomputed"),
    (["algorithm.reference.reset_every=5"], "nothing reads a reference policy"),
]


@pytest.mark.parametrize(("sets", "message"), REFUSED)
def test_contradictions_are_refused(sets: list[str], message: str) -> None:
    with pytest.raises(InputError, match=message):
        resolve("grpo", sets)
