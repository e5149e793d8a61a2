"""Evaluation: every sample judged in its place, failures set aside, the engine left idle."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import pytest
import torch
from tests.evaluation.scripted import ScriptedEngine, evaluate
from tests.tiny import tiny_qwen3

from strop.base import progress
from strop.base.types import Completion, FinishReason, InputError, Problem, Rollout, StropError, Verdict
from strop.base.view import SilentView, Values
from strop.data.dataset import Dataset
from strop.data.generators import ChainSum
from strop.data.loading import build_dataset
from strop.data.templates import Plain
from strop.engines.protocol import Engine, Request, Sampling
from strop.engines.settings import EngineSettings
from strop.engines.torch.engine import TorchEngine
from strop.evaluation.evaluate import reporting_to
from strop.evaluation.result import EvaluationResult, paired_test
from strop.model.files import byte_tokenizer
from strop.model.policy import PackedInputs
from strop.verifiers.answer import Answer
from strop.verifiers.base import Verifier
from strop.verifiers.protocol import Judge, Key
from strop_verify.verdict import Status

TOKENIZER = byte_tokenizer()


def dataset(references: Sequence[str] = ("1", "2", "3")) -> Dataset:
    problems = [Problem(f"p{reference}", f"{reference}=", reference) for reference in references]
    return build_dataset("digits", problems, Plain(), TOKENIZER, 8)


def says(engine_answers: Mapping[str, Sequence[str]]) -> ScriptedEngine:
    """Sample i of the question `q=` answers `engine_answers[q][i]`; `…` is a truncated sample."""

    def script(request: Request, index: int) -> tuple[str, FinishReason]:
        answer = engine_answers[str(TOKENIZER.decode(request.prompt_ids)).rstrip("=")][index]
        return ("…", "length") if answer == "…" else (rf"\boxed{{{answer}}}", "stop")

    return ScriptedEngine(script)


ANSWERS = {"1": ["1", "1", "9", "8"], "2": ["2", "3", "3", "…"], "3": ["4", "4", "4", "4"]}


class Doubts(Answer):
    """Decides nothing about an answer of 9."""

    def judge(self, problem: Problem, text: str, truncated: bool) -> Verdict:
        if "9" in text:
            return Verdict(0.0, Status.UNDECIDED, "nine", undecided="number")
        return super().judge(problem, text, truncated)


def test_what_a_verifier_does_not_decide_counts_as_wrong_and_is_shown() -> None:
    result = evaluate(says(ANSWERS), dataset(), 4, Sampling(), Doubts())
    assert result.undecided.tolist()[0] == [False, False, True, False] and result.usable.all()
    assert (result.undecided_rate, result.summary()["undecided_rate"], result.pass_rate) == (1 / 12, 1 / 12, 0.25)


def test_every_sample_is_judged_in_its_place() -> None:
    seen: list[tuple[int, int, str]] = []

    def progress(done: int, total: int, rollout: Rollout) -> None:
        seen.append((done, total, rollout.problem.id))

    result = evaluate(says(ANSWERS), dataset(), 4, Sampling(), Answer(), progress=progress)
    assert result.correct.tolist() == [[1, 1, 0, 0], [1, 0, 0, 0], [0, 0, 0, 0]]
    assert result.answers[1] == ("2", "3", "3", None)
    assert result.truncated.tolist()[1] == [False, False, False, True]
    assert [done for done, _, _ in seen] == list(range(1, 13)) and seen[0][1:] == (12, "p3")
    assert result.unparsed.tolist() == [[False] * 4, [False, False, False, True], [False] * 4]
    assert result.unparsed_rate == 1 / 12 and result.subset([1]).unparsed_rate == 1 / 4
    assert result.pass_rates.tolist() == [0.5, 0.25, 0.0]
    assert (result.pass_rate, result.mean_score, result.truncation_rate) == (0.25, 0.25, 1 / 12)
    assert result.stderr == pytest.approx(0.25 / np.sqrt(3))
    assert result.pass_at(1) == 0.25 and result.pass_at(4) == pytest.approx(2 / 3)
    assert result.pass_at(2) == pytest.approx((5 / 6 + 1 / 2 + 0) / 3)
    assert result.majority_rate() == pytest.approx(1 / 3)
    assert result.mean_length == pytest.approx((11 * len(r"\boxed{1}") + 1) / 12)


def test_summary_is_json() -> None:
    summary = json.loads(json.dumps(evaluate(says(ANSWERS), dataset(), 4, Sampling(), Answer()).summary()))
    assert summary["pass_at"].keys() == {"1", "2", "4"}
    low, high = summary["interval"]
    assert 0 <= low < summary["pass_rate"] < high <= 0.5
    assert (summary["problems"], summary["weight_version"], summary["verifier_failures"]) == (3, 7, 0)


class Fails(Verifier):
    """Cannot judge an answer of 9, nor anything about problem p3."""

    def judge(self, problem: Problem, text: str, truncated: bool) -> Verdict:
        if "9" in text or problem.id == "p3":
            return Verdict(0.0, Status.ERROR, "cannot")
        return Answer()(problem, text, truncated)


class Told(SilentView):
    """Keeps the pass rate that was told last."""

    rate: float | None = None

    def advance(self, step: int, metrics: Values) -> None:
        self.rate = metrics.get("pass_rate", self.rate)


def test_what_the_verifier_could_not_judge_counts_in_no_rate() -> None:
    view = Told()
    result = evaluate(says(ANSWERS), dataset(), 4, Sampling(), Fails(), progress=reporting_to(view))
    assert result.failures == 5 and view.rate == 3 / 7
    assert result.mean_score == result.pass_rate, "where there is no partial credit"
    assert result.pass_rates.tolist()[:2] == [2 / 3, 0.25] and np.isnan(result.pass_rates[2])
    assert result.pass_rate == pytest.approx((2 / 3 + 0.25) / 2)
    assert result.pass_at(4) == 1.0  # of p2, the only one with four usable samples
    assert set(result.summary()["pass_at"]) == {"1", "2", "4"}


def test_no_rate_where_nothing_could_be_judged() -> None:
    result = evaluate(says(ANSWERS), dataset(["3"]), 4, Sampling(), Fails())
    for rate in (lambda: result.pass_rate, result.majority_rate, result.interval, lambda: result.pass_at(1)):
        with pytest.raises(InputError):
            rate()


def test_a_problems_seed_is_its_own() -> None:
    whole, part = says(ANSWERS), says(ANSWERS)
    evaluate(whole, dataset(), 2, Sampling(), Answer(), seed=5)
    evaluate(part, dataset(["2"]), 2, Sampling(), Answer(), seed=5)
    seeds = [request.seed for request in whole.requests.values()]
    assert len(set(seeds)) == 3
    assert [request.seed for request in part.requests.values()] == [seeds[1]]


def test_gain_on_the_same_problems() -> None:
    before = evaluate(says(ANSWERS), dataset(), 4, Sampling(), Answer())
    better = {question: [question] * 4 for question in ANSWERS}
    after = evaluate(says(better), dataset(), 4, Sampling(), Answer())
    gain, interval, *_ = paired_test(before, after)
    assert gain == 0.75 and interval.low >= 0.5 and interval.high <= 1.0
    same, interval, *_ = paired_test(before, before)
    beyond = 1 - 0.025 ** (1 / len(before.problem_ids))
    assert same == 0.0 and interval == pytest.approx((-beyond, beyond))
    with pytest.raises(InputError):
        paired_test(before, evaluate(says(ANSWERS), dataset(["1"]), 4, Sampling(), Answer()))


def aborts(request: Request, index: int) -> tuple[str, FinishReason]:
    return "", "abort"


def test_an_aborted_sample_ends_the_evaluation_and_leaves_the_engine_idle() -> None:
    engine = ScriptedEngine(aborts)
    with pytest.raises(StropError):
        evaluate(engine, dataset(), 2, Sampling(), Answer())
    assert engine.unfinished == 0


def test_an_engine_that_stalls_ends_the_evaluation() -> None:
    engine = ScriptedEngine(aborts, stalls=True)
    with pytest.raises(StropError, match="6 of 6.*scripted"):
        evaluate(engine, dataset(), 2, Sampling(), Answer(), stall_seconds=0.01)
    assert engine.unfinished == 0


class Slow(ScriptedEngine):
    """Draws tokens for longer than the patience before each completion arrives."""

    steps = 0

    def step(self) -> list[Completion]:
        self.steps += 1
        if self.steps % 5 == 0:
            return super().step()
        time.sleep(0.02)
        progress.made("tokens")
        return []


def test_an_engine_that_draws_tokens_has_not_stalled() -> None:
    engine = Slow(lambda request, index: ("1", "stop"))
    assert evaluate(engine, dataset(), 1, Sampling(), Answer(), stall_seconds=0.05).scores.shape == (3, 1)


def test_what_cannot_be_evaluated() -> None:
    engine = says(ANSWERS)
    with pytest.raises(InputError):
        evaluate(engine, dataset(), 0, Sampling(), Answer())
    long = build_dataset("long", [Problem("a", "1", "1"), Problem("b", "1" * 101, "1")], Plain(), TOKENIZER, 200)
    with pytest.raises(InputError):
        evaluate(engine, long, 1, Sampling(), Answer())
    assert engine.unfinished == 0
    engine.submit(Request("mine", np.zeros(1, dtype=np.int32), Sampling(), seed=0))
    with pytest.raises(InputError):
        evaluate(engine, dataset(), 1, Sampling(), Answer())


def test_the_embedded_engine() -> None:
    """A random model: about nothing is right, and a second evaluation of the same problems says the same."""
    problems = build_dataset("sums", ChainSum(count=5, terms=2).load(), Plain(), TOKENIZER, 8)

    def run(engine: Engine, data: Dataset) -> EvaluationResult:
        return evaluate(engine, data, 3, Sampling(max_new_tokens=6), Answer(extract="any"), seed=1)

    engine = TorchEngine(tiny_qwen3(), TOKENIZER, EngineSettings(slots=16))
    first, again, part = run(engine, problems), run(engine, problems), run(engine, problems.subset([3, 1]))
    assert first.lengths.shape == (5, 3) and 0 < first.mean_length <= 6
    assert first.answers == again.answers and np.array_equal(first.lengths, again.lengths)
    assert part.lengths.tolist() == first.lengths[[3, 1]].tolist()
    assert engine.unfinished == 0


class Surprised(ScriptedEngine):
    """Every token of sample i has the log-prob −(i + 1); the first token of each is injected, with log-prob 0."""

    def step(self) -> list[Completion]:
        found = []
        for completion in super().step():
            injected = np.arange(len(completion.token_ids)) == 0
            logprobs = np.where(injected, 0.0, -1.0 - completion.index).astype(np.float32)
            found.append(replace(completion, logprobs=logprobs, injected=injected))
        return found


def test_entropy_is_the_mean_surprise_of_sampled_tokens() -> None:
    """Of texts of 2, 5 and 3 tokens 1, 4 and 2 are sampled, at 1, 2 and 3 nats: (1 + 8 + 6) / 7."""
    texts = {"1": ("ab", "abcde", "abc"), "2": ("ab", "ab", "ab")}

    def script(request: Request, index: int) -> tuple[str, FinishReason]:
        return texts[str(TOKENIZER.decode(request.prompt_ids)).rstrip("=")][index], "stop"

    result = evaluate(Surprised(script), dataset(("1", "2")), 3, Sampling(), Answer())
    assert result.entropy == pytest.approx((1 + 8 + 6 + 1 + 2 + 3) / 10)
    assert result.subset([0]).entropy == pytest.approx(15 / 7) and result.subset([1]).entropy == pytest.approx(2.0)


@pytest.mark.parametrize("sampling", [Sampling(top_p=0.7), Sampling(top_k=5), Sampling(temperature=0.0)])
def test_no_entropy_where_tokens_are_drawn_from_another_distribution(sampling: Sampling) -> None:
    assert evaluate(says(ANSWERS), dataset(), 4, sampling, Answer()).entropy is None


def test_sampled_entropy_is_that_of_the_whole_vocabulary() -> None:
    """One token of one prompt, 2,000 times: within four standard errors of the exact entropy, at temperature 1.5."""
    policy, temperature = tiny_qwen3(), 1.5
    problems = dataset(("7",))
    engine = TorchEngine(policy, TOKENIZER, EngineSettings(slots=256))
    sampling = Sampling(max_new_tokens=1, temperature=temperature)
    result = evaluate(engine, problems, 2000, sampling, Answer(extract="any"))
    with torch.no_grad():
        _, entropy = policy(PackedInputs.whole([[*problems[0].prompt_ids.tolist(), 0]]), temperature)
    exact = float(entropy[-1])  # of the distribution that the token after the prompt is drawn from
    assert result.surprise is not None and result.entropy is not None
    error = float(result.surprise.std() / np.sqrt(result.surprise.size))
    assert error < 0.05 and abs(result.entropy - exact) < 4 * error


class SlowJudge(Judge):
    """Gives each verdict some polls late and the latest first, as processes beside the engine may."""

    def __init__(self, verifier: Verifier, polls: int) -> None:
        self._verifier, self._polls = verifier, polls
        self._queue: list[tuple[int, Key, Problem, Completion]] = []
        self._now = 0

    @property
    def pending(self) -> int:
        return len(self._queue)

    def submit(self, key: Key, problem: Problem, completion: Completion, seed: int = 0) -> None:
        self._queue.append((self._now + self._polls, key, problem, completion))

    def poll(self) -> list[tuple[Key, Verdict]]:
        self._now += 1
        ready = [each for each in self._queue if each[0] <= self._now]
        self._queue = [each for each in self._queue if each[0] > self._now]
        return [(key, self._verifier(problem, c.text, c.truncated)) for _, key, problem, c in reversed(ready)]

    def wait(self, seconds: float) -> None:
        """Its next poll may have a verdict."""

    def close(self) -> None:
        self._queue = []


@pytest.mark.parametrize("polls", [1, 3, 40])
def test_verdicts_may_come_later_than_samples(polls: int) -> None:
    seen: list[tuple[int, str, int]] = []

    def progress(done: int, total: int, rollout: Rollout) -> None:
        seen.append((done, rollout.problem.id, rollout.completion.index))

    judge = SlowJudge(Answer(), polls)
    late = evaluate(says(ANSWERS), dataset(), 4, Sampling(), Answer(), progress=progress, judge=judge)
    assert judge.pending == 0
    assert [done for done, _, _ in seen] == list(range(1, 13)) and len({place[1:] for place in seen}) == 12
    at_once = evaluate(says(ANSWERS), dataset(), 4, Sampling(), Answer())
    assert np.array_equal(late.correct, at_once.correct) and late.answers == at_once.answers


def test_a_judge_that_never_answers_ends_the_evaluation() -> None:
    judge = SlowJudge(Answer(), polls=1_000_000)
    with pytest.raises(StropError):
        evaluate(says(ANSWERS), dataset(), 1, Sampling(), Answer(), stall_seconds=0.05, judge=judge)
