"""A fleet of many generators does for a completion no more than it must."""

from __future__ import annotations

from typing import Any

import pytest
from tests.orchestration.puppets import Clock

from strop.orchestration import fleet as fleets
from strop.orchestration.executor import ProbeCheck
from strop.orchestration.fleet import Fleet, GeneratorHandle
from strop.orchestration.weight_store import WeightStore
from strop.orchestration.workers import Supervision, Team, WorkerHandle, WorkerLauncher, WorkerSpec


class _Silent(WorkerHandle):
    pid = None

    def send(self, message: object) -> None:
        pass

    def dismiss(self) -> None:
        pass

    def kill(self, reason: str) -> None:
        pass


class _Launcher(WorkerLauncher):
    def launch(self, spec: WorkerSpec) -> WorkerHandle:
        return _Silent(spec.role)


def test_who_is_silent_is_looked_for_once_a_second_and_a_death_is_seen_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    looked: list[int] = []
    checked = Team.check

    def check(self: Team, number: int, busy: bool) -> Any:
        looked.append(number)
        return checked(self, number, busy)

    notes: list[str] = []
    specs = [WorkerSpec(f"generator-{number}", "", None) for number in range(8)]
    store = WeightStore(1 << 16, notes.append)
    fleet = Fleet(_Launcher(), specs, lambda *file: None, store, Supervision(), notes.append, ProbeCheck())  # type: ignore
    fleet._team.start()
    fleet.generators = [GeneratorHandle(number, fleet._team) for number in range(8)]
    monkeypatch.setattr(Team, "check", check)
    clock = Clock()
    monkeypatch.setattr(fleets, "time", clock)
    for clock.now in (10.0, 10.5, 10.9, 11.1):
        fleet._hear()
    assert looked == [*range(8)] * 2
    worker = fleet.generators[3].worker
    assert isinstance(worker, _Silent)
    worker.finish("it was ended")
    fleet._hear()
    assert looked[16:] == [3] and "generator-3 died (it was ended)" in notes[0]
