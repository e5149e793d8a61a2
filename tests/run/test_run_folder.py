"""The run folder: what is refused, what survives a crash, what resume forgets."""

import dataclasses
import json
import math
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from strop.base import rollout_table
from strop.base.files import replacing
from strop.base.metrics_file import MetricsFile, read_metrics
from strop.base.types import Completion, Group, InputError, Problem, Rollout, StropError, Verdict, VersionSpan
from strop.run.folder import RunFolder
from strop.training.samples import after_prompt, as_samples
from strop_verify.verdict import Status


def a_group(ticket: int = 3, samples: int = 2) -> Group:
    problem = Problem("sum-1", "3+5=", "8", source="chain_sum")
    completions = [
        Completion(
            request_id=f"r{ticket}",
            index=index,
            prompt_ids=np.array([5, 9], np.int32),
            token_ids=np.array([17, 4, 2], np.int32),
            logprobs=np.array([-0.5, -1.25, -0.125], np.float32),
            versions=(VersionSpan(7, 0, 2), VersionSpan(8, 2, 3)),
            injected=np.zeros(3, np.bool_),
            text="8",
            finish_reason="stop",
        )
        for index in range(samples)
    ]
    verdict = Verdict(1.0, Status.CORRECT)
    return Group(ticket, problem, tuple(Rollout(problem, c, verdict, 1.0) for c in completions))


def test_create_then_open_gives_back_the_configuration(tmp_path: Path) -> None:
    RunFolder.create(tmp_path / "run", {"steps": 3, "loss": {"piece": "Cispo"}}).close()
    run = RunFolder.open(tmp_path / "run")
    assert run.read_json("config.json") == {"steps": 3, "loss": {"piece": "Cispo"}}
    assert run.read_metrics() == [] and run.rollout_steps() == []


def test_a_run_keeps_its_id_wherever_it_is_moved(tmp_path: Path) -> None:
    first, second = (RunFolder.create(tmp_path / name, {}) for name in ("first", "second"))
    first.close()
    identity = first.identity
    assert identity and identity != second.identity
    (tmp_path / "first").rename(tmp_path / "moved")
    RunFolder.resume(tmp_path / "moved").close()
    assert RunFolder.open(tmp_path / "moved").identity == identity


