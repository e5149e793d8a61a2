"""What precedes a start: the problems of a run, the facts of its model, and the findings of all checks on them.

    facts = facts_of(config)                                    # without the weights
    data = read_problems(config, tokenizer, view)
    asked = fitted_into(config, data, tokenizer, room, view)    # within the model's context
    data, found = preview(config, view)                         # all of it, for `--dry-run`
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import NamedTuple

from transformers import PreTrainedTokenizerBase

from strop import recipes
from strop.base.progress import doing
from strop.base.types import InputError
from strop.base.view import View
from strop.config.parse import edit
from strop.config.schema import RunConfig, evaluation_sampling
from strop.data.dataset import Data, Dataset
from strop.data.loading import ProblemRecord, load_data
from strop.data.templates import Auto, PromptTemplate
from strop.engines.protocol import Sampling
from strop.environments.responder import Play
from strop.environments.tokens import TurnTokens
from strop.evaluation.benchmarks import HELD_OUT
from strop.evaluation.evaluate import ProblemSet, benchmark_sets, held_out_seed
from strop.run.checks import ModelFacts, findings, unjudgeable
from strop.run.devices import seen_gpus
from strop.run.finding import Finding, refuse
from strop.run.finding import note as note_findings
from strop.run.folder import trained_before
from strop.run.memory import planned, positions
from strop.run.reference import refuse_other_tokens
from strop.run.update_memory import outline
from strop.training.embedded_base import tokenizer_of
from strop_verify.verdict import shortened

SHOWN_IDS = 24
LEAST_BUDGET = 8  # tokens that an answer needs at least


class AskedProblems(NamedTuple):
    """The problems and budgets of a run, fitted into its model's context.

    Attributes:
        config: the configuration, with a token budget that fits.
        play: the environment, or None.
        sets: the problem sets that the run is measured on during training.
        findings: findings on the budgets, the environment and the benchmarks.
    """

    config: RunConfig
    play: Play | None
    sets: tuple[ProblemSet, ...]
    findings: list[Finding]


class Preview(NamedTuple):
    """The data of a run (None if it cannot be read) and the findings of the checks."""

    data: Data | None
    findings: list[Finding]


@doing("looking at the model")
def facts_of(config: RunConfig, trains: bool = True) -> ModelFacts:
    """What is known of the model of a run without loading it.

    Raises:
        InputError: there is no such model, one that cannot be trained so on any device, or an unfit teacher.
    """
    tokenizer, room = tokenizer_of(config.model), known_room(config)
    if trains:
        refuse_other_tokens(config, tokenizer)
    policy, in_cluster = outline(config.model, tokenizer), config.orchestration.executor == "ray"
    memory = None if in_cluster and not seen_gpus(config) else partial(planned, config, policy, trains)
    return ModelFacts(tokenizer, policy.parameter_count, room, memory)


def read_problems(config: RunConfig, tokenizer: PreTrainedTokenizerBase, view: View) -> Data:
    """Read the problems of a run and show how many there are and the first prompt.

    Raises:
        InputError: the problems cannot be read.
    """
    data = load_data(config.data, tokenizer, config.instruction, trained_before(config.model.path))
    for line in (*data.report(), *first_prompt(data.train, config.data.template, tokenizer)):
        view.note(line)
    return data


def fitted_into(
    config: RunConfig, data: Data, tokenizer: PreTrainedTokenizerBase, room: int, view: View
) -> AskedProblems:
    """Fit prompts, completions and benchmarks into a context of `room` tokens.

    Raises:
        InputError: prompts and completions exceed it; an environment or a benchmark cannot be used.
    """
    config, lowered = _fitted(config, data.longest_prompt, room)
    play = play_of(config, tokenizer, room)
    notes = [] if play is None else play.notes()
    sets = validation_sets(config, data, tokenizer, room, view, play)
    found = [] if lowered is None else [Finding("budget-lowered", "note", "budgets", lowered)]
    found += [Finding("environment", "note", "environment", each) for each in notes]
    return AskedProblems(config, play, sets, [*found, *_trained_benchmarks(config, sets, data)])


def _fitted(config: RunConfig, longest_prompt: int, room: int) -> tuple[RunConfig, str | None]:
    """Fit the token budget into a model of `room` tokens, after the longest prompt.

    The default budget of a recipe is lowered if no other setting depends on it; the second value says so.

    Raises:
        InputError: the budget does not fit, and the user chose it or other settings depend on it.
    """
    budget = config.longest_budget
    left = room - longest_prompt
    if budget <= left:
        return config, None
    over = f"the longest prompt ({longest_prompt} tokens) and sampling.max_new_tokens={budget} exceed the {room} tokens"
    plain = config.sampling == Sampling(temperature=config.sampling.temperature, max_new_tokens=budget)
    independent = plain and not config.stages and not config.algorithm.shaping
    if left < LEAST_BUDGET or not independent or budget != _own_budget(config.recipe):
        ways = [f"sampling.max_new_tokens={left}"] * (left > 0)
        ways += [f"data.max_prompt_tokens={room - budget}, which leaves longer prompts out"] * (room > budget)
        raise InputError(f"{over} of the model; set {' or '.join(ways) or 'a lower sampling.max_new_tokens'}")
    lowered = edit(config, [f"sampling.max_new_tokens={left}"])
    way_out = f"; data.max_prompt_tokens={room - budget} leaves longer prompts out" if room > budget else ""
    return lowered, f"completions end at {left} tokens: {over} that the model has room for{way_out}"


def _own_budget(name: str) -> int | None:
    """The default budget of one of strop's recipes; None for any other name."""
    try:
        return recipes.build(name).sampling.max_new_tokens
    except InputError:
        return None


