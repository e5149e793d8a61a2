"""The tasks of the command line on a finished model: measure it, let it answer, write it out.

A model is named by a run folder, a model folder or a hub name; prompt template, verifier and sampling come from the
run's own configuration, or from a recipe.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import ValidationError
from transformers import PreTrainedTokenizerBase

from strop.base.seeds import derive
from strop.base.types import Completion, InputError, Problem, Rollout, StropError, Verdict
from strop.base.view import SilentView, View, counted, percent
from strop.config.edits import explain, flatten
from strop.config.parse import edit
from strop.config.schema import RunConfig, evaluation_sampling
from strop.data.dataset import Dataset, Example, build_dataset, load_data, make_example
from strop.data.source import ProblemSource, question_digest
from strop.engines.build import build_engine
from strop.engines.protocol import Engine, Request, Sampling
from strop.evaluation.evaluate import evaluate, reporting_to
from strop.model.device import pick_device
from strop.model.files import export
from strop.model.lora import export_adapter
from strop.model.policy import Policy, load_policy
from strop.recipes.resolve import resolve
from strop.run import preflight
from strop.run.assembly import responder_of
from strop.run.checks import of_prompts
from strop.run.fine_tuning import load_model, stored_config
from strop.run.folder import RunFolder, holds_out, is_run
from strop.run.questions import first_prompt, play_of
from strop.run.trained_on import questions_of, trained_before, write_questions
from strop.training import checkpoint
from strop.training.embedded_base import located

DEFAULT_RECIPE = "grpo"
MOSTLY_UNPARSED = 0.5  # share of completions without an answer, beyond which a pass rate says little of the model
_PROBLEMS = ("data.source", "data.path", "data.limit", "data.held_out")  # settings that name other problems


class Stored(NamedTuple):
    """A checkpoint of a run."""

    run: str
    step: int


@dataclass(frozen=True)
class Asked:
    """Which problems a model is asked.

    Attributes:
        config: as `configure` made it.
        run: the run that the model was named by, where it is one.
        own: whether the problems are those that the run held out, rather than others of the user's.
        limit: the first so many of the problems.
        verbatim: whether a prompt of the user's own is continued as it is where there is no chat template.
    """

    config: RunConfig
    run: Path | None = None
    own: bool = False
    limit: int | None = None
    verbatim: bool = True


def _held_out_elsewhere(config: RunConfig, before: RunConfig) -> bool:
    """Whether settings named another source, while the held-out problems are still those of the run's source."""
    kept = config.data.held_out
    elsewhere = kept is not None and kept.source is not None and kept == before.data.held_out
    return elsewhere and config.data.source != before.data.source


def _refuse_limit_elsewhere(config: RunConfig, sets: Sequence[str]) -> None:
    """Refuse a `data.limit` of the user's that is of other problems than those that are asked."""
    limits = [text.partition("=")[2].strip() for text in sets if text.partition("=")[0].strip() == "data.limit"]
    if limits and config.data.held_out is not None and config.data.held_out.source is not None:
        raise InputError(
            f"data.limit={limits[-1]} is of the training problems, and the held-out ones have their own source; "
            f"ask the first so many of them by --limit {limits[-1]}"
        )


def configure(
    model: str,
    recipe: str | None = None,
    sets: Sequence[str] = (),
    source: str | ProblemSource | None = None,
    path: str | None = None,
    limit: int | None = None,
    step: int | None = None,
) -> Asked:
    """How `model` is asked, and what; `source` replaces both its problems and its held-out ones.

    With `step` the model is that checkpoint of a run, as `open_model` opens it; without, a run has come to its end.
    `limit` takes the first so many problems; those that a run held out are first told apart from the others.

    Raises:
        InputError: no such model or recipe, or an invalid setting.
    """
    base, place, template = recipe, model, None
    if is_run(Path(model)):
        run = RunFolder.open(model)
        place = str(run.model)
        if base is None and run.fine_tunes:
            template = stored_config(run).template
        elif base is None:
            base = str(run.config_path)
    edits = [*preflight.NOT_TRAINING]
    edits += [] if step is not None else ["model.fresh=none", "model.lora=none", f"model.path={json.dumps(place)}"]
    if template is not None:
        edits += [f"{key}={text}" for key, text in flatten({"data": {"template": template.model_dump(mode="json")}})]
    if source is not None:
        named = source if isinstance(source, str) else source.model_dump(mode="json")
        edits += [f"{key}={text}" for key, text in flatten({"data": {"source": named}})]
        edits.append("data.held_out=none")
    if path is not None:
        edits.append(f"data.path={json.dumps(path)}")
    other = source is not None or path is not None or any(text.strip().startswith(_PROBLEMS) for text in sets)
    own = holds_out(model) and recipe is None and not other
    named = base if base is not None else DEFAULT_RECIPE
    config = resolve(named, [*edits, *sets])
    if other and _held_out_elsewhere(config, resolve(named, edits)):
        config = resolve(named, [*edits, *sets, "data.held_out=none"])
    _refuse_limit_elsewhere(config, sets)
    if limit is not None and config.data.held_out is None:
        config = edit(config, [f"data.limit={limit}"])  # no more are read
    run_path = Path(model) if is_run(Path(model)) else None
    return Asked(config, run_path, own, limit, verbatim=template is None)


