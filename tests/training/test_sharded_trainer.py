"""One, two and four ranks come to what a single process does: losses, norms, parameters, metrics."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.kit.bring import bring
from tests.made import PROBLEM, completion
from tests.runs import small_config
from tests.training.several import together

from strop.base.metrics import values
from strop.base.types import Group, Rollout, Verdict
from strop.base.view import SilentView
from strop.config.schema import RunConfig
from strop.run.assembly import assemble
from strop.training import sharding
from strop.training.learner import Learner
from strop.training.optimizer import own_part
from strop.training.step import NonFiniteLoss
from strop_verify.verdict import Status

MODEL = ("model.fresh.hidden_size=36", "model.fresh.intermediate_size=50", "batch.tokens_per_microbatch=40",
         "evaluation.every=none", "optim.lr=1e-2", "optim.eps=1e-4")  # fmt: skip
CRITIC = ("algorithm.advantage=Gae", "critic.updates_per_step=2", "critic.optim.lr=1e-2", "critic.optim.eps=1e-4")
KL = ('algorithm.regularizers=[{piece="KlPenalty", beta=0.1}]', "algorithm.kl_in_reward={beta=0.1}")
CASES = {
    "opefo, critic, reference": (*CRITIC, *KL, "algorithm.loss=Opefo", "algorithm.reference.reset_every=2"),
    "clip-cov": ("algorithm.loss={piece='ClipCov', share=0.1, low=-0.1}", "batch.updates_per_step=2"),
    "kl-cov": ("algorithm.loss={piece='KlCov', share=0.1}", "algorithm.anchor=recomputed"),
    "entropy quantile": (
        "algorithm.loss=ArcherClip", "algorithm.token_types={piece='EntropyQuantile', scope='batch', when='update'}",
        "model.fresh.tie_embeddings=false", "model.gradient_checkpointing=true",
    ),
    "experts": (
        "model.fresh.experts=4", "model.fresh.hidden_size=32", "model.fresh.intermediate_size=64",
        "algorithm.loss=Opefo",
    ),
    "offloaded": ("optim.offload=true", "model.offload_activations=true", "model.gradient_checkpointing=true"),
    "adapters, reference": (*KL, "model.lora.rank=4", "model.lora.alpha=8", "model.gradient_checkpointing=true"),
    "adapters, critic": (*CRITIC, "model.lora.rank=4", "model.lora.target_modules=['q_proj', 'down_proj', 'lm_head']",
                         "model.fresh.tie_embeddings=false"),
}  # fmt: skip

NORM = "model.model.norm.weight"
# How an update is packed; and a share that is rounding alone where V is still V_old.
DIFFERENT = ("micro_batches", "packing_efficiency", "value/clipped_share")
SIZES = {
    "clip-cov": (4,),
    "kl-cov": (2,),
    "entropy quantile": (4,),
    "experts": (2,),
    "offloaded": (2,),
    "adapters, reference": (2, 4),
    "adapters, critic": (2,),
}  # else 1, 2 and 4 ranks


def groups(step: int, quiet: int = 0) -> list[Group]:
    """Five prompts, three completions of uneven lengths each, judged at random; the first `quiet` prompts alike."""
    random = np.random.default_rng(step)
    made: list[Group] = []
    for ticket in range(5 * step, 5 * step + 5):
        rollouts: list[Rollout] = []
        for index in range(3):
            plain = completion(int(random.integers(2, 16)), index=index)
            tokens = random.integers(3, 250, len(plain.token_ids)).astype(np.int32)
            logprobs = (-5.5 + random.normal(0, 0.1, len(tokens))).astype(np.float32)
            score = float(random.integers(0, 2))
            verdict = Verdict(score, Status.CORRECT if score else Status.WRONG)
            found = replace(plain, token_ids=tokens, logprobs=logprobs)
            reward = 1.0 if ticket - 5 * step < quiet else score + 0.1 * index
            rollouts.append(Rollout(PROBLEM, found, verdict, reward))
        made.append(Group(ticket, PROBLEM, tuple(rollouts)))
    return made


def three_steps(learner: Learner, rank: int = 0, quiet: tuple[int, ...] = (0, 0, 0)) -> dict[str, Any]:
    """What three training steps came to; `quiet` prompts of each have no signal."""
    rows: list[dict[str, float | None]] = []
    for step in range(3):
        found = groups(step, quiet[step])
        result = learner.learn(found, {group.ticket for group in found}, step, {})
        assert result is not None
        rows.append(values(result.metrics))
    critic = learner.critic
    assert learner.broken() is None
    return {
        "rows": rows,
        "policy": {name: weight.clone() for name, weight in learner.weights().items()},
        "critic": {} if critic is None else learner.storage.whole(dict(critic.policy.named_parameters())),
        "probe": learner.probe(np.arange(10, 30, dtype=np.int32)),
    }


def single(config: RunConfig) -> Learner:
    """The learner of one process."""
    found = assemble(config, SilentView()).learner
    assert isinstance(found, Learner)
    return found


def assert_close(found: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]) -> None:
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        torch.testing.assert_close(found[name], value.detach(), rtol=1e-3, atol=2e-5, msg=name)


@pytest.mark.parametrize("case", CASES)
def test_ranks_come_to_what_one_process_does(case: str, tmp_path: Path) -> None:
    config = small_config(*MODEL, *CASES[case])
    expected = three_steps(single(config))
    for size in SIZES.get(case, (1, 2, 4)):
        first, *others = together(config, size, tmp_path / str(size), three_steps)
        assert_close(first["policy"], expected["policy"])
        assert_close(first["critic"], expected["critic"])
        for one, two in zip(first["rows"], expected["rows"], strict=True):
            assert one.keys() == two.keys()
            for name, value in two.items():
                # A token at a bound may fall on either side of it by rounding.
                apart = 0.02 if "clip" in name or name.endswith("share") else 2e-5
                if name not in DIFFERENT:
                    assert one[name] == pytest.approx(value, rel=2e-3, abs=apart), (size, name)
        for other in others:  # every rank knows the same, to the last bit
            assert other["rows"] == first["rows"]
            assert other["policy"] == {} and (other["probe"] == first["probe"]).all()


def test_ranks_leave_out_the_same_backward_passes(tmp_path: Path) -> None:
    """Micro-batches without a signal, in some rounds of both ranks, of one rank only, and in a whole update."""
    config, steps = small_config(*MODEL, "batch.tokens_per_microbatch=20"), partial(three_steps, quiet=(4, 5, 2))
    expected = steps(single(config))
    first, other = together(config, 2, tmp_path / "ranks", steps)
    assert_close(first["policy"], expected["policy"])
    for one, two in zip(first["rows"], expected["rows"], strict=True):
        assert {name: one[name] for name in two if name not in DIFFERENT} == pytest.approx(
            {name: value for name, value in two.items() if name not in DIFFERENT}, rel=2e-3, abs=2e-5
        )
    assert other["rows"] == first["rows"] and first["rows"][1]["grad_norm"] == 0


@pytest.mark.parametrize("family", ["gemma2", "gpt_oss", "llama4_text"])
def test_ranks_train_families_with_windows_chunks_sinks_and_caps(
    family: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Loaded by rows, buffers and all, with a critic; log-probs, metrics and parameters are those of one process."""
    folder = bring(family, "qwen3", tmp_path / "model")
    config = small_config(*MODEL[2:], *CRITIC, "model.fresh=none", f'model.path="{folder}"')
    expected = three_steps(single(config))
    monkeypatch.setattr(sharding, "load_policy", None)  # no rank may load it whole
    first, second = together(config, 2, tmp_path / "ranks", three_steps)
    assert_close(first["policy"], expected["policy"])
    assert_close(first["critic"], expected["critic"])
    np.testing.assert_allclose(first["probe"], expected["probe"], atol=2e-3)
    for one, two in zip(first["rows"], expected["rows"], strict=True):
        for name in ("loss", "grad_norm", "entropy", "critic/loss"):
            assert one[name] == pytest.approx(two[name], rel=2e-3, abs=2e-5), name
    assert second["rows"] == first["rows"]


