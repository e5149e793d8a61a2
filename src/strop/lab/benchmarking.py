"""Measures models on benchmarks: `strop eval --benchmark`, Python.

    measure(BenchmarkPlan(models, benchmarks, protocol, out), view)  # models × benchmarks, every sample kept

A plan's folder: OUT/evaluation.json holds the order of models and benchmarks, OUT/MODEL/BENCHMARK the samples (see
`evaluation/sample_store.py`). The same plan goes on after an interruption.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import ValidationError
from transformers import PreTrainedTokenizerBase

from strop.base.endpoint import ChatEndpoint, EndpointError
from strop.base.files import read_json, write_json
from strop.base.text import counted
from strop.base.types import InputError, Problem, Rollout
from strop.base.view import SilentView, View
from strop.config.edits import apply_edits, explain, parse_set
from strop.config.parse import edit, parse
from strop.config.schema import RunConfig, evaluation_sampling
from strop.data.dataset import Data
from strop.data.loading import Seen, build_dataset, never_seen, no_instruction
from strop.data.templates import Auto, PromptTemplate
from strop.engines.endpoint import EndpointEngine, EndpointTokenizer
from strop.engines.protocol import Engine, Sampling
from strop.environments.base import Environment
from strop.environments.responder import Play
from strop.environments.tokens import TurnTokens
from strop.evaluation.benchmarks import HELD_OUT, Benchmark, load_problems, with_instruction, without_instruction
from strop.evaluation.evaluate import ProblemSet, benchmark_seed, fitted, instructing, measure_set, reporting_to
from strop.evaluation.grid import ORDER, Grid, load_grid
from strop.evaluation.protocols import Protocol
from strop.evaluation.sample_store import SUMMARY, TRAINED_ON, SampleStore, has_samples, load_result
from strop.model.files import load_tokenizer
from strop.model.location import RESERVED, asked_with
from strop.model.policy import Policy
from strop.recipes.resolve import resolve
from strop.run.checks import of_problems, unjudgeable
from strop.run.finding import Finding, note, refuse
from strop.run.folder import RunFolder, holds_out, is_run, trained_before
from strop.run.measuring import problems_of
from strop.run.models import (
    DEFAULT_RECIPE,
    ModelSetup,
    NamedModel,
    as_measured,
    configure,
    open_engine,
    open_model,
)
from strop.training.embedded_base import tokenizer_of
from strop.verifiers.base import Verifier
from strop.verifiers.judge_model import keep_in
from strop.verifiers.judges import OpenJudges

ENDPOINT_KEY = "STROP_ENDPOINT_KEY"  # the environment variable with an endpoint's key
ENDPOINT_SECONDS = 120.0  # for an answer, and one more for each of its tokens
FINGERPRINT_VALUES = 1024  # of each tensor


@dataclass(frozen=True, eq=False)
class BenchmarkPlan:
    """Which models are measured on which benchmarks, and how.

    Attributes:
        models: in the order of the table's rows.
        benchmarks: in the order of the table's columns.
        protocol: sampling, samples and template.
        out: the evaluation folder.
        limit: the first so many problems of each benchmark only.
        seed: of the samples.
        sets: changes of settings. `sampling`, `verifier` and `data.template` win over the protocol;
            `evaluation.benchmark_data` is the folder with the benchmarks' files, `evaluation.benchmark_columns` says
            which column holds what in those that are named themselves.
        recipe: a recipe or a file whose sampling, verifier and template win over the protocol and the runs.
        endpoint: the URL of an OpenAI-compatible endpoint (up to and with `/v1`) that has the models.
    """

    models: tuple[NamedModel, ...]
    benchmarks: tuple[Benchmark, ...]
    protocol: Protocol
    out: Path
    limit: int | None = None
    seed: int = 0
    sets: tuple[str, ...] = ()
    endpoint: str | None = None
    recipe: str | None = None

    def chooses(self, *keys: str) -> bool:
        """Whether the recipe or a change of settings says `keys` or something inside them."""
        return self.recipe is not None or bool(self.setting(*keys))

    def setting(self, *keys: str) -> list[str]:
        """The changes of settings that are `keys` or inside them."""
        named = [(f"{text.partition('=')[0].strip()}.", text) for text in as_measured(self.sets)]
        return [text for name, text in named if any(name.startswith(f"{key}.") for key in keys)]


def measure(plan: BenchmarkPlan, view: View) -> Grid:
    """Sample and judge what is missing, and return all evaluations under `plan.out`, earlier ones too.

    An interruption or an error leaves what was sampled so far in the folder, and the same plan goes on from there.

    Raises:
        StropError: a model, a benchmark or a verifier cannot be used; the folder holds samples of other settings.
    """
    configs = {model.label: _config(plan, model) for model in plan.models}
    terms = _terms(plan, configs)
    seen = {model.label: never_seen if plan.endpoint else trained_before(model.place) for model in plan.models}
    for name, of in terms.benchmarks.items():
        view.note(f"{name}: {counted(len(of.problems), 'problems')}")
        unusable = list(unjudgeable(of.verifier, [(name, of.problems)], trains=False))
        refuse(unusable)
        note(unusable, view)
        for model in plan.models:
            count = sum(map(seen[model.label], of.problems))
            if count:
                which = f"{count} of the {len(of.problems)} problems of {name}"
                view.note(f"{model.label} had {which} among its training problems")
    _write_order(plan, terms.template, terms.environment)
    shown = set[str]()
    with keep_in(plan.out), closing(OpenJudges()) as judges:
        for model in plan.models:
            opened = _open(plan, model, configs[model.label], terms, seen[model.label], view)
            try:
                for found in plan.benchmarks:
                    _measure_one(plan, terms, opened, found, judges, shown, view)
            except EndpointError as error:
                kept = f"what was sampled is kept, go on with --out {plan.out}"
                raise EndpointError(f"{error}; {kept if has_samples(plan.out) else 'nothing was sampled'}") from error
            finally:
                _tell_cost(opened.engine, view)
                opened.engine.close()
    return load_grid([plan.out])


def _config(plan: BenchmarkPlan, model: NamedModel) -> RunConfig:
    if plan.endpoint is None:
        return configure(model, plan.recipe, (*_seed_of_base(plan, model), *plan.sets)).config
    return resolve(plan.recipe or DEFAULT_RECIPE, as_measured(plan.sets))


# ---------------------------------------------------------------------- the same terms for all models


@dataclass(frozen=True, eq=False)
class BenchmarkTerms:
    """The problems of a benchmark, and how they are judged and sampled."""

    problems: tuple[Problem, ...]
    verifier: Verifier
    sampling: Sampling


@dataclass(frozen=True, eq=False)
class _Terms:
    """The settings that all models of a plan share; `benchmarks` are by name."""

    template: PromptTemplate
    environment: Environment | None
    benchmarks: Mapping[str, BenchmarkTerms]


def _terms(plan: BenchmarkPlan, configs: Mapping[str, RunConfig]) -> _Terms:
    any_config = next(iter(configs.values()))
    template, environment = shared_template(plan, configs), shared_environment(plan, configs)
    settings = any_config.evaluation
    folder = settings.benchmark_data if plan.chooses("evaluation.benchmark_data") else None
    columns = settings.benchmark_columns if plan.chooses("evaluation.benchmark_columns") else {}
    sampling = benchmark_sampling(plan, configs, template)
    benchmarks: dict[str, BenchmarkTerms] = {}
    for found in plan.benchmarks:
        if found.family == HELD_OUT:
            terms = held_out_of(plan)
            terms = terms if plan.recipe is None else replace(terms, sampling=sampling)
        else:
            problems = load_problems(found, None if folder is None else Path(folder), plan.limit, columns)
            terms = BenchmarkTerms(problems, plan.protocol.verifier_of(found), sampling)
        benchmarks[found.name] = replace(terms, verifier=any_config.verifier) if plan.chooses("verifier") else terms
    return _Terms(template, environment, benchmarks)


def benchmark_sampling(plan: BenchmarkPlan, configs: Mapping[str, RunConfig], template: PromptTemplate) -> Sampling:
    """How benchmarks are sampled: as the recipe or else the protocol says, with the plan's changes of `sampling`.

    The strings that end a completion belong to the prompt: where the protocol has none, those of a run with `template`.

    Raises:
        InputError: an unknown setting, or a value that it cannot have.
    """
    if plan.recipe is not None:
        return evaluation_sampling(next(iter(configs.values())))
    changed = plan.protocol.sampling.model_dump(mode="json")
    stops = (config.sampling.stop for config in configs.values() if config.data.template == template)
    changed["stop"] = changed["stop"] or next(stops, ())
    for text in plan.setting("sampling", "evaluation.temperature", "evaluation.top_p"):
        (edits,) = parse_set(text).values()
        changed = apply_edits(changed, edits, Sampling, "sampling.")
    try:
        return Sampling.model_validate(changed)
    except ValidationError as error:
        raise InputError(f"sampling.{explain(error).removeprefix('(whole): ')}") from error


def held_out_of(plan: BenchmarkPlan) -> BenchmarkTerms:
    """The problems of the first run among the models; all models are measured on them as that run measures itself.

    Raises:
        InputError: no model is a run, or it held out nothing; changes of settings do not go with its sampling.
    """
    runs = [RunFolder.open(model.place) for model in plan.models if is_run(Path(model.place))]
    trained = [run for run in runs if not run.fine_tunes]
    if not trained:
        raise InputError(
            f"benchmark {HELD_OUT}: the problems of a training run, and none of the models is one; name others by "
            "--benchmark, a file too"
        )
    run = trained[0]
    config = parse(run.read_json("config.json"), str(run.config_path))
    tokenizer = load_tokenizer(str(run.model)) if run.model.is_dir() else tokenizer_of(config.model)
    dataset, _ = problems_of(ModelSetup(config, run.path, own=True, limit=plan.limit), tokenizer, SilentView())
    if config.data.held_out is None:
        raise InputError(f"benchmark {HELD_OUT}: {run.path} held out no problems")
    if config.environment is not None and not config.environment.takes_any_problem:
        raise InputError(
            f"benchmark {HELD_OUT}: {run.path} was trained in an environment that makes its problems; use strop eval "
            f"{run.path}"
        )
    # The template of the run may have written the beginning of the response; each model asked here has its own.
    problems = tuple(
        replace(problem, extra={key: value for key, value in problem.extra.items() if key != "opening"})
        for problem in dataset.problems
    )
    sampling = evaluation_sampling(edit(config, plan.setting("sampling", "evaluation", "stages")))
    return BenchmarkTerms(problems, config.verifier, sampling)


def shared_template(plan: BenchmarkPlan, configs: Mapping[str, RunConfig]) -> PromptTemplate:
    """The template for all models: as recipe, --set or protocol say, else that of the runs among them, else `Auto`.

    If only strop's own bases are measured, their prompts ask for no form of the answer, as in training.

    Raises:
        InputError: the runs were trained with different templates, and none was named.
    """
    any_config = next(iter(configs.values()))
    if plan.chooses("data.template"):
        return any_config.data.template
    if plan.protocol.template is not None:
        return plan.protocol.template
    found: dict[str, PromptTemplate] = {}  # by the first run that was trained with it
    for model in plan.models:
        template = configs[model.label].data.template
        if holds_out(model.place) and template not in found.values():
            found[model.label] = template
    if len(found) > 1:
        named = ", ".join(f"{label} with {template.model_dump_json()}" for label, template in found.items())
        raise InputError(f"the runs were trained with different prompts ({named}); choose one by --set data.template=…")
    bases = [] if plan.endpoint is not None else [asked_with(Auto(), config.model) for config in configs.values()]
    alike = Auto() if not bases or any(one != bases[0] for one in bases) else bases[0]
    chosen = next(iter(found.values()), alike)
    return chosen if plan.protocol.instruct else without_instruction(chosen)


def shared_environment(plan: BenchmarkPlan, configs: Mapping[str, RunConfig]) -> Environment | None:
    """The one environment of all models: what recipe or --set name, else that of the runs among them; None: one turn.

    Raises:
        InputError: the runs were trained in different ones and none was named, or it cannot be played here.
    """
    found: dict[str, Environment | None] = {}  # by the first run that was trained in it
    named = plan.chooses("environment")
    for model in plan.models:
        environment = configs[model.label].environment
        if (named or holds_out(model.place)) and environment not in found.values():
            found[model.label] = environment
    if len(found) > 1:
        names = {label: "none" if one is None else one.model_dump_json() for label, one in found.items()}
        said = ", ".join(f"{label} in {name}" for label, name in names.items())
        raise InputError(
            f"the runs were trained in different environments ({said}); name one for all, or none: "
            "--set environment=none"
        )
    chosen = next(iter(found.values()), None)
    if chosen is None:
        return None
    if not chosen.takes_any_problem:
        raise InputError(
            f"the environment {chosen.piece_name()} only takes problems made for it; benchmarks are asked without it "
            "by --set environment=none, and what a run held out in it by: strop eval RUN"
        )
    if plan.endpoint is not None:
        raise InputError("--endpoint: models are asked there in one turn; leave --set environment out")
    return chosen


# ---------------------------------------------------------------------- one model on one benchmark


@dataclass(frozen=True, eq=False)
class _Opened:
    """A model with its engine.

    `weights` tells its weights apart from others, `seen` which problems it was trained on.
    """

    label: str
    config: RunConfig
    engine: Engine
    tokenizer: PreTrainedTokenizerBase | EndpointTokenizer
    weights: str
    seen: Seen
    play: Play | None


def _open(
    plan: BenchmarkPlan, model: NamedModel, config: RunConfig, terms: _Terms, seen: Seen, view: View
) -> _Opened:
    if plan.endpoint is not None:
        weights = f"behind an endpoint: {model.place}"  # which weights have that name is not known
        at_once = config.engine.slots if plan.setting("engine.slots") else 16
        longest = max(of.sampling.max_new_tokens for of in terms.benchmarks.values())
        remote = EndpointEngine(_endpoint(plan.endpoint, model.place, longest), at_once, view.note)
        return _Opened(model.label, config, remote, EndpointTokenizer(), weights, seen, None)
    view.stage(f"load {model.label}", None)
    policy, tokenizer = open_model(config, view, model)
    engine = open_engine(config, policy, tokenizer, model)
    play = None if terms.environment is None else Play(terms.environment, TurnTokens(tokenizer, terms.template))
    return _Opened(model.label, config, engine, tokenizer, fingerprint(policy), seen, play)


def _endpoint(url: str, model: str, tokens: int) -> ChatEndpoint:
    """The endpoint of `model`, with the key in `ENDPOINT_KEY` if it is set, and time for answers of so many tokens.

    Raises:
        InputError: not a URL.
    """
    try:
        key = ENDPOINT_KEY if os.environ.get(ENDPOINT_KEY) else None
        return ChatEndpoint(url=url, model=model, api_key_env=key, timeout=ENDPOINT_SECONDS + tokens)
    except ValidationError as error:
        raise InputError(f"--endpoint {url}: {explain(error)}") from error


def _tell_cost(engine: Engine, view: View) -> None:
    if isinstance(engine, EndpointEngine) and engine.tokens:
        spent = engine.tokens
        view.note(
            f"{spent['calls']} calls ({spent['retries']} of them sent again), {spent['prompt']:,} prompt tokens and "
            f"{spent['completion']:,} completion tokens"
        )


def _measure_one(
    plan: BenchmarkPlan, terms: _Terms, model: _Opened, found: Benchmark, judges: OpenJudges, shown: set[str],
    view: View,
) -> None:  # fmt: skip
    """Sample and judge what a model's folder of a benchmark lacks; `shown` are the first prompts shown so far."""
    title, template = found.name, terms.template
    if plan.protocol.instruct:
        template = with_instruction(template, found.kind, trained=plan.protocol.template is None)
    if isinstance(template, Auto) and not model.tokenizer.chat_template:
        view.note(f"{model.label} has no chat template: its prompts are plain text")
    asked = _problem_set(plan, terms, model, found, template, view)
    dataset = asked.dataset
    prompt = str(model.tokenizer.decode(dataset[0].prompt_ids.tolist()))
    if prompt not in shown:  # models of one family are asked alike
        shown.add(prompt)
        where = "" if model.play is None else f" in the environment {model.play.environment.piece_name()}"
        view.note(f"{title}: {model.label} is asked first{where}: {prompt!r}")
        note(_checked(model, template, asked), view)
    if dataset.over_budget:
        left_out = counted(dataset.over_budget, "problems")
        view.note(f"{title}: {left_out} left out, the model has no room for their prompts")
    folder = plan.out / folder_name(model.label) / folder_name(title)
    store = SampleStore(folder, _settings(plan, model, found, template, asked), asked.verifier)
    missing = store.missing
    if store.done and missing:
        view.note(f"{model.label} on {title}: {counted(len(store.done), 'problems')} kept, {len(missing)} missing")
    seconds = 0.0
    if missing:
        rest = replace(asked, dataset=dataset.subset(missing))
        view.stage(f"{model.label} · {title}", len(rest.dataset) * rest.samples, "completions")
        report = reporting_to(view)

        def progress(done: int, total: int, rollout: Rollout) -> None:
            store.add(rollout)
            report(done, total, rollout)

        try:
            seconds = measure_set(model.engine, rest, judges, progress).seconds
        finally:
            store.flush()  # also on Ctrl-C and on errors: whole problems are kept
    summary = folder / SUMMARY
    before = float(read_json(summary)["seconds"]) if summary.exists() else 0.0
    whole = replace(load_result(folder), seconds=before + seconds)
    write_json(summary, whole.summary() | {TRAINED_ON: sum(map(model.seen, dataset.problems))})


