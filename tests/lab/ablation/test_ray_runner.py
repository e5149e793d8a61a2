"""What a node of a Ray cluster does with a run; on a cluster: tests/orchestration/test_ray.py."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from tests.forks import forking
from tests.lab.ablation.cases import small_plan
from tests.runs import metrics, small_config

from strop.base.types import InputError
from strop.lab.ablation.manifest import is_finished, write_manifest
from strop.lab.ablation.runners import RunActor, RunJob
from strop.lab.ablation.scheduler import AblationProgress


def test_a_run_that_is_asked_to_stop_saves_its_step(tmp_path: Path) -> None:
    out = tmp_path / "out"
    manifest = small_plan(tmp_path, (0,), ["hot:sampling.temperature=1.5"], "steps=500", "evaluation.every=500")
    write_manifest(out, manifest)
    entry = manifest.runs[0]
    path = manifest.path(out, entry)
    job = RunJob(entry.label, path, manifest.config(entry).model_dump(mode="json"), manifest.log(out, entry))
    actor, progress, deadline = RunActor(), AblationProgress(path / "metrics.jsonl"), time.monotonic() + 120
    with forking(), ThreadPoolExecutor(1) as pool:
        result = pool.submit(actor.run, job)
        while progress.step < 2:
            assert not result.done() and time.monotonic() < deadline
            progress.look()
            time.sleep(0.02)
        actor.stop()
        assert result.result(120).outcome == "stopped" and not is_finished(path)
    assert 2 <= metrics(path)[-1]["step"] < 500
    assert "stopped after step" in manifest.log(out, entry).read_text()


def test_a_node_that_does_not_see_the_folder_says_so(tmp_path: Path) -> None:
    job = RunJob("base seed 0", tmp_path / "out/runs/base", small_config().model_dump(), tmp_path / "out/logs/x")
    with pytest.raises(InputError, match=r"does not see .*out; put it where all nodes do"):
        RunActor().run(job)
