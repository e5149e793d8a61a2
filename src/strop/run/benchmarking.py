"""`strop eval MODEL… --benchmark …`: several models on several benchmarks, every sample kept, resumable.

EVAL_FOLDER/evaluation.json holds the order of models and benchmarks, EVAL_FOLDER/MODEL/BENCHMARK the samples (see
`evaluation/sample_store.py`), report.md, results.json and plots/ what they come to.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from transformers import PreTrainedTokenizerBase

from strop.base.files import read_json, write_json
from strop.base.seeds import derive
from strop.base.types import InputError, Problem, Rollout
from strop.base.view import SilentView, View, counted
from strop.config.parse import edit, parse
from strop.config.schema import RunConfig, evaluation_sampling
from strop.data.dataset import Dataset, Seen, make_example, never_seen, no_instruction
from strop.data.templates import Auto, PromptTemplate, Tokenizer
from strop.engines.endpoint.client import EndpointError
from strop.engines.endpoint.engine import EndpointEngine, EndpointTokenizer
from strop.engines.protocol import Engine, Sampling
from strop.environments.base import Environment
from strop.environments.responder import Play
from strop.environments.tokens import TurnTokens
from strop.evaluation.benchmarks import (
    HELD_OUT,
    Benchmark,
    load_problems,
    refuse_unjudged,
    with_instruction,
    without_instruction,
)
from strop.evaluation.evaluate import evaluate, reporting_to
from strop.evaluation.grid import ORDER, Grid, load_grid
from strop.evaluation.result import EvaluationResult
from strop.evaluation.sample_store import SUMMARY, TRAINED_ON, SampleStore, has_samples, load_result
from strop.model.files import load_tokenizer
from strop.model.location import RESERVED, asked_with
from strop.model.policy import Policy
from strop.recipes.resolve import resolve
from strop.run.benchmark_plan import BenchmarkPlan, NamedModel
from strop.run.folder import RunFolder, holds_out, is_run
from strop.run.tasks import DEFAULT_RECIPE, Asked, configure, fitted, open_engine, open_model, problems_of
from strop.run.trained_on import trained_before
from strop.training.embedded_base import tokenizer_of
from strop.verifiers.base import Verifier
from strop.verifiers.judges import OpenJudges


@dataclass(frozen=True, eq=False)
class HeldOut:
    """The problems that a run held out, and who judged them there; `sampling` is how they are sampled here."""

    problems: tuple[Problem, ...]
    verifier: Verifier
    sampling: Sampling


def held_out_of(plan: BenchmarkPlan) -> HeldOut:
    """Of the first run among the models; all models are measured on them, as that run measures itself.

    Raises:
        InputError: no model is a run, or it held out nothing; `--set` or `--budget` do not go with its sampling.
    """
    runs = [RunFolder.open(model.place) for model in plan.models if is_run(Path(model.place))]
    trained = [run for run in runs if not run.fine_tunes]
    if not trained:
        raise InputError(f"benchmark {HELD_OUT}: the problems of a training run, and none of the models is one")
    run = trained[0]
    config = parse(run.read_json("config.json"), str(run.config_path))
    asked = Asked(config, run.path, own=True, limit=plan.limit)
    tokenizer = load_tokenizer(str(run.model)) if run.model.is_dir() else tokenizer_of(config.model)
    dataset, _ = problems_of(asked, tokenizer, SilentView())
    if config.data.held_out is None:
        raise InputError(f"benchmark {HELD_OUT}: {run.path} held out no problems")
    if config.environment is not None and not config.environment.takes_any_problem:
        raise InputError(
            f"benchmark {HELD_OUT}: {run.path} was trained on the problems of its environment; use strop eval "
            f"{run.path}"
        )
    # The template of the run may have written the beginning of the response; each model asked here has its own.
    problems = tuple(
        replace(problem, extra={key: value for key, value in problem.extra.items() if key != "opening"})
        for problem in dataset.problems
    )
    own = evaluation_sampling(edit(config, _sets(plan, "sampling", "evaluation", "stages")))
    return HeldOut(problems, config.verifier, plan.protocol.sampling_of_held_out(own))


def verifiers_of(plan: BenchmarkPlan, config: RunConfig, held_out: HeldOut | None) -> Mapping[str, Verifier]:
    """Who judges each benchmark: what `--set verifier` names, else the benchmark's own, or the run's.

    Raises:
        InputError: nobody judges its kind.
    """
    if _sets(plan, "verifier"):
        return {found.name: config.verifier for found in plan.benchmarks}
    return {
        found.name: held_out.verifier
        if held_out is not None and found.family == HELD_OUT
        else plan.protocol.verifier_of(found)
        for found in plan.benchmarks
    }


def samplings_of(plan: BenchmarkPlan, held_out: HeldOut | None) -> Mapping[str, Sampling]:
    """How each benchmark is sampled, alike for all models: as the protocol says, or the run that held it out.

    Raises:
        InputError: `--set` names a sampling that no benchmark would take.
    """
    idle = _sets(plan, "sampling", "evaluation", "stages") if held_out is None else []
    if idle:
        raise InputError(
            f"--set {idle[0]}: benchmarks are sampled as the protocol {plan.protocol.name} says; change that by "
            "--temperature, --top-p or --budget"
        )
    return {
        found.name: held_out.sampling if held_out is not None and found.family == HELD_OUT else plan.protocol.sampling
        for found in plan.benchmarks
    }


def shared_template(plan: BenchmarkPlan, configs: Mapping[str, RunConfig]) -> PromptTemplate:
    """The one template of all models: what --set or the protocol names, else that of the runs among them, else `Auto`.

    Strop's own bases, where no other model is measured, are asked as they are trained: for no form of the answer.

    Raises:
        InputError: the runs were trained with different templates, and none was named.
    """
    if _sets(plan, "data.template"):
        return next(iter(configs.values())).data.template
    if plan.protocol.template is not None:
        return plan.protocol.template
    found: dict[str, PromptTemplate] = {}  # by the first run that was trained with it
    if plan.recipe is None:
        for model in plan.models:
            template = configs[model.label].data.template
            if holds_out(model.place) and template not in found.values():
                found[model.label] = template
    if len(found) > 1:
        named = ", ".join(f"{label} with {template.model_dump_json()}" for label, template in found.items())
        raise InputError(f"the runs were trained with different prompts ({named}); name one for all with --template")
    bases = [] if plan.remote is not None else [asked_with(Auto(), config.model) for config in configs.values()]
    alike = Auto() if not bases or any(one != bases[0] for one in bases) else bases[0]
    chosen = next(iter(found.values()), alike)
    return chosen if plan.protocol.instruct else without_instruction(chosen)


def shared_environment(plan: BenchmarkPlan, configs: Mapping[str, RunConfig]) -> Environment | None:
    """The one environment of all models: what --set names, else that of the runs among them; None: one turn.

    Raises:
        InputError: the runs were trained in different ones and none was named, or it cannot be played here.
    """
    found: dict[str, Environment | None] = {}  # by the first run that was trained in it
    named = _sets(plan, "environment")
    for model in plan.models:
        environment = configs[model.label].environment
        if (named or (plan.recipe is None and holds_out(model.place))) and environment not in found.values():
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
            f"the environment {chosen.piece_name()} is made for its own problems; benchmarks are asked without it "
            "by --set environment=none, and what a run held out in it by: strop eval RUN"
        )
    if plan.remote is not None:
        raise InputError("--endpoint: models are asked there in one turn; leave --set environment out")
    return chosen


def _sets(plan: BenchmarkPlan, *keys: str) -> list[str]:
    """What `--set` says of one of `keys` or of something inside it."""
    named = [(f"{text.partition('=')[0].strip()}.", text) for text in plan.sets]
    return [text for name, text in named if any(name.startswith(f"{key}.") for key in keys)]


FINGERPRINT_VALUES = 1024  # of each tensor


def measure(plan: BenchmarkPlan, view: View) -> Grid:
    """Sample and judge what is not kept yet; all evaluations under `plan.out`, those of former calls too.

    An interruption or an error leaves what was sampled so far in the folder, and the same plan goes on from there.

    Raises:
        StropError: a model, a benchmark or a verifier cannot be used; the folder holds samples of other settings.
    """
    configs = {model.label: _plan_config(plan, model) for model in plan.models}
    template = shared_template(plan, configs)
    environment = shared_environment(plan, configs)
    held_out = held_out_of(plan) if any(found.family == HELD_OUT for found in plan.benchmarks) else None
    samplings = samplings_of(plan, held_out)
    verifiers = {label: verifiers_of(plan, config, held_out) for label, config in configs.items()}
    problems = {
        found.name: held_out.problems
        if held_out is not None and found.family == HELD_OUT
        else load_problems(found, plan.data, plan.limit)
        for found in plan.benchmarks
    }
    for name, loaded in problems.items():
        view.note(f"{name}: {counted(len(loaded), 'problems')}")
        asked: list[Verifier] = []
        for model in plan.models:
            verifier = verifiers[model.label][name]
            if verifier not in asked:  # most often one for all
                asked.append(verifier)
                refuse_unjudged(name, loaded, verifier, view.note, "--set verifier=…")
    remote = plan.remote is not None
    seen = {model.label: never_seen if remote else trained_before(model.place) for model in plan.models}
    for model in plan.models:
        for name, loaded in problems.items():
            count = sum(map(seen[model.label], loaded))
            if count:
                which = f"{count} of the {len(loaded)} problems of {name}"
                view.note(f"{model.label} had {which} among its training problems")
    _write_order(plan, template, environment)
    judges, shown = OpenJudges(), set[str]()
    try:
        for model in plan.models:
            config = configs[model.label]
            engine, tokenizer, weights = _engine(plan, model, config, view)
            try:
                play = None
                if environment is not None and not isinstance(tokenizer, EndpointTokenizer):
                    play = Play(environment, TurnTokens(tokenizer, template))
                for found in plan.benchmarks:
                    verifier = verifiers[model.label][found.name]
                    before, loaded, sampling = seen[model.label], problems[found.name], samplings[found.name]
                    job = _Job(
                        plan, model, before, found, template, loaded, weights, sampling, verifier, judges, play, shown
                    )
                    _measure_one(job, engine, tokenizer, view)
            except EndpointError as error:
                kept = f"what was sampled is kept, go on with --out {plan.out}"
                raise EndpointError(f"{error}; {kept if has_samples(plan.out) else 'nothing was sampled'}") from error
            finally:
                _tell_cost(engine, view)
                engine.close()
    finally:
        judges.close()
    return load_grid([plan.out])


def _engine(
    plan: BenchmarkPlan, model: NamedModel, config: RunConfig, view: View
) -> tuple[Engine, PreTrainedTokenizerBase | EndpointTokenizer, str]:
    """Whoever samples for a model, its tokenizer, and what tells its weights apart from others."""
    if plan.remote is not None:
        endpoint = plan.remote.endpoint(model.place)
        weights = f"behind an endpoint: {model.place}"  # what it serves under a name is its own affair
        return EndpointEngine(endpoint, plan.remote.concurrency, view.note), EndpointTokenizer(), weights
    view.stage(f"load {model.label}", None)
    policy, tokenizer = open_model(config, view, model.stored)
    return open_engine(config, policy, tokenizer, model.stored), tokenizer, fingerprint(policy)


def _tell_cost(engine: Engine, view: View) -> None:
    if isinstance(engine, EndpointEngine) and engine.tokens:
        spent = engine.tokens
        view.note(
            f"{spent['calls']} calls ({spent['retries']} of them sent again), {spent['prompt']:,} prompt tokens and "
            f"{spent['completion']:,} completion tokens"
        )


@dataclass(frozen=True, eq=False)
class _Job:
    """A model on a benchmark; `shown` are the first prompts that were shown, of this job and those before."""

    plan: BenchmarkPlan
    model: NamedModel
    seen: Seen
    benchmark: Benchmark
    template: PromptTemplate
    problems: tuple[Problem, ...]
    weights: str
    sampling: Sampling
    verifier: Verifier
    judges: OpenJudges
    play: Play | None
    shown: set[str]

    @property
    def folder(self) -> Path:
        return self.plan.out / folder_name(self.model.label) / folder_name(self.benchmark.name)

    @property
    def samples(self) -> int:
        return self.plan.protocol.samples_of(self.benchmark)


def _measure_one(job: _Job, engine: Engine, tokenizer: Tokenizer, view: View) -> None:
    template = job.template
    if job.plan.protocol.instruct:
        template = with_instruction(template, job.benchmark.kind, trained=job.plan.protocol.template is None)
    if isinstance(template, Auto) and not tokenizer.chat_template:
        view.note(f"{job.model.label} has no chat template: its prompts are plain text")
    title = job.benchmark.name
    dataset = _dataset(job, template, tokenizer, engine.capabilities.max_tokens)
    prompt = str(tokenizer.decode(dataset[0].prompt_ids.tolist()))
    if prompt not in job.shown:  # models of one family are asked alike
        job.shown.add(prompt)
        where = "" if job.play is None else f" in the environment {job.play.environment.piece_name()}"
        view.note(f"{title}: {job.model.label} is asked first{where}: {prompt!r}")
    if dataset.over_budget:
        left_out = counted(dataset.over_budget, "problems")
        view.note(f"{title}: {left_out} left out, the model has no room for their prompts")
    way_out = f"; a file without {title}'s long problems (--benchmark FILE) has room for more"
    sampling = fitted(job.sampling, dataset, engine, view, way_out)
    settings = _settings(job, dataset, template, sampling)
    store = SampleStore(job.folder, settings, job.verifier)
    missing = store.missing
    if store.done and missing:
        view.note(f"{job.model.label} on {title}: {counted(len(store.done), 'problems')} kept, {len(missing)} missing")
    seconds = 0.0
    if missing:
        result = _sample(job, store, dataset.subset(missing), sampling, engine, view)
        seconds = result.seconds
    store.finish()
    summary = job.folder / SUMMARY
    before = float(read_json(summary)["seconds"]) if summary.exists() else 0.0
    whole = replace(load_result(job.folder), seconds=before + seconds)
    write_json(summary, whole.summary() | {TRAINED_ON: sum(map(job.seen, dataset.problems))})


def _dataset(job: _Job, template: PromptTemplate, tokenizer: Tokenizer, room: int) -> Dataset:
    """The prompts that leave room for an answer in the model's `room` tokens; the others are counted."""
    wanted = job.verifier.instruction if job.plan.protocol.instruct else no_instruction
    told = [wanted(problem) for problem in job.problems]
    if job.play is not None:
        told = [job.play.environment.instruction(one) for one in told]
    examples = [make_example(one, template, tokenizer, say) for one, say in zip(job.problems, told, strict=True)]
    fitting = tuple(example for example in examples if len(example.prompt_ids) < room)
    if not fitting:
        shortest = min(len(example.prompt_ids) for example in examples)
        raise InputError(
            f"{job.benchmark.name}: {job.model.label} has room for {room} tokens, and the shortest prompt takes "
            f"{shortest}; measure a model with a longer context, or use a shorter --template"
        )
    return Dataset(job.benchmark.name, fitting, len(examples) - len(fitting), room - 1)