def _checked(model: _Opened, template: PromptTemplate, asked: ProblemSet) -> Iterator[Finding]:
    """The checks on the problems of a benchmark, with its template and verifier."""
    data = model.config.data.model_copy(update={"template": template})
    config = model.config.model_copy(update={"data": data, "verifier": asked.verifier})
    return of_problems(config, Data(asked.dataset, None, removed=0), model.tokenizer, trains=False)


def _problem_set(
    plan: BenchmarkPlan, terms: _Terms, model: _Opened, found: Benchmark, template: PromptTemplate, view: View
) -> ProblemSet:
    """The problems that leave room for an answer in the model's context, and the budget that fits."""
    of, room = terms.benchmarks[found.name], model.engine.capabilities.max_tokens
    instruct = of.verifier.instruction if plan.protocol.instruct else no_instruction
    said = instructing(instruct, model.play)
    dataset = build_dataset(found.name, of.problems, template, model.tokenizer, room - 1, said)
    sampling = fitted(of.sampling, dataset, room, view.note)
    samples, seed = plan.protocol.samples_of(found), benchmark_seed(plan.seed, found)
    return ProblemSet(found.name, dataset, samples, sampling, of.verifier, seed, model.play)


def _settings(
    plan: BenchmarkPlan, model: _Opened, found: Benchmark, template: PromptTemplate, asked: ProblemSet
) -> dict[str, Any]:
    """The settings that the samples depend on, and the labels that tables show."""
    played = {} if asked.play is None else {"environment": asked.play.environment.model_dump(mode="json")}
    return played | {
        "model": model.label,
        "weights": model.weights,
        "benchmark": found.name,
        "title": found.title,
        "domain": found.domain,
        "samples_per_problem": asked.samples,
        "seed": plan.seed,
        "sampling": asked.sampling.model_dump(mode="json"),
        "template": template.model_dump(mode="json"),
        "verifier": asked.verifier.model_dump(mode="json"),
        "prompts": asked.dataset.fingerprint,
        "left_out": asked.dataset.over_budget,
        "problem_ids": [problem.id for problem in asked.dataset.problems],
    }


