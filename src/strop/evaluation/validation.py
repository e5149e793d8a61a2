"""The sets that a run is measured on while it trains: its held-out problems, and benchmarks beside them.

    sets = (held_out(…), *benchmark_sets(…))
    results = measure(engine, [s for s in sets if s.due(step, last)], judges)
    row = metrics(results["aime24"], "aime24")        # {"evaluation/aime24/pass_rate": …}
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from strop.base.seeds import derive
from strop.base.types import InputError, Rollout
from strop.base.view import counted
from strop.data.dataset import Dataset, Example, make_example
from strop.data.templates import PromptTemplate, Tokenizer
from strop.engines.protocol import Engine, Sampling
from strop.environments.responder import Play
from strop.evaluation.benchmarks import (
    HELD_OUT,
    benchmark,
    default_verifier,
    load_problems,
    refuse_unjudged,
    with_instruction,
)
from strop.evaluation.evaluate import evaluate
from strop.evaluation.intervals import difference_interval
from strop.evaluation.protocols import in_words
from strop.evaluation.result import EvaluationResult
from strop.verifiers.base import Verifier
from strop.verifiers.judges import OpenJudges

PREFIX = "evaluation"
# A benchmark's metrics stand beside the held-out problems' own.
_TAKEN = ("pass_rate", "stderr", "entropy", "seconds")

SetProgress = Callable[[str, int, int], None]


@dataclass(frozen=True, eq=False)
class ValidationSet:
    """Problems, and how they are measured.

    Attributes:
        name: `held_out`, or the benchmark's.
        dataset: the problems with their prompts.
        every: it is measured after every so many steps.
        samples: of each problem, n of avg@n.
        sampling: how they are drawn.
        verifier: judges them.
        seed: of the samples, the same at every step, so that points compare.
        play: the environment they are asked in; None asks them in one turn.
    """

    name: str
    dataset: Dataset
    every: int
    samples: int
    sampling: Sampling
    verifier: Verifier
    seed: int
    play: Play | None = None

    def due(self, step: int, last: int) -> bool:
        """Whether it is measured after `step` of `last`; step 0 is before training."""
        return step % self.every == 0 or step == last

    @property
    def terms(self) -> dict[str, Any]:
        """What a pass rate on this set is a rate of, JSON-able: those on the same terms compare.

        How many samples there are is no part of it: more of them make the rate more exact, and no other one.
        """
        return {
            "problems": self.dataset.fingerprint,
            "sampling": self.sampling.model_dump(mode="json"),
            "verifier": self.verifier.model_dump(mode="json"),
            "environment": None if self.play is None else self.play.environment.model_dump(mode="json"),
        }


@dataclass(frozen=True)
class Wanted:
    """A benchmark as a run names it."""

    name: str
    every: int
    samples: int
    limit: int | None


def benchmark_sets(
    wanted: Iterable[Wanted],
    data: Path | None,
    template: PromptTemplate,
    tokenizer: Tokenizer,
    sampling: Sampling,
    room: int,
    seed: int,
    note: Callable[[str], None],
    play: Play | None = None,
) -> tuple[ValidationSet, ...]:
    """Benchmarks as `strop eval` measures them: the same problems, prompts, verifiers and, for a seed, samples, where
    its flags ask for the same sampling.

    Args:
        wanted: which.
        data: the folder of their files; None reads the hub.
        template: the run's; it is made to ask for the form of the answer, as there (`with_instruction`).
        sampling: the run's, not a protocol's: what it trains for, and at a cost that goes with training.
        room: tokens of the model; problems whose prompt leaves too little of it are left out, and noted.
        seed: the run's.
        note: receives a line for each set that is measured, and for what is left out.
        play: the run's environment, in which they are asked where it takes any problem.

    Raises:
        InputError: a benchmark cannot be found, is named twice, or has no problem that can be asked or judged.
    """
    found: list[ValidationSet] = []
    play, where = benchmark_play(play)
    for item in wanted:
        try:
            known = benchmark(item.name)
            if known.name in (HELD_OUT, *_TAKEN):
                raise InputError(f"no benchmark can be called {known.name!r} here; give the file another name")
            if any(known.name == other.name for other in found):
                raise InputError(f"two benchmarks are called {known.name!r}; give one of the files another name")
            problems = load_problems(known, data, item.limit)
            verifier = default_verifier(known.kind)
            refuse_unjudged(known.name, problems, verifier, note, "strop eval --set verifier=…")
            asked = with_instruction(template, known.kind, trained=True)
            told = [verifier.instruction(one) for one in problems]
            if play is not None:
                told = [play.environment.instruction(one) for one in told]
            examples = [make_example(one, asked, tokenizer, say) for one, say in zip(problems, told, strict=True)]
            dataset = _dataset(known.name, examples, room, sampling.max_new_tokens)
        except InputError as error:
            raise InputError(f"evaluation.benchmarks: {error} (--data is evaluation.benchmark_data here)") from error
        often = "every step" if item.every == 1 else f"every {item.every} steps"
        how = f"{where}, at {in_words(sampling)}"
        note(f"{known.name}: {counted(len(dataset), 'problems')}, measured {often}{how}")
        if dataset.over_budget:
            left_out = counted(dataset.over_budget, "problems")
            note(f"{known.name}: {left_out} left out, the model has no room for their prompts")
        stream = derive(seed, "benchmark", known.name)  # that of `strop eval`
        found.append(ValidationSet(known.name, dataset, item.every, item.samples, sampling, verifier, stream, play))
    return tuple(found)


def benchmark_play(play: Play | None) -> tuple[Play | None, str]:
    """The environment that benchmarks are asked in, None without one, and words for that."""
    if play is None:
        return None, ""
    name = play.environment.piece_name()
    if play.environment.takes_any_problem:
        return play, f" in the environment {name}"
    return None, f" in one turn, without the environment {name}, which is made for problems of its own"


def _dataset(name: str, examples: Sequence[Example], room: int, budget: int) -> Dataset:
    """The examples whose prompt leaves `budget` of `room` tokens; the others are counted."""
    fitting = tuple(example for example in examples if len(example.prompt_ids) <= room - budget)
    if not fitting:
        raise InputError(
            f"{name}: no prompt of {len(examples)} leaves sampling.max_new_tokens={budget} of the model's {room} tokens"
        )
    return Dataset(name, fitting, len(examples) - len(fitting), room - budget)


def measure(
    engine: Engine,
    sets: Sequence[ValidationSet],
    judges: OpenJudges,
    progress: SetProgress = lambda name, done, total: None,
    turn: Callable[[], None] | None = None,
) -> dict[str, EvaluationResult]:
    """The results of each set, by name, one set after the other.

    Args:
        engine: idle; its weights are those that are evaluated.
        judges: of the sets' verifiers.
        progress: called as `progress(name, done, total)` after each judged completion.
        turn: see `evaluate`.

    Raises:
        StropError: see `evaluate`.
    """
    results: dict[str, EvaluationResult] = {}
    for each in sets:
        judge = judges.of(each.verifier, each.play)

        def report(done: int, total: int, rollout: Rollout, name: str = each.name) -> None:
            progress(name, done, total)

        results[each.name] = evaluate(
            engine, each.dataset, each.samples, each.sampling, each.verifier, each.seed, report, judge=judge, turn=turn
        )
    return results


def metrics(result: EvaluationResult, of: ValidationSet) -> dict[str, float | None]:
    """A result's metrics for metrics.jsonl; with each domain's pass rate where held-out problems are of several."""
    own = of.name == HELD_OUT
    prefix = PREFIX if own else f"{PREFIX}/{of.name}"
    low, high = result.interval()
    row: dict[str, float | None] = {
        f"{prefix}/pass_rate": result.pass_rate, f"{prefix}/stderr": result.stderr,
        f"{prefix}/interval_low": low, f"{prefix}/interval_high": high, f"{prefix}/entropy": result.entropy,
    }  # fmt: skip
    if own:
        return row | _by_domain(result, of.dataset)
    return row | {f"{prefix}/length": result.mean_length, f"{prefix}/truncation_rate": result.truncation_rate}


def by_problem(result: EvaluationResult) -> dict[str, float]:
    """The pass rate of each problem that was judged, by its id."""
    rates = zip(result.problem_ids, result.pass_rates.tolist(), result.judged.tolist(), strict=True)
    return {name: rate for name, rate, judged in rates if judged}


def gain(before: Mapping[str, float], result: EvaluationResult) -> dict[str, float | None]:
    """By how much the held-out pass rate grew since `before`, by problem, with its 95 % interval; paired by problem."""
    after = by_problem(result)
    differences = np.array([after[name] - rate for name, rate in before.items() if name in after])
    if not len(differences):
        return {}
    low, high = difference_interval(differences)
    return {f"{PREFIX}/gain": float(differences.mean()), f"{PREFIX}/gain_low": low, f"{PREFIX}/gain_high": high}


def _by_domain(result: EvaluationResult, dataset: Dataset) -> dict[str, float | None]:
    domain_of = {problem.id: problem.domain for problem in dataset.problems}
    rates: dict[str, list[float]] = {}
    for name, rate in zip(result.problem_ids, result.pass_rates, strict=True):
        rates.setdefault(domain_of[name], []).extend([] if np.isnan(rate) else [float(rate)])
    if len(rates) == 1:
        return {}
    return {f"{PREFIX}/pass_rate/{name}": sum(of) / len(of) for name, of in sorted(rates.items()) if of}


def by_name(sets: Sequence[ValidationSet], names: Iterable[str]) -> list[ValidationSet]:
    """The sets of these names, in that order."""
    known: Mapping[str, ValidationSet] = {each.name: each for each in sets}
    return [known[name] for name in names]