def evaluate_model(
    asked: Asked, samples: int, temperature: float | None, view: View, stored: Stored | None = None
) -> dict[str, Any]:
    """Pass rate, pass@k, majority vote, length and truncation on the problems that are asked.

    The model is that of the configuration, or the checkpoint that `stored` names. `trained_on` says how many of the
    problems it was trained on, by its run or those that this began with; None where that cannot be known.

    Raises:
        StropError: the model or the problems cannot be used.
    """
    config = asked.config
    preflight.in_session(config)
    policy, tokenizer = open_model(config, view, stored)
    dataset, trained_on = problems_of(asked, tokenizer, view)
    sampling = _sampling(config, temperature, None)
    found = measured(config, policy, tokenizer, dataset, samples, sampling, view, stored)
    return found | {"trained_on": trained_on}


def measured(
    config: RunConfig, policy: Policy, tokenizer: PreTrainedTokenizerBase, dataset: Dataset, samples: int,
    sampling: Sampling, view: View, stored: Stored | None = None,
) -> dict[str, Any]:  # fmt: skip
    """What an open model makes of problems, each asked `samples` times and judged as in a run of `config`.

    Raises:
        StropError: a prompt leaves no room for an answer, or the engine or the verifier cannot be used.
    """
    for line in first_prompt(dataset, config.data.template, tokenizer):
        view.note(line)
    for one in of_prompts(config, dataset, tokenizer):
        view.note(one.line)
    engine = open_engine(config, policy, tokenizer, stored, sampling)
    sampling = fitted(sampling, dataset, engine, view)
    view.stage("evaluate", len(dataset) * samples, "completions")
    judge = responder_of(config, play_of(config, tokenizer, engine.capabilities.max_tokens))
    try:
        seed = derive(config.seed, "evaluation")
        result = evaluate(engine, dataset, samples, sampling, config.verifier, seed, reporting_to(view), judge=judge)
    finally:
        judge.close()
        engine.close()
    failed = result.failed(result.dataset, {f"pass@{k}": k for k in result.powers})
    if failed:
        view.note(failed)
    if result.unparsed_rate > MOSTLY_UNPARSED:
        view.note(
            f"{percent(result.unparsed_rate)} of the completions hold no answer that {config.verifier.piece_name()} "
            "finds: does the prompt above ask for it in that form? (data.template.instruct, verifier.extract)"
        )
    return result.summary()


def sample_model(
    asked: Asked,
    prompts: Sequence[str] | None,
    count: int,
    temperature: float | None,
    max_new_tokens: int | None,
    seed: int,
    view: View,
    stored: Stored | None = None,
) -> list[dict[str, Any]]:
    """`count` completions of each prompt, or of each of the configured problems where there are none, in order.

    A completion of a problem is judged; its `status` and `reference` are None for a prompt without a reference.
    """
    config = asked.config
    policy, tokenizer = open_model(config, view, stored)
    if prompts is None:
        examples: Sequence[Example] = problems_of(asked, tokenizer, view)[0].examples
    else:
        verbatim = asked.verbatim and _trained_verbatim(asked)
        problems = [
            Problem(f"prompt-{number}", prompt, reference=None, verbatim=verbatim)
            for number, prompt in enumerate(prompts)
        ]
        examples = [
            make_example(problem, config.data.template, tokenizer, config.instruction(problem))
            for problem in problems
        ]
    sampling = _sampling(config, temperature, max_new_tokens)
    engine = open_engine(config, policy, tokenizer, stored, sampling)
    sampling = fitted(sampling, examples, engine, view, "")
    if config.environment is not None:
        return _played(config, examples, count, sampling, seed, engine, tokenizer)
    completions: dict[tuple[str, int], Completion] = {}
    try:
        for place, example in enumerate(examples):
            engine.submit(Request(str(place), example.prompt_ids, sampling, derive(seed, "sample", place), count))
        while engine.unfinished:
            completions |= {(found.request_id, found.index): found for found in engine.step()}
    finally:
        engine.close()
    return [
        _answer(config, example.problem, completions[str(place), index])
        for place, example in enumerate(examples)
        for index in range(count)
    ]


