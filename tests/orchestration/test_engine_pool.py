"""One pool of engines for training and evaluation: nothing mixes, training comes first, what is lost comes again."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tests.orchestration.test_evaluator import assert_same_result
from tests.tiny import byte_tokenizer, tiny_qwen3

from strop.base.types import Completion, Problem
from strop.data.loading import build_dataset
from strop.data.templates import Plain
from strop.engines.protocol import Request, Sampling
from strop.engines.settings import EngineSettings
from strop.engines.torch.engine import TorchEngine
from strop.evaluation.evaluate import ProblemSet, measure_set
from strop.evaluation.result import EvaluationResult
from strop.model.policy import Policy
from strop.orchestration.evaluator import EnginePool, MeasuredVersion, PoolEvaluator, WeightsOf
from strop.orchestration.executor import Event, InProcess, Lost, Probe, ProbeCheck
from strop.verifiers.answer import Answer
from strop.verifiers.judges import OpenJudges

SLOTS = 16
PROMPT = np.array([5, 17, 80], np.int32)


def asked(name: str, problems: int, samples: int) -> ProblemSet:
    given = [Problem(f"{name}-{number}", f"{number}+{number}=", str(2 * number)) for number in range(problems)]
    dataset = build_dataset(name, given, Plain(), byte_tokenizer(), 32)
    return ProblemSet(name, dataset, samples, Sampling(max_new_tokens=12), Answer(extract="last_number"), seed=3)


SETS = (asked("sums", 6, 4), asked("more", 3, 2))


def engine(policy: Policy) -> TorchEngine:
    return TorchEngine(policy, byte_tokenizer(), EngineSettings(slots=SLOTS))


def probe(policy: Policy) -> Probe:
    return Probe(PROMPT, 0, policy.probe(PROMPT))


class Losing(InProcess):
    """Loses, once, every request of which a sample comes in for the sixth time, as a generator that dies then does."""

    reported = 0
    placed: list[tuple[str, int]]

    def submit(self, request: Request, ticket: int, attempt: int = 0) -> None:
        self.placed = [*getattr(self, "placed", []), (request.id, ticket)]
        super().submit(request, ticket, attempt)

    def poll(self, patience: float) -> list[Event]:
        found: list[Event] = list(super().poll(patience))
        before, self.reported = self.reported, self.reported + len(found)
        if before < 6 <= self.reported and self.engine.unfinished:
            open_: Any = getattr(self.engine, "_open")  # noqa: B009
            lost = [name for name in dict.fromkeys(name for name, _ in self.placed) if name in open_]
            for name in lost:
                self.engine.cancel(name)
            self.engine.step()  # what was cancelled is reported to nobody
            found += [Lost(name, "it was killed") for name in lost]
        return found


def pool_of(policy: Policy, kind: type[InProcess] = InProcess) -> EnginePool:
    return EnginePool(kind(engine(policy), policy, ProbeCheck()), SLOTS)


def expected(policy: Policy, step: int) -> dict[str, EvaluationResult]:
    """By an engine that does nothing else."""
    alone, judges = TorchEngine(policy, byte_tokenizer(), EngineSettings(slots=SLOTS), step), OpenJudges()
    return {each.name: measure_set(alone, each, judges) for each in SETS}


def assert_as_expected(found: MeasuredVersion, policy: Policy, step: int) -> None:
    assert found.step == step and list(found.results) == ["sums", "more"]
    for name, result in expected(policy, step).items():
        assert_same_result(found.results[name], result)
        assert found.results[name].newest == step


@pytest.mark.parametrize("kind", [InProcess, Losing], ids=["undisturbed", "a generator is lost"])
def test_finding_2_generators_evaluate_between_steps(kind: type[InProcess]) -> None:
    """Nothing is lost with a generator in the middle of it, and the completions of training stay the loop's."""
    policy = tiny_qwen3(0)
    pool = pool_of(policy, kind)
    evaluator = PoolEvaluator(pool, SETS, devices=2, asynchronous=False)
    pool.publish(4, probe(policy))
    pool.submit(Request("training", PROMPT, Sampling(max_new_tokens=20), seed=1, n=5), ticket=0)
    evaluator.begin(4, ["sums", "more"], WeightsOf(policy))
    (found,) = evaluator.poll()
    assert_as_expected(found, policy, 4)
    assert found.device_seconds == 2 * found.seconds and not evaluator.outstanding
    events: list[Event] = []
    while pool.unfinished or not events:
        events += pool.poll(0.0)
    if kind is InProcess:
        assert sorted(one.index for one in events if isinstance(one, Completion)) == list(range(5))
    else:
        assert isinstance(pool.executor, Losing)
        assert [one.request_id for one in events if isinstance(one, Lost)] in ([], ["training"])
        repeated = [name for name, _ in pool.executor.placed]
        assert len(set(repeated)) < len(repeated)
    evaluator.close()


