"""Worker processes: what is judged in them, what kills them, and that nothing of them is ever left."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from tests.watching import alive, until

from strop.base import imports
from strop.base.imports import allow_module
from strop.base.types import Completion, Problem, Verdict, VersionSpan
from strop.verifiers.answer import Answer
from strop.verifiers.base import Isolation
from strop.verifiers.judges import ProcessJudge, judge_for
from strop.verifiers.math_verifier import MathVerifier
from strop.verifiers.process_pool import VerifierPool
from strop.verifiers.protocol import InlineJudge, Judge
from strop.verifiers.reward_function import PythonFunction
from strop_verify import pool as pool_module
from strop_verify.pool import WorkersLost
from strop_verify.verdict import Status

QUICK = Isolation(workers=2, seconds=0.6, retry_seconds=0.4, memory_mib=256)
PATIENT = Isolation(workers=2, seconds=60, retry_seconds=60, memory_mib=256)
MODULE = '''
import os, signal, subprocess, sys, time

def right(problem, text):
    return text == problem.reference

def odd(problem, text):
    """Does to its process what the text says."""
    if text == "hang":
        while True:
            pass
    while text == "wait" and not os.path.exists(problem.extra["mark"]):
        time.sleep(0.01)
    if text == "deaf":
        for each in (signal.SIGTERM, signal.SIGINT, signal.SIGALRM):
            signal.signal(each, signal.SIG_IGN)
        time.sleep(100)
    if text == "child":
        with open(problem.extra["mark"], "a") as mark:
            print(subprocess.Popen(["sleep", "600"]).pid, file=mark, flush=True)
        time.sleep(100)
    if text == "eat":
        return len("x" * 2**33) > 0
    if text == "die":
        os._exit(3)
    if text == "stop":
        os.kill(os.getpid(), signal.SIGSTOP)
    if text == "exit":
        sys.exit()
    if text == "print":
        print("noise " * 100000)
    if text == "once":  # hangs only in the first worker
        mark = problem.extra["mark"]
        if not os.path.exists(mark):
            open(mark, "w").close()
            time.sleep(100)
    return True
'''


@pytest.fixture(scope="module")
def module(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("modules")
    (folder / "verifiers_in_a_file.py").write_text(MODULE)
    sys.path.insert(0, str(folder))
    allow_module("verifiers_in_a_file")
    yield "verifiers_in_a_file"
    sys.path.remove(str(folder))


@pytest.fixture
def odd(module: str) -> Iterator[ProcessJudge]:
    judge = ProcessJudge(PythonFunction(function=f"{module}:odd", isolation=QUICK))
    yield judge
    judge.close()


@pytest.fixture
def patient(module: str) -> Iterator[ProcessJudge]:
    """Whatever the machine's other work, no job takes too long."""
    judge = ProcessJudge(PythonFunction(function=f"{module}:odd", isolation=PATIENT))
    yield judge
    judge.close()


def marked(mark: Path) -> Problem:
    return Problem("p", "", "1", extra={"mark": str(mark)})


def completion(text: str) -> Completion:
    ids = np.array([1], dtype=np.int32)
    return Completion(
        "r", 0, ids, ids, np.zeros(1, np.float32), (VersionSpan(0, 0, 1),), np.zeros(1, np.bool_), text, "stop"
    )


def submit(judge: Judge, texts: list[str], problem: Problem | None = None) -> None:
    for place, text in enumerate(texts):
        judge.submit(("r", place), problem or Problem("p", "", "1"), completion(text))


def collect(judge: Judge, seconds: float = 60.0) -> dict[int, Verdict]:
    found: dict[int, Verdict] = {}
    end = time.monotonic() + seconds
    while judge.pending and time.monotonic() < end:
        judge.wait(0.2)
        found.update({key[1]: verdict for key, verdict in judge.poll()})
    return found


