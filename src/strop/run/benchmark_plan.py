"""What `strop eval MODEL… --benchmark …` measures: models as the command line names them, benchmarks, and how."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from pydantic import ValidationError

from strop.base.types import InputError
from strop.config.edits import explain
from strop.engines.endpoint.client import ChatEndpoint
from strop.evaluation.benchmarks import Benchmark
from strop.evaluation.protocols import Protocol
from strop.run import preflight
from strop.run.folder import RunFolder, is_run
from strop.run.tasks import Stored
from strop.training import checkpoint

ALL = "all"


class NamedModel(NamedTuple):
    """A model to measure: its label in tables, where it is, and of a run which checkpoint (None: its model)."""

    label: str
    place: str
    step: int | None

    @property
    def stored(self) -> Stored | None:
        """The checkpoint, where it is one."""
        return None if self.step is None else Stored(self.place, self.step)


@dataclass(frozen=True, eq=False)
class BenchmarkPlan:
    """What is measured, and how.

    Attributes:
        models: their order is that of the table's rows.
        benchmarks: their order is that of the table's columns.
        protocol: sampling, samples, template; what was asked for on the command line already in it.
        out: the evaluation folder.
        data: a folder (or a file) with the benchmarks; None reads the hub.
        limit: the first so many problems of each benchmark only.
        seed: of the samples.
        recipe: where engine and device settings come from; by default the run's own, else grpo's.
        sets: changes of settings; `verifier…` and `data.template…` among them replace the benchmark's own.
        remote: where the models are, if not here.
    """

    models: tuple[NamedModel, ...]
    benchmarks: tuple[Benchmark, ...]
    protocol: Protocol
    out: Path
    data: Path | None = None
    limit: int | None = None
    seed: int = 0
    recipe: str | None = None
    sets: tuple[str, ...] = ()
    remote: RemoteEndpoint | None = None


@dataclass(frozen=True)
class RemoteEndpoint:
    """Models behind one OpenAI-compatible endpoint instead of on this machine, each called as it is there.

    Attributes:
        url: up to and with `/v1`.
        api_key_env: the environment variable with the key, where one is wanted.
        concurrency: requests at a time.
        timeout: seconds for one answer.
    """

    url: str
    api_key_env: str | None = None
    concurrency: int = 16
    timeout: float = 600.0

    def endpoint(self, model: str) -> ChatEndpoint:
        """Where `model` is asked.

        Raises:
            InputError: this is no URL.
        """
        try:
            return ChatEndpoint(url=self.url, model=model, api_key_env=self.api_key_env, timeout=self.timeout)
        except ValidationError as error:
            raise InputError(f"--endpoint {self.url}: {explain(error)}") from error


def parse_models(texts: Sequence[str]) -> tuple[NamedModel, ...]:
    """Models as the command line names them: `MODEL`, `LABEL=MODEL`, `RUN@STEP`, `RUN@all` for every checkpoint.

    A run that has not come to its end, and has no model yet, is its newest checkpoint.

    Raises:
        InputError: a run has no such checkpoint, or none at all, or two models have one label.
    """
    found: list[NamedModel] = []
    for text in texts:
        label, equals, place = text.partition("=")
        if not equals or Path(text).exists():
            label, place = text, text
        run, at, step = place.rpartition("@")
        if not at or Path(place).exists() or not is_run(Path(run)):
            newest = _newest(place)
            name = label if newest is None or label != place else f"{place}@{newest}"
            found.append(NamedModel(name, place, newest))
            continue
        known = checkpoint.steps(RunFolder.open(run).checkpoints)
        name = label if equals and label != place else run
        if step == ALL:
            found += [NamedModel(f"{name}@{each}", run, each) for each in known]
        elif step.isdecimal() and int(step) in known:
            found.append(NamedModel(label, run, int(step)))
        if not known or (step != ALL and not (step.isdecimal() and int(step) in known)):
            has = ", ".join(map(str, known)) or "none"
            raise InputError(f"{text}: {run} has no checkpoint {step!r}; it has {has} (@all takes every one)")
    labels = [model.label for model in found]
    for label in labels:
        if labels.count(label) > 1:
            raise InputError(f"two models are called {label!r}; give one another name with NAME={label}")
    return tuple(found)


def _newest(place: str) -> int | None:
    """The newest checkpoint of a run that has no model yet; None of any other model."""
    if not is_run(Path(place)) or RunFolder.open(place).model.is_dir():
        return None
    preflight.checkpoint(RunFolder.open(place))
    return RunFolder.open(place).checkpoint_steps()[-1]


def parse_model(text: str) -> NamedModel:
    """The one model that `text` names, as in `parse_models`.

    Raises:
        InputError: a run has no such checkpoint, or it names several.
    """
    found = parse_models([text])
    if len(found) != 1:
        raise InputError(f"{text}: one model is asked at a time; name one checkpoint, or several with --benchmark")
    return found[0]
