"""Workers as Ray actors on the nodes of a running cluster; the same handles as of spawned processes.

    launcher = RayWorkers(RaySettings())            # of the cluster that RAY_ADDRESS names
    handle = launcher.launch(WorkerSpec("generator-0", "strop.orchestration.fleet:main", settings, gpus=1))

Each worker, or team of workers, has a placement group on one node, requested with a time-out. Each has an actor in it
that Ray never restarts: an actor that came back by itself would have its first weights. A thread for each actor
collects its messages; a death is the error of that call.

Actors on this node read weights from the store. For actors of other nodes weights go through Ray's object store, once a
version, as a difference (`weight_store`) to the last version that went in full where that is much smaller. They are put
together, and checked, there.

The actor (`RayHost`) runs the worker's entry in a separate thread. Two queues connect it to the controller, which
fills one (`deliver`) and empties the other (`collect`: it waits a second at most, so that its answers are heartbeats).
Importing this module does not import ray.
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import mmap
import os
import pickle
import signal
import socket
import sys
import threading
import time
import traceback
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

from strop.base.imports import require
from strop.base.types import InputError, StropError, first_line
from strop.orchestration.messages import Evaluate, StoredWeights, WeightUpdate
from strop.orchestration.process_registry import ProcessRegistry, RegisteredWorker
from strop.orchestration.settings import RaySettings
from strop.orchestration.workers import (
    HEARTBEAT_SECONDS,
    LOGS,
    LOOPBACK,
    ControllerGone,
    WorkerHandle,
    WorkerLauncher,
    WorkerSetup,
    WorkerSpec,
    environment_of,
    last_words,
    standing_since,
    written,
)
from strop_verify.child_process import import_path


class Cargo(NamedTuple):
    """Weights as they travel to another node: `content` in full, or what makes them of a `base`.

    uint8 arrays, or Ray's references to those.
    """

    content: Any
    base: Any = None

    def pieces(self) -> Iterator[memoryview]:
        """The bytes of the weights' file."""
        if self.base is None:
            yield memoryview(self.content)
        else:
            from strop.orchestration.weight_store import patched

            yield from patched(self.base, self.content)


@dataclasses.dataclass(frozen=True)
class Hello:
    """The process of an actor, and Ray's name of its node."""

    worker: RegisteredWorker
    node: str


@dataclasses.dataclass(frozen=True)
class Collected:
    """The output of an actor: pickled messages in order, and the seconds that its work has stood still."""

    bodies: tuple[bytes, ...]
    stalled: float
    ended: bool


