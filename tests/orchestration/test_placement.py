"""Placement on made-up hosts: who gets which GPU, and what a child that is given one sees of the machine."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strop.base.machine import cuda_visible
from strop.base.types import InputError
from strop.orchestration.placement import Placement, place
from strop.orchestration.settings import OrchestrationSettings


def settings(**given: object) -> OrchestrationSettings:
    return OrchestrationSettings.model_validate({"max_lag": 8, **given})


def gpus(placement: Placement) -> dict[str, tuple[int, ...] | tuple[int, tuple[int, ...]]]:
    """The GPUs of each role, after the number of its host where there are several."""
    several = len(placement.hosts) > 1
    return {one.role: (one.host, one.gpus) if several else one.gpus for one in placement.shares}


def test_without_gpus_nobody_gets_one() -> None:
    found = place((0,), settings(generators=5), 1, evaluator=True)
    assert {one.gpus for one in found.shares} == {()}


def test_one_gpu_is_shared_by_trainer_and_generator() -> None:
    found = place((1,), settings(), 1, evaluator=False)
    assert gpus(found) == {"driver": (0,), "generator-0": (0,)}
    alone = place((1,), settings(max_lag=0), 1, evaluator=False)
    assert gpus(alone) == {"driver": (0,)}


def test_of_two_gpus_the_second_generates_and_evaluates() -> None:
    found = place((2,), settings(), 1, evaluator=True)
    assert gpus(found) == {"driver": (0,), "generator-0": (1,), "evaluator": (1,)}


def test_of_four_gpus_two_train_and_the_driver_holds_none() -> None:
    found = place((4,), settings(trainers=2), 1, evaluator=True)
    assert gpus(found) == {"trainer-0": (0,), "trainer-1": (1,), "generator-0": (2,), "evaluator": (3,)}
    assert found.of("driver").gpus == ()


def test_of_eight_gpus_generators_take_pairs() -> None:
    found = place((8,), settings(generators=3), 2, evaluator=True)
    pairs = {"generator-0": (1, 2), "generator-1": (3, 4), "generator-2": (5, 6)}
    assert gpus(found) == {"driver": (0,), **pairs, "evaluator": (7,)}


def test_a_driver_that_does_not_train_evaluates_where_no_worker_does() -> None:
    assert place((4,), settings(trainers=2), 1, evaluator=False).of("driver").gpus == (3,)
    full = place((4,), settings(trainers=2, generators=2), 1, evaluator=False)
    assert full.of("driver").gpus == (3,) == full.of("generator-1").gpus


def test_two_hosts_of_eight_are_filled_by_a_ray_cluster() -> None:
    spread = settings(executor="ray", trainers=8, generators=1)
    found = gpus(place((8, 8), spread, 4, evaluator=True))
    assert [found[f"trainer-{rank}"] for rank in range(8)] == [(0, (rank,)) for rank in range(8)]
    assert found["generator-0"] == (1, (0, 1, 2, 3)) and found["evaluator"] == (1, (4,))
    with pytest.raises(InputError, match="10 GPUs; .*orchestration.executor=ray"):
        place((8, 8), settings(trainers=2, generators=2), 4, evaluator=False)
    with pytest.raises(InputError, match="17 GPUs; .*orchestration.generators"):
        place((8, 8), settings(executor="ray", trainers=8, generators=2), 4, evaluator=True)
    wide = settings(executor="ray", trainers=10, generators=1, ray={"train_in_cluster": True})
    assert gpus(place((8, 8), wide, 4, evaluator=False))["trainer-9"] == (1, (1,))


def test_a_server_of_the_driver_has_gpus_of_its_own_where_there_are_enough() -> None:
    alone = settings(max_lag=0)
    assert gpus(place((4,), alone, 2, evaluator=False, server=True)) == {"driver": (0,), "generator-0": (1, 2)}
    assert gpus(place((2,), alone, 2, evaluator=False, server=True)) == {"driver": (0,), "generator-0": (0, 1)}


def test_servers_elsewhere_take_no_gpu_here() -> None:
    found = place((2,), settings(generators=6), 0, evaluator=True)
    assert gpus(found) == {"driver": (0,), **{f"generator-{n}": () for n in range(6)}, "evaluator": (1,)}


@pytest.mark.parametrize(
    ("hosts", "given", "width", "needed"),
    [
        ((1,), {"generators": 2}, 1, 3),
        ((8,), {"trainers": 4, "generators": 3}, 2, 10),
        ((4,), {"trainers": 4}, 1, 5),
        ((4,), {"trainers": 3}, 2, 5),
        ((8,), {}, 16, 17),
        ((8, 8), {"generators": 2, "executor": "ray"}, 8, 17),
    ],
)
def test_what_does_not_fit_is_refused_with_the_keys_to_change(
    hosts: tuple[int, ...], given: dict[str, object], width: int, needed: int
) -> None:
    with pytest.raises(InputError, match=rf"{needed} GPUs; .*orchestration\.(generators|executor)"):
        place(hosts, settings(**given), width, evaluator=False)


@given(
    hosts=st.lists(st.integers(0, 8), min_size=1, max_size=3),
    trainers=st.integers(1, 8), generators=st.integers(1, 8), width=st.integers(0, 4), lag=st.integers(0, 1),
    evaluator=st.booleans(), executor=st.sampled_from(["auto", "ray"]), spread=st.booleans(),
)  # fmt: skip
def test_each_gpu_has_one_owner_and_everybody_what_it_was_promised(
    hosts: list[int], trainers: int, generators: int, width: int, lag: int, evaluator: bool, executor: str, spread: bool
) -> None:
    given = settings(
        max_lag=lag, trainers=trainers, generators=generators, executor=executor, ray={"train_in_cluster": spread}
    )
    try:
        found = place(hosts, given, width, evaluator)
    except InputError as error:
        assert "\n" not in str(error)
        return
    owners: dict[tuple[int, int], list[str]] = {}
    for one in found.shares:
        assert all(0 <= gpu < hosts[one.host] for gpu in one.gpus)
        wanted = width if one.role.startswith("generator") else 1
        there = hosts[0] if one.role == "driver" else sum(hosts)  # the driver stays on its host
        assert len(one.gpus) == (wanted if there else 0)
        for gpu in one.gpus:
            owners.setdefault((one.host, gpu), []).append(one.role)
    for roles in owners.values():
        several = [role for role in roles if role not in ("evaluator", "driver")]
        assert len(several) <= 1
        assert len(roles) == 1 or executor == "auto" or "driver" in roles


def test_numbers_are_of_what_this_process_sees(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert cuda_visible((2, 3)) == {"CUDA_VISIBLE_DEVICES": "2,3"} and cuda_visible(()) == {"CUDA_VISIBLE_DEVICES": ""}
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,5,GPU-8f1a")
    assert cuda_visible((0, 2)) == {"CUDA_VISIBLE_DEVICES": "4,GPU-8f1a"}