def children(pid: int) -> list[int]:
    return [int(each) for each in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def test_the_judge_fits_the_verifier(module: str) -> None:
    assert isinstance(judge_for(Answer()), InlineJudge)
    judge = judge_for(PythonFunction(function=f"{module}:right", isolation=QUICK))
    assert isinstance(judge, ProcessJudge)
    submit(judge, ["1", "2", "1"])
    assert {place: verdict.score for place, verdict in collect(judge).items()} == {0: 1.0, 1: 0.0, 2: 1.0}
    judge.close()
    assert isinstance(judge_for(PythonFunction(function=f"{module}:right", isolation=None)), InlineJudge)


def test_verdicts_are_made_while_nobody_polls(patient: ProcessJudge, tmp_path: Path) -> None:
    submit(patient, ["wait"] * 2, marked(tmp_path / "mark"))
    assert patient.poll() == []  # does not wait
    (tmp_path / "mark").touch()
    assert until(lambda: patient._done.qsize() == 2)
    assert len(patient.poll()) == 2 and patient.pending == 0


@pytest.mark.parametrize(
    ("text", "status", "detail"),
    [
        ("hang", Status.TIMEOUT, "took too long twice"),
        ("deaf", Status.TIMEOUT, "took too long twice"),
        ("stop", Status.TIMEOUT, "took too long twice"),
        ("eat", Status.ERROR, "MemoryError"),
        ("die", Status.ERROR, "the worker ended with status 3 twice"),
        ("exit", Status.ERROR, "ended with status"),
        ("print", Status.CORRECT, ""),
    ],
)
def test_what_a_function_may_do(odd: ProcessJudge, text: str, status: Status, detail: str) -> None:
    submit(odd, [text, "fine", "fine"])
    verdicts = collect(odd)
    assert verdicts[0].status is status
    assert detail in verdicts[0].detail
    assert verdicts[1].score == verdicts[2].score == 1.0


def test_a_timeout_is_tried_once_more_in_a_fresh_worker(odd: ProcessJudge, tmp_path: Path) -> None:
    submit(odd, ["once"], marked(tmp_path / "mark"))
    assert collect(odd)[0].status is Status.CORRECT


def test_what_a_function_starts_dies_with_its_worker(odd: ProcessJudge, tmp_path: Path) -> None:
    submit(odd, ["child"], marked(tmp_path / "mark"))
    assert collect(odd)[0].status is Status.TIMEOUT
    started = [int(pid) for pid in (tmp_path / "mark").read_text().split()]
    assert started and until(lambda: not any(map(alive, started)))


def test_workers_killed_while_they_judge() -> None:
    pool = VerifierPool(MathVerifier(isolation=Isolation(workers=2)))
    judge = ProcessJudge(pool.verifier, pool)
    submit(judge, [r"\boxed{1}"])
    collect(judge)
    submit(judge, [rf"\boxed{{x+{n}}}" for n in range(60)])
    for pid in children(pool.pid):
        os.kill(pid, signal.SIGKILL)
    verdicts = collect(judge)
    assert len(verdicts) == 60
    assert {verdict.status for verdict in verdicts.values()} == {Status.WRONG}
    judge.close()


def test_memory_is_limited() -> None:
    """Without room even to parse: math-verify takes its own lack of memory for an answer that cannot be read."""
    pool = VerifierPool(MathVerifier(isolation=Isolation(workers=1, seconds=30, retry_seconds=30, memory_mib=1)))
    judge = ProcessJudge(pool.verifier, pool)
    submit(judge, [r"\boxed{" + "x+" * 400 + "1}"], Problem("p", "", "x+" * 400 + "2-1"))
    verdict = collect(judge)[0]
    assert verdict.score == 0.0
    assert verdict.status in (Status.UNPARSED, Status.ERROR)
    judge.close()


def test_a_killed_supervisor_is_started_again_and_no_verdict_is_lost(patient: ProcessJudge, tmp_path: Path) -> None:
    submit(patient, ["fine"])
    collect(patient)
    workers = children(patient._pool.pid)
    submit(patient, ["wait"] * 6, marked(tmp_path / "mark"))
    os.kill(patient._pool.pid, signal.SIGKILL)
    (tmp_path / "mark").touch()
    assert [verdict.score for verdict in collect(patient).values()] == [1.0] * 6
    assert until(lambda: not any(map(alive, workers)))


@pytest.mark.timeout(60)
def test_a_stopped_supervisor_does_not_keep_the_pool_from_closing(
    module: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pool_module, "CLOSING_SECONDS", 0.5)
    pool = VerifierPool(PythonFunction(function=f"{module}:odd", isolation=QUICK))
    os.kill(pool.pid, signal.SIGSTOP)
    pool.close()
    assert not alive(pool.pid)


def test_a_supervisor_that_cannot_start_ends_loudly(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "only_in_the_trainer.py"
    file.write_text("import os\nif os.environ.get('STROP_TEST_PARENT') != str(os.getpid()):\n    raise OSError('no')\n"
                    "def right(problem, text):\n    return True\n")  # fmt: skip
    monkeypatch.setenv("STROP_TEST_PARENT", str(os.getpid()))
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(imports, "_allowed", dict(imports._allowed))
    allow_module("only_in_the_trainer")
    judge = ProcessJudge(PythonFunction(function="only_in_the_trainer:right", isolation=QUICK))
    with pytest.raises(WorkersLost, match="OSError"):
        submit(judge, ["1"])
        collect(judge)
    judge.close()


def test_nothing_is_left_after_close(patient: ProcessJudge) -> None:
    submit(patient, ["fine"])
    collect(patient)
    submit(patient, ["hang"] * 4)
    time.sleep(0.1)
    pids = [patient._pool.pid, *children(patient._pool.pid)]
    assert len(pids) == 3
    patient.close()
    patient.close()
    assert until(lambda: not any(alive(pid) for pid in pids))
    with pytest.raises(WorkersLost):
        submit(patient, ["fine"])


@pytest.mark.parametrize("stopped", [False, True])
def test_nothing_is_left_after_the_trainer_is_killed(stopped: bool) -> None:
    code = (
        "import time\nfrom strop.verifiers.math_verifier import MathVerifier\n"
        "from strop.verifiers.process_pool import VerifierPool\n"
        "from strop.base.types import Problem\npool = VerifierPool(MathVerifier())\n"
        "pool.ask(Problem('p', '', '1'), '1').result()\n"
        "print(pool.pid, flush=True)\ntime.sleep(100)\n"
    )
    trainer = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert trainer.stdout is not None
    supervisor = int(trainer.stdout.readline())
    pids = [supervisor, *children(supervisor)]
    if stopped:
        for pid in pids:
            os.kill(pid, signal.SIGSTOP)
    trainer.kill()
    trainer.wait()
    trainer.stdout.close()
    assert until(lambda: not any(alive(pid) for pid in pids))


def test_problems_travel_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "looks_at_the_problem.py").write_text(
        "def right(problem, text):\n"
        "    first = problem.prompt[0]\n"
        "    seen = (first['role'], problem.extra['n'], problem.reference, text)\n"
        "    return seen == ('user', 3, [1, 2], 'é\\u2028x')\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    allow_module("looks_at_the_problem")
    judge = judge_for(PythonFunction(function="looks_at_the_problem:right", isolation=QUICK))
    problem = Problem("p", ({"role": "user", "content": "q"},), [1, 2], extra={"n": 3})
    submit(judge, ["é\u2028x"], problem)
    assert collect(judge)[0].score == 1.0
    submit(judge, ["x"], Problem("p", "", object()))
    assert collect(judge)[0].status is Status.ERROR
    judge.close()
