"""strop replay: from the stored rollouts to the same weights, bit for bit; and the first step at which it is not so."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from tests.environments.players import FORGETFUL
from tests.environments.runs import chatty, speak
from tests.forks import forking
from tests.orchestration.test_embedded_executor import SignalsAfter
from tests.run.test_run import StopsAfter
from tests.run.test_stages import staged
from tests.run.test_unequal_groups import UNEQUAL
from tests.runs import metrics, parameters, small_config
from torch import Tensor
from typer.testing import CliRunner

from strop.base import rollout_table
from strop.base.metrics import Metrics
from strop.base.types import InputError, StropError
from strop.base.view import SilentView
from strop.cli import app
from strop.config.schema import RunConfig
from strop.lab.replay import WITHIN, replay
from strop.run import assembly
from strop.run.folder import RunFolder
from strop.run.run import Interrupted, resume, train
from strop.training.step import Trainer

UNEVALUATED = ("evaluation.every=none", "algorithm.selection.zero_variance=keep")


def small(*sets: str) -> RunConfig:
    return small_config("steps=3", *UNEVALUATED, *sets)


def differences(run: Path, begin: int = 0, end: int | None = None) -> dict[int, str | None]:
    return {done.step: done.difference for done in replay(RunFolder.open(run), SilentView(), begin, end)}


@pytest.fixture
def weights(monkeypatch: pytest.MonkeyPatch) -> dict[str, Tensor]:
    """The weights that the last replay has come to, filled when it ends."""
    found: dict[str, Tensor] = {}
    build = assembly.learner_of

    @contextmanager
    def learner_of(*arguments: Any) -> Iterator[Any]:
        with build(*arguments) as learner:
            yield learner
            found.update({name: value.clone() for name, value in learner.weights().items()})

    monkeypatch.setattr("strop.lab.replay.learner_of", learner_of)
    return found


def assert_equal(run: Path, weights: dict[str, Tensor], begin: int = 0) -> None:
    """Every step after `begin` replays to what it was, and the last to the exported model."""
    steps = RunFolder.open(run).rollout_steps()
    assert differences(run, begin) == dict.fromkeys(range(begin + 1, steps[-1] + 1))
    exported = parameters(run)
    assert exported and all(torch.equal(value, weights[name]) for name, value in exported.items())


KINDS = {
    "several updates": ("batch.updates_per_step=2", "batch.passes_per_batch=2"),
    "critic": (
        "algorithm.advantage=Gae", "critic.updates_per_step=2", "critic.warmup_steps=1", "critic.optim.lr=1e-2",
        'algorithm.regularizers=[{piece="KlPenalty", beta=0.1}]', "algorithm.reference.reset_every=2",
    ),
    "opefo": ("algorithm.loss=Opefo",),
    "state": ("algorithm.regularizers=[{piece='AdaptiveEntropy', target=9.0, delta=1e-3}]",),
    "unequal groups": (UNEQUAL, "batch.updates_per_step=2", "algorithm.aggregation=PromptMean"),
    "lora": ("model.lora.rank=4", "algorithm.regularizers=[{piece='KlPenalty', beta=0.01}]"),
    "bfloat16": ("model.dtype=bfloat16", "algorithm.anchor=recomputed"),
}  # fmt: skip


@pytest.mark.parametrize("sets", KINDS.values(), ids=KINDS)
def test_a_replay_comes_to_the_same_weights(tmp_path: Path, weights: dict[str, Tensor], sets: Sequence[str]) -> None:
    train(small(*sets), tmp_path / "run", SilentView())
    assert_equal(tmp_path / "run", weights)


def distilling(folder: Path) -> tuple[str, ...]:
    """Settings of self-distillation: the teacher reads a worked solution, which only the problem has."""
    problems, rows = folder / "problems.jsonl", range(8)
    lines = [{"question": f"{n}+{n}=", "answer": str(2 * n), "solution": f"Twice {n} is {2 * n}."} for n in rows]
    problems.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return (
        f"data.source={problems}", "data.held_out=none", "algorithm.advantage=Distillation",
        "algorithm.kl_in_reward.beta=0.5", 'algorithm.reference.prompt="{question} {solution} {feedback}"',
    )  # fmt: skip


def test_a_teacher_with_a_prompt_of_its_own_is_replayed(tmp_path: Path, weights: dict[str, Tensor]) -> None:
    train(small(*distilling(tmp_path)), tmp_path / "run", SilentView())
    (tmp_path / "problems.jsonl").unlink()
    assert_equal(tmp_path / "run", weights)
    folder = RunFolder.open(tmp_path / "run")
    rewrite(folder.rollouts_path(2), lambda table: one_bit(table, "teacher_prompt_ids"))
    assert "does not hold" in str(differences(folder.path)[2])


def test_teachers_of_domains_are_replayed(finished: Path, tmp_path: Path, weights: dict[str, Tensor]) -> None:
    teacher = f"algorithm.reference={{path='{finished}/model', domains={{code='{finished}/model'}}}}"
    train(small(teacher, "algorithm.regularizers=[{piece='TopKl', top_k=2}]"), tmp_path / "run", SilentView())
    assert_equal(tmp_path / "run", weights)


def test_stages_are_replayed(tmp_path: Path, weights: dict[str, Tensor]) -> None:
    train(staged(), tmp_path / "run", SilentView())
    assert_equal(tmp_path / "run", weights)
    assert_equal(tmp_path / "run", weights, begin=5)


def test_turns_are_replayed(tmp_path: Path, weights: dict[str, Tensor], monkeypatch: pytest.MonkeyPatch) -> None:
    speak(monkeypatch, FORGETFUL)
    config = chatty("steps=2", "environment.history=separate", "algorithm.advantage=TurnLevel", *UNEVALUATED)
    train(config, tmp_path / "run", SilentView())
    assert any(row["restarts"] for row in RunFolder.open(tmp_path / "run").read_rollouts(1))
    assert_equal(tmp_path / "run", weights)


def test_ranks_are_replayed(tmp_path: Path, weights: dict[str, Tensor]) -> None:
    with forking():
        train(small("steps=2", "orchestration.trainers=2"), tmp_path / "run", SilentView())
        assert_equal(tmp_path / "run", weights)
        assert_equal(tmp_path / "run", weights, begin=1)


def test_what_the_clock_decided_is_replayed(tmp_path: Path, weights: dict[str, Tensor]) -> None:
    out = tmp_path / "run"
    view = SignalsAfter(out, 2, signal.SIGKILL, "generator-1")
    sets = (
        "steps=8", "batch.prompts_per_step=2", "orchestration.executor=embedded", "orchestration.max_lag=4",
        "orchestration.generators=2", "orchestration.window=full", "optim.lr=1e-2", UNEQUAL,
    )  # fmt: skip
    with forking():
        train(small(*sets), out, view)
    assert any("generator-1" in note for note in view.notes)
    assert max(row["lag/max"] for row in metrics(out)) > 1
    assert_equal(out, weights)


def test_a_resume_with_other_settings_is_replayed(tmp_path: Path, weights: dict[str, Tensor]) -> None:
    out = tmp_path / "run"
    with pytest.raises(Interrupted):
        train(small("steps=4", "optim.schedule=Cosine", "checkpoint.keep=9"), out, StopsAfter(1, signal.SIGINT))
    with pytest.raises(Interrupted):
        resume(out, StopsAfter(2, signal.SIGINT))
    resume(out, SilentView(), sets=["optim.betas=[0.5,0.9]", "batch.updates_per_step=3", "steps=5"])
    for begin in range(5):
        assert_equal(out, weights, begin)


def test_groups_that_trained_nothing_are_told_apart(tmp_path: Path, weights: dict[str, Tensor]) -> None:
    """And groups that selection dropped count in the statistics of the whole batch."""
    sets = (
        "algorithm.selection.zero_variance=drop", "algorithm.advantage.normalization=batch_std",
        "batch.prompts_per_step=1", "steps=6",
    )  # fmt: skip
    train(small_config("evaluation.every=none", *sets), tmp_path / "run", SilentView())
    folder = RunFolder.open(tmp_path / "run")
    assert any(rollout_table.read_record(folder.rollouts_path(step)).skipped for step in folder.rollout_steps())
    assert_equal(tmp_path / "run", weights)


# ---------------------------------------------------------------------- what differs is found


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("runs") / "whole"
    train(small("checkpoint.keep=9"), out, SilentView())
    return out


def rewrite(
    path: Path, change: Callable[[pa.Table], pa.Table], record: Callable[[bytes], bytes] = lambda text: text
) -> None:
    """Change the table in a file, or its record."""
    table, text = rollout_table.read(path), pq.read_metadata(path).metadata[b"strop.batch"]
    with pq.ParquetWriter(path, table.schema) as writer:
        writer.write_table(change(table))
        writer.add_key_value_metadata({b"strop.batch": record(text)})


def one_bit(table: pa.Table, column: str) -> pa.Table:
    """The table with the last bit of a number in the middle of a column of lists turned over."""
    rows = table[column].to_pylist()
    values = np.array(rows[5], np.float32 if table.schema.field(column).type.value_type == pa.float32() else np.int32)
    values.view(np.int32)[2] ^= 1
    rows[5] = values
    return table.set_column(table.schema.get_field_index(column), column, pa.array(rows, table[column].type))


@pytest.mark.parametrize("column", ["logprobs", "token_ids", "prompt_ids"])
def test_one_bit_of_one_rollout_is_found_at_its_step(finished: Path, tmp_path: Path, column: str) -> None:
    run = Path(shutil.copytree(finished, tmp_path / "run"))
    rewrite(RunFolder.open(run).rollouts_path(2), lambda table: one_bit(table, column))
    found = differences(run)
    assert list(found) == [1, 2] and found[1] is None and "step_000002.parquet does not hold" in str(found[2])
    assert differences(run, begin=2) == {3: None}


@pytest.mark.parametrize("column", ["advantages", "trainer_logprobs"])
def test_what_came_out_otherwise_is_named(finished: Path, tmp_path: Path, column: str) -> None:
    run = Path(shutil.copytree(finished, tmp_path / "run"))
    folder = RunFolder.open(run)
    rewrite(folder.rollouts_path(3), lambda table: one_bit(table, column))
    row = folder.read_rollouts(3)[5]
    said = differences(run)[3]
    assert said is not None and said.startswith(f"{column} of sample {row['sample']} of group {row['ticket']}, token 2")


def test_a_record_of_another_version_is_refused(finished: Path, tmp_path: Path) -> None:
    run = Path(shutil.copytree(finished, tmp_path / "run"))
    path = RunFolder.open(run).rollouts_path(1)
    rewrite(path, lambda table: table, lambda text: text.replace(b'"machine":', b'"cpu":'))
    with pytest.raises(InputError, match=f"{path.name}: its record .* 'cpu'"):
        differences(run)


def test_other_settings_are_found(finished: Path, tmp_path: Path) -> None:
    run = Path(shutil.copytree(finished, tmp_path / "run"))
    change_config(run, '"lr": 0.001', '"lr": 0.0010000000000000002')
    assert "lr: 0.001 was recorded" in str(differences(run)[1])


def test_one_bit_of_one_weight_is_found(finished: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    update = Trainer.update

    def flipping(trainer: Trainer, *given: Any) -> Metrics:
        done = update(trainer, *given)
        if trainer.updates == 2:
            next(iter(trainer.optimizer.masters.values())).detach().view(torch.int32).view(-1)[7] ^= 1
        return done

    monkeypatch.setattr(Trainer, "update", flipping)
    assert differences(finished) == {1: None, 2: "the weights after it"}


@pytest.fixture
def elsewhere(finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A run of another machine, which rounded otherwise: torch's operators compute here what C kernels did there."""
    run = Path(shutil.copytree(finished, tmp_path / "run"))
    change_config(run, '"cpu_kernels": true', '"cpu_kernels": false')
    monkeypatch.setattr("strop.lab.replay.machine", lambda: "another")
    return run


