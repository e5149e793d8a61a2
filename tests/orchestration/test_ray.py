"""Workers as Ray actors: the run that processes make, whatever dies; on one cluster for all of this file."""

from __future__ import annotations

import json
import logging
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from bench.simulated import Simulation
from tests.forks import forking
from tests.orchestration.invariants import assert_sound
from tests.orchestration.simulation import beside, made
from tests.orchestration.workers import hear
from tests.runs import assert_same_run, metrics, small_config
from tests.watching import alive, until

from strop.base.types import InputError, StropError
from strop.base.view import SilentView
from strop.orchestration.messages import StoredWeights
from strop.orchestration.ray_workers import Cargo, RayWorkers
from strop.orchestration.settings import RaySettings
from strop.orchestration.workers import Supervision, WorkerSpec, end
from strop.run.run import resume, train
from strop.training import checkpoint

pytestmark = [pytest.mark.ray, pytest.mark.timeout(240)]
SLOWLY = [0, *(pytest.param(lag, marks=pytest.mark.slow) for lag in (1, 2, 4, 8))]
ECHO = "tests.orchestration.workers:echo"
CPUS = 2


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    """One node of two processors, to which tests may add others; this process is its driver."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        patch.setenv("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0")  # of this machine only: 127.0.0.1
        import ray
        from ray.cluster_utils import Cluster

        head = {"num_cpus": CPUS, "object_store_memory": 100 << 20, "include_dashboard": False}
        found = Cluster(initialize_head=True, head_node_args=head)
        ray.init(address=found.address, log_to_driver=False, logging_level=logging.ERROR)
        yield found
        ray.shutdown()
        found.shutdown()


@pytest.fixture
def launcher(cluster: Any) -> RayWorkers:
    return RayWorkers(RaySettings())


def test_messages_deaths_and_last_words(launcher: RayWorkers, tmp_path: Path) -> None:
    launcher.attach(tmp_path)
    handles = [launcher.launch(WorkerSpec(f"echo-{n}", ECHO, {"a": 1}, threads=3)) for n in range(CPUS)]
    one, other = handles
    assert [hear(launcher, handle) for handle in handles] == [[("settings", {"a": 1}, "3")]] * 2
    big = os.urandom(1_000_000)
    for number in range(20):
        one.send((number, big))
    found: list[Any] = []
    while len(found) < 20:
        found += hear(launcher, one)
    assert [message[0] for message in found] == list(range(20)) and found[7][1] == big
    assert one.pid is not None and one.silence < 5
    os.kill(one.pid, signal.SIGKILL)
    assert hear(launcher, one) == [] and one.death is not None and not one.death.fatal
    assert one.death.reason == "its worker process has died"
    one.send("too late")
    other.send("refuse")
    assert hear(launcher, other) == [] and other.death is not None
    assert other.death.fatal and other.death.reason == "this can never work"
    assert "this can never work" in (tmp_path / "logs" / "echo-1.txt").read_text()
    polite = launcher.launch(WorkerSpec("echo-2", ECHO, None))
    hear(launcher, polite)
    end(launcher, [polite])
    assert polite.death is not None and polite.death.reason == "it has ended"


def test_finding_15_a_team_is_on_one_node(cluster: Any, launcher: RayWorkers) -> None:
    import ray

    taken = ray.util.placement_group([{"CPU": 1}])  # one processor is left here: a team of two does not fit
    assert taken.wait(30)
    node = cluster.add_node(num_cpus=2, object_store_memory=100 << 20)
    try:
        team = [launcher.launch(WorkerSpec(f"trainer-{n}", ECHO, None, team=(n, 2))) for n in range(2)]
        for handle in team:
            hear(launcher, handle)
        assert [handle.hello.node for handle in team if handle.hello] == [node.node_id] * 2
        end(launcher, team[:1])
        team[1].send("it goes on")
        assert hear(launcher, team[1]) == ["it goes on"]
        end(launcher, team)
    finally:
        ray.util.remove_placement_group(taken)
        cluster.remove_node(node)


def test_two_actors_train_what_two_processes_train_bit_for_bit(cluster: Any, tmp_path: Path) -> None:
    sets = ("orchestration.generators=2", "optim.lr=1e-2", "steps=3", "evaluation.every=none")
    train(small_config(*sets, "orchestration.executor=ray"), tmp_path / "ray", SilentView())
    with forking():
        train(small_config(*sets, "orchestration.executor=embedded"), tmp_path / "embedded", SilentView())
    assert_same_run(tmp_path / "embedded", tmp_path / "ray")
    assert sum(row["grad_norm"] > 0 for row in metrics(tmp_path / "ray")) >= 1  # so that versions differ
    assert len(list((tmp_path / "ray" / "logs").iterdir())) == 2


@pytest.mark.parametrize("lag", SLOWLY)
@pytest.mark.parametrize("fault", ["generating", "stopping"])
def test_an_actor_killed_or_stopped_changes_nothing(launcher: RayWorkers, tmp_path: Path, fault: str, lag: int) -> None:
    supervision = Supervision(silence=3.0 if fault == "stopping" else 60.0)
    run = made(tmp_path / "run", *beside(lag), fault=fault, launcher=launcher, supervision=supervision).run()
    assert (tmp_path / "run" / "struck").exists()
    assert sum(run.replaced) == 1
    assert_sound(run)


def test_pipeline_rl_keeps_its_bound(launcher: RayWorkers, tmp_path: Path) -> None:
    simulation = Simulation(slots=64, token_seconds=0.002, straggler_share=0.05)
    run = made(tmp_path, "orchestration.max_lag=2", "steps=10", simulation=simulation, launcher=launcher).run()
    assert_sound(run)
    assert run.largest_lag > 0


def test_a_place_that_cannot_be_had_is_one_line(cluster: Any) -> None:
    launcher = RayWorkers(RaySettings(cpus=64, placement_seconds=1.0))
    begin = time.monotonic()
    with pytest.raises(StropError, match=r"^generator-0: .*orchestration\.ray\.placement_seconds"):
        launcher.launch(WorkerSpec("generator-0", ECHO, None, gpus=1))
    assert time.monotonic() - begin < 20


@pytest.mark.parametrize(("address", "said"), [("127.0.0.1:1", "127.0.0.1:1"), ("ray://h:1", "HOST:PORT")])
def test_an_address_without_a_cluster_is_refused(address: str, said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_ADDRESS", address)
    launcher = RayWorkers(RaySettings())
    monkeypatch.setattr("ray.is_initialized", lambda: False)  # this process is in a cluster
    with pytest.raises(StropError, match=said):
        launcher.launch(WorkerSpec("generator-0", ECHO, None))
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    with pytest.raises(InputError, match="RAY_ADDRESS"):
        RayWorkers(RaySettings())


@pytest.mark.parametrize("lag", SLOWLY)
def test_a_node_that_is_lost_takes_nothing_with_it(
    cluster: Any, launcher: RayWorkers, tmp_path: Path, lag: int
) -> None:
    import ray

    taken = ray.util.placement_group([{"CPU": CPUS}])
    assert taken.wait(30)
    node = cluster.add_node(num_cpus=CPUS, object_store_memory=100 << 20)
    run = made(tmp_path / "run", *beside(lag), launcher=launcher)
    nodes: list[str] = []

    def remove(step: int) -> None:
        if step == 3:
            nodes.extend(generator.worker.hello.node for generator in run.fleet.generators)  # type: ignore[attr-defined]
            ray.util.remove_placement_group(taken)
            cluster.remove_node(node, allow_graceful=False)

    run.learner.before = remove
    run.run()
    assert nodes == [node.node_id] * 2  # so that weights went through Ray's object store until then
    assert {generator.worker.hello.node for generator in run.fleet.generators} != set(nodes)  # type: ignore[attr-defined]
    assert_sound(run)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_ranks_on_two_nodes_train_what_two_processes_train(cluster: Any, tmp_path: Path) -> None:
    sets = ("orchestration.trainers=2", "optim.lr=1e-2", "steps=3", "evaluation.every=none")
    with forking():
        train(small_config(*sets), tmp_path / "processes", SilentView())
    # A rank fills the driver's node, so that the other one and the generator go to the second.
    node = cluster.add_node(num_cpus=2 * CPUS, object_store_memory=100 << 20)
    ray = ("orchestration.executor=ray", "orchestration.ray.train_in_cluster=true", f"orchestration.ray.cpus={CPUS}")
    view = Nodes()
    try:
        train(small_config(*sets, *ray), tmp_path / "ray", view)
    finally:
        cluster.remove_node(node)
    assert view.of_actors[node.node_id] == 2 and sum(view.of_actors.values()) == 3
    assert_same_run(tmp_path / "processes", tmp_path / "ray")
    assert sum(row["grad_norm"] > 0 for row in metrics(tmp_path / "ray")) >= 1


class Nodes(SilentView):
    """Counts the places that actors have on each node at the first step."""

    def __init__(self) -> None:
        self.of_actors: Counter[str] = Counter()

    def advance(self, step: int, values: object) -> None:
        import ray

        if step == 1:
            for row in ray.util.placement_group_table().values():
                if row["state"] == "CREATED":
                    self.of_actors.update(row["bundles_to_node_id"].values())


@pytest.mark.slow
def test_the_actors_of_a_killed_driver_end(cluster: Any, tmp_path: Path) -> None:
    driver, actors = driver_on(cluster, tmp_path / "run")
    driver.kill()
    driver.wait()
    assert until(lambda: not any(map(alive, actors)), 90)


@pytest.mark.slow
def test_ctrl_c_ends_the_actors_and_the_run_can_be_resumed(cluster: Any, tmp_path: Path) -> None:
    out = tmp_path / "run"
    driver, actors = driver_on(cluster, out)
    os.killpg(driver.pid, signal.SIGINT)  # as a terminal does
    assert driver.wait(60) == 130
    assert until(lambda: not any(map(alive, actors)), 10)
    assert json.loads((out / "status.json").read_text())["state"] == "interrupted"
    step = checkpoint.latest(out / "checkpoints")
    assert step is not None and metrics(out)[-1]["step"] == step >= 2
    stored = json.loads((out / "config.json").read_text())
    stored["orchestration"]["executor"] = "embedded"  # the same run without a cluster
    (out / "config.json").write_text(json.dumps(stored | {"steps": step + 1}))
    with forking():
        assert resume(out, SilentView()).summary.steps == step + 1


def driver_on(cluster: Any, out: Path) -> tuple[subprocess.Popen[bytes], list[int]]:
    """A run of two steps at least, which goes on; its driver, and the processes of its actors."""
    code = (
        "import sys\n"
        "from pathlib import Path\n"
        "from strop.base.view import SilentView\n"
        "from strop.run.run import Interrupted, train\n"
        "from tests.runs import small_config\n"
        "sets = ('steps=500', 'evaluation.asynchronous=false', 'orchestration.executor=ray')\n"
        "try:\n"
        "    train(small_config(*sets), Path(sys.argv[1]), SilentView())\n"
        "except Interrupted as error:\n"
        "    sys.exit(error.exit_code)\n"
    )
    environment = {**os.environ, "RAY_ADDRESS": cluster.address}
    driver = subprocess.Popen([sys.executable, "-c", code, str(out)], env=environment, start_new_session=True)
    deadline = time.monotonic() + 150
    while not (out / "checkpoints" / "step-00000002").exists():
        assert driver.poll() is None and time.monotonic() < deadline
        time.sleep(0.05)
    rows = {row["role"]: row["pid"] for row in json.loads((out / "processes.json").read_text())}
    assert rows.keys() == {"driver", "generator-0"}
    return driver, [rows["generator-0"]]


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_an_actor_evaluates_beside_training_and_comes_to_the_same(cluster: Any, tmp_path: Path) -> None:
    sets = ("optim.lr=3e-2", "steps=3")
    train(small_config(*sets), tmp_path / "one", SilentView())
    train(small_config(*sets, "orchestration.executor=ray"), tmp_path / "ray", SilentView())
    assert_same_run(tmp_path / "one", tmp_path / "ray")
    assert {path.name for path in (tmp_path / "ray" / "logs").iterdir()} == {"generator-0.txt", "evaluator.txt"}


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_finding_8_a_generator_of_another_node_gets_differences(
    cluster: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import ray

    taken = ray.util.placement_group([{"CPU": CPUS}])
    assert taken.wait(30)
    node = cluster.add_node(num_cpus=CPUS, object_store_memory=100 << 20)
    packed: list[bool] = []
    pack = RayWorkers._pack

    def seen(self: RayWorkers, stored: StoredWeights) -> Cargo:
        found = pack(self, stored)
        packed.append(found.base is not None)
        return found

    monkeypatch.setattr(RayWorkers, "_pack", seen)
    sets = ("steps=3", "evaluation.every=none", "model.dtype=bfloat16", "optim.lr=1e-5")
    try:
        train(small_config(*sets, "orchestration.executor=ray"), tmp_path / "ray", SilentView())
    finally:
        ray.util.remove_placement_group(taken)
        cluster.remove_node(node)
    with forking():
        train(small_config(*sets, "orchestration.executor=embedded"), tmp_path / "embedded", SilentView())
    assert packed == [False, True, True, True]
    assert_same_run(tmp_path / "embedded", tmp_path / "ray")