def test_what_is_not_finite_on_one_rank_stops_all_and_changes_nothing(tmp_path: Path) -> None:
    config = small_config(*MODEL)
    found = groups(0)
    first, *rest = found[0].rollouts
    unknown = np.full_like(first.completion.logprobs, np.nan)
    spoilt = replace(first, completion=replace(first.completion, logprobs=unknown))
    broken = replace(found[0], rollouts=(spoilt, *rest))

    def work(learner: Learner, rank: int) -> tuple[str, bool, int]:
        before = {name: own_part(p).clone() for name, p in learner.policy.named_parameters()}
        with pytest.raises(NonFiniteLoss) as caught:
            learner.learn([broken, *found[1:]], {group.ticket for group in found}, 0, {})
        same = all(torch.equal(own_part(p), before[name]) for name, p in learner.policy.named_parameters())
        return str(caught.value), same, learner.trainer.updates

    results = together(config, 2, tmp_path, work)
    assert results[0] == results[1]
    message, same, updates = results[0]
    assert "nan" in message and same and updates == 0


def test_bf16_computes_in_bf16_and_steps_in_float32(tmp_path: Path) -> None:
    config = small_config(*MODEL, "model.dtype=bfloat16", "optim.lr=1e-6", "optim.weight_decay=0.0")

    def work(learner: Learner, rank: int = 0) -> dict[str, Any]:
        start = learner.storage.whole({"": learner.trainer.optimizer.masters[NORM]})
        start = {name: master.clone() for name, master in start.items()}
        found = three_steps(learner, rank)
        return found | {"start": start, "end": learner.storage.whole({"": learner.trainer.optimizer.masters[NORM]})}

    expected = work(single(config))
    first, _ = together(config, 2, tmp_path, work)
    for one, two in zip(first["rows"], expected["rows"], strict=True):
        assert one["grad_norm"] == pytest.approx(two["grad_norm"], rel=0.05)
        assert one["entropy"] == pytest.approx(two["entropy"], rel=1e-3)
    assert all(weight.dtype == torch.bfloat16 for weight in first["policy"].values())
    # The master of a norm that is 1 moves by the learning rate an update, which no bfloat16 near 1 could.
    moved = (first["end"][""] - first["start"][""]).detach().abs()
    assert first["end"][""].dtype == torch.float32 and 5e-7 < float(moved.median()) < 4e-6
    assert (first["policy"]["model.norm.weight"] == 1).all()