def _trained_verbatim(asked: Asked) -> bool:
    """Whether the run's own problems are continued as they are; True where there is no run, or they cannot be read."""
    try:
        first = None if asked.run is None else next(asked.config.data.source.problems(), None)
    except StropError:
        return True
    return first is None or first.verbatim


def _played(
    config: RunConfig, examples: Sequence[Example], count: int, sampling: Sampling, seed: int, engine: Engine,
    tokenizer: PreTrainedTokenizerBase,
) -> list[dict[str, Any]]:  # fmt: skip
    """Trajectories in the run's environment, its turns in the completion's text."""
    found: dict[tuple[str, int], Rollout] = {}

    def progress(done: int, total: int, rollout: Rollout) -> None:
        found[rollout.problem.id, rollout.completion.index] = rollout

    judge = responder_of(config, play_of(config, tokenizer, engine.capabilities.max_tokens))
    try:
        evaluate(engine, Dataset("", tuple(examples)), count, sampling, config.verifier, seed, progress, judge=judge)
    finally:
        judge.close()
        engine.close()
    rollouts = [found[example.problem.id, index] for example in examples for index in range(count)]
    return [
        _row(one.problem, one.completion, None if one.problem.reference is None else one.verdict) for one in rollouts
    ]


def export_checkpoint(run_path: Path, out: Path | None = None, step: int | None = None, adapter: bool = False) -> Path:
    """Write the model of a checkpoint (None: the newest) as a Hugging Face folder, RUN/model unless `out` is given.

    With `adapter` only the adapters, as peft has them, to RUN/adapter; otherwise they are merged into the model.

    Raises:
        StropError: no such run or checkpoint, or one without adapters; `out` holds something else.
    """
    run = RunFolder.open(run_path)
    target = out if out is not None else run.path / "adapter" if adapter else run.model
    if out is not None and out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise InputError(f"{out} is there and not empty; choose another folder with --out")
    policy, tokenizer = open_checkpoint(run, step)
    if not adapter:
        export(policy.model, tokenizer, target)
        write_questions(target, run)
        return target
    if policy.adapters is None:
        raise InputError(f"{run_path} trained no adapters (model.lora); export its model without --adapter")
    if policy.settings.path is None:
        raise InputError(f"{run_path} began with a fresh model, which is in no folder; export it without --adapter")
    export_adapter(policy.adapters, policy.settings.path, tokenizer, target)
    return target


def open_checkpoint(run: RunFolder, step: int | None = None) -> tuple[Policy, PreTrainedTokenizerBase]:
    """The policy of a checkpoint (None: the newest) with its tokenizer.

    Raises:
        StropError: there is none.
    """
    found = checkpoint.load(run.checkpoints, step)
    if run.fine_tunes:
        policy, tokenizer = load_model(stored_config(run))
    else:
        settings, seed = preflight.model_of(run)
        policy, tokenizer = load_policy(located(settings, seed, SilentView()), seed=derive(seed, "model"))
        policy.requires_grad_(False).eval()
    policy.load_weights(found.tensors["policy"])
    return policy, tokenizer


def open_model(
    config: RunConfig, view: View, stored: Stored | None = None
) -> tuple[Policy, PreTrainedTokenizerBase]:
    """The policy that a configuration names, or a stored one, on its device and ready to be asked; its tokenizer."""
    if stored is not None:
        run = RunFolder.open(stored.run)
        if not run.model.is_dir():
            view.note(f"{run.path} has no model yet; its checkpoint of step {stored.step} is taken")
        policy, tokenizer = open_checkpoint(run, stored.step)
    else:
        settings = located(config.model, config.seed, view)
        policy, tokenizer = load_policy(settings, seed=derive(config.seed, "model"))
    policy.to(pick_device(config.device)).requires_grad_(False)
    return policy.eval(), tokenizer


def open_engine(
    config: RunConfig, policy: Policy, tokenizer: PreTrainedTokenizerBase, stored: Stored | None,
    sampling: Sampling | None = None,
) -> Engine:  # fmt: skip
    """Whoever samples for an open model; the step of a stored one is its weight version, that of others is 0.

    Raises:
        StropError: see `build_engine`.
    """
    version = 0 if stored is None else stored.step
    return build_engine(config.engine, config.model, tokenizer, policy, version, sampling=sampling)


