"""Workers that are objects of this process and move when the controller waits: every order of events by a seed.

The loop, the gate, the ledger, the fleet, the weight store and the generators' serving loop are the real ones; only the
processes are not, so that a thousand deaths take seconds, and come again with the same seed.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Self

from bench.simulated import SimulatedEngine, Simulation, load

from strop.base.types import Completion, Problem, Verdict
from strop.engines.protocol import Request
from strop.orchestration.fleet import GeneratorServer
from strop.orchestration.messages import Ready
from strop.orchestration.workers import LOOPBACK, Death, WorkerHandle, WorkerLauncher, WorkerSpec
from strop.verifiers.protocol import Judge, Key
from strop_verify.verdict import Status

KILLED = "it was ended by SIGKILL"


class Dies(BaseException):
    """The puppet is killed where this is raised."""


@dataclass(frozen=True)
class Fate:
    """How likely it is, each time, that something goes wrong.

    Attributes:
        dies: at any point of a worker's round: before it, at a request, within a swap, before a result is out.
        freezes: a worker stops, and says nothing more.
    """

    dies: float = 0.0
    freezes: float = 0.0


class Puppet:
    """A worker: its `ControllerConnection`, and the generator behind it. The controller has a `_Controlled` of it."""

    address = LOOPBACK

    def __init__(self, role: str, simulation: Simulation, fate: Fate, chance: random.Random) -> None:
        self.role = role
        self.pid = None
        self.stalled = 0.0
        self.frozen = False
        self.fate, self.chance = fate, chance
        self.speed = chance.choice((1.0, 1.0, 0.2, 0.02))  # some are slow to start, and so are told of two versions
        self._in: deque[Any] = deque()
        self._out: deque[Any] = deque()
        self._end: Death | None = None
        self._server = GeneratorServer(self, _Engine(self, simulation), load)
        self._out.append(Ready())

    # -------------------------------------------------------------- the controller's end

    @property
    def silence(self) -> float:
        return 1e9 if self.frozen else 0.0

    @property
    def death(self) -> Death | None:
        return None if self._out else self._end

    def receive(self, seconds: float | None = None) -> list[Any]:
        """What has come through by now: to the controller without `seconds`, else to the worker."""
        queue = self._out if seconds is None else self._in
        return [queue.popleft() for _ in range(self.chance.randint(0, len(queue)))]

    def send_to_worker(self, message: object) -> None:
        if self._end is None:
            self._in.append(message)

    def dismiss(self) -> None:
        self._over("it has ended")

    def kill(self, reason: str) -> None:
        self._over(reason)

    # -------------------------------------------------------------- the worker's end

    def send(self, message: object) -> None:
        self.risk()
        self._out.append(message)

    def progress(self) -> None:
        """Nobody asks."""

    def risk(self) -> None:
        """Perhaps the end."""
        if self.chance.random() < self.fate.dies:
            raise Dies

    def advance(self) -> None:
        """A round of the worker: what has come in, and a step."""
        if self._end is not None or self.frozen or self.chance.random() > self.speed:
            return
        self.frozen = self.chance.random() < self.fate.freezes
        try:
            self.risk()
            self._server.listen()
            if self._server.engine.unfinished:
                self._server.step()
        except Dies:
            self._over(KILLED)

    def _over(self, reason: str) -> None:
        """What the worker had sent may have gone out in part: a beginning of it."""
        if self._end is None:
            self._end = Death(reason)
            while self._out and self.chance.random() < 0.5:
                self._out.pop()


class _Engine(SimulatedEngine):
    """May die of a request, and within a swap."""

    def __init__(self, puppet: Puppet, simulation: Simulation) -> None:
        super().__init__(simulation)
        self.puppet = puppet

    def submit(self, request: Request) -> None:
        super().submit(request)
        self.puppet.risk()

    def update_weights(self, source: Any, version: int, kv: Any = "keep") -> None:
        self.puppet.risk()
        super().update_weights(source, version, kv)
        self.puppet.risk()


class _Controlled(WorkerHandle):
    """The controller's view of a puppet, whose `send` and `receive` are the other way round."""

    def __init__(self, puppet: Puppet) -> None:
        super().__init__(puppet.role)
        self.puppet = puppet

    @property
    def pid(self) -> None:
        return None

    @property
    def silence(self) -> float:
        return self.puppet.silence

    @property
    def death(self) -> Death | None:
        return self.puppet.death

    def send(self, message: object) -> None:
        self.puppet.send_to_worker(message)

    def receive(self) -> list[Any]:
        return self.puppet.receive()

    def dismiss(self) -> None:
        self.puppet.dismiss()

    def kill(self, reason: str) -> None:
        self.puppet.kill(reason)


class Clock:
    """Stands for the module `time` in the fleet and the loop: it goes on where the fleet waits, and nowhere else."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now

    def perf_counter(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


class Reader:
    """Stands for the thread that reads weights while sequences go on: it has read them after steps left to chance."""

    def __init__(self, chance: random.Random) -> None:
        self.chance = chance

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        """Nothing runs."""

    def submit(self, read: Callable[..., Any], *given: Any) -> Self:
        self.result = partial(read, *given)
        return self

    def done(self) -> bool:
        return self.chance.random() < 0.5


class Puppets(WorkerLauncher):
    """Starts puppets."""

    def __init__(self, fate: Fate, chance: random.Random, clock: Clock) -> None:
        super().__init__()
        self.fate, self.chance, self.clock = fate, chance, clock

    def launch(self, spec: WorkerSpec) -> WorkerHandle:
        return _Controlled(Puppet(spec.role, spec.settings, self.fate, self.chance))

    def wait(self, handles: Sequence[WorkerHandle], seconds: float) -> None:
        """Somebody moves, perhaps much further than the others."""
        self.clock.sleep(0.02)
        for handle in self.chance.sample(list(handles), self.chance.randint(1, len(handles))):
            assert isinstance(handle, _Controlled)
            for _ in range(self.chance.choice((1, 1, 2, 8))):
                handle.puppet.advance()


class SlowJudge(Judge):
    """Verdicts in any order and at any time; the verifier fails at some first samples."""

    def __init__(self, chance: random.Random) -> None:
        self.chance = chance
        self._queue: list[tuple[Key, Completion]] = []

    @property
    def pending(self) -> int:
        return len(self._queue)

    def submit(self, key: Key, problem: Problem, completion: Completion, seed: int = 0) -> None:
        self._queue.append((key, completion))

    def poll(self) -> list[tuple[Key, Verdict]]:
        self.chance.shuffle(self._queue)
        done = [self._queue.pop() for _ in range(self.chance.randint(0, len(self._queue)))]
        return [(key, _verdict(completion)) for key, completion in done]

    def wait(self, seconds: float) -> None:
        """They come at `poll`."""

    def close(self) -> None:
        """Nothing to end."""


def _verdict(completion: Completion) -> Verdict:
    first = int(completion.token_ids[0])
    if completion.index == 0 and first % 10 == 0:
        return Verdict(0.0, Status.TIMEOUT, "it hangs")
    return Verdict(1.0, Status.CORRECT) if first % 2 else Verdict(0.0, Status.WRONG)