class QueueConnection:
    """A `ControllerConnection` over two queues. Weights that come with a message stay in this process."""

    def __init__(self) -> None:
        self.address = LOOPBACK
        self._changed = threading.Condition()
        self._early: dict[int, tuple[bytes, Cargo | None]] = {}  # a threaded actor may be called out of order
        self._due = 0
        self._in: list[tuple[bytes, Cargo | None]] = []
        self._out: list[bytes] = []
        self._closed = self._ended = False
        self._came_round = time.monotonic()
        self._staged: int | None = None

    # ------------------------------------------------------------------ the entry's

    def send(self, message: object) -> None:
        """Queue a message."""
        self._leave(written(message))

    def receive(self, seconds: float) -> list[Any]:
        """The messages that are in, up to the first with weights; waits up to `seconds` for one.

        Weights that came with the last one have been read by now.
        """
        if self._staged is not None:
            os.close(self._staged)
            self._staged = None
        self.progress()
        with self._changed:
            self._changed.wait_for(lambda: self._in or self._closed, seconds)
            if self._closed and not self._in:
                raise ControllerGone
            count = next((number for number, (_, weights) in enumerate(self._in, 1) if weights is not None), None)
            found, self._in = self._in[:count], self._in[count:] if count else []
        self.progress()
        return [self._read(body, weights) for body, weights in found]

    def progress(self) -> None:
        """The work goes on."""
        self._came_round = time.monotonic()

    def _read(self, body: bytes, weights: Cargo | None) -> Any:
        message = pickle.loads(body)
        if weights is None:
            return message
        assert isinstance(message, WeightUpdate | Evaluate)
        stored = dataclasses.replace(message.weights, path=self._stage(weights))
        return dataclasses.replace(message, weights=stored)

    def _stage(self, weights: Cargo) -> str:
        """A file without a name, which ends with this process at the latest; its reader checks the digest."""
        self._staged = os.memfd_create("strop-weights")
        for piece in weights.pieces():
            while piece:
                piece = piece[os.write(self._staged, piece) :]
        return f"/proc/{os.getpid()}/fd/{self._staged}"

    # ------------------------------------------------------------------ the actor's

    def come(self, number: int, body: bytes, weights: Cargo | None) -> None:
        """Message `number` has come; it is received after those before it."""
        with self._changed:
            self._early[number] = body, weights
            while self._due in self._early:
                self._in.append(self._early.pop(self._due))
                self._due += 1
            self._changed.notify_all()

    def close(self) -> None:
        """The controller has closed the connection."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def end(self, last: bytes | None) -> None:
        """The entry has ended; `last` is its last message."""
        with self._changed:
            if last is not None:
                self._out.append(last)
            self._ended = True
            self._changed.notify_all()

    def collect(self) -> Collected:
        """The messages that the entry has sent since the last call; waits a heartbeat for the first."""
        with self._changed:
            self._changed.wait_for(lambda: self._out or self._ended, HEARTBEAT_SECONDS)
            found, self._out = self._out, []
            return Collected(tuple(found), standing_since(self._came_round), self._ended)

    def _leave(self, body: bytes) -> None:
        with self._changed:
            self._out.append(body)
            self._changed.notify_all()


class RayHost:
    """The actor. Its methods run concurrently with each other and with the entry.

    Args:
        content: the pickled `WorkerSetup`. It is unpickled in the entry's thread, so that a failure is reported.
    """

    def __init__(self, content: bytes) -> None:
        self._connection = QueueConnection()
        threading.Thread(target=self._run, args=(content,), daemon=True, name="entry").start()

    def hello(self, role: str) -> Hello:
        """The actor's process and node."""
        import ray

        return Hello(RegisteredWorker.of(role, os.getpid()), str(ray.get_runtime_context().get_node_id()))

    def deliver(self, number: int, body: bytes, *cargo: Any) -> None:
        """Message `number`, counted from 0, with the `Cargo` of its weights if their file is on another node."""
        self._connection.come(number, body, Cargo(*cargo) if cargo else None)

    def collect(self) -> Collected:
        """The messages that the worker has sent since; at least once in a heartbeat."""
        return self._connection.collect()

    def dismiss(self) -> None:
        """The controller has closed the connection."""
        self._connection.close()

    def _run(self, content: bytes) -> None:
        last: bytes | None = None
        try:
            setup = pickle.loads(content)
            assert isinstance(setup, WorkerSetup)
            # The run's folder if this node sees it, and this node's import path too.
            folder = setup.folder if setup.folder is not None and setup.folder.is_dir() else None
            path = tuple(dict.fromkeys([*setup.path, *sys.path]))
            setup = dataclasses.replace(setup, path=path, folder=folder)
            self._connection.address = address_of_node()
            if folder is not None:
                _write_to(folder / LOGS / f"{setup.spec.role}.txt")
            setup.run(self._connection)
        except ControllerGone:
            pass  # the normal end
        except BaseException as error:  # whatever it is, the controller must hear of it
            traceback.print_exc()
            last = written(last_words(error))
        self._connection.end(last)


def address_of_node() -> str:
    """Where other nodes of the cluster reach this one; the loopback device's outside of a cluster."""
    import ray

    return str(ray.util.get_node_ip_address()) if ray.is_initialized() else LOOPBACK


def _write_to(path: Path) -> None:
    """From now on what this process prints goes to the end of `path`."""
    with contextlib.suppress(OSError):  # then it stays with Ray's own logs
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("ab") as log:
            os.dup2(log.fileno(), 1)
            os.dup2(log.fileno(), 2)