def problems_of(asked: Asked, tokenizer: PreTrainedTokenizerBase, view: View) -> tuple[Dataset, int | None]:
    """The problems as the model is asked them, and how many of them it was trained on (None: not known).

    Raises:
        InputError: a source cannot be read, or lacks what the run held out.
    """
    settings = asked.config.data
    record = None if asked.run is None else RunFolder.open(asked.run).read_problems()
    if asked.own and record is not None and record.held_out:
        source = settings.source if settings.held_out is None else settings.held_out.source or settings.source
        problems = record.held_out_of(source.load(), source.label)[: asked.limit]
        changed = record.other_answers(problems)
        if changed is not None:
            view.note(f"{source.label}: {changed}")
        template, room = settings.template, settings.max_prompt_tokens
        chosen = build_dataset(source.label, problems, template, tokenizer, room, asked.config.instruction)
        kind = "held-out problems"
    else:
        seen = trained_before(asked.config.model.path)
        data = load_data(settings, tokenizer, asked.config.instruction, seen)
        kept = data.held_out if data.held_out is not None else data.train
        chosen = kept.subset(range(len(kept))[: asked.limit])
        none = " (the run holds out none)" if asked.own else ""
        kind = "held-out problems" if data.held_out is not None else f"problems{none}"
    place = asked.config.model.path if asked.run is None else str(asked.run)
    learned = questions_of(place)
    trained_on = None if learned is None else sum(question_digest(one) in learned for one in chosen.problems)
    view.note(f"{len(chosen)} {kind} of {chosen.name}")
    if trained_on:
        which = f"{trained_on} of these {len(chosen)} problems"
        view.note(f"{which} were among the training problems; their pass rate is no measure")
    if asked.own and record is None:
        view.note("the run kept no record of its problems: they are split anew, by the data file as it is now")
    if chosen.over_budget:
        left_out = counted(chosen.over_budget, "problems")
        view.note(f"{left_out} left out, their prompts exceed {chosen.max_prompt_tokens} tokens")
    return chosen, trained_on


def _sampling(config: RunConfig, temperature: float | None, max_new_tokens: int | None) -> Sampling:
    """As the run measures itself, but for what is asked for."""
    changes: dict[str, Any] = {} if temperature is None else {"temperature": temperature}
    if max_new_tokens is not None:
        changes["max_new_tokens"] = max_new_tokens
    try:
        return Sampling.model_validate({**evaluation_sampling(config).model_dump(), **changes})
    except ValidationError as error:
        raise InputError(f"sampling: {explain(error).removeprefix('(whole): ')}") from error


def fitted(
    sampling: Sampling, examples: Iterable[Example], engine: Engine, view: View,
    way_out: str = "; a lower data.max_prompt_tokens leaves such prompts out",
) -> Sampling:  # fmt: skip
    """`sampling` with no more new tokens than the model has room for after the longest prompt.

    It holds for all examples, so a lower budget is noted, with the problem that it comes from; also with `way_out`,
    to leave long prompts out, where half of the prompts have room for the whole budget.
    """
    ordered = sorted(examples, key=lambda example: len(example.prompt_ids))
    longest, median = ordered[-1], ordered[(len(ordered) - 1) // 2]
    tokens, limit = len(longest.prompt_ids), engine.capabilities.max_tokens
    room = limit - tokens
    if room < 1:
        raise InputError(
            f"the longest prompt has {tokens} tokens, the model's limit is {limit}; "
            "lower data.max_prompt_tokens, which leaves longer prompts out"
        )
    if sampling.max_new_tokens <= room:
        return sampling
    helps = limit - len(median.prompt_ids) >= sampling.max_new_tokens
    view.note(
        f"completions end at {room} tokens, not {sampling.max_new_tokens}: of the model's {limit}, the prompt of "
        f"problem {longest.problem.id!r} takes {tokens}{way_out if helps else ''}"
    )
    return sampling.model_copy(update={"max_new_tokens": room})


def _answer(config: RunConfig, problem: Problem, completion: Completion) -> dict[str, Any]:
    judged = problem.reference is not None
    verdict = config.verifier(problem, completion.text, completion.truncated) if judged else None
    return _row(problem, completion, verdict)


def _row(problem: Problem, completion: Completion, verdict: Verdict | None) -> dict[str, Any]:
    return {
        "prompt": problem.question,
        "completion": completion.text,
        "tokens": len(completion.token_ids),
        "finish_reason": completion.finish_reason,
        "status": None if verdict is None else str(verdict.status),
        "reference": problem.reference,
    }
