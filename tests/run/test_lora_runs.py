"""Runs with LoRA: they learn, resume bit for bit, and are exported either way."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from tests.run.test_run import StopsAfter
from tests.runs import assert_same_run, metrics, parameters, small_config
from tests.watching import Notes

from strop.base.imports import allow_module
from strop.base.types import InputError, Problem, StropError, Verdict
from strop.base.view import SilentView
from strop.config.parse import edit
from strop.model.files import export
from strop.model.policy import Policy, WithoutAdapters, load_policy
from strop.recipes.resolve import resolve
from strop.run import fine_tuning, sft_config
from strop.run.assembly import assemble
from strop.run.models import export_checkpoint, open_checkpoint
from strop.run.questions import preview
from strop.run.run import Interrupted, resume, train
from strop.training import checkpoint
from strop.training.learner import Learner
from strop.verifiers.base import Verifier
from strop_verify.verdict import Status

allow_module(__name__)


class MostlyText(Verifier):
    """Right is a completion of which fewer than four characters are bytes that no text has."""

    def judge(self, problem: Problem, text: str, truncated: bool) -> Verdict:
        right = text.count("\ufffd") < 4
        return Verdict(float(right), Status.CORRECT if right else Status.WRONG)


LORA = ("model.lora.rank=4", "model.lora.alpha=8", "optim.lr=1e-3", "checkpoint.every=10")
REFERENCE = ("algorithm.regularizers=[{piece='KlPenalty', beta=0.01}]",)


@pytest.mark.parametrize(
    "more",
    [(), (*REFERENCE, "engine.share_parameters=false"), (*REFERENCE, "algorithm.reference.reset_every=2")],
    ids=["plain", "reference, engine of its own", "moving reference"],
)
def test_a_resume_goes_on_bit_for_bit(tmp_path: Path, more: tuple[str, ...]) -> None:
    config = small_config(*LORA, *more)
    train(config, tmp_path / "whole", SilentView())
    with pytest.raises(Interrupted):
        train(config, tmp_path / "parts", StopsAfter(3, signal.SIGINT))
    resume(tmp_path / "parts", SilentView())
    assert_same_run(tmp_path / "whole", tmp_path / "parts")
    rows = metrics(tmp_path / "whole")[1:]
    assert any(row["grad_norm"] > 0 for row in rows)
    assert all(row["mismatch/max"] < 1e-4 for row in rows)  # on-policy: the generator has the trainer's weights


def test_the_checkpoint_holds_adapters_and_the_export_the_whole_model(tmp_path: Path) -> None:
    train(small_config(*LORA, "steps=2", "evaluation.every=none"), tmp_path / "run", SilentView())
    kept = checkpoint.load(tmp_path / "run" / "checkpoints").tensors
    assert {name.rpartition(".")[2] for name in kept["policy"]} == {"lora_A", "lora_B", "base_checksum"}
    assert len(kept["policy"]) == 2 * 14 + 1 and all(".lora_" in name for name in kept["optimizer"])
    policy, _ = open_checkpoint_of(tmp_path / "run")
    exported = parameters(tmp_path / "run")
    assert all(torch.equal(value, exported[name]) for name, value in policy.weights().items())
    with pytest.raises(InputError, match="--adapter"):
        export_checkpoint(tmp_path / "run", adapter=True)


def open_checkpoint_of(run: Path) -> tuple[Policy, object]:
    from strop.run.folder import RunFolder

    return open_checkpoint(RunFolder.open(run))


def test_the_reference_is_kept_without_a_copy_unless_it_moves() -> None:
    still = assemble(small_config(*LORA, *REFERENCE), SilentView()).learner
    assert isinstance(still, Learner)
    assert isinstance(still.reference, WithoutAdapters) and still.reference.policy is still.trainer.policy
    moving = assemble(small_config(*LORA, *REFERENCE, "algorithm.reference.reset_every=2"), SilentView()).learner
    assert isinstance(moving, Learner)
    assert isinstance(moving.reference, Policy) and moving.reference.adapters is None
    with pytest.raises(StropError, match=r"algorithm\.reference\.reset_every"):
        tensors, state = still.state_dict()
        still.load_state_dict(tensors | {"reference": moving.reference.weights()}, state)


def test_a_critic_is_trained_whole_beside_the_adapters(tmp_path: Path) -> None:
    gae = ("algorithm.advantage=Gae", "critic.updates_per_step=2", "critic.optim.lr=1e-3")
    train(small_config(*LORA, *gae, "steps=2", "evaluation.every=none"), tmp_path / "run", SilentView())
    kept = checkpoint.load(tmp_path / "run" / "checkpoints").tensors
    assert "model.layers.0.mlp.up_proj.weight" in kept["critic"] and not any("lora" in name for name in kept["critic"])
    assert any(name.startswith("exp_avg.model.layers.0.mlp.up_proj") for name in kept["critic-optimizer"])
    assert metrics(tmp_path / "run")[-1]["critic/updates"] == 2


def test_a_small_rank_without_its_alpha_is_noted_where_a_run_starts(tmp_path: Path) -> None:
    """64 / 4 is 16 times what the adapters are; 4 is none too many."""
    notes = Notes()
    assemble(small_config("model.lora.rank=4"), notes).executor.close()
    (told,) = (line for line in notes.lines if "lora" in line)
    assert told.startswith("adapters: ") and told.endswith("model.lora.alpha=8")
    usual: list[list[str]] = [["model.lora.rank=4", "model.lora.alpha=16"], ["model.lora.rank=16"], []]
    for edits in (["model.lora.rank=4"], *usual):
        codes = [one.code for one in preview(small_config(*edits), notes).findings]
        assert ("large-adapters" in codes) == (edits not in usual)
    (tmp_path / "worked.jsonl").write_text(json.dumps({"prompt": "1+1=", "completion": "2"}) + "\n")
    tuned = Notes()
    sets = ["model.fresh.hidden_size=32", "model.lora.rank=4", "training.epochs=1"]
    fine_tuning.train(sft_config.configure("fresh", tmp_path / "worked.jsonl", sets), tmp_path / "sft", tuned)
    assert told in tuned.lines


def test_fine_tuning_with_adapters_resumes_bit_for_bit(tmp_path: Path) -> None:
    lines = [json.dumps({"prompt": f"{a}+{b}=", "completion": str(a + b)}) for a in range(6) for b in range(6)]
    (tmp_path / "worked.jsonl").write_text("\n".join(lines))
    shape = ["model.fresh.hidden_size=32", "model.fresh.layers=2", "model.fresh.intermediate_size=48"]
    training = ["training.tokens_per_batch=60", "training.epochs=1", "checkpoint_every=2", "model.lora.rank=4",
                "training.optimizer.lr=1e-2"]  # fmt: skip
    config = sft_config.configure("fresh", tmp_path / "worked.jsonl", [*shape, *training])
    fine_tuning.train(config, tmp_path / "whole", SilentView())
    fine_tuning.train(config, tmp_path / "parts", SilentView())
    last = checkpoint.latest(tmp_path / "parts" / "checkpoints")
    kept = checkpoint.load(tmp_path / "whole" / "checkpoints").tensors["policy"]
    assert last is not None and len(kept) == 2 * 14 + 1
    fine_tuning.resume(tmp_path / "parts", SilentView())
    assert all(
        torch.equal(value, parameters(tmp_path / "parts")[name])
        for name, value in parameters(tmp_path / "whole").items()
    )


def assert_adapter_is_the_model(run: Path) -> None:
    """peft with RUN/adapter on its base computes what the exported model does, by transformers only."""
    peft = pytest.importorskip("peft", reason="needs peft, which reads adapters: pip install peft")
    from transformers import AutoModelForCausalLM

    folder = export_checkpoint(run, adapter=True)
    assert folder == run / "adapter"
    stored = json.loads((folder / "adapter_config.json").read_text())
    ids = torch.tensor([[51, 43, 52, 61]])
    with torch.no_grad():
        merged = AutoModelForCausalLM.from_pretrained(run / "model")(ids).logits
        base = AutoModelForCausalLM.from_pretrained(stored["base_model_name_or_path"])
        started = base(ids).logits
        found = peft.PeftModel.from_pretrained(base, str(folder))(ids).logits
    torch.testing.assert_close(found, merged, atol=1e-3, rtol=1e-4)
    assert (started - merged).abs().max() > 0.05
    kept = checkpoint.load(run / "checkpoints").tensors["policy"]
    names = {f"base_model.model.{name}.weight" for name in kept.keys() - {"base_checksum"}}
    assert load_file(folder / "adapter_model.safetensors").keys() == names


def test_it_learns(tmp_path: Path) -> None:
    start = small_config("model.fresh.tie_embeddings=false")
    policy, tokenizer = load_policy(start.model)
    export(policy.model, tokenizer, tmp_path / "base")
    lora = (
        "model.lora.rank=8",
        "model.lora.alpha=16",
        "model.lora.target_modules=['q_proj', 'v_proj', 'up_proj', 'down_proj', 'lm_head']",
        "optim.lr=2e-2",
    )
    sizes = ("steps=10", "batch.prompts_per_step=12", "batch.samples_per_prompt=8", "sampling.max_new_tokens=8")
    judged = (f"verifier={{piece='{__name__}:MostlyText'}}", "evaluation.every=none", f"model.path={tmp_path / 'base'}")
    train(edit(start, [*sizes, *judged, *lora, "checkpoint.every=10"]), tmp_path / "run", SilentView())
    rates = [row["pass_rate"] for row in metrics(tmp_path / "run")]
    assert sum(rates[:3]) / 3 < 0.7 and sum(rates[-3:]) / 3 > 0.9
    assert_adapter_is_the_model(tmp_path / "run")


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_the_embedded_model_learns_and_resumes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lora = ("model.lora.rank=8", "model.lora.alpha=16", "optim.lr=1e-3", "evaluation.every=24")
    config = edit(resolve("quickstart"), lora)
    with pytest.raises(Interrupted):
        train(config, tmp_path / "run", StopsAfter(5, signal.SIGINT))
    outcome = resume(tmp_path / "run", SilentView())
    (before,) = [row["evaluation/pass_rate"] for row in metrics(tmp_path / "run") if row["step"] == 0]
    after = outcome.summary.held_out_pass_rate
    assert after is not None and after > before + 0.2
    assert_adapter_is_the_model(tmp_path / "run")


def test_a_run_without_adapters_exports_none(tmp_path: Path) -> None:
    train(small_config("steps=1", "evaluation.every=none"), tmp_path / "run", SilentView())
    with pytest.raises(InputError, match=r"model\.lora"):
        export_checkpoint(tmp_path / "run", adapter=True)
