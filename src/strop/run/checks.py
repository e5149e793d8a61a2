"""The checks before a run: one list for `train`, `--resume`, `--dry-run`, `strop doctor` and `strop eval`.

    found = findings(config)                          # before torch is loaded: a fraction of a second
    found = findings(config, data, facts)             # with the problems, and what is known of the model
    refuse(found)                                     # raises the first error
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from strop.base import machine, session
from strop.base.imports import MAIN, not_allowed, refuse_absent
from strop.base.progress import doing
from strop.base.text import counted, percent
from strop.base.types import InputError, Problem
from strop.config.schema import RunConfig
from strop.data.columns import CODE
from strop.data.dataset import Data, Dataset
from strop.data.demonstrations import Demonstrations
from strop.data.generators import Mixture
from strop.data.rows import HubDataset, RowSource
from strop.data.source import ProblemSource, damage, question_key
from strop.data.templates import Auto, ChatTemplate
from strop.engines.settings import Vllm
from strop.evaluation.benchmarks import SUFFIXES
from strop.model.endings import turn_end
from strop.model.location import RESERVED, locate, refuse_kind, stored_config
from strop.model.settings import EMBEDDED, ModelSettings
from strop.run.finding import Finding, Level, elsewhere, refused
from strop.verifiers.answer import stated_answer
from strop.verifiers.base import Verifier
from strop.verifiers.coverage import Coverage
from strop.verifiers.judge_model import judge_models
from strop_verify.verdict import Status, shortened

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from strop.run.memory import MemoryPlan

USUAL_SCALE = 4  # the most that adapters are usually multiplied by
# How an answer may be given, by what a prompt that asks for it mentions; `bare` needs no asking.
FORMS = {"boxed": "\\boxed{%s}", "<answer>": "<answer> %s </answer>", "####": "#### %s", "bare": "%s"}
JUDGED = 40  # problems whose references are judged
LOW, HIGH = 0.02, 0.98  # pass rates beyond which few groups teach anything
SMALL = 2e7  # parameters up to which nothing is known of rates beyond strop's own small models
CUT_OFF = 0.2  # share of completions that end at the budget, beyond which there is a note
SHOW_EXAMPLES = (
    "show this one worked examples, in the prompt (few-shot) or by strop sft: docs/train.md, When the model cannot do "
    "it at all"
)
SHOWN = 40  # characters of a question or an answer


@dataclass(frozen=True, eq=False)
class ModelFacts:
    """What is known of a run's model before its weights are loaded.

    Attributes:
        tokenizer: its tokenizer.
        parameters: how many it has.
        room: the most tokens of a prompt with its completion; None if that is known only after loading.
        memory: how the run fits into memory, by the tokens of the longest prompt (None: as many as may be); None if
            only other machines hold the model.
    """

    tokenizer: PreTrainedTokenizerBase
    parameters: int
    room: int | None = None
    memory: Callable[[int | None], MemoryPlan] | None = None


@doing("checking the run")
def findings(
    config: RunConfig, data: Data | None = None, facts: ModelFacts | None = None, *, trains: bool = True,
    reads_problems: bool = True, here: bool = True,
) -> list[Finding]:  # fmt: skip
    """Run all checks that the arguments allow.

    Args:
        config: the configuration.
        data: its problems; None skips the checks that read them.
        facts: what is known of its model; None skips the checks that need it.
        trains: whether the model is trained; a model that is only measured skips the checks of training.
        reads_problems: whether the problems of `config.data` are used.
        here: whether it starts on this machine; if not, too little memory is a warning.
    """
    found = [*of_names(config, trains, reads_problems)]
    if trains:
        found += of_settings(config)
    if facts is not None:
        found += of_model(config, facts, None if data is None else data.longest_prompt, trains, here)
    if data is not None:
        found += unread(config.data.source)
    if facts is not None and data is not None:
        found += of_problems(config, data, facts.tokenizer, trains)
    return found


# ---------------------------------------------------------------------- what the configuration names


def of_names(config: RunConfig, trains: bool = True, reads_problems: bool = True) -> Iterator[Finding]:
    """Whether everything that the configuration names is there: model, functions, packages and files."""
    yield from _functions(config)
    if config.model.path is None and config.model.fresh is None:
        yield Finding(
            "no-model", "error", "model",
            f"{config.recipe} names no model: train one of yours with --set model.path=FOLDER|HUB-NAME, or see the "
            f"recipe at work on a small one that is made on the spot: strop train {config.recipe} --tiny",
        )  # fmt: skip
    yield from _engine(config, trains)
    yield from of_model_named(config.model, config.device)
    if trains:
        yield from _packages(config)
        yield from _files(config)
    if reads_problems:
        held_out = config.data.held_out
        for source in (config.data.source, None if held_out is None else held_out.source):
            if source is not None:
                yield from refused("source", "data", partial(_source, source))


def _functions(config: RunConfig) -> Iterator[Finding]:
    """Reward functions that were defined in another Python session."""
    for name in config.verifier.session_functions():
        module = name.partition(":")[0]
        if session.recall(name) is not None:
            continue
        found = (
            f"the reward function {not_allowed(name, module)}" if module != MAIN
            else f"the reward function {name.removeprefix(f'{MAIN}:')!r} is not here: only the script or notebook that "
            "defines it has it; go on from there: strop.train(…, resume=True), or set another verifier"
        )  # fmt: skip
        yield Finding("function-absent", "error", "verifier", found)


def of_model_named(
    settings: ModelSettings, device: str = "auto", key: str = "model.path", made: str = EMBEDDED
) -> Iterator[Finding]:
    """Whether `settings.path`, which errors call `key`, leads to a model that can be trained, and its device exists.

    `made` is the name of a model that is made on the spot, which the error suggests.
    """
    if device == "cuda" and not machine.has_gpu():
        found = "device=cuda: this machine has no GPU that a driver shows; set device=auto or device=cpu"
        yield Finding("no-gpu", "error", "device", found)
    if settings.path is None or settings.path in RESERVED:
        return
    yield from refused("model", "model", partial(locate, settings, key, made))
    yield from refused("model", "model", lambda: refuse_kind(f"{key} {settings.path}", stored_config(settings)))


def _source(of: ProblemSource) -> None:
    """Refuse problems that cannot be read: the file is missing, or its first row is not a problem."""
    if isinstance(of, Mixture):
        for inner in of.sources:
            _source(inner)
        return
    if isinstance(of, HubDataset) and not Path(of.dataset).is_dir():
        refuse_absent("datasets", extra="hub", purpose="data sets of the Hugging Face hub")
    in_a_file = "path" in type(of).model_fields and of.model_dump()["path"] is not None
    if in_a_file and next(of.problems(), None) is None:
        raise InputError(f"{of.label}: no problems in it")


def _engine(config: RunConfig, trains: bool) -> Iterator[Finding]:
    """Whether the engine can sample as the stages ask, and where vLLM is."""
    for stage in config.stage_configs() if trains else ():
        yield from refused("engine", "engine", partial(config.engine.refuse_unable, stage.sampling))
    if isinstance(config.engine, Vllm) and not config.engine.urls:
        yield from refused("engine", "engine", config.engine.interpreter)


def _packages(config: RunConfig) -> Iterator[Finding]:
    wanted: dict[str, str] = dict.fromkeys(config.trackers, "curves of metrics")
    if config.orchestration.executor == "ray":
        wanted["ray"] = "generators on a Ray cluster"
    for name, purpose in wanted.items():
        yield from refused("package", "packages", partial(refuse_absent, name, extra=name, purpose=purpose))


def _files(config: RunConfig) -> Iterator[Finding]:
    """The critic's model, a teacher and benchmarks in files."""
    if config.critic is not None and config.critic.path is not None:
        settings = config.model.model_copy(update={"path": config.critic.path, "fresh": None})
        yield from of_model_named(settings, key="critic.path")
    for teacher in config.algorithm.reference.teachers.values():
        settings = config.model.model_copy(update={"path": teacher, "fresh": None, "revision": None})
        yield from of_model_named(settings, key="algorithm.reference.path")
    for number, benchmark in enumerate(config.evaluation.benchmarks):
        if benchmark.name.endswith(SUFFIXES) and not Path(benchmark.name).expanduser().is_file():
            found = f"evaluation.benchmarks.{number}: there is no file {benchmark.name}"
            yield Finding("benchmark", "error", "measured on", found)


