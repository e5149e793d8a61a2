"""On which terms models are measured beside each other: template, environment, a benchmark's verifier and sampling."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from strop.base.types import InputError, Problem
from strop.base.view import SilentView
from strop.config.parse import edit, parse
from strop.config.schema import RunConfig, evaluation_sampling
from strop.data.templates import Auto, PromptTemplate
from strop.engines.protocol import Sampling
from strop.environments.base import Environment
from strop.evaluation.benchmarks import HELD_OUT, without_instruction
from strop.model.files import load_tokenizer
from strop.model.location import asked_with
from strop.run.benchmark_plan import Plan
from strop.run.folder import RunFolder, holds_out, is_run
from strop.run.tasks import Asked, problems_of
from strop.training.embedded_base import tokenizer_of
from strop.verifiers.base import Verifier


@dataclass(frozen=True, eq=False)
class HeldOut:
    """The problems that a run held out, and who judged them there; `sampling` is how they are sampled here."""

    problems: tuple[Problem, ...]
    verifier: Verifier
    sampling: Sampling


def held_out_of(plan: Plan) -> HeldOut:
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
            f"benchmark {HELD_OUT}: {run.path} was trained in an environment of its own problems; use strop eval "
            f"{run.path}"
        )
    # The template of the run may have written the beginning of the response; each model asked here has its own.
    problems = tuple(
        replace(problem, extra={key: value for key, value in problem.extra.items() if key != "opening"})
        for problem in dataset.problems
    )
    own = evaluation_sampling(edit(config, _sets(plan, "sampling", "evaluation", "stages")))
    return HeldOut(problems, config.verifier, plan.protocol.sampling_of_held_out(own))


def verifiers_of(plan: Plan, config: RunConfig, held_out: HeldOut | None) -> Mapping[str, Verifier]:
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


def samplings_of(plan: Plan, held_out: HeldOut | None) -> Mapping[str, Sampling]:
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


def shared_template(plan: Plan, configs: Mapping[str, RunConfig]) -> PromptTemplate:
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


def shared_environment(plan: Plan, configs: Mapping[str, RunConfig]) -> Environment | None:
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
            f"the environment {chosen.piece_name()} is made for problems of its own; benchmarks are asked without it "
            "by --set environment=none, and what a run held out in it by: strop eval RUN"
        )
    if plan.remote is not None:
        raise InputError("--endpoint: models are asked there in one turn; leave --set environment out")
    return chosen


def _sets(plan: Plan, *keys: str) -> list[str]:
    """What `--set` says of one of `keys` or of something inside it."""
    named = [(f"{text.partition('=')[0].strip()}.", text) for text in plan.sets]
    return [text for name, text in named if any(name.startswith(f"{key}.") for key in keys)]