def fingerprint(policy: Policy) -> str:
    """A hash of the weights: names, shapes and evenly spread values of every tensor."""
    digest = hashlib.blake2b(digest_size=16)
    for name, tensor in sorted(policy.weights().items()):
        flat = tensor.detach().reshape(-1)
        stride = max(1, flat.numel() // FINGERPRINT_VALUES)
        values: Any = flat[::stride].float().cpu().numpy().astype(np.float32)
        digest.update(f"{name} {tuple(tensor.shape)}\0".encode() + values.tobytes())
    return digest.hexdigest()


def folder_name(label: str) -> str:
    """A label as one folder's name: letters, digits and `-._@` stay, a `/` becomes `--`, the rest `-`.

    A period in front becomes `_`, so that the folder is not hidden.
    """
    bare = label.lstrip(".")
    plain = "_" * (len(label) - len(bare)) + bare.replace("/", "--")
    return "".join(letter if letter.isalnum() or letter in "-._@" else "-" for letter in plain)


def _seed_of_base(plan: BenchmarkPlan, model: NamedModel) -> tuple[str, ...]:
    """The seed of one of strop's own bases: that of the first run among the models which began with it."""
    for other in plan.models if model.place in RESERVED else ():
        stored = RunFolder.open(other.place).read_json("config.json") if holds_out(other.place) else None
        if stored is not None and stored["model"]["path"] == model.place:
            return (f"seed={stored['seed']}",)
    return ()


def _write_order(plan: BenchmarkPlan, template: PromptTemplate, environment: Environment | None) -> None:
    """Add the models and benchmarks of this call to those of earlier calls.

    Raises:
        InputError: earlier calls used another template or environment, so the results cannot be compared.
    """
    path = plan.out / ORDER
    order: dict[str, Any] = read_json(path) if path.exists() else {"models": [], "benchmarks": []}
    played = None if environment is None else environment.model_dump(mode="json")
    if path.exists() and order.get("environment") != played:
        raise InputError(f"{plan.out} holds samples of another environment, or of none; name another folder with --out")
    order["environment"] = played
    written = template.model_dump(mode="json")
    if order.setdefault("template", written) != written:
        raise InputError(
            f"{plan.out} holds samples of another prompt template ({json.dumps(order['template'])}); name it with "
            "--set data.template=…, or another folder with --out"
        )
    for key, names in (
        ("models", [model.label for model in plan.models]),
        ("benchmarks", [found.name for found in plan.benchmarks]),
    ):
        order[key] += [name for name in names if name not in order[key]]
    order["protocol"] = json.loads(plan.protocol.model_dump_json())
    write_json(path, order)
