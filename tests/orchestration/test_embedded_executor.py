"""Real models in real workers: the same run as in one process, bit for bit, whatever is killed on the way."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections import Counter
from contextlib import ExitStack
from pathlib import Path

import pytest
from tests.forks import forking
from tests.orchestration.invariants import assert_sound_folder
from tests.runs import assert_same_run, finished_run, metrics, small_config
from tests.watching import alive, until

from strop.base.view import SilentView
from strop.run.folder import RunFolder
from strop.run.run import Interrupted, resume, train
from strop_verify.sandbox.process import descendants

SETS = ("optim.lr=1e-2",)
EMBEDDED = (*SETS, "orchestration.executor=embedded")


@pytest.fixture(scope="module")
def in_process(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run that the others must be equal to."""
    return finished_run(tmp_path_factory, *SETS)


def workers(run: Path) -> dict[str, int]:
    """Process ids by role."""
    rows = json.loads((run / "processes.json").read_text())
    return {row["role"]: row["pid"] for row in rows if row["role"] != "driver"}


def gone(pids: list[int]) -> bool:
    """Whether all of these end."""
    return until(lambda: not any(map(alive, pids)))


class SignalsAfter(SilentView):
    """Sends a signal to the generator, or to this process, after a step."""

    def __init__(self, run: Path, step: int, number: int, role: str | None = None) -> None:
        self.run, self.at, self.number, self.role = run, step, number, role
        self.pids: list[int] = []
        self.notes: list[str] = []

    def note(self, text: str) -> None:
        self.notes.append(text)

    def advance(self, step: int, values: object) -> None:
        if step == self.at:
            self.pids = list(workers(self.run).values())
            os.kill(os.getpid() if self.role is None else workers(self.run)[self.role], self.number)


def test_a_worker_trains_what_one_process_trains_even_if_it_is_killed(in_process: Path, tmp_path: Path) -> None:
    """The first generator is an interpreter of its own; the one that takes its place is forked."""

    class SignalsThenForks(SignalsAfter):
        def advance(self, step: int, values: object) -> None:
            super().advance(step, values)
            if step == self.at:
                forked.enter_context(forking())

    view = SignalsThenForks(tmp_path / "run", 2, signal.SIGKILL, "generator-0")
    with ExitStack() as forked:
        train(small_config(*EMBEDDED, "evaluation.asynchronous=false"), tmp_path / "run", view)
    assert any("generator-0" in line for line in view.notes)
    assert_sound_folder(tmp_path / "run", in_process)
    assert sum(row["grad_norm"] > 0 for row in metrics(tmp_path / "run")[1:]) >= 2  # so that versions differ
    assert workers(tmp_path / "run") == {}


def killed_driver(out: Path, *sets: str, forked: bool = True) -> list[int]:
    """A run in a process of its own that is killed after its third step; all processes that were below it."""
    if forked:
        return killed(fork_driver(out, *sets), out)
    code = (
        "import sys\n"
        "from pathlib import Path\n"
        "from strop.base.imports import allow_module\n"
        "from strop.run.run import train\n"
        "from tests.orchestration.test_embedded_executor import stops\n"
        "from tests.runs import small_config\n"
        "allow_module('tests.orchestration.judging')\n"
        "train(small_config(*sys.argv[2:]), Path(sys.argv[1]), stops(Path(sys.argv[1])))\n"
    )
    driver = subprocess.Popen([sys.executable, "-c", code, str(out), *sets])
    left = killed(driver.pid, out)
    driver.wait()
    return left


def fork_driver(out: Path, *sets: str) -> int:
    """Its process id."""
    driver = os.fork()
    if driver == 0:
        try:
            with forking():
                train(small_config(*sets), out, stops(out))
        finally:
            os._exit(1)
    return driver


def stops(out: Path) -> SignalsAfter:
    """A driver with this view stops itself after its third step, whose checkpoint has not begun."""
    return SignalsAfter(out, 3, signal.SIGSTOP)


def killed(driver: int, out: Path) -> list[int]:
    """What was below the driver when it stopped."""
    assert os.WIFSTOPPED(os.waitpid(driver, os.WUNTRACED)[1])
    left = descendants(driver)[1:]
    assert set(workers(out).values()) <= set(left)
    os.kill(driver, signal.SIGKILL)
    assert os.waitstatus_to_exitcode(os.waitpid(driver, 0)[1]) == -signal.SIGKILL
    return left


def test_a_killed_driver_leaves_nobody_and_resumes_to_the_same_run(in_process: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    left = killed_driver(out, *EMBEDDED)
    assert workers(out).keys() == {"generator-0", "evaluator"} and gone(left)
    with forking():
        resume(out, SilentView())
    assert_sound_folder(out, in_process)


@pytest.mark.slow
@pytest.mark.parametrize("lag", [1, 2, 4, 8])
def test_a_pipeline_whose_driver_and_generators_are_killed_is_sound(tmp_path: Path, lag: int) -> None:
    out = tmp_path / "run"
    sets = (
        *EMBEDDED, f"orchestration.max_lag={lag}", f"steps={lag + 4}", "orchestration.kv=recompute",
        "orchestration.generators=2", "checkpoint.keep=99", "evaluation.every=none",
    )  # fmt: skip
    assert gone(killed_driver(out, *sets))
    view = SignalsAfter(out, 3, signal.SIGKILL, "generator-1")
    with forking():
        resume(out, view)
    assert any("generator-1" in line for line in view.notes)
    assert_sound_folder(out, None)


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_a_killed_driver_leaves_nobody_of_any_kind(tmp_path: Path) -> None:
    """Generators, an evaluator, trainer ranks, and the verifier's supervisor with its workers."""
    out = tmp_path / "run"
    verifier = "verifier={piece='PythonFunction', function='tests.orchestration.judging:judge'}"
    sets = (*EMBEDDED, "orchestration.trainers=2", "orchestration.generators=2", "orchestration.max_lag=1", verifier)
    left = killed_driver(out, *sets, "evaluation.asynchronous=true", forked=False)
    roles = {"generator-0", "generator-1", "evaluator", "trainer-0", "trainer-1"}
    assert workers(out).keys() == roles and len(left) > len(roles)
    assert gone(left)


def test_ctrl_c_ends_the_workers_and_no_group_is_skipped_or_repeated(tmp_path: Path) -> None:
    out = tmp_path / "run"
    # 16 training problems a pass: 8 steps of 4 are two passes.
    sets = (
        *EMBEDDED, "orchestration.max_lag=2", "steps=8", "batch.prompts_per_step=4", "data.source.count=24",
        "orchestration.kv=recompute", "checkpoint.keep=99",
    )  # fmt: skip
    view = SignalsAfter(out, 3, signal.SIGINT)
    with forking():
        with pytest.raises(Interrupted):
            train(small_config(*sets, "evaluation.every=none"), out, view)
        assert view.pids and gone(view.pids)
        resume(out, SilentView())
    rows = [row for step in range(1, 9) for row in RunFolder.open(out).read_rollouts(step)]
    assert len(rows) == 8 * 4 * 4
    asked = Counter(row["problem_id"] for row in rows)
    assert len(asked) == 16 and set(asked.values()) == {8}
    assert_sound_folder(out, None)


@pytest.mark.slow
def test_two_generators_give_the_same_run_twice(tmp_path: Path) -> None:
    for name in ("one", "two"):
        train(small_config(*SETS, "orchestration.generators=2"), tmp_path / name, SilentView())
    assert_same_run(tmp_path / "one", tmp_path / "two")