START_SECONDS = 600.0  # for an actor's process: its node may have to read an environment over a network first
_LOOK_SECONDS = 1.0
_KNOCK_SECONDS = 10.0
_CALLS_AT_ONCE = 4  # of an actor: one collects, others deliver
_ADDRESS = "RAY_ADDRESS"
_AUTO_CONNECT = "RAY_ENABLE_AUTO_CONNECT"


@dataclasses.dataclass
class _Places:
    """A placement group, and how many of its workers have not ended."""

    group: Any
    left: int


class RayHandle(WorkerHandle):
    """A `WorkerHandle` to an actor."""

    def __init__(self, launcher: RayWorkers, role: str, actor: Any, places: _Places) -> None:
        super().__init__(role)
        self._launcher = launcher
        self.actor = actor
        self.places = places
        self.hello: Hello | None = None
        self.sent = 0

    @property
    def pid(self) -> int | None:
        """The process id of a worker of this machine; None before it runs, and for another machine's."""
        return self.hello.worker.pid if self.hello is not None and self.hello.worker.here else None

    def send(self, message: object) -> None:
        """Queue a message."""
        self._launcher.send(self, message)

    def dismiss(self) -> None:
        """Close the worker's line."""
        if self.end is None:
            self.actor.dismiss.options(num_returns=0).remote()

    def kill(self, reason: str) -> None:
        """SIGKILL if the process is on this machine, and `ray.kill`."""
        if self.end is None and self.killed(reason):
            self._launcher.kill(self)


