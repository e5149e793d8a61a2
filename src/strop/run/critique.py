r"""`strop doctor RUN|CONFIG`: a configuration read as a critic reads it, and a run's first steps where there are some.

    findings = criticise("mine.toml")          # template, verifier, budgets, data, pass rate at the start, time a step

It loads the tokenizer and the problems, and the model only where it is to be asked some of them. Which form of answer
counts is asked of the verifier itself: a problem's own reference is put in a box, between tags, bare …, and what the
verifier calls correct is what the prompt should ask for.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import fmean, median
from typing import NamedTuple

from transformers import PreTrainedTokenizerBase

from strop.base.types import InputError, Problem
from strop.base.view import SilentView, View, amount, counted, duration, percent
from strop.config.parse import edit, parse
from strop.config.schema import RunConfig, stage_configs
from strop.data import dataset
from strop.data.dataset import Data, Dataset, load_data
from strop.data.templates import Auto
from strop.model.location import RESERVED, dtype_name
from strop.model.policy import Policy
from strop.recipes.resolve import resolve
from strop.run import preflight
from strop.run.accelerators import Finding, Level
from strop.run.cautions import cautions, few_to_train_on
from strop.run.engine_trial import try_engines
from strop.run.folder import RunFolder, is_run
from strop.run.judgeable import caution, refuse_unjudgeable
from strop.run.memory import NotKnownBeforehand, fitting_here, outline
from strop.run.questions import known_room, most_room, play_of, validation_sets, within_reach
from strop.run.step_time import step_seconds
from strop.run.tasks import measured, open_model
from strop.run.trained_on import trained_before
from strop.training.embedded_base import tokenizer_of
from strop.verifiers.answer import stated_answer
from strop_verify.verdict import Status

# How an answer may be given, by what a prompt that asks for it mentions; `bare` needs no asking.
FORMS = {"boxed": "\\boxed{%s}", "<answer>": "<answer> %s </answer>", "####": "#### %s", "bare": "%s"}
JUDGED = 40  # problems whose references are judged
FIRST_STEPS = 3  # of a run, whose pass rate is that of the start
LOW, HIGH = 0.02, 0.98  # pass rates beyond which few groups teach anything
CUT_OFF = 0.2  # share of completions that end at the budget, beyond which it is worth a word


class Subject(NamedTuple):
    """The subject of a critique: a configuration, and the run that was made with it, if one was."""

    config: RunConfig
    run: RunFolder | None


class Beginning(NamedTuple):
    """How the model does before training: its pass rate, over how much, and the mean length of its completions.

    `seconds` is what a completion took, where as many were generated at once as in training.
    """

    pass_rate: float
    measured: str
    cut_off: float
    tokens: float | None = None
    seconds: float | None = None


def criticise(
    target: str,
    sets: Sequence[str] = (),
    small: bool = False,
    asked: int = 0,
    engines: bool = False,
    view: View | None = None,
) -> list[Finding]:
    """Findings on a run folder, a recipe or a file; `sets` change its configuration.

    Args:
        asked: how many problems a model is asked, as often as in training, to know how a configuration begins.
        engines: whether the engines are tried, to know which is quicker.
        view: is told meanwhile.

    Raises:
        InputError: there is no such run or configuration, or it is one of fine-tuning.
    """
    subject = _subject(target, sets, small)
    config = subject.config
    try:
        preflight.training(config)
    except InputError as error:
        return [Finding("configuration", "problem", "cannot be trained", str(error))]
    tokenizer = tokenizer_of(config.model)
    try:
        data = load_data(config.data, tokenizer, config.instruction, trained_before(config.model.path))
    except InputError as error:
        return [Finding("data", "problem", "cannot be used", str(error))]
    try:
        policy = _policy(config, tokenizer)
    except InputError as error:
        return [Finding("model", "problem", "cannot be trained", str(error))]
    view = SilentView() if view is None else view
    return [
        _model(config, policy),
        _memory(config),
        *_prompt(config, data, tokenizer),
        *_budgets(config, data),
        *_data(config, data),
        *(Finding(one.topic, "note", one.found, one.advice) for one in cautions(config)),
        *_measured(config, data, tokenizer),
        *_outset(subject, policy, data, asked, view),
        *(try_engines(config, data, view) if engines else ()),
    ]


def _subject(target: str, sets: Sequence[str], small: bool) -> Subject:
    if not is_run(Path(target)):
        return Subject(resolve(target, tuple(sets), small), None)
    run = RunFolder.open(target)
    stored = run.read_json("config.json")
    if "demonstrations" in stored:
        raise InputError(f"{target} is a fine-tuning run; what is looked at here is reinforcement learning")
    config = parse(stored, str(run.config_path), replacing=sets)
    return Subject(edit(config, tuple(sets)) if sets else config, run)


# ---------------------------------------------------------------------- the model


def _embedded(config: RunConfig) -> bool:
    return config.model.path in RESERVED


def _policy(config: RunConfig, tokenizer: PreTrainedTokenizerBase) -> Policy | None:
    """The model's shapes, without its weights; None where they show only once it is loaded."""
    try:
        return outline(config.model, tokenizer)
    except NotKnownBeforehand:
        return None


