"""How much one controller handles, with generators and a trainer that compute nothing. One JSON object a line.

    python bench/controller.py --generators 16,256,4096             # as fast as the controller can
    python bench/controller.py --generators 4096 --rate 250         # completions that generators finish a second

Loop, ledger, lag gate, fleet, verifier pool, diagnostics and rollout files are those of a run. The generators are one
process, which sends completions of random tokens and words, no two alike, and one thread unpickles them here, as the
threads of real workers do. What a transport itself takes (Ray's object store, a thread a worker) is not in the figures.
"""

from __future__ import annotations

import argparse
import contextlib
import heapq
import json
import multiprocessing
import pickle
import tempfile
import threading
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from multiprocessing.connection import Connection
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import numpy as np
import torch

from strop.base.types import Completion, FloatArray, Group, IntArray, VersionSpan
from strop.base.view import SilentView
from strop.config.parse import edit
from strop.config.schema import RunConfig
from strop.data.loading import load_data
from strop.engines.protocol import Request
from strop.model.files import byte_tokenizer
from strop.orchestration.executor import ProbeCheck
from strop.orchestration.fleet import Fleet
from strop.orchestration.messages import Finished, Ready, Submit, Updated, WeightUpdate, Work
from strop.orchestration.weight_store import WeightStore
from strop.orchestration.workers import Supervision, WorkerHandle, WorkerLauncher, WorkerSpec, written
from strop.recipes.resolve import resolve
from strop.run.folder import RunFolder
from strop.run.loop import Loop
from strop.training.samples import TrainResult, make_candidates, make_samples
from strop.verifiers.judges import judge_for

WORDS = 3000  # that texts are made of
TEXTS = 256  # beginnings of texts; what follows tells completions apart
HEARTBEAT = 1.0


# ---------------------------------------------------------------------- the generators


