"""Placement: who computes on which GPU of which host, as a pure function of the settings.

    placement = place((8,), settings, width=2, evaluator=True)
    placement.of("generator-0").gpus        # (1, 2), as the first host counts its GPUs

Each GPU has one owner, with exceptions where GPUs are short: a trainer shares a single GPU with its only generator, and
the evaluator takes turns with the last generator. On a Ray cluster a driver that evaluates shares the first GPU of its
host, whose others are not its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from strop.base.types import InputError
from strop.orchestration.settings import OrchestrationSettings

# Trainers and generators are numbered: trainer-0, generator-0.
DRIVER, TRAINER, GENERATOR, EVALUATOR = "driver", "trainer", "generator", "evaluator"


@dataclass(frozen=True)
class DeviceShare:
    """The GPUs of one process, or of the server behind it.

    Attributes:
        role: the name of the process among the run's workers.
        host: the number of its host, the driver's being 0.
        gpus: numbers of its GPUs, as the host counts them; none where it computes on the CPU or only hands on.
    """

    role: str
    host: int
    gpus: tuple[int, ...]


@dataclass(frozen=True)
class Placement:
    """The share of each role, on `hosts` with so many GPUs each."""

    hosts: tuple[int, ...]
    shares: tuple[DeviceShare, ...]

    def of(self, role: str) -> DeviceShare:
        """The share of a role; one without a GPU for a role that has none."""
        return next((share for share in self.shares if share.role == role), DeviceShare(role, 0, ()))

    def gpus_of(self, *roles: str) -> set[tuple[int, int]]:
        """The GPUs, as (host, number), of all whose role begins with one of these."""
        return {(share.host, gpu) for share in self.shares if share.role.startswith(roles) for gpu in share.gpus}

    def as_json(self) -> dict[str, Any]:
        """Plain values."""
        return asdict(self)


class _Short(Exception):
    """There are not enough GPUs."""


def place(
    hosts: Sequence[int], settings: OrchestrationSettings, width: int, evaluator: bool, server: bool = False
) -> Placement:
    """Who gets which GPU.

    Args:
        hosts: how many GPUs each host has, the driver's first; more hosts than one are for `executor=ray`.
        settings: generators, trainers, and whether they are processes.
        width: GPUs of one generator's engine (tensor parallelism); 0 if generators run on other machines.
        evaluator: a worker evaluates during training.
        server: engines are servers, which also evaluate; if the driver generates too, its server is `generator-0` here.

    Raises:
        InputError: it does not fit; the message names the settings to change.
    """
    try:
        return _placed(tuple(hosts), settings, width, evaluator, server)
    except _Short:
        raise InputError(_too_few(tuple(hosts), settings, width, evaluator)) from None


def _placed(
    hosts: tuple[int, ...], settings: OrchestrationSettings, width: int, evaluator: bool, server: bool
) -> Placement:
    trains = [DRIVER] if settings.trainers == 1 else [f"{TRAINER}-{rank}" for rank in range(settings.trainers)]
    count = int(server) if settings.in_process else settings.generators
    generates = [f"{GENERATOR}-{number}" for number in range(count)]
    evaluates = [EVALUATOR] if evaluator else []
    if sum(hosts) == 0:
        return Placement(hosts, tuple(DeviceShare(role, 0, ()) for role in (*trains, *generates, *evaluates)))
    on_ray = settings.executor == "ray"
    few = hosts[0] < 1 + width and (hosts[0] == 1 or settings.in_process)
    free = _Free(hosts, shared=few and len(hosts) == 1 and settings.trainers == 1 and count <= 1 and not on_ray)
    spread = on_ray and settings.ray.train_in_cluster and DRIVER not in trains  # the driver stays on its host
    shares = [free.take(role, 1, everywhere=spread) for role in trains]
    shares += [free.take(role, width, everywhere=on_ray) for role in generates]
    if evaluates or (DRIVER not in trains and not server):  # such a driver evaluates where no worker does
        role = EVALUATOR if evaluates else DRIVER
        if on_ray:  # which lets each worker see GPUs that are its own; the driver sees those of its host
            first = DeviceShare(role, 0, (0,) if hosts[0] else ())
            shares.append(free.take(role, 1, everywhere=True) if evaluates else first)
        else:
            shares.append(_spare_or_shared(role, free, shares))
    return Placement(hosts, tuple(shares))


class _Free:
    """The GPUs that have no owner yet; if they are `shared`, every role gets the same ones."""

    def __init__(self, hosts: tuple[int, ...], shared: bool) -> None:
        self._left = [list(range(count)) for count in hosts]
        self._shared = shared

    def take(self, role: str, count: int, everywhere: bool) -> DeviceShare:
        """The next `count` GPUs of one host, of the driver's unless a role may live `everywhere`."""
        for host, left in enumerate(self._left if everywhere else self._left[:1]):
            if len(left) >= count:
                taken = tuple(left[:count])
                if not self._shared:
                    del left[:count]
                return DeviceShare(role, host, taken)
        raise _Short


def _spare_or_shared(role: str, free: _Free, shares: Sequence[DeviceShare]) -> DeviceShare:
    """A free GPU of the driver's host; else the last one that a role there has, which is a generator's if one is there.

    None if the driver's host has no GPU.
    """
    try:
        return free.take(role, 1, everywhere=False)
    except _Short:
        here = [share for share in shares if share.host == 0 and share.gpus]
        return DeviceShare(role, 0, here[-1].gpus[-1:] if here else ())


def _too_few(hosts: tuple[int, ...], settings: OrchestrationSettings, width: int, evaluator: bool) -> str:
    """One line: how many GPUs are wanted, how many there are, and which settings to change."""
    generators = 0 if settings.in_process else settings.generators
    total = settings.trainers + generators * width + (evaluator and settings.executor == "ray")
    wanted = f"orchestration.trainers={settings.trainers} and orchestration.generators={generators}, {width} GPUs each"
    way_out = "lower orchestration.generators, orchestration.trainers or engine.tensor_parallel"
    if len(hosts) > 1 and settings.executor != "ray":
        way_out = "set orchestration.executor=ray to use more than one host"
    return f"{wanted}, need {total} GPUs; the hosts have {' + '.join(map(str, hosts))}: {way_out}"