# ---------------------------------------------------------------------- the settings


def of_settings(config: RunConfig) -> list[Finding]:
    """All checks that need only the configuration."""
    return [
        *_without_baseline(config),
        *large_adapters(config.model),
        *_endless_warm_up(config),
    ]


def large_adapters(settings: ModelSettings) -> Iterator[Finding]:
    """The scale of the adapters exceeds `USUAL_SCALE`, for example because only a small rank is set."""
    lora = settings.lora
    if lora is not None and lora.alpha > USUAL_SCALE * lora.rank:
        yield Finding(
            "large-adapters", "note", "adapters",
            f"model.lora.rank={lora.rank} and model.lora.alpha={lora.alpha:g}: adapters are multiplied by alpha / rank "
            f"= {lora.alpha / lora.rank:g}, where 1 or 2 is usual",
            f"set model.lora.alpha={2 * lora.rank}",
        )  # fmt: skip


def _without_baseline(config: RunConfig) -> Iterator[Finding]:
    """A group has one completion, so it has no baseline."""
    single = any(stage.batch.samples_per_prompt == 1 for stage in config.stage_configs())
    if single and config.algorithm.advantage.compares_group:
        yield Finding(
            "no-baseline", "note", "groups",
            "batch.samples_per_prompt=1: with no other completion of its prompt to compare with, a completion's "
            "advantage is its reward itself, so that a reward of 0 teaches nothing",
            "8 are usual: raise batch.samples_per_prompt, with fewer prompts_per_step if need be",
        )  # fmt: skip