def change_config(run: Path, old: str, new: str) -> None:
    text = (run / "config.json").read_text()
    assert old in text
    (run / "config.json").write_text(text.replace(old, new))


def test_another_machine_comes_to_the_same_but_for_rounding(elsewhere: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    view, notes = SilentView(), list[str]()
    monkeypatch.setattr(view, "note", notes.append)
    found = list(replay(RunFolder.open(elsewhere), view))
    assert [done.difference for done in found] == [None] * 3
    assert all(0 < done.apart < WITHIN["float32"] / 10 for done in found)
    assert any("another machine" in note and "0.001" in note for note in notes)


def test_rounding_is_a_difference_on_the_same_machine(elsewhere: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    assert "trainer_logprobs of sample" in str(differences(elsewhere)[1])


def test_one_bit_of_a_rollout_is_found_elsewhere_too(elsewhere: Path) -> None:
    rewrite(RunFolder.open(elsewhere).rollouts_path(2), lambda table: one_bit(table, "logprobs"))
    found = differences(elsewhere)
    assert found[1] is None and "does not hold what was trained on" in str(found[2])


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ('"lr": 0.001', '"lr": 0.0011', "the weights of its checkpoint"),
        ('"temperature": 1.0', '"temperature": 1.01', "trainer_logprobs of sample"),
        ('"SampleMean"', '"TokenMean"', "grad_norm"),
    ],
)
def test_more_than_rounding_is_found_elsewhere(elsewhere: Path, old: str, new: str, said: str) -> None:
    change_config(elsewhere, old, new)
    assert said in str(differences(elsewhere)[1])


