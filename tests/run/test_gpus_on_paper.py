"""Where processes go on a machine with GPUs and what they take there, as far as a machine without GPUs can show it."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from tests.run.paper import PaperMachine, on_paper

from strop.base.machine import GIB
from strop.base.types import InputError
from strop.engines.settings import Vllm
from strop.run.memory import MemoryPlace, MemoryPlan

SERVED = "engine=Vllm"
FOUR_AND_FOUR = (SERVED, "orchestration.trainers=4", "orchestration.generators=4")


def gib(plan: MemoryPlan) -> dict[MemoryPlace, float]:
    """What is taken of each place."""
    taken: Counter[MemoryPlace] = Counter()
    for claim in plan.claims:
        taken[claim.place] += claim.size
    return {place: size / GIB for place, size in taken.items()}


def test_finding_4_a_server_takes_what_the_others_on_its_gpu_leave(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The command of docs/gpus.md."""
    machine = PaperMachine(monkeypatch, gpus=1)
    config = on_paper(tmp_path, "Qwen3-0.6B", SERVED)
    plan = machine.planned(config)
    assert plan.finding.level == "ok" and isinstance(plan.config.engine, Vllm)
    taken = gib(plan)[MemoryPlace(0, 0)]
    assert 70 < taken <= 77 and 0.5 < (plan.config.engine.memory_fraction or 0) < 0.85
    machine.assembled(config, tmp_path)
    assert machine.driver == "cuda:0" and machine.launched["generator-0"].settings.engine == plan.config.engine


def test_finding_4_a_part_that_leaves_no_room_is_refused_with_the_setting_that_does(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    machine = PaperMachine(monkeypatch, gpus=1)
    config = on_paper(tmp_path, "Qwen3-0.6B", SERVED, "engine.memory_fraction=0.98")
    with pytest.raises(InputError, match=r"of 80 GiB \(vLLM's server 78.*set engine.memory_fraction=none, with which"):
        machine.assembled(config, tmp_path)
    assert not machine.launched and not machine.driver


def test_finding_4_a_part_that_does_not_hold_the_weights_is_refused_before_anything_loads(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    machine = PaperMachine(monkeypatch, gpus=8)
    config = on_paper(tmp_path, "Qwen3-8B", *FOUR_AND_FOUR, "engine.memory_fraction=0.15")
    with pytest.raises(InputError, match=r"memory_fraction=0.15 gives a server 12 of 80 GiB .* at least 0\.\d\d"):
        machine.assembled(config, tmp_path)
    assert not machine.launched and not machine.driver
    enough = config.model_copy(update={"engine": config.engine.model_copy(update={"memory_fraction": 0.4})})
    plan = machine.planned(enough)
    assert plan.finding.level == "ok" and gib(plan)[MemoryPlace(0, 7)] == pytest.approx(32)


def test_finding_3_four_trainers_and_four_servers_of_8b_fit_on_eight_gpus(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    machine = PaperMachine(monkeypatch, gpus=8)
    config = on_paper(tmp_path, "Qwen3-8B", *FOUR_AND_FOUR)
    plan = machine.planned(config)
    assert plan.finding.level == "ok" and plan.config.optim.offload is False
    assert {claim.role for claim in plan.claims if claim.place == MemoryPlace(0, 7)} == {"generator-3"}
    machine.assembled(config, tmp_path)
    seen = {role: spec.environment["CUDA_VISIBLE_DEVICES"] for role, spec in machine.launched.items()}
    assert seen == {f"trainer-{n}": str(n) for n in range(4)} | {f"generator-{n}": str(n + 4) for n in range(4)}
    assert machine.driver == "cpu"


def test_finding_3_an_evaluator_that_has_no_room_beside_a_generator_is_refused(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    machine = PaperMachine(monkeypatch, gpus=2, gib=40)
    config = on_paper(tmp_path, "Qwen3-0.6B", "engine.slots=16", "orchestration.max_lag=1")
    plan = machine.planned(config)
    assert plan.finding.level == "error" and "on GPU 1 " in plan.finding.found and "evaluation " in plan.finding.found


@pytest.mark.parametrize("evaluates", [False, True])
def test_finding_5_on_ray_the_driver_stays_off_the_gpu_of_rank_0_unless_it_computes(
    evaluates: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    pytest.importorskip("ray")
    machine = PaperMachine(monkeypatch, gpus=8)
    sets = ("orchestration.executor=ray", "orchestration.trainers=4", "orchestration.generators=4", "engine.slots=16")
    config = on_paper(tmp_path, "Qwen3-0.6B", *sets, f"evaluation.asynchronous={not evaluates}".lower())
    drivers = {claim.place for claim in machine.planned(config).claims if claim.purpose == "evaluation"}
    assert (MemoryPlace(0, 0) in drivers) == evaluates
    monkeypatch.setattr("strop.run.assembly.Parts.start", lambda self, folder, view: None)
    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:6379")
    machine.assembled(config, tmp_path)
    assert machine.driver == ("cuda:0" if evaluates else "cpu")


@pytest.mark.parametrize(
    ("model", "gpus", "sets"),
    [
        ("Qwen3-32B", 16, ("orchestration.trainers=8", "orchestration.generators=4", "engine.tensor_parallel=2")),
        ("Qwen3-30B-A3B", 8, ("orchestration.trainers=4", "orchestration.generators=2", "engine.tensor_parallel=2")),
    ],
)
def test_finding_6_large_models_fit_with_what_is_offloaded(
    model: str, gpus: int, sets: tuple[str, ...], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    machine = PaperMachine(monkeypatch, gpus=8)
    if gpus > 8:
        sets = (*sets, "orchestration.executor=ray")
    plan = machine.planned(on_paper(tmp_path, model, SERVED, *sets))
    assert plan.finding.level == "ok" and plan.config.optim.offload is True
    assert max(taken for place, taken in gib(plan).items() if place.gpu is not None) <= 80


def test_a_host_that_is_too_small_for_what_is_offloaded_is_refused(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    machine = PaperMachine(monkeypatch, gpus=2, gib=12, host_gib=6)
    plan = machine.planned(on_paper(tmp_path, "Qwen3-0.6B", SERVED))
    assert plan.finding.level == "error" and "of the host" in plan.finding.found