def _sample(
    job: _Job, store: SampleStore, dataset: Dataset, sampling: Sampling, engine: Engine, view: View
) -> EvaluationResult:
    view.stage(f"{job.model.label} · {job.benchmark.name}", len(dataset) * job.samples, "completions")
    report = reporting_to(view)

    def progress(done: int, total: int, rollout: Rollout) -> None:
        store.add(rollout)
        report(done, total, rollout)

    seed = derive(job.plan.seed, "benchmark", job.benchmark.name)
    judge = job.judges.of(job.verifier, job.play)
    try:
        return evaluate(engine, dataset, job.samples, sampling, job.verifier, seed, progress, judge=judge)
    finally:
        store.flush()  # also on Ctrl-C and on errors: whole problems are kept


def _settings(job: _Job, dataset: Dataset, template: PromptTemplate, sampling: Sampling) -> dict[str, Any]:
    """What the samples depend on, and what tables need to know of them."""
    played = {} if job.play is None else {"environment": job.play.environment.model_dump(mode="json")}
    return played | {
        "model": job.model.label,
        "weights": job.weights,
        "benchmark": job.benchmark.name,
        "title": job.benchmark.title,
        "domain": job.benchmark.domain,
        "samples_per_problem": job.samples,
        "seed": job.plan.seed,
        "sampling": sampling.model_dump(mode="json"),
        "template": template.model_dump(mode="json"),
        "verifier": job.verifier.model_dump(mode="json"),
        "prompts": dataset.fingerprint,
        "left_out": dataset.over_budget,
        "problem_ids": [problem.id for problem in dataset.problems],
    }


