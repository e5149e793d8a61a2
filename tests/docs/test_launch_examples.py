"""The launch examples parse, name recipes and settings that exist, and do in a dry run what they say."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from strop.recipes import catalogue

ROOT = Path(__file__).parents[2]
SLURM = ROOT / "examples" / "launch" / "slurm.sh"
KUBERAY = ROOT / "examples" / "launch" / "kuberay.yaml"


def test_the_slurm_script_is_bash() -> None:
    done = subprocess.run(["bash", "-n", str(SLURM)], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert os.access(SLURM, os.X_OK)


def test_the_slurm_script_passes_shellcheck() -> None:
    if shutil.which("shellcheck") is None:
        pytest.skip("needs shellcheck")
    done = subprocess.run(["shellcheck", str(SLURM)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


def stand_ins(folder: Path, status: int) -> dict[str, str]:
    """An environment in which Slurm, Ray and strop only write down how they were called."""
    programs = folder / "venv" / "bin"
    programs.mkdir(parents=True)
    calls = folder / "calls"
    scripts = {
        "scontrol": 'if [[ $1 == show ]]; then printf "n1\\nn2\\n"; fi',
        "srun": 'if [[ "$*" == *hostname* ]]; then echo 10.0.0.1; fi',
        "ray": 'printf " 1 node_a\\n 1 node_b\\n"',
        "sleep": "true",
        "strop": f"exit {status}",
    }
    for name, body in scripts.items():
        (programs / name).write_text(f'#!/bin/bash\necho "{name} $*" >> "{calls}"\n{body}\n')
        (programs / name).chmod(0o755)
    (programs / "activate").write_text(f'export PATH="{programs}:$PATH"\n')
    slurm = {"SLURM_JOB_NODELIST": "n[1-2]", "SLURM_JOB_NUM_NODES": "2", "SLURM_JOB_ID": "77"}
    return {**os.environ, **slurm, "STROP_VENV": str(folder / "venv"), "HOME": str(folder)}


@pytest.mark.parametrize(("status", "requeued"), [(0, False), (75, True), (130, True), (2, False)])
def test_the_slurm_script_starts_goes_on_and_requeues(tmp_path: Path, status: int, requeued: bool) -> None:
    environment = stand_ins(tmp_path, status)
    run = tmp_path / "run"
    command = ["bash", str(SLURM), "grpo", str(run), "--set", "steps=7"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == status, done.stderr
    calls = (tmp_path / "calls").read_text().splitlines()
    (started,) = [call for call in calls if call.startswith("strop ")]
    assert started == (
        f"strop train grpo --out {run} --set orchestration.executor=ray --set orchestration.generators=8 "
        "--set orchestration.trainers=8 --set steps=7 --plain"
    )
    (head,) = [call for call in calls if "ray start --head" in call]  # all GPUs of its node train
    assert "--nodelist=n1 env CUDA_VISIBLE_DEVICES= ray" in head and head.endswith("--num-gpus=0")
    assert any("ray start --block --address=10.0.0.1:6379" in call and "--exclude=n1" in call for call in calls)
    assert ("scontrol requeue 77" in calls) == requeued


def test_the_slurm_script_goes_on_with_a_run_that_exists(tmp_path: Path) -> None:
    environment = stand_ins(tmp_path, 0)
    run = tmp_path / "run"
    run.mkdir()
    (run / "run.json").write_text("{}")
    subprocess.run(["bash", str(SLURM), "grpo", str(run)], env=environment, capture_output=True, timeout=60, check=True)
    assert f"strop train --resume {run} --plain" in (tmp_path / "calls").read_text().splitlines()


def test_the_kuberay_manifest_is_a_job_with_its_volume() -> None:
    import yaml

    claim, job = yaml.safe_load_all(KUBERAY.read_text())
    assert (claim["kind"], job["kind"]) == ("PersistentVolumeClaim", "RayJob")
    cluster = job["spec"]["rayClusterSpec"]
    groups = [cluster["headGroupSpec"], *cluster["workerGroupSpecs"]]
    for group in groups:
        pod = group["template"]["spec"]
        volumes = {volume["name"]: volume for volume in pod["volumes"]}
        assert volumes["runs"]["persistentVolumeClaim"]["claimName"] == claim["metadata"]["name"]
        for container in pod["containers"]:
            assert {mount["name"] for mount in container["volumeMounts"]} == set(volumes)
    gpus = sum(group["replicas"] * int(group["rayStartParams"]["num-gpus"]) for group in cluster["workerGroupSpecs"])
    wanted = {name: int(count) for name, count in re.findall(r"orchestration\.(\w+)=(\d+)", job["spec"]["entrypoint"])}
    assert wanted["generators"] == gpus == 16  # Ray's
    (head,) = cluster["headGroupSpec"]["template"]["spec"]["containers"]
    assert cluster["headGroupSpec"]["rayStartParams"]["num-gpus"] == "0"
    assert wanted["trainers"] == int(head["resources"]["limits"]["nvidia.com/gpu"]) == 4  # the driver's, on the head
    recipe = re.search(r"strop train (\S+) --out", job["spec"]["entrypoint"])
    assert recipe is not None and recipe[1] in {entry.name for entry in catalogue()}