def known_room(config: RunConfig) -> int | None:
    """The most tokens of a prompt with its completion; None if it is known only after loading the model."""
    return positions(config.model) if config.engine.max_tokens is None else config.engine.max_tokens


def first_prompt(dataset: Dataset, template: PromptTemplate, tokenizer: PreTrainedTokenizerBase) -> tuple[str, ...]:
    """Lines that show the template, the first prompt as text and token ids, and its answer."""
    ids = dataset[0].prompt_ids.tolist()
    how = template.piece_name()
    if isinstance(template, Auto):
        plain = "plain text, because the model has no chat template"
        how = "the model's own chat template" if tokenizer.chat_template else plain
        how += "; they ask for no form of the answer" if template.instruct is False else ""
    shown = ", ".join(map(str, ids[:SHOWN_IDS])) + (", …" if len(ids) > SHOWN_IDS else "")
    asked = (f"prompts: {how}", f"first prompt, {len(ids)} tokens: {tokenizer.decode(ids)!r} = [{shown}]")
    reference = dataset[0].problem.reference
    stated = (f"its answer: {shortened(repr(reference), 100)}",) if isinstance(reference, str | int | float) else ()
    return (*asked, *stated)


def play_of(config: RunConfig, tokenizer: PreTrainedTokenizerBase, room: int) -> Play | None:
    """The environment of a run with the tokens of its turns; None if it has none.

    Args:
        room: the longest prompt + completion of the engine.

    Raises:
        InputError: the chat template cannot render a second turn.
    """
    if config.environment is None:
        return None
    budget = config.longest_budget
    return Play(config.environment, TurnTokens(tokenizer, config.data.template), room - budget)


def validation_sets(
    config: RunConfig, data: Data, tokenizer: PreTrainedTokenizerBase, room: int, view: View, play: Play | None = None
) -> tuple[ProblemSet, ...]:
    """The sets that a run is measured on while it trains: its held-out problems, asked as in training, and benchmarks.

    Raises:
        InputError: a benchmark cannot be found or used.
    """
    settings, sampling = config.evaluation, evaluation_sampling(config)
    held_out: tuple[ProblemSet, ...] = ()
    if settings.every is not None and data.held_out is not None:
        samples, seed, every = settings.samples_per_problem, held_out_seed(config.seed), settings.every
        own = ProblemSet(HELD_OUT, data.held_out, samples, sampling, config.verifier, seed, play, every)
        held_out = (own,)
    template, note = config.data.template, view.note
    measured = benchmark_sets(settings, config.steps, template, tokenizer, sampling, room, config.seed, note, play)
    for one in measured:
        unusable = list(unjudgeable(one.verifier, [(one.name, one.dataset.problems)], trains=False))
        refuse(unusable)
        note_findings(unusable, view)
    return held_out + measured


def _trained_benchmarks(config: RunConfig, sets: Sequence[ProblemSet], data: Data) -> Iterator[Finding]:
    if not sets:
        return
    record, seen = ProblemRecord.of(data), trained_before(config.model.path)
    for one in sets:
        problems = one.dataset.problems
        counts = {"the run trains": record.trained_on(problems), "its model was trained": sum(map(seen, problems))}
        for who, count in counts.items():
            if count:
                which = f"{count} of the {len(problems)} problems of {one.name}"
                found = f"{who} on {which}, so that its pass rate there is no measure"
                yield Finding("benchmark-trained-on", "note", "measured on", found)


# ---------------------------------------------------------------------- a dry run


def preview(config: RunConfig, view: View) -> Preview:
    """Run all checks without loading the model, and show the data and the first prompt.

    What cannot be read becomes a finding of level `error`.
    """
    found = findings(config)
    if any(one.level == "error" for one in found):
        return Preview(None, found)
    subject = "model"
    data: Data | None = None
    try:
        facts = facts_of(config)
        subject = "data"
        data = read_problems(config, facts.tokenizer, view)
        found = findings(config, data, facts, here=False)
        subject = "budgets"
        longest = config.data.max_prompt_tokens + config.longest_budget
        room = longest if facts.room is None else facts.room
        found += fitted_into(config, data, facts.tokenizer, room, view).findings
    except InputError as error:
        found.append(Finding(subject, "error", subject, str(error)))
    return Preview(data, found)
