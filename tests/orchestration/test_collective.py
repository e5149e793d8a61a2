"""Weights that are broadcast: runs come to what they come to through files, whoever dies in the middle of it."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from bench.simulated import SimulatedLearner
from tests.orchestration.invariants import assert_sound
from tests.orchestration.simulation import made
from tests.runs import assert_same_run, small_config

from strop.base.types import InputError, StropError
from strop.base.view import SilentView
from strop.config.parse import edit
from strop.engines.broadcast import LOOPBACK, Ticket, TransferLost, Watch
from strop.orchestration.fleet import Supervision
from strop.orchestration.weight_transport import (
    Carrier,
    CollectiveCarrier,
    StoredCarrier,
    WithFallback,
    broadcast_backend,
)
from strop.recipes.resolve import resolve
from strop.run.run import train

pytestmark = pytest.mark.usefixtures("forked")
TENSOR_BYTES = 64  # of the simulated hundred


def carrier(learner: SimulatedLearner, note: Callable[[str], None]) -> Carrier:
    """A bucket for each tensor."""
    return CollectiveCarrier(learner.send, lambda: LOOPBACK, "gloo", 60.0, note, TENSOR_BYTES)


def on_a_bad_line(learner: SimulatedLearner, note: Callable[[str], None]) -> CollectiveCarrier:
    """From version 2 on the sender hangs up, whatever it is told."""

    def hang_up() -> None:
        raise TransferLost("the line is bad")

    def send(ticket: Ticket, watch: Watch) -> str:
        return learner.send(ticket, hang_up if ticket.version >= 2 else watch)

    return CollectiveCarrier(send, lambda: LOOPBACK, "gloo", 60.0, note, TENSOR_BYTES)


broadcasting = partial(made, carrier=carrier)


def test_a_generator_killed_while_it_receives_changes_nothing(tmp_path: Path) -> None:
    run = broadcasting(tmp_path, fault="receiving").run()
    assert (tmp_path / "struck").exists()
    assert any("died (it was ended by SIGKILL)" in line for line in run.notes.lines)
    assert any("the broadcast of version 2 was lost" in line for line in run.notes.lines)
    assert_sound(run)


@pytest.mark.slow
@pytest.mark.parametrize("point", ["generating", "sending", "swapping"])
def test_a_generator_killed_elsewhere_changes_nothing(tmp_path: Path, point: str) -> None:
    run = broadcasting(tmp_path, fault=point).run()
    assert (tmp_path / "struck").exists() and any("died" in line for line in run.notes.lines)
    assert_sound(run)


@pytest.mark.slow
def test_a_generator_that_freezes_while_it_receives_is_replaced(tmp_path: Path) -> None:
    run = broadcasting(tmp_path, fault="freezing", supervision=Supervision(silence=4.0, stall=60.0)).run()
    assert any("it has not answered" in line for line in run.notes.lines)
    assert_sound(run)


@pytest.mark.slow
def test_weights_reach_somebody_even_if_all_generators_die_at_once(tmp_path: Path) -> None:
    run = broadcasting(tmp_path)
    run.kill_all_before(2)
    run.run()
    assert sum("died" in line for line in run.notes.lines) == 2
    assert_sound(run)


@pytest.mark.slow
def test_broadcasts_that_fail_for_no_known_reason_end_the_run_with_a_way_out(tmp_path: Path) -> None:
    run = made(tmp_path, carrier=on_a_bad_line)
    with pytest.raises(StropError, match="version 2 did not reach the generators in 3 .*the line is bad") as caught:
        run.run()
    assert "orchestration.weights=shared_memory" in str(caught.value)
    assert run.records[-1].step == 1  # and whoever generated went on with what it had


@pytest.mark.slow
def test_where_nobody_has_asked_for_broadcasts_files_take_their_place(tmp_path: Path) -> None:
    def carrier(learner: SimulatedLearner, note: Callable[[str], None]) -> Carrier:
        stored = StoredCarrier(lambda store, v: store.write(v, learner.weights()), 1 << 16, note)
        return WithFallback(on_a_bad_line(learner, note), stored, note)

    run = made(tmp_path, carrier=carrier).run()
    assert any("from now on weights go through files" in line for line in run.notes.lines)
    assert_sound(run)


@pytest.mark.slow
def test_a_run_comes_to_the_same_by_broadcasts(tmp_path: Path) -> None:
    sets = ("steps=2", "orchestration.executor=embedded", "orchestration.generators=2", "evaluation.every=none")
    for way in ("shared_memory", "collective"):
        train(small_config(*sets, f"orchestration.weights={way}"), tmp_path / way, SilentView())
    assert_same_run(tmp_path / "shared_memory", tmp_path / "collective")
    assert not list(tmp_path.glob("collective/weights*"))


@pytest.mark.slow
def test_a_gang_broadcasts_what_it_has_gathered(tmp_path: Path) -> None:
    sets = ("steps=2", "orchestration.trainers=2", "orchestration.executor=embedded", "evaluation.every=none")
    for way in ("files", "collective"):
        train(small_config(*sets, f"orchestration.weights={way}"), tmp_path / way, SilentView())
    assert_same_run(tmp_path / "files", tmp_path / "collective")


@pytest.mark.parametrize(
    ("way", "executor", "own", "devices", "backend"),
    [
        ("auto", "embedded", "cpu", ["cpu", "cpu"], None),
        ("auto", "embedded", "cuda:0", ["cuda:1", "cuda:2"], "nccl"),
        ("auto", "auto", "cuda:0", ["cuda:1"], "nccl"),
        ("auto", "embedded", "cuda:0", ["cuda:0"], None),  # one GPU
        ("auto", "embedded", "cuda:0", ["cuda:1", "cuda:1"], None),
        ("auto", "ray", "cuda:0", ["cuda", "cuda"], None),
        ("collective", "ray", "cuda:0", ["cuda", "cuda"], "nccl"),
        ("collective", "embedded", "cpu", ["cpu"], "gloo"),
        ("shared_memory", "embedded", "cuda:0", ["cuda:1"], None),
        ("files", "embedded", "cuda:0", ["cuda:1"], None),
    ],
)
def test_weights_are_broadcast_where_it_was_asked_for_or_where_each_has_a_gpu(
    way: Any, executor: str, own: str, devices: list[str], backend: str | None
) -> None:
    assert broadcast_backend(way, executor, own, devices) == backend


def test_a_gpu_of_two_processes_takes_no_broadcast() -> None:
    with pytest.raises(InputError, match="trainer and generators have cuda:0, cuda:0; use fewer generators"):
        broadcast_backend("collective", "embedded", "cuda:0", ["cuda:0"])


def test_a_way_to_nobody_is_refused() -> None:
    with pytest.raises(InputError, match="orchestration.weights=collective is a way to generators in other processes"):
        edit(resolve("grpo"), ["orchestration.weights=collective"])
