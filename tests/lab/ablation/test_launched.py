"""Runs in workers that a launcher starts; here they are processes (on Ray: tests/orchestration/test_ray.py)."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.forks import forking
from tests.lab.ablation.cases import small_plan
from tests.runs import metrics, small_config

from strop.base.types import InputError
from strop.lab.ablation.launched import Launched, Needs, main
from strop.lab.ablation.manifest import is_finished, write_manifest
from strop.lab.ablation.running import Ended, Job, Running
from strop.orchestration.processes import Processes
from strop.orchestration.ray_host import QueueLine


def ended(run: Running, seconds: float = 120.0) -> Ended:
    deadline = time.monotonic() + seconds
    while (found := run.poll()) is None:
        assert time.monotonic() < deadline, "it took too long"
        run.steps.look()
        time.sleep(0.02)
    return found


@pytest.fixture
def forked_runs() -> Iterator[None]:
    """The worker is forked, and forks its run."""
    with forking():
        yield


@pytest.mark.usefixtures("forked_runs")
def test_a_run_that_is_asked_to_stop_saves_its_step(tmp_path: Path) -> None:
    out = tmp_path / "out"
    manifest = small_plan(tmp_path, (0,), ["hot:sampling.temperature=1.5"], "steps=500", "evaluation.every=500")
    write_manifest(out, manifest)
    entry = manifest.runs[0]
    path = manifest.path(out, entry)
    config = manifest.config(entry).model_dump(mode="json")
    place = Launched(Processes(), Needs())
    run = place.start(Job(entry.label, path, config, manifest.log(out, entry)), 0)
    while run.steps.step < 2:
        assert run.poll() is None
        run.steps.look()
        time.sleep(0.02)
    run.ask()
    found = ended(run)
    run.close()
    place.close()
    assert found.outcome == "stopped" and found.seconds > 0 and not is_finished(path)
    assert 2 <= metrics(path)[-1]["step"] < 500
    assert "stopped after step" in manifest.log(out, entry).read_text()


def test_a_run_that_is_asked_before_it_begins_never_does(tmp_path: Path) -> None:
    place = Launched(Processes(), Needs())
    place.close()  # so that nothing is launched
    run = place.start(Job("base seed 0", tmp_path / "run", {}, tmp_path / "log"), 0)
    assert run.poll() is None
    run.ask()
    assert ended(run).outcome == "stopped" and not (tmp_path / "run").exists()


def test_a_node_that_does_not_see_the_folder_says_so(tmp_path: Path) -> None:
    job = Job("base seed 0", tmp_path / "out" / "runs" / "base", small_config().model_dump(), tmp_path / "out/logs/x")
    with pytest.raises(InputError, match=r"does not see .*out; put it where all nodes do"):
        main(QueueLine(), job)