def test_a_step_far_on_needs_no_step_before_it(finished: Path, tmp_path: Path) -> None:
    run = Path(shutil.copytree(finished, tmp_path / "run"))
    for step in (1, 2):
        RunFolder.open(run).rollouts_path(step).unlink()
    assert differences(run, begin=2) == {3: None}
    with pytest.raises(InputError, match="no rollouts of step 1"):
        differences(run)
    shutil.rmtree(run / "checkpoints" / "step-00000002")
    with pytest.raises(StropError, match="no checkpoint of step 2"):
        differences(run, begin=2)


def test_a_table_that_is_not_what_was_trained_on_is_not_kept(
    finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = rollout_table.table
    monkeypatch.setattr(rollout_table, "table", lambda *given: one_bit(table(*given), "logprobs"))
    with pytest.raises(StropError, match="does not hold what step 1 was trained on"):
        train(small(), tmp_path / "run", SilentView())


def test_the_record_takes_little_room(tmp_path: Path) -> None:
    """Of a small file: 96 completions of at most 12 tokens."""
    train(small("steps=1", "batch.samples_per_prompt=16"), tmp_path / "run", SilentView())
    path = RunFolder.open(tmp_path / "run").rollouts_path(1)
    with_record = path.stat().st_size
    with pq.ParquetWriter(tmp_path / "bare", rollout_table.SCHEMA, **rollout_table._WRITING) as writer:
        writer.write_table(rollout_table.read(path))
    assert with_record <= 1.02 * (tmp_path / "bare").stat().st_size


def test_reading_rollouts_imports_no_pandas(finished: Path) -> None:
    """It takes longer than a small step, and pyarrow imports it wherever it is installed."""
    pytest.importorskip("pandas")
    path = RunFolder.open(finished).rollouts_path(1)
    code = f"""
import sys
from pathlib import Path
from strop.base import rollout_table
assert rollout_table.read_groups(Path({str(path)!r}))
assert "pandas" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", code], check=True)


def test_the_command_ends_with_1_at_a_difference(finished: Path, tmp_path: Path) -> None:
    run = Path(shutil.copytree(finished, tmp_path / "run"))
    done = CliRunner().invoke(app, ["replay", str(run), "--from", "1", "--to", "2"])
    assert done.exit_code == 0 and done.stdout.startswith("step 2: equal")
    rewrite(RunFolder.open(run).rollouts_path(1), lambda table: one_bit(table, "logprobs"))
    done = CliRunner().invoke(app, ["replay", str(run)])
    assert done.exit_code == 1 and "step 1: " in done.stdout and "step 2" not in done.stdout