def _endless_warm_up(config: RunConfig) -> Iterator[Finding]:
    """The learning rate still rises at the end of the run."""
    stages = config.stage_configs()
    updates = config.steps * max(stage.batch.updates_per_step * stage.batch.passes_per_batch for stage in stages)
    warm_up, rate = stages[0].optim.warmup_steps, stages[0].optim.lr
    if warm_up >= updates and warm_up > 1:
        yield Finding(
            "endless-warm-up", "note", "warm-up",
            f"optim.warmup_steps={warm_up}: the learning rate rises through all {counted(updates, 'updates')} of the "
            f"run, to {rate * updates / warm_up:.2g} of optim.lr={rate:g}",
            "lower optim.warmup_steps, or take more steps",
        )  # fmt: skip


def of_model(
    config: RunConfig, facts: ModelFacts, prompt: int | None, trains: bool = True, here: bool = True
) -> Iterator[Finding]:
    """The memory that it needs, random weights, or a learning rate that is unusual for a model of this size.

    `prompt` are the tokens of the longest prompt, where that is known.
    """
    if facts.memory is not None:
        memory = facts.memory(prompt).finding
        yield memory if here else elsewhere(memory)
    if not trains:
        return
    parameters = facts.parameters
    if config.model.fresh is not None:
        yield Finding(
            "random-weights", "warning", "model",
            "the model's weights are random, and a model that solves nothing learns nothing",
            "name one that can do something with --set model.path=…",
        )  # fmt: skip
    if parameters > SMALL:
        stage = max(config.stage_configs(), key=lambda one: one.optim.lr / highest_rate(one, parameters))
        most, count = highest_rate(stage, parameters), completions_of_update(stage)
        if stage.optim.lr > most:
            found = f"optim.lr={stage.optim.lr:g} is high for {parameters / 1e6:,.0f} million parameters and {count}"
            advice = f"rates that are known to work are up to {most:.1g}; more completions allow a higher one"
            yield Finding("high-learning-rate", "note", "model", f"{found} completions an update", advice)
    elif config.optim.lr < 1e-5:
        yield Finding("low-learning-rate", "note", "model", f"optim.lr={config.optim.lr:g} is low for it", "try 3e-4")


