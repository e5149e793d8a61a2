"""Evaluation: avg@n, pass@k and majority votes with bootstrap intervals, from any engine."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BeforeValidator, Field, JsonValue

from strop.base.pieces import OneOrMore, Settings

Count = Annotated[int, Field(ge=1)]


class BenchmarkSettings(Settings):
    """A benchmark that a run is measured on as it trains; a name stands for it with defaults.

    Fields:
        name: as `strop eval --benchmark` takes it: aime24, livecodebench:v5, reasoning-gym:TASK, a file.
        every: measure it every so many steps, and after the last; None is `evaluation.every`.
        samples_per_problem: None is `evaluation.samples_per_problem`.
        limit: the first so many problems only.
        optional: where its problems cannot be had, a line says so and the run goes on without it; so it does without
            `every` here and above.
    """

    name: str
    every: Count | None = None
    samples_per_problem: Count | None = None
    limit: Count | None = None
    optional: bool = False


_Named = Annotated[BenchmarkSettings, BeforeValidator(lambda text: {"name": text} if isinstance(text, str) else text)]


class EvaluationSettings(Settings):
    """Pass rate on the held-out problems during training: every `every` steps, and before the first.

    Fields:
        every: None measures no held-out problems.
        samples_per_problem: n of avg@n.
        temperature, top_p: of the samples; budgets are those of training.
        benchmarks: measured as well, each with its curve.
        benchmark_data: a folder with the benchmarks' files; None reads the hub.
        benchmark_columns: which column holds what in benchmarks that are files, as `data.source.columns` says it.
        asynchronous: whether training goes on during an evaluation. A separate worker evaluates then; `auto`: where
            generators are separate workers too. Where vLLM's servers generate, they also evaluate: between two steps
            (`auto` or false), or in the places that training leaves free (true), perhaps with newer weights.
    """

    every: Count | None = None
    samples_per_problem: Count = 4
    temperature: Annotated[float, Field(ge=0)] = 1.0
    top_p: Annotated[float, Field(gt=0, le=1)] = 1.0
    benchmarks: OneOrMore[_Named] = ()
    benchmark_data: str | None = None
    benchmark_columns: dict[str, JsonValue] = {}
    asynchronous: bool | Literal["auto"] = "auto"