def _model(config: RunConfig, policy: Policy | None) -> Finding:
    count = None if policy is None else policy.parameter_count
    found = [config.model.path or "fresh", dtype_name(config.model)]
    found += [] if count is None else [f"{amount(count)} parameters"]
    if config.model.fresh is not None:
        advice = "its weights are random, and a model that solves nothing learns nothing: name one with model.path"
        return Finding("model", "problem", ", ".join(found), advice)
    lr = config.optim.lr
    if count is not None and count > 2e8 and lr > 3e-5 and config.model.lora is None:
        return Finding("model", "note", ", ".join(found), f"optim.lr={lr:g} is high for it: 1e-6 is usual")
    if count is not None and count < 2e7 and lr < 1e-5:
        return Finding("model", "note", ", ".join(found), f"optim.lr={lr:g} is low for it: try 3e-4")
    return Finding("model", "ok", ", ".join(found))


# ---------------------------------------------------------------------- prompt and verifier


def _prompt(config: RunConfig, data: Data, tokenizer: PreTrainedTokenizerBase) -> Iterator[Finding]:
    """The first prompt as it is sent, and whether it asks for what the verifier reads."""
    example = data.train[0]
    prompt = tokenizer.decode(example.prompt_ids.tolist())
    template = config.data.template.piece_name()
    shown = " ".join(prompt.split())
    found = f"template {template}, {len(example.prompt_ids)} tokens: {shown if len(shown) < 200 else f'{shown[:199]}…'}"
    if template == "Plain" and tokenizer.chat_template:
        yield Finding("prompt", "note", found, "the model has a chat template of its own: data.template=Auto")
    else:
        yield Finding("prompt", "ok", found)
    yield _verifier(config, data, prompt)
    narrow = caution(config.verifier, data.train.problems)
    if narrow is not None:
        yield Finding("formulas", "note", *narrow)


def _made_here(config: RunConfig) -> bool:
    """Whether the model is one of strop's own, which learned the form of its answers rather than to be asked."""
    return _embedded(config) or config.model.fresh is not None


def _verifier(config: RunConfig, data: Data, prompt: str) -> Finding:
    name, problems = config.verifier.piece_name(), data.train.problems
    try:
        refuse_unjudgeable(config.verifier, data)
    except InputError as error:
        return Finding("verifier", "problem", f"{name} refuses a problem, and so will training", str(error))
    accepted = [form for form, text in FORMS.items() if _right(config, problems[0], text)]
    if not accepted:
        advice = "judge a response of your own with it: strop verify compare, or docs/verifiers.md"
        found = f"{name}: the reference {_short(problems[0].reference)} is no answer"
        return Finding("verifier", "note", found, advice)
    judged = [problems[place] for place in _spread(len(problems), JUDGED)]
    wrong = [problem for problem in judged if not _right(config, problem, FORMS[accepted[0]])]
    if wrong:
        found = f"{name} does not take {len(wrong)} of {len(judged)} references for right answers"
        advice = f"such as {wrong[0].id}: {_short(wrong[0].reference)}; clean the data, or choose another verifier"
        return Finding("verifier", "problem" if 2 * len(wrong) > len(judged) else "note", found, advice)
    reads = f"{name} finds an answer that is written {' or '.join(FORMS[form] % '…' for form in accepted)}"
    other = next((form for form in FORMS if form not in accepted and form != "bare" and form in prompt), None)
    if "bare" in accepted or any(form in prompt for form in accepted) or _made_here(config):
        if other is None:
            return Finding("verifier", "ok", reads)
        both = f"{reads}, and the prompt also asks for {other}"
        advice = f"answers as {FORMS[other] % '…'} are judged wrong: take that sentence off, or set verifier.extract"
        return Finding("verifier", "note", both, advice)
    asking = f'"put your final answer in {FORMS[accepted[0]] % "…"}"'
    if isinstance(config.data.template, Auto) and config.data.template.instruct is False:
        advice = f"let the prompt say {asking}: data.template.instruct=true"
    else:
        advice = f"say {asking} in the prompts, or let data.template=Auto say it"
    return Finding("verifier", "problem", f"{reads}, and the prompt asks for no such form", advice)