def test_a_folder_that_is_no_run_is_never_touched(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")  # a model folder has one too
    with pytest.raises(InputError, match="--out"):
        RunFolder.create(tmp_path, {})
    assert [path.name for path in tmp_path.iterdir()] == ["config.json"]
    (tmp_path / "file").touch()
    with pytest.raises(InputError, match="--out"):
        RunFolder.create(tmp_path / "file", {})


def test_a_second_run_in_the_same_folder_names_both_ways_out(tmp_path: Path) -> None:
    RunFolder.create(tmp_path, {}).close()
    with pytest.raises(InputError, match="--resume .* --out") as caught:
        RunFolder.create(tmp_path, {})
    assert "\n" not in str(caught.value) and caught.value.exit_code == 2


def test_open_refuses_what_it_cannot_read(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="run folder"):
        RunFolder.open(tmp_path / "absent")
    with pytest.raises(InputError, match="not a run"):
        RunFolder.open(tmp_path)
    RunFolder.create(tmp_path, {}).close()
    (tmp_path / "run.json").write_text('{"format": 99}')
    with pytest.raises(InputError, match="99"):
        RunFolder.open(tmp_path)


def test_metrics_round_trip_with_none_and_numbers_that_json_lacks(tmp_path: Path) -> None:
    run = RunFolder.create(tmp_path, {})
    run.append_metrics(1, {"loss": 0.5, "entropy": None, "bad": math.nan, "worse": -math.inf})
    for line in run.metrics_path.read_text().splitlines():
        json.loads(line, parse_constant=lambda name: pytest.fail(f"{name} is not JSON"))
    (row,) = run.read_metrics()
    assert row["step"] == 1 and row["loss"] == 0.5 and row["entropy"] is None
    assert row["bad"] is not None and math.isnan(row["bad"]) and row["worse"] == -math.inf


def test_a_torn_last_line_is_ignored_and_cut_off_on_resume(tmp_path: Path) -> None:
    run = RunFolder.create(tmp_path, {})
    for step in (1, 2, 3):
        run.append_metrics(step, {"loss": float(step)})
    run.close()
    with run.metrics_path.open("a") as file:
        file.write('{"step": 4, "loss": 0.1')
    assert [row["step"] for row in run.read_metrics()] == [1, 2, 3]
    resumed = RunFolder.resume(tmp_path)
    resumed.truncate(2)
    resumed.append_metrics(3, {"loss": 33.0})
    assert [(row["step"], row["loss"]) for row in resumed.read_metrics()] == [(1, 1.0), (2, 2.0), (3, 33.0)]


def test_a_torn_line_that_happens_to_be_json_is_torn_all_the_same(tmp_path: Path) -> None:
    run = RunFolder.create(tmp_path, {})
    run.append_metrics(1, {"loss": 1.0})
    run.close()
    with run.metrics_path.open("a") as file:
        file.write('{"step": 2, "loss": 5}')  # no newline: 5 may be the beginning of 5.25
    run = RunFolder.resume(tmp_path)
    assert [row["step"] for row in run.read_metrics()] == [1]
    run.truncate(7)
    run.append_metrics(2, {"loss": 5.25})
    assert [row["loss"] for row in run.read_metrics()] == [1.0, 5.25]


def test_a_broken_line_before_the_last_is_named(tmp_path: Path) -> None:
    run = RunFolder.create(tmp_path, {})
    run.metrics_path.write_text('{"step": 1}\nnonsense\n{"step": 3}\n')
    with pytest.raises(InputError, match=r"metrics\.jsonl, line 2"):
        run.read_metrics()
    run.metrics_path.write_text('{"step": 1}\n{"loss": 2}\n')
    with pytest.raises(InputError, match="line 2"):
        run.read_metrics()


def test_rollouts_round_trip(tmp_path: Path) -> None:
    run = RunFolder.create(tmp_path, {})
    path = run.write_rollouts(12, [a_group(3), a_group(4, samples=1)])
    assert path.name == "step_000012.parquet"
    rows = run.read_rollouts(12)
    assert [(row["ticket"], row["sample"]) for row in rows] == [(3, 0), (3, 1), (4, 0)]
    row = rows[0]
    assert row["token_ids"] == [17, 4, 2] and row["logprobs"] == [-0.5, -1.25, -0.125]
    assert row["versions"] == [{"version": 7, "start": 0, "end": 2}, {"version": 8, "start": 2, "end": 3}]
    assert (row["prompt"], row["completion"], row["reference"]) == ("3+5=", "8", "8")
    assert (row["status"], row["reward"], row["finish_reason"]) == ("correct", 1.0, "stop")
    with pytest.raises(InputError, match="step 5"):
        run.read_rollouts(5)


@pytest.mark.parametrize("status", [Status.TIMEOUT, Status.ERROR])
def test_what_the_verifier_failed_on_has_neither_reward_nor_score(tmp_path: Path, status: Status) -> None:
    """As training leaves it out of its group, and an evaluation out of its rates."""
    run = RunFolder.create(tmp_path, {})
    group = a_group()
    failed = dataclasses.replace(group.rollouts[1], verdict=Verdict(0.0, status, "no such file"), reward=0.0)
    run.write_rollouts(1, [dataclasses.replace(group, rollouts=(group.rollouts[0], failed))])
    right, row = run.read_rollouts(1)
    assert (right["reward"], right["score"]) == (1.0, 1.0)
    assert (row["reward"], row["score"], row["status"], row["detail"]) == (None, None, str(status), "no such file")


def test_injected_tokens_have_no_advantage(tmp_path: Path) -> None:
    """They are not trained; the sample has the completion's advantage on all of its tokens."""
    group = a_group(samples=1)
    forced = np.array([False, True, False])
    completion = dataclasses.replace(group.rollouts[0].completion, injected=forced)
    (sample,) = as_samples(completion, group.ticket)
    column = after_prompt(np.full(3, 1.5, np.float32), len(sample))
    learned = dataclasses.replace(sample, advantages=column, trainer_logprobs=-column, trainer_entropies=2 * column)
    learned = dataclasses.replace(learned, values=3 * column)
    run = RunFolder.create(tmp_path, {})
    rollout = dataclasses.replace(group.rollouts[0], completion=completion)
    run.write_rollouts(1, [dataclasses.replace(group, rollouts=(rollout,))], [learned])
    (row,) = run.read_rollouts(1)
    assert row["advantages"] == [1.5, 0, 1.5] and row["trainer_logprobs"] == [-1.5, 0, -1.5]
    assert row["entropies"] == [3.0, 0, 3.0] and row["values"] == [4.5, 0, 4.5]  # the engine knew no entropies


def test_a_column_that_an_older_table_lacks_is_null(tmp_path: Path) -> None:
    run = RunFolder.create(tmp_path, {})
    run.write_rollouts(1, [a_group(samples=2)], [])
    path = run.rollouts_path(1)
    pq.write_table(rollout_table.read(path).drop_columns(["values"]), path)
    assert [row["values"] for row in run.read_rollouts(1)] == [None, None]
    assert rollout_table.read(path).schema == rollout_table.SCHEMA


def test_entropies_are_the_engines_where_it_knows_them(tmp_path: Path) -> None:
    group = a_group(samples=1)
    known = dataclasses.replace(group.rollouts[0].completion, entropies=np.array([1, 2, 3], np.float32))
    (sample,) = as_samples(known, group.ticket)
    learned = dataclasses.replace(sample, trainer_entropies=np.full(len(sample), 9, np.float32))
    run = RunFolder.create(tmp_path, {})
    rollout = dataclasses.replace(group.rollouts[0], completion=known)
    run.write_rollouts(1, [dataclasses.replace(group, rollouts=(rollout,))], [learned])
    assert run.read_rollouts(1)[0]["entropies"] == [1, 2, 3]


def test_every_steps_table_has_the_same_columns(tmp_path: Path) -> None:
    import pyarrow.parquet as pq

    run = RunFolder.create(tmp_path, {})
    full, empty = run.write_rollouts(1, [a_group()]), run.write_rollouts(2, [])
    assert pq.read_schema(full).equals(pq.read_schema(empty))


def test_truncate_removes_later_rollouts(tmp_path: Path) -> None:
    run = RunFolder.create(tmp_path, {})
    for step in (1, 2, 3):
        run.write_rollouts(step, [a_group()])
    run.truncate(2)
    assert run.rollout_steps() == [1, 2]


def test_a_failed_write_leaves_the_former_file_and_nothing_beside_it(tmp_path: Path) -> None:
    target = tmp_path / "table"
    target.write_text("former")
    with pytest.raises(ZeroDivisionError), replacing(target) as temporary:
        temporary.write_text("half")
        raise ZeroDivisionError
    assert target.read_text() == "former" and [path.name for path in tmp_path.iterdir()] == ["table"]
    with pytest.raises(StropError, match="table"), replacing(target):
        raise OSError(28, "No space left on device")


def test_resume_sweeps_what_a_killed_write_left(tmp_path: Path) -> None:
    run = RunFolder.create(tmp_path, {})
    run.write_rollouts(1, [a_group()])
    run.close()
    (tmp_path / "rollouts" / ".step_000002.parquet.partial").write_bytes(b"half")
    RunFolder.resume(tmp_path).close()
    assert [path.name for path in (tmp_path / "rollouts").iterdir()] == ["step_000001.parquet"]


def test_two_processes_cannot_write_one_run(tmp_path: Path) -> None:
    run = RunFolder.create(tmp_path, {})
    program = (
        "import sys; from strop.run.folder import RunFolder; from strop.base.types import InputError\n"
        "try: RunFolder.resume(sys.argv[1]); print('locked')\n"
        "except InputError as error: print(error)"
    )

    def other_process() -> str:
        command = [sys.executable, "-c", program, str(tmp_path)]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout

    assert "another process" in other_process()
    run.close()
    assert "locked" in other_process()


def test_lines_of_a_step_become_one_row_in_its_place(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    lines = [
        {"step": 1, "time": 1.0, "loss": 2.0, "a": None},
        {"step": 2, "time": 2.0, "loss": "nan"},
        {"step": 1, "time": 3.0, "evaluation/pass_rate": 0.5, "a": 4.0},
        {"step": 0, "time": 4.0, "evaluation/pass_rate": 0.1},
    ]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    rows = read_metrics(path)
    assert [row["step"] for row in rows] == [0, 1, 2]
    assert rows[1] == {"step": 1, "time": 1.0, "loss": 2.0, "a": 4.0, "evaluation/pass_rate": 0.5}
    assert str(rows[2]["loss"]) == "nan"
    MetricsFile(path).truncate(1)
    assert len(path.read_text().splitlines()) == 3 and [row["step"] for row in read_metrics(path)] == [0, 1]