class Generators:
    """The process of all generators: it answers requests after `seconds`, from half to one and a half times that."""

    def __init__(self, line: Connection, tokens: int, seconds: float) -> None:
        self.line, self.tokens, self.seconds = line, tokens, seconds
        self.rng = np.random.default_rng(0)
        words = ["".join(map(chr, self.rng.integers(97, 123, 4))) for _ in range(WORDS)]
        self.texts = [" ".join(words[i] for i in self.rng.integers(0, WORDS, tokens * 4 // 5)) for _ in range(TEXTS)]
        self.token_ids = self.rng.integers(0, 150_000, 64 * tokens).astype(np.int32)
        self.logprobs = -self.rng.exponential(0.5, 64 * tokens).astype(np.float32)
        self.due: list[tuple[float, int, int, int, Request]] = []  # when, count, generator, sample, request
        self.count = 0
        self.versions: dict[int, int] = {}

    def run(self) -> None:
        """Until the line is closed."""
        try:
            while True:
                while self.line.poll(max(self.due[0][0] - time.monotonic(), 0.0) if self.due else None):
                    body = self.line.recv_bytes()
                    self.take(int.from_bytes(body[:4], "big"), pickle.loads(memoryview(body)[4:]))
                    if self.due and self.due[0][0] <= time.monotonic():
                        break
                while self.due and self.due[0][0] <= time.monotonic() and not self.line.poll():
                    self.finish()
        except (EOFError, OSError):
            pass

    def take(self, number: int, message: Any) -> None:
        """Answer a message to a generator."""
        if isinstance(message, WeightUpdate):
            self.versions[number] = message.weights.version
            logprobs = np.zeros(len(message.probe) - 1, np.float32)
            self.send(number, Updated(message.weights.version, logprobs, Work(1.0, 0.0)))
        elif isinstance(message, Submit):
            for request in message.requests:
                for sample in range(request.n):
                    self.count += 1
                    due = time.monotonic() + self.seconds * self.rng.uniform(0.5, 1.5)
                    heapq.heappush(self.due, (due, self.count, number, sample, request))

    def finish(self) -> None:
        """Send the completion that is due first."""
        _, count, number, sample, request = heapq.heappop(self.due)
        start, length = int(self.rng.integers(63 * self.tokens)), self.tokens
        completion = Completion(
            request_id=request.id,
            index=sample,
            prompt_ids=request.prompt_ids,
            token_ids=self.token_ids[start : start + length],
            logprobs=self.logprobs[start : start + length],
            versions=(VersionSpan(self.versions[number], 0, length),),
            injected=np.zeros(length, np.bool_),
            text=f"{self.texts[count % TEXTS]} {count} \\boxed{{{count % 7}}}",
            finish_reason="stop",
        )
        self.send(number, Finished((completion,), Work(1.0, 0.0)))

    def send(self, number: int, message: object) -> None:
        self.line.send_bytes(number.to_bytes(4, "big") + written(message))


def generate(line: Connection, tokens: int, seconds: float) -> None:
    """The entry of their process."""
    Generators(line, tokens, seconds).run()


class StubHandle(WorkerHandle):
    """The controller's end of one of them."""

    pid = None

    def __init__(self, role: str, number: int, outbox: SimpleQueue[bytes]) -> None:
        super().__init__(role)
        self.number, self.outbox = number, outbox
        self.take([Ready()])

    def send(self, message: object) -> None:
        self.outbox.put(self.number.to_bytes(4, "big") + written(message))

    def dismiss(self) -> None:
        self.finish("it has ended")

    def kill(self, reason: str) -> None:
        self.finish(reason)


class StubLauncher(WorkerLauncher):
    """Handles to generators that are one process."""

    def __init__(self, tokens: int, seconds: float) -> None:
        super().__init__()
        self.handles: list[StubHandle] = []
        self.outbox: SimpleQueue[bytes] = SimpleQueue()  # a real handle's `send` does not wait either
        context = multiprocessing.get_context("spawn")
        self.line, end = context.Pipe()
        self.process = context.Process(target=generate, args=(end, tokens, seconds), daemon=True)
        self.process.start()
        end.close()

    def launch(self, spec: WorkerSpec) -> WorkerHandle:
        self.handles.append(StubHandle(spec.role, len(self.handles), self.outbox))
        if len(self.handles) == 1:
            for work in (self.watch, self.beat, self.deliver):
                threading.Thread(target=work, daemon=True).start()
        return self.handles[-1]

    def watch(self) -> None:
        """Take what generators send."""
        while True:
            try:
                body = self.line.recv_bytes()
            except (EOFError, OSError):
                return
            message = pickle.loads(memoryview(body)[4:])
            with self._changed:
                self.handles[int.from_bytes(body[:4], "big")].take([message])
                self._changed.notify_all()

    def deliver(self) -> None:
        """Send what is queued."""
        with contextlib.suppress(OSError):
            while True:
                self.line.send_bytes(self.outbox.get())

    def beat(self) -> None:
        """Heartbeats of all."""
        while True:
            time.sleep(HEARTBEAT)
            for handle in list(self.handles):
                with self._changed:
                    handle.take([])


# ---------------------------------------------------------------------- the trainer


class StubLearner:
    """Makes the samples of a step, as a learner does, and trains on none."""

    def __init__(self, config: RunConfig) -> None:
        self.config = config

    def probe(self, token_ids: IntArray) -> FloatArray:
        return np.zeros(len(token_ids) - 1, np.float32)

    def enter(self, config: Any, updates: int) -> None:
        pass

    def learn(self, groups: Sequence[Group], survivors: Collection[int], step: int, states: Mapping[str, Any]) -> Any:
        algorithm = self.config.algorithm
        candidates = make_candidates(groups, survivors, algorithm.truncation_mask)
        samples = make_samples(candidates, algorithm.advantage)
        return TrainResult(tuple(replace(sample, trainer_logprobs=sample.logprobs) for sample in samples), {})


# ---------------------------------------------------------------------- a run


def steps_of(arguments: argparse.Namespace) -> int:
    """Those before it is measured, those measured, and those in which the pipeline runs dry."""
    return arguments.steps + 2 * (arguments.lag + 1)


def configured(arguments: argparse.Namespace, generators: int) -> RunConfig:
    """GRPO with `MathVerifier`, every group kept."""
    return edit(
        resolve("grpo"),
        [
            f"steps={steps_of(arguments)}", f"batch.prompts_per_step={arguments.prompts}",
            f"batch.samples_per_prompt={arguments.samples}", f"sampling.max_new_tokens={arguments.tokens}",
            "verifier=MathVerifier", "evaluation.every=none", f"orchestration.max_lag={arguments.lag}",
            "orchestration.executor=embedded", "orchestration.window=full", f"orchestration.generators={generators}",
        ],
    )  # fmt: skip


def measure(arguments: argparse.Namespace, generators: int) -> dict[str, Any]:
    """Train the steps and say what they took, the first ones left out, in which generators start."""
    config, silent = configured(arguments, generators), SilentView()
    a_step = arguments.prompts * arguments.samples
    wanted = (arguments.lag + 1) * a_step / arguments.rate if arguments.rate else 0.0
    launcher = StubLauncher(arguments.tokens, wanted)
    weights = {"weight": torch.zeros(16)}
    fleet = Fleet(
        launcher=launcher,
        specs=[WorkerSpec(f"generator-{number}", "", None) for number in range(generators)],
        source=lambda file, version: file.write(version, weights.items()),
        store=WeightStore(1 << 16, silent.note),
        supervision=Supervision(),
        note=lambda line: None,
        check=ProbeCheck(),
    )
    judge, wall, cpu = judge_for(config.verifier), 0.0, 0.0
    laps: list[dict[str, float]] = []
    data = load_data(config.data, byte_tokenizer()).train
    loop = Loop(config, data, fleet, judge, StubLearner(config), silent)  # type: ignore[arg-type]
    with tempfile.TemporaryDirectory() as place:
        folder = RunFolder.create(Path(place, "run"), config.model_dump(mode="json"))
        try:
            fleet.start(folder.path)
            loop.reopen()
            for step in range(arguments.lag + 1 + arguments.steps):
                if step == arguments.lag + 1:
                    wall, cpu, laps = time.perf_counter(), time.process_time(), []
                record = loop.next_step()
                assert record is not None
                with loop.clock.section("record"):
                    folder.write_rollouts(record.step, record.groups, record.samples)
                laps.append(loop.clock.lap())
            wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
            size = folder.rollouts_path(step).stat().st_size
        finally:
            judge.close()
            fleet.close()
            launcher.line.close()
            folder.close()
    count = arguments.steps * a_step
    parts = {name: round(1000 * sum(lap.get(name, 0.0) for lap in laps) / count, 3) for name in laps[0]}
    return {
        "bench": "controller", "generators": generators, "tokens": arguments.tokens, "a_step": a_step,
        "offered": arguments.rate, "completions_per_second": round(count / wall, 1),
        "tokens_per_second": round(count * arguments.tokens / wall),
        "cpu_ms_a_completion": round(1000 * cpu / count, 3),
        "wall_ms_a_completion": parts, "kilobytes_a_completion": round(size / a_step / 1000, 1),
    }  # fmt: skip


def main() -> None:
    """Measure each number of generators."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--generators", default="16,256,4096")
    parser.add_argument("--tokens", type=int, default=8192, help="of a completion")
    parser.add_argument("--prompts", type=int, default=64)
    parser.add_argument("--samples", type=int, default=16)
    parser.add_argument("--lag", type=int, default=2)
    parser.add_argument("--steps", type=int, default=6, help="that are measured, after as many as fill the pipeline")
    parser.add_argument("--rate", type=float, default=0.0, help="completions a second; 0: as fast as may be")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    for generators in map(int, arguments.generators.split(",")):
        print(json.dumps(measure(arguments, generators)), flush=True)


if __name__ == "__main__":
    main()