def _spread(count: int, most: int) -> range:
    """At most `most` of `count` places, evenly apart."""
    return range(0, count, max(count // most, 1))[:most]


def _right(config: RunConfig, problem: Problem, form: str) -> bool:
    if not isinstance(problem.reference, str | int | float):
        return False
    opening = problem.extra.get("opening", "") and "</think>"
    answer = stated_answer(str(problem.reference))  # of a worked solution, which holds a box of its own
    return config.verifier(problem, opening + form % answer).status is Status.CORRECT


def _short(value: object) -> str:
    text = " ".join(str(value).split())
    return repr(text if len(text) <= 40 else f"{text[:39]}…")


# ---------------------------------------------------------------------- budgets and data


def _budgets(config: RunConfig, data: Data) -> Iterator[Finding]:
    """Whether prompts and completions fit into the model, and whether prompts were left out."""
    sets = [part for part in (data.train, data.held_out) if part is not None]
    longest = _longest_prompt(data)
    budget = max(stage.sampling.max_new_tokens for stage in stage_configs(config))
    room = known_room(config)
    found = f"prompts up to {longest} tokens, completions up to {budget}"
    if room is None:
        yield Finding("budgets", "note", f"{found}; the model's context is known when it is loaded")
    else:
        yield _fit(config, longest, room, f"{found}; the model's context has room for {room}")
    left_out = sum(part.over_budget for part in sets)
    if left_out:
        share = left_out / (left_out + sum(map(len, sets)))
        level: Level = "problem" if share > 0.5 else "note"
        advice = "raise data.max_prompt_tokens, or leave them out knowingly"
        found = f"{percent(share)} are longer than {config.data.max_prompt_tokens} tokens and left out"
        yield Finding("prompts", level, found, advice)


def _fit(config: RunConfig, longest: int, room: int, found: str) -> Finding:
    try:
        _, change = preflight.fitted(config, longest, room)
    except InputError as error:
        return Finding("budgets", "problem", found, str(error))
    return Finding("budgets", "ok" if change is None else "note", found, change or "")


def _measured(config: RunConfig, data: Data, tokenizer: PreTrainedTokenizerBase) -> Iterator[Finding]:
    """Whether the environment and the benchmarks can be used; what they say where they can is left to a dry run."""
    room = known_room(config)
    room = most_room(config) if room is None else room
    here, unseen = within_reach(config)
    if unseen is not None:
        yield Finding("measured on", "note", unseen)
    try:
        validation_sets(here, data, tokenizer, room, SilentView(), play_of(config, tokenizer, room))
    except InputError as error:
        yield Finding("measured on", "problem", "cannot be used", str(error))


def _data(config: RunConfig, data: Data) -> Iterator[Finding]:
    """How much there is to train on, what contradicts itself, and what is held out."""
    prompts, different = config.batch.prompts_per_step, data.train.different
    epochs = config.steps * prompts / different
    asked = f"{percent(epochs)} of them asked" if epochs < 1 else f"each asked {epochs:.1f} times on average"
    found = f"{data.train.size} of {data.train.name}, {asked} in {counted(config.steps, 'steps')}"
    if different < prompts:
        yield Finding("data", "note", found, f"a step takes {prompts} of them: lower batch.prompts_per_step")
    else:
        yield Finding("data", "ok", found)
    warning = dataset.contradiction_warning(data.train.name, data.train.problems)
    if warning is not None:
        yield Finding("contradictions", "note", warning, "remove one of each, or merge them: strop data prepare")
    few = few_to_train_on(config, data)
    if few is not None:
        yield Finding(few.topic, "note", few.found, few.advice)
    yield _held_out(config, data.held_out, data.removed)


def _held_out(config: RunConfig, held_out: Dataset | None, removed: int) -> Finding:
    if held_out is None:
        return Finding("held out", "note", "nothing", "hold out some to see whether it learns: data.held_out.count=64")
    found = f"{counted(len(held_out), 'problems')}, none of them trained on"
    found += f" ({counted(removed, 'training problems')} asking the same left out)" if removed else ""
    if config.evaluation.every is None:
        return Finding("held out", "note", found, "they are never measured: set evaluation.every=20")
    error = 0.5 / math.sqrt(len(held_out))
    if error > 0.1:
        advice = f"a pass rate over so few is known to ±{200 * error:.0f} points only: raise data.held_out.count"
        return Finding("held out", "note", found, advice)
    return Finding("held out", "ok", found)


# ---------------------------------------------------------------------- what a run shows, or a guess


def _outset(subject: Subject, policy: Policy | None, data: Data, asked: int, view: View) -> Iterator[Finding]:
    """How training begins, and what a step takes."""
    try:
        beginning = _asked(subject.config, data.train, asked, view) if asked else _first_steps(subject)
    except InputError as error:
        yield Finding("pass rate", "problem", "the model cannot be asked", str(error))
        return
    yield _start(beginning)
    if beginning is not None and beginning.cut_off > CUT_OFF:
        yield _cut_off(subject.config, data, beginning.cut_off)
    yield _step(subject, policy, data, beginning)


def _cut_off(config: RunConfig, data: Data, share: float) -> Finding:
    budget, way = config.sampling.max_new_tokens, "raise sampling.max_new_tokens"
    room = known_room(config)
    if room is not None:
        left = room - _longest_prompt(data)
        if left <= budget:
            budget, way = left, "the model's context has room for no more; take shorter prompts, or another model"
    found = f"{percent(share)} of the completions are cut off at {budget} tokens"
    return Finding("completions", "note", found, f"what is cut off is seldom right: {way}")


def _longest_prompt(data: Data) -> int:
    return max(part.longest_prompt for part in (data.train, data.held_out) if part is not None)


def _first_steps(subject: Subject) -> Beginning | None:
    """Of a run that has trained some."""
    rows = [] if subject.run is None else subject.run.read_metrics()
    rows = [row for row in rows if row.get("pass_rate") is not None][:FIRST_STEPS]
    if not rows:
        return None
    rates, cut_off = ([row.get(name) or 0.0 for row in rows] for name in ("pass_rate", "truncation_rate"))
    over = "the first step" if len(rows) == 1 else f"the first {len(rows)} steps"
    return Beginning(fmean(rates), over, fmean(cut_off))


def _asked(config: RunConfig, train: Dataset, count: int, view: View) -> Beginning:
    """What the model makes of `count` training problems from all over the source, sampled as the first steps do."""
    first = stage_configs(config)[0]
    chosen = train.subset(_spread(len(train), count))
    policy, tokenizer = open_model(first, view)
    samples = first.batch.samples_per_prompt
    found = measured(first, policy, tokenizer, chosen, samples, first.sampling, view)
    over = f"{counted(found['problems'], 'problems')}, {counted(found['samples_per_problem'], 'answers')} each"
    completions = len(chosen) * samples
    seconds = found["seconds"] / completions if completions >= first.engine.slots else None
    return Beginning(found["pass_rate"], over, found["truncation_rate"], found["mean_length"], seconds)


def _start(beginning: Beginning | None) -> Finding:
    """The pass rate before training: where it is 0 or 1, no group teaches anything."""
    if beginning is None:
        advice = "ask the model some problems (--ask 16), or train a few steps and look at that run: strop doctor RUN"
        return Finding("pass rate", "note", "not known before the model is asked", advice)
    rate = beginning.pass_rate
    found = f"{percent(rate)} of the answers are right ({beginning.measured})"
    if LOW <= rate <= HIGH:
        return Finding("pass rate", "ok", found)
    outcome, way = ("wrong", "easier problems or a better model") if rate < LOW else ("right", "harder problems")
    level: Level = "problem" if rate in (0.0, 1.0) else "note"
    advice = f"a problem of which all answers are {outcome} teaches nothing: take {way}, or look at the prompt"
    return Finding("pass rate", level, found, advice)


def _memory(config: RunConfig) -> Finding:
    try:
        return Finding("memory", "ok", fitting_here(config).removeprefix("memory: "))
    except NotKnownBeforehand as error:
        return Finding("memory", "note", str(error))
    except InputError as error:
        return Finding("memory", "problem", str(error), "change what it says, or use another machine")


def _step(subject: Subject, policy: Policy | None, data: Data, beginning: Beginning | None) -> Finding:
    """Seconds of a step: as measured, or between which two."""
    config = subject.config
    rows = [] if subject.run is None else subject.run.read_metrics()
    measured = [row["seconds/step"] for row in rows if row.get("seconds/step") is not None]
    seconds = [value for value in measured if value is not None]
    if seconds:
        each = median(seconds)
        whole = f"{duration(each * config.steps)} for {config.steps} steps"
        return Finding("time", "ok", f"{duration(each)} a step, {whole}")
    if policy is None:
        return Finding("time", "note", "not known before the model is loaded", "measure it: train with steps=3")
    length, each_seconds = (None, None) if beginning is None else (beginning.tokens, beginning.seconds)
    low, high = step_seconds(config, policy, data, length, each_seconds)
    found = f"{_roughly(low)} to {_roughly(high)} a step on this machine"
    whole = f"{_roughly(low * config.steps)} to {_roughly(high * config.steps)}"
    if low * config.steps > 7 * 86_400:
        return Finding("time", "note", found, f"{counted(config.steps, 'steps')} would take {whole}")
    asked = "; it depends on how long completions are, which --ask 16 measures" if length is None else ""
    return Finding("time", "ok", f"{found}, {whole} for {counted(config.steps, 'steps')}{asked}")


def _roughly(seconds: float) -> str:
    """One or two digits, for it is a guess: `0.7 s`, `40 s`, `15 min`, `3 h`."""
    if seconds < 100:
        return f"{seconds:.1g} s" if seconds < 9.5 else f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 6000 else f"{seconds / 3600:.0f} h"