def completions_of_update(config: RunConfig) -> int:
    """Completions that an update learns from."""
    return max(config.batch.prompts_per_step * config.batch.samples_per_prompt // config.batch.updates_per_step, 1)


def highest_rate(config: RunConfig, parameters: int) -> float:
    """The highest learning rate with which models of this size are known to learn.

    OPEFO's 2.83e-6 at 256 completions an update, and 1e-6 at 32, for 4 and 7 billion parameters: the rate goes with
    the root of the batch. Smaller models take more, as one over their width, which goes with the root of their size
    (Yang et al., 2022); adapters ten times as much as whole models (Schulman et al., 2025).
    """
    batch, size = completions_of_update(config) / 256, max(7e9 / parameters, 1)
    return 2.83e-6 * math.sqrt(batch * size) * (1 if config.model.lora is None else 10)


# ---------------------------------------------------------------------- the problems


def of_problems(
    config: RunConfig, data: Data, tokenizer: PreTrainedTokenizerBase, trains: bool = True
) -> Iterator[Finding]:
    """All checks that need the data: problems, the first prompt, the verifier and held-out problems.

    A model that is only measured is asked the problems of `data.train`.
    """
    parts = [part for part in (data.train, data.held_out) if part is not None]
    unusable = list(unjudgeable(config.verifier, [(part.name, part.problems) for part in parts], trains))
    yield from unusable
    yield from _narrow(config.verifier, data.train.problems)
    if not any(one.level == "error" for one in unusable):
        yield from _verifier(config, data.train, tokenizer)
        yield from _template(config, tokenizer)
    yield from damaged(data.train.name, data.train.problems)
    yield from contradictory(data.train.name, data.train.problems)
    yield from _left_out(config, data)
    if trains:
        yield from _few(config, data)
        yield from _held_out(config, data)


def unread(source: ProblemSource | Demonstrations) -> Iterator[Finding]:
    """Columns of a table that nobody reads."""
    if isinstance(source, Mixture):
        for inner in source.sources:
            yield from unread(inner)
    elif isinstance(source, RowSource | Demonstrations) and (found := source.unread()):
        kept = "; data.source.columns.extra=[…] keeps others for verifiers" * isinstance(source, RowSource)
        yield Finding("unread-columns", "note", "data", found, f"what belongs to the question must stand in it{kept}")


def damaged(name: str, problems: Sequence[Problem]) -> Iterator[Finding]:
    """Questions and answers from which JSON took a backslash."""
    read = (problem for problem in problems if problem.domain != CODE)
    found = [(problem, what) for problem in read if (what := damage(problem)) is not None]
    if found:
        problem, what = found[0]
        said = f"{name}: {counted(len(found), 'problems')} of {len(problems):,}, the first {problem.id!r}: {what}"
        yield Finding("damaged-text", "warning", "data", said, "write the file anew, each backslash doubled")


def unjudgeable(
    verifier: Verifier, parts: Sequence[tuple[str, Sequence[Problem]]], trains: bool = True
) -> Iterator[Finding]:
    """Problems that the verifier can never judge; `parts` are named.

    An error for training. Where a model is only measured, an error if it can judge none: the others count in no rate.
    """
    asked = [(name, problem) for name, problems in parts for problem in problems]
    refused = [(*one, reason) for one in asked if (reason := verifier.refuses(one[1])) is not None]
    if not refused:
        return
    source, problem, reason = refused[0]
    count, total = (sum(one[0] == source for one in of) for of in (refused, asked))
    piece = verifier.piece_name()
    step = f'{{ piece = "Verifiable", verifier = "{piece}" }}'
    list_of_one = isinstance(problem.reference, list) and len(problem.reference) == 1
    taken = "set data.source.columns.answer_json=true, which takes the answer out of a list of one, or " * list_of_one
    prepared = f"strop data prepare with the step {step} mends or drops them, or " if count < total else ""
    yield Finding(
        "unjudgeable", "error" if trains or count == total else "warning", "verifier",
        f"{source}: {piece} cannot judge {count:,} of {total:,} problems, the first of them {problem.id!r}: {reason}",
        f"{taken}{prepared}choose another verifier" if trains else "set verifier=…",
    )  # fmt: skip


def _narrow(verifier: Verifier, problems: Sequence[Problem]) -> Iterator[Finding]:
    """How many references the verifier compares only as texts, by reason."""
    found = Coverage(verifier)
    for problem in problems:
        found.add(problem)
    for line in found.lines:
        yield Finding("references-as-text", "note", "references", line)


def _verifier(config: RunConfig, dataset: Dataset, tokenizer: PreTrainedTokenizerBase) -> Iterator[Finding]:
    """Whether the first prompt asks for the form of answer that the verifier reads.

    The check writes a reference in each form (in a box, between tags, bare …) and gives it to the verifier. The prompt
    should ask for a form that the verifier calls correct.
    """
    name, problems = config.verifier.piece_name(), dataset.problems
    judges = list(judge_models(config.verifier))
    for judge in judges:
        verdict = judge(problems[0], FORMS["bare"] % stated_answer(str(problems[0].reference)))
        if verdict.failed:
            yield Finding("judge-fails", "error", "verifier", f"JudgeModel {judge.model}: {verdict.detail}")
            return
    if config.verifier.session_functions():
        return  # the user's functions only see the model's completions
    accepted = [form for form, text in FORMS.items() if _right(config, problems[0], text)]
    if not accepted:
        found = f"{name}: the reference {_short(problems[0].reference)} is no answer"
        advice = "judge a response of your own with it: strop verify compare, or docs/verifiers.md"
        yield Finding("reference-no-answer", "note", "verifier", found, advice)
        return
    judged = [problems[place] for place in spread(len(problems), 1 if judges else JUDGED)]
    wrong = [problem for problem in judged if not _right(config, problem, FORMS[accepted[0]])]
    if wrong:
        found = f"{name} does not take {len(wrong)} of {len(judged)} references for right answers"
        advice = f"such as {wrong[0].id}: {_short(wrong[0].reference)}; clean the data, or choose another verifier"
        level: Level = "warning" if 2 * len(wrong) > len(judged) else "note"
        yield Finding("references-not-taken", level, "verifier", found, advice)
        return
    prompt = tokenizer.decode(dataset[0].prompt_ids.tolist())
    reads = f"{name} finds an answer that is written {' or '.join(FORMS[form] % '…' for form in accepted)}"
    other = next((form for form in FORMS if form not in accepted and form != "bare" and form in prompt), None)
    made_here = config.model.path in RESERVED or config.model.fresh is not None  # it learned the form itself
    if "bare" in accepted or any(form in prompt for form in accepted) or made_here:
        if other is not None:
            said = f"answers as {FORMS[other] % '…'} are judged wrong"
            advice = f"{said}: take that sentence off, or set verifier.extract"
            found = f"{reads}, and the prompt also asks for {other}"
            yield Finding("prompt-asks-for-both", "note", "verifier", found, advice)
        return
    asking = f'"put your final answer in {FORMS[accepted[0]] % "…"}"'
    if isinstance(config.data.template, Auto) and config.data.template.instruct is False:
        advice = f"let the prompt say {asking}: data.template.instruct=true"
    else:
        advice = f"say {asking} in the prompts, or let data.template=Auto say it"
    found = f"{reads}, and the prompt asks for no such form"
    yield Finding("prompt-without-form", "warning", "verifier", found, advice)


def spread(count: int, most: int) -> range:
    """At most `most` of `count` places, evenly apart."""
    return range(0, count, max(count // most, 1))[:most]


def _right(config: RunConfig, problem: Problem, form: str) -> bool:
    if not isinstance(problem.reference, str | int | float):
        return False
    opening = problem.extra.get("opening", "") and "</think>"
    answer = stated_answer(str(problem.reference))  # a worked solution has its own box
    return config.verifier(problem, opening + form % answer).status is Status.CORRECT


def _template(config: RunConfig, tokenizer: PreTrainedTokenizerBase) -> Iterator[Finding]:
    if config.data.template.piece_name() == "Plain" and tokenizer.chat_template:
        found = "data.template=Plain, and the model has a chat template"
        yield Finding("chat-template-unused", "note", "prompt", found, "use it with data.template=Auto")
    elif isinstance(config.data.template, Auto | ChatTemplate):
        end = turn_end(tokenizer)
        if end.text and end.token is None and not any(stop in end.text for stop in config.sampling.stop):
            found = f"the chat template ends a turn with {end.text!r}, of which no token is one that ends a completion"
            yield Finding("turn-never-ends", "warning", "prompt", found, f"set sampling.stop={json.dumps([end.text])}")


def contradictions(problems: Sequence[Problem]) -> list[tuple[Problem, Problem]]:
    """Pairs of problems with the same question, ignoring white space, and different references; one pair per question.

    References are compared as written, without surrounding white space. `18` and `18.0` are different here, because
    only the verifier knows whether they are equal.
    """
    first: dict[str, Problem] = {}
    found: dict[str, tuple[Problem, Problem]] = {}
    for problem in problems:
        key = question_key(problem)
        before = first.setdefault(key, problem)
        if before is not problem and key not in found and _written(before) != _written(problem):
            found[key] = (before, problem)
    return list(found.values())


def contradictory(name: str, problems: Sequence[Problem]) -> Iterator[Finding]:
    """Problems with the same question and different answers: any response is wrong for one of them."""
    found = contradictions(problems)
    if found:
        one, other = found[0]
        count = f"{len(found)} questions stand" if len(found) > 1 else "a question stands"
        said = (
            f"{name}: {count} there more than once with different answers, such as {_short(one.question)}: "
            f"{_short(_written(one))} ({one.id}) and {_short(_written(other))} ({other.id})"
        )
        yield Finding("contradictions", "note", "data", said, "remove one of each, or merge them: strop data prepare")


def _written(problem: Problem) -> str:
    reference = problem.reference
    return reference.strip() if isinstance(reference, str) else json.dumps(reference, sort_keys=True, default=str)


def _short(value: object) -> str:
    return repr(shortened(str(value), SHOWN))


def _left_out(config: RunConfig, data: Data) -> Iterator[Finding]:
    parts = [part for part in (data.train, data.held_out) if part is not None]
    count = sum(part.over_budget for part in parts)
    share = count / (count + sum(map(len, parts))) if count else 0.0
    if share > 0.5:
        found = f"{percent(share)} of the prompts are longer than {config.data.max_prompt_tokens} tokens and left out"
        yield Finding("most-prompts-left-out", "warning", "prompts", found, "raise data.max_prompt_tokens")


def _few(config: RunConfig, data: Data) -> Iterator[Finding]:
    """There are fewer problems than a step takes, or more held-out than training problems."""
    different, prompts = data.train.different, config.batch.prompts_per_step
    if different < prompts:
        found = f"{data.train.size} of {data.train.name}, and a step takes {prompts} of them"
        yield Finding("few-problems", "note", "data", found, "lower batch.prompts_per_step")
    settings, held_out = config.data.held_out, data.held_out
    if settings is not None and settings.source is None and held_out is not None and len(held_out) > different:
        whole = len(held_out) + different
        yield Finding(
            "most-held-out", "note", "split",
            f"data.held_out.count={len(held_out)} leaves {different} of the {whole} problems of {data.train.name} to "
            "train on",
            f"a fifth is usually enough to measure on: data.held_out.count={max(whole // 5, 1)}",
        )  # fmt: skip


def _held_out(config: RunConfig, data: Data) -> Iterator[Finding]:
    if data.held_out is None:
        advice = "hold out some to see whether it learns: data.held_out.count=64"
        yield Finding("nothing-held-out", "note", "held out", "no problem is held out", advice)
    elif config.evaluation.every is None:
        found = "measured only by strop eval"
        yield Finding("held-out-unmeasured", "note", "held out", found, "with evaluation.every=N in training too")
    elif (error := 0.5 / math.sqrt(len(data.held_out))) > 0.1:
        found = f"a pass rate over {counted(len(data.held_out), 'problems')} is known to ±{200 * error:.0f} points only"
        yield Finding("few-held-out", "note", "held out", found, "raise data.held_out.count")


# ---------------------------------------------------------------------- how the model begins


class Beginning(NamedTuple):
    """The pass rate before training, what it was measured on, and the share of completions cut off."""

    pass_rate: float
    measured: str
    cut_off: float


def of_beginning(beginning: Beginning, budget: int, room: int | None) -> Iterator[Finding]:
    """The pass rate is too extreme for most groups to teach anything, or completions are cut off.

    Args:
        beginning: the pass rate and what it was measured on.
        budget: the most new tokens.
        room: tokens that the model's context leaves for a completion; None if unknown.
    """
    rate = beginning.pass_rate
    found = f"{percent(rate)} of the answers are right ({beginning.measured})"
    if LOW <= rate <= HIGH:
        yield Finding("pass-rate", "ok", "pass rate", found)
    else:
        ways = {"wrong": f"easier problems or a better model, or {SHOW_EXAMPLES}", "right": "harder problems"}
        outcome = "wrong" if rate < LOW else "right"
        advice = f"a problem of which all answers are {outcome} teaches nothing: take {ways[outcome]}"
        level: Level = "warning" if rate in (0.0, 1.0) else "note"
        yield Finding("extreme-pass-rate", level, "pass rate", found, advice)
    if beginning.cut_off > CUT_OFF:
        way = "raise sampling.max_new_tokens"
        if room is not None and room <= budget:
            budget, way = room, "the model's context has room for no more; take shorter prompts, or another model"
        found = f"{percent(beginning.cut_off)} of the completions are cut off at {budget} tokens"
        yield Finding("cut-off", "note", "completions", found, f"what is cut off is seldom right: {way}")