def test_an_evaluation_while_training_goes_on_says_which_versions_drew_it() -> None:
    policy = tiny_qwen3(0)
    pool = pool_of(policy)
    evaluator = PoolEvaluator(pool, SETS[:1], devices=1, asynchronous=True)
    pool.publish(0, probe(policy))
    evaluator.begin(0, ["sums"], WeightsOf(policy))
    assert (evaluator.outstanding, evaluator.has_room, evaluator.poll()) == ((0,), False, [])
    pool.poll(0.0)
    policy.load_weights(tiny_qwen3(1).weights())
    pool.publish(1, probe(policy))
    while not (found := evaluator.poll(1.0)):
        assert pool.poll(0.0) == [] and pool.unfinished == 0
    (measured,) = found
    result = measured.results["sums"]
    assert (measured.step, result.version, result.newest) == (0, 0, 1) and evaluator.has_room
    evaluator.close()


def test_weights_that_generators_do_not_have_are_published_and_measured_at_once() -> None:
    policy = tiny_qwen3(2)
    pool = pool_of(policy)
    evaluator = PoolEvaluator(pool, SETS, devices=1, asynchronous=True)
    evaluator.begin(7, ["sums", "more"], WeightsOf(policy))
    (found,) = evaluator.poll()
    assert_as_expected(found, policy, 7)
    evaluator.close()


class Slow:
    """An executor that reports what the test says."""

    def __init__(self) -> None:
        self.sent: list[tuple[str, int]] = []
        self.unfinished = 0
        self.events: list[Event] = []

    def submit(self, request: Request, ticket: int, attempt: int = 0) -> None:
        self.sent.append((request.id, ticket))
        self.unfinished += request.n

    def finish(self, name: str, samples: int) -> None:
        nothing = np.zeros(0, np.int32)
        for index in range(samples):
            self.events.append(
                Completion(name, index, PROMPT, nothing, nothing.astype(np.float32), (), nothing > 0, "", "stop")
            )
        self.unfinished -= samples

    def poll(self, patience: float) -> list[Event]:
        found, self.events = self.events, []
        return found


def test_evaluations_yield_to_training() -> None:
    slow = Slow()
    pool = EnginePool(slow, slots=8)  # type: ignore[arg-type]
    pool.submit(Request("training", PROMPT, Sampling(), seed=0, n=6), ticket=9)
    pool.ask([Request(name, PROMPT, Sampling(), seed=0, n=n) for name, n in (("e0", 4), ("e1", 2), ("e2", 20))])
    pool.poll(0.0)
    assert slow.sent == [("training", 9)]  # 6 of 8 places are taken
    slow.finish("training", 4)
    assert len(pool.poll(0.0)) == 4 and pool.unfinished == 2
    pool.poll(0.0)
    assert slow.sent[1:] == [("e0", 0), ("e1", 1)] and pool.unfinished == 2
    slow.events.append(Lost("e1", "died"))
    slow.unfinished -= 2
    slow.finish("e0", 4)
    assert pool.poll(0.0) == [] and slow.sent[3:] == [("e1", 2)]  # to the next generator
    assert [one.request_id for one in pool.answers()] == ["e0"] * 4 and pool.answers() == []
    slow.finish("training", 2)
    slow.finish("e1", 2)
    pool.poll(0.0)
    pool.poll(0.0)
    assert slow.sent[4:] == [("e2", 3)] and pool.unfinished == 0  # more than all places: by itself