def fingerprint(policy: Policy) -> str:
    """A hash that tells weights apart wherever they lie: names, shapes and evenly spread values of every tensor."""
    digest = hashlib.blake2b(digest_size=16)
    for name, tensor in sorted(policy.weights().items()):
        flat = tensor.detach().reshape(-1)
        stride = max(1, flat.numel() // FINGERPRINT_VALUES)
        values: Any = flat[::stride].float().cpu().numpy().astype(np.float32)
        digest.update(f"{name} {tuple(tensor.shape)}\0".encode() + values.tobytes())
    return digest.hexdigest()


def folder_name(label: str) -> str:
    """A label as one folder's name: letters, digits and `-._@` stay, a `/` becomes `--`, the rest `-`."""
    plain = label.replace("/", "--")
    return "".join(letter if letter.isalnum() or letter in "-._@" else "-" for letter in plain)


def _plan_config(plan: BenchmarkPlan, model: NamedModel) -> RunConfig:
    if plan.remote is None:
        return configure(model.place, plan.recipe, (*_seed_of_base(plan, model), *plan.sets), step=model.step).config
    return resolve(plan.recipe if plan.recipe is not None else DEFAULT_RECIPE, plan.sets)


def _seed_of_base(plan: BenchmarkPlan, model: NamedModel) -> tuple[str, ...]:
    """One of strop's own bases is that of the first run next to it which began with it: each seed has its own."""
    for other in plan.models if model.place in RESERVED else ():
        stored = RunFolder.open(other.place).read_json("config.json") if holds_out(other.place) else None
        if stored is not None and stored["model"]["path"] == model.place:
            return (f"seed={stored['seed']}",)
    return ()


def open_named(
    model: NamedModel, recipe: str | None, sets: tuple[str, ...], view: View
) -> tuple[RunConfig, Policy, PreTrainedTokenizerBase]:
    """A model as the command line names it: its configuration, its policy on its device, its tokenizer.

    Raises:
        StropError: there is no such model, or an invalid setting.
    """
    config = configure(model.place, recipe, sets, step=model.step).config
    return config, *open_model(config, view, model.stored)


def _write_order(plan: BenchmarkPlan, template: PromptTemplate, environment: Environment | None) -> None:
    """Add the models and benchmarks of this call to those of former ones.

    Raises:
        InputError: those were asked with another template, or in another environment, so that a table of all would
            compare unlike with unlike.
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
            "--template, or another folder with --out"
        )
    for key, names in (
        ("models", [model.label for model in plan.models]),
        ("benchmarks", [found.name for found in plan.benchmarks]),
    ):
        order[key] += [name for name in names if name not in order[key]]
    order["protocol"] = json.loads(plan.protocol.model_dump_json())
    write_json(path, order)