class RayWorkers(WorkerLauncher):
    """A `WorkerLauncher` of Ray actors.

    Args:
        settings: the resources of a worker.
        registry: the running workers; shared with the launchers of the run's other workers.

    Raises:
        InputError: ray is not installed, or no cluster is named.
    """

    def __init__(self, settings: RaySettings, registry: ProcessRegistry | None = None) -> None:
        super().__init__(registry)
        self.settings = settings
        os.environ[_AUTO_CONNECT] = "0"  # a thread that comes late must not start a cluster
        self._ray = require("ray", extra="ray", purpose="Ray clusters")
        self._address = os.environ.get(_ADDRESS)
        if self._address is None and not self._ray.is_initialized():
            way_out = f"start one with `ray start --head`, then set {_ADDRESS}=HOST:PORT"
            raise InputError(f"orchestration.executor=ray: no cluster is named; {way_out}")
        self._joined = False
        self._places: _Places | None = None  # of the last team
        self._threads: list[threading.Thread] = []
        self._packer = ThreadPoolExecutor(1, thread_name_prefix="weights for other nodes")
        self._packed: tuple[str, Cargo] | None = None  # the last version, by its digest
        self._base: tuple[Any, Any] | None = None  # the last that went in full: Ray's reference, and what it refers to

    def launch(self, spec: WorkerSpec) -> RayHandle:
        """Start a worker; waits for its place in the cluster.

        Raises:
            StropError: the cluster is not reached, or none of its nodes has room for the worker in time.
        """
        self._connect()
        number, size = spec.team
        if number == 0 or self._places is None:
            self._places = _Places(self._place(spec), size)
        places = self._places
        environment = {"PYTHONPATH": import_path(), **environment_of(spec)}
        place = self._ray.util.scheduling_strategies.PlacementGroupSchedulingStrategy(
            places.group, placement_group_bundle_index=number
        )
        actor = (
            self._ray.remote(RayHost)
            .options(
                num_cpus=self.settings.cpus,
                num_gpus=spec.gpus,
                max_restarts=0,
                max_task_retries=0,
                max_concurrency=_CALLS_AT_ONCE,
                scheduling_strategy=place,
                runtime_env={"env_vars": environment},
            )
            .remote(written(WorkerSetup.of(spec, self.folder)))
        )
        handle = RayHandle(self, spec.role, actor, places)
        thread = threading.Thread(target=self._watch, args=(handle,), daemon=True, name=f"handle to {spec.role}")
        self._threads = [other for other in self._threads if other.is_alive()] + [thread]
        thread.start()
        return handle

    def close(self) -> None:
        """Leave the cluster; its workers are ended before."""
        for thread in self._threads:
            thread.join(_LOOK_SECONDS * 5)
        self._threads = []
        self._packer.shutdown(cancel_futures=True)
        self._packed = self._base = None
        if self._joined:
            self._joined = False
            self._ray.shutdown()

    # ------------------------------------------------------------------ the cluster

    def _connect(self) -> None:
        """Join the cluster; one that this process is in already serves as it is."""
        if self._ray.is_initialized():
            return
        assert self._address is not None
        try:
            _knock(self._address)
            self._ray.init(address=self._address, log_to_driver=False, logging_level=logging.ERROR)
        except (OSError, RuntimeError, ValueError) as error:
            way_out = f"start one with `ray start --head`, or name another by {_ADDRESS}"
            raise StropError(f"no Ray cluster is reached at {self._address}: {first_line(error)}; {way_out}") from error
        self._joined = True

    def _place(self, spec: WorkerSpec) -> Any:
        """A placement group for a worker and the others of its team, granted."""
        team = spec.team[1]
        wanted = {"CPU": self.settings.cpus} | ({"GPU": float(spec.gpus)} if spec.gpus else {})
        util = self._ray.util
        here = {"ray.io/node-id": self._ray.get_runtime_context().get_node_id()}
        selector = [here] * team if spec.beside_controller else None
        group = util.placement_group([wanted] * team, strategy="STRICT_PACK", bundle_label_selector=selector)
        if not group.wait(timeout_seconds=self.settings.placement_seconds):
            util.remove_placement_group(group)
            total, free = self._ray.cluster_resources(), self._ray.available_resources()
            has = " and ".join(f"{total.get(kind, 0):g} {kind} ({free.get(kind, 0):g} free)" for kind in ("CPU", "GPU"))
            asked = " and ".join(f"{count:g} {kind}" for kind, count in wanted.items())
            asked += f" for each of {team} on one node" if team > 1 else ""
            where = " on the driver's node" if spec.beside_controller else ""
            raise StropError(
                f"{spec.role}: no place in the Ray cluster within {self.settings.placement_seconds:g} s: it needs "
                f"{asked}{where}, and the cluster has {has}; lower orchestration.generators or orchestration.ray.cpus, "
                "add nodes, or raise orchestration.ray.placement_seconds"
            )
        return group

    # ------------------------------------------------------------------ messages

    def send(self, handle: RayHandle, message: object) -> None:
        """Queue a message for a worker, with its weights if the worker cannot read their file.

        Those are packed in another thread, and the messages after them wait for them at the worker.
        """
        with self._changed:
            if handle.end is not None:
                return
            # Under the lock: messages are numbered in the order in which they were sent.
            number, handle.sent = handle.sent, handle.sent + 1
            if isinstance(message, WeightUpdate | Evaluate) and not self._is_on_this_node(handle):
                self._packer.submit(self._send_weights, handle, number, message)
            else:
                handle.actor.deliver.options(num_returns=0).remote(number, written(message))

    def _is_on_this_node(self, handle: RayHandle) -> bool:
        assert handle.hello is not None  # it was ready for weights
        return bool(handle.hello.node == self._ray.get_runtime_context().get_node_id())

    def _send_weights(self, handle: RayHandle, number: int, message: WeightUpdate | Evaluate) -> None:
        try:
            content, base = self._pack(message.weights)
            cargo = (content,) if base is None else (content, base)
            handle.actor.deliver.options(num_returns=0).remote(number, written(message), *cargo)
        except Exception as error:  # the version is gone because the worker is, or Ray has no room for it
            handle.kill(f"version {message.weights.version} was not sent: {type(error).__name__}: {first_line(error)}")

    def _pack(self, stored: StoredWeights) -> Cargo:
        """References to a version, which is in Ray's object store once, with the full version that it is made of."""
        if self._packed is None or self._packed[0] != stored.digest:
            import numpy as np

            from strop.orchestration.weight_store import difference

            with open(stored.path, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
                content = np.frombuffer(mapped, np.uint8)
                delta = None if self._base is None else difference(self._base[1], content)
                if delta is not None and self._base is not None:
                    cargo = Cargo(self._ray.put(delta), self._base[0])
                else:
                    cargo = Cargo(self._ray.put(content))
                    self._base = cargo.content, self._ray.get(cargo.content)  # mapped, not copied
                del content  # or the mapping could not be closed
            self._packed = stored.digest, cargo
        return self._packed[1]

    def kill(self, handle: RayHandle) -> None:
        """End a worker's process."""
        if handle.hello is not None and handle.hello.worker.alive:
            with contextlib.suppress(ProcessLookupError):
                os.kill(handle.hello.worker.pid, signal.SIGKILL)  # Ray only asks a process to end
        self._ray.kill(handle.actor)

    # ------------------------------------------------------------------ the thread of a handle

    def _watch(self, handle: RayHandle) -> None:
        """Until the worker is gone."""
        try:
            hello = self._answer(handle, handle.actor.hello.remote(handle.role), START_SECONDS)
            assert isinstance(hello, Hello)
            with self._changed:
                handle.hello = hello
                handle.heard = handle.looked = time.monotonic()
            self._registry.add(hello.worker)
            while True:
                collected = self._answer(handle, handle.actor.collect.remote(), None)
                assert isinstance(collected, Collected)
                self._take(handle, collected)
                if collected.ended:
                    break
            reason = "it has ended"
        except _Late:
            reason = f"its process did not start within {START_SECONDS:g} s"
        except Exception as error:  # Ray's errors, or a cluster that is gone: the handle says why it died
            reason = _reason(error)
        self._reap(handle, reason)

    def _answer(self, handle: RayHandle, reference: Any, seconds: float | None) -> Any:
        """The answer of a call; meanwhile the handle notes that this process listens."""
        begin = time.monotonic()
        while True:
            asked = time.monotonic()
            try:
                return self._ray.get(reference, timeout=_LOOK_SECONDS)
            except self._ray.exceptions.GetTimeoutError:
                now = time.monotonic()
                if now - asked < 2 * _LOOK_SECONDS:  # else this process was stopped and could not hear anything
                    handle.looked = now
                if handle.hello is None:
                    handle.heard = handle.looked
                if seconds is not None and now - begin > seconds:
                    raise _Late from None

    def _take(self, handle: RayHandle, collected: Collected) -> None:
        messages = [pickle.loads(body) for body in collected.bodies]
        with self._changed:
            handle.take(messages)
            handle.stalled = collected.stalled
            if messages:
                self._changed.notify_all()

    def _reap(self, handle: RayHandle, exit_reason: str) -> None:
        """Let go of an ended actor and its place in the cluster."""
        with contextlib.suppress(Exception):  # the cluster may be gone; then so are actor and place
            self.kill(handle)
            with self._changed:
                handle.places.left -= 1
            if handle.places.left == 0:
                self._ray.util.remove_placement_group(handle.places.group)
        if handle.hello is not None:
            self._registry.remove(handle.hello.worker)
        with self._changed:
            handle.finish(exit_reason)
            self._changed.notify_all()


class _Late(Exception):
    """An answer did not come in time."""


def _knock(address: str) -> None:
    """Check that a server listens at HOST:PORT; Ray itself would try for minutes. `auto` is for Ray to find.

    Raises:
        OSError: none does.
        ValueError: that is no such address.
    """
    if address == "auto":
        return
    host, _, port = address.rpartition(":")
    if not host or "/" in host or not port.isdecimal():
        raise ValueError("an address is HOST:PORT, that of `ray start --head`")
    socket.create_connection((host.strip("[]"), int(port)), timeout=_KNOCK_SECONDS).close()


def _reason(error: Exception) -> str:
    """Ray's report of a death in one line."""
    said = " ".join(str(error).split())
    found = said.partition("The actor is dead because ")[2].partition(". ")[0]
    return found or f"{type(error).__name__}: {said[:300]}"
