"""What a run asks, and what speaks against asking it so: its problems, its first prompt, what it is measured on.

    data, warnings = read_problems(config, tokenizer, view)                  # read, noted, and judgeable
    asked = fitted_into(config, data, tokenizer, room, view)                 # within the model's context
    warnings = preview(config, view)                                         # both, without loading the model

A start, a dry run and the doctor refuse the same by the same functions.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from transformers import PreTrainedTokenizerBase

from strop.base.hub import silence
from strop.base.seeds import derive
from strop.base.view import View
from strop.config.schema import RunConfig, evaluation_sampling, stage_configs
from strop.data import dataset
from strop.data.chain_sum import part_of
from strop.data.dataset import Data, Dataset, load_data
from strop.data.record import ProblemRecord
from strop.data.templates import Auto, PromptTemplate
from strop.environments.responder import Play
from strop.environments.tokens import TurnTokens
from strop.evaluation.benchmark_files import SUFFIXES
from strop.evaluation.benchmarks import HELD_OUT
from strop.evaluation.validation import ValidationSet, Wanted, benchmark_sets
from strop.model.attention_kinds import longest_sequence
from strop.model.location import RESERVED, found_config
from strop.run import preflight
from strop.run.cautions import cautions, few_to_train_on
from strop.run.judgeable import caution, refuse_unjudgeable
from strop.run.memory import TooLarge, noted
from strop.run.trained_on import trained_before
from strop.training.embedded_base import EmbeddedBase, tokenizer_of
from strop_verify.verdict import shortened

SHOWN_IDS = 24


class AskedProblems(NamedTuple):
    """What a run asks within its model's context.

    Attributes:
        config: with a budget that there is room for.
        play: its environment; None where there is none.
        sets: what it is measured on while it trains.
        warnings: what speaks against it, a line each.
    """

    config: RunConfig
    play: Play | None
    sets: tuple[ValidationSet, ...]
    warnings: list[str]


class Preview(NamedTuple):
    """What a run would train on, and what speaks against it, a line each."""

    data: Data
    warnings: list[str]


def read_problems(config: RunConfig, tokenizer: PreTrainedTokenizerBase, view: View) -> Preview:
    """The problems of a run, noted with the first prompt.

    Raises:
        InputError: they cannot be read, or the verifier can never judge one of them.
    """
    data = load_data(config.data, tokenizer, config.instruction, trained_before(config.model.path))
    unmeasured = data.held_out is not None and config.evaluation.every is None
    later = ["held out: measured by strop eval; with evaluation.every=N in training too"] * unmeasured
    for line in (*data.report(), *later, *first_prompt(data.train, config.data.template, tokenizer)):
        view.note(line)
    refuse_unjudgeable(config.verifier, data)
    narrow, few = caution(config.verifier, data.train.problems), few_to_train_on(config, data)
    found = (
        dataset.contradiction_warning(data.train.name, data.train.problems),
        *(one.line for one in cautions(config)),
        None if few is None else few.line,
        None if narrow is None else ": ".join(narrow),
        _seen_questions(config, data),
    )
    return Preview(data, [line for line in found if line is not None])


def fitted_into(
    config: RunConfig, data: Data, tokenizer: PreTrainedTokenizerBase, room: int, view: View
) -> AskedProblems:
    """What is asked of a model with room for so many tokens.

    Raises:
        InputError: prompts and completions exceed it; an environment or a benchmark cannot be used.
    """
    longest = max(part.longest_prompt for part in (data.train, data.held_out) if part is not None)
    config, lowered = preflight.fitted(config, longest, room)
    play = play_of(config, tokenizer, room)
    notes = [] if play is None else play.notes()
    sets = validation_sets(config, data, tokenizer, room, view, play)
    warnings = [*([] if lowered is None else [lowered]), *notes, *_trained_benchmarks(config, sets, data)]
    return AskedProblems(config, play, sets, warnings)


def preview(config: RunConfig, view: View) -> Preview:
    """Note what a run would train on and ask first, and the memory it needs, without loading the model.

    Raises:
        InputError: tokenizer, data or model cannot be used so, or prompts and completions exceed the model's context.
    """
    tokenizer = tokenizer_of(config.model)
    data, warnings = read_problems(config, tokenizer, view)
    room = known_room(config)
    here, unseen = within_reach(config)
    warnings += fitted_into(here, data, tokenizer, most_room(config) if room is None else room, view).warnings
    warnings += [] if unseen is None else [unseen]
    try:
        view.note(noted(config))
    except TooLarge as error:  # it may be meant for another machine
        warnings.append(f"on this machine {error}")
    return Preview(data, warnings)


def within_reach(config: RunConfig) -> tuple[RunConfig, str | None]:
    """The configuration without benchmarks that lie on the hub, where it cannot be asked from here, and a line on them:
    the run may be meant for another machine."""
    evaluation = config.evaluation
    files = [one for one in evaluation.benchmarks if evaluation.benchmark_data or one.name.endswith(SUFFIXES)]
    silent = silence() if len(files) < len(evaluation.benchmarks) else None
    if silent is None:
        return config, None
    names = ", ".join(one.name for one in evaluation.benchmarks if one not in files)
    here = config.model_copy(update={"evaluation": evaluation.model_copy(update={"benchmarks": tuple(files)})})
    return here, f"evaluation.benchmarks: {names} not looked at, for the hub cannot be asked from here ({silent})"


def known_room(config: RunConfig) -> int | None:
    """Tokens that prompt and completion may have together; None where only loading the model can say."""
    if config.engine.max_tokens is not None:
        return config.engine.max_tokens
    if config.model.fresh is not None:
        return config.model.fresh.max_positions
    if config.model.path in RESERVED:
        return EmbeddedBase().model.max_positions
    return longest_sequence(found_config(config.model))


def most_room(config: RunConfig) -> int:
    """Tokens of the longest prompt and completion that the configuration allows."""
    return config.data.max_prompt_tokens + max(stage.sampling.max_new_tokens for stage in stage_configs(config))


def first_prompt(dataset: Dataset, template: PromptTemplate, tokenizer: PreTrainedTokenizerBase) -> tuple[str, ...]:
    """Lines that show what the model will be asked: which template, the first prompt as text and ids, its answer."""
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
    """The environment of a run with the tokens of its turns; None where there is none.

    Args:
        room: the longest prompt + completion of the engine.

    Raises:
        InputError: the chat template cannot render a second turn.
    """
    if config.environment is None:
        return None
    budget = max(stage.sampling.max_new_tokens for stage in stage_configs(config))
    return Play(config.environment, TurnTokens(tokenizer, config.data.template), room - budget)


def validation_sets(
    config: RunConfig, data: Data, tokenizer: PreTrainedTokenizerBase, room: int, view: View, play: Play | None = None
) -> tuple[ValidationSet, ...]:
    """The sets that a run is measured on while it trains: its held-out problems, asked as in training, and benchmarks.

    Raises:
        InputError: a benchmark cannot be found or used.
    """
    settings, sampling = config.evaluation, evaluation_sampling(config)
    held_out: tuple[ValidationSet, ...] = ()
    if settings.every is not None and data.held_out is not None:
        seed = derive(config.seed, "evaluation")
        count = settings.samples_per_problem
        own = ValidationSet(HELD_OUT, data.held_out, settings.every, count, sampling, config.verifier, seed, play)
        held_out = (own,)
    wanted = [
        Wanted(
            one.name,
            one.every or settings.every or config.steps,
            one.samples_per_problem or settings.samples_per_problem,
            one.limit,
        )
        for one in settings.benchmarks
    ]
    folder = None if settings.benchmark_data is None else Path(settings.benchmark_data)
    template = config.data.template
    return held_out + benchmark_sets(wanted, folder, template, tokenizer, sampling, room, config.seed, view.note, play)


def _trained_benchmarks(config: RunConfig, sets: Sequence[ValidationSet], data: Data) -> Iterator[str]:
    if not sets:
        return
    record, seen = ProblemRecord.of(data), trained_before(config.model.path)
    for one in sets:
        problems = one.dataset.problems
        counts = {"the run trains": record.trained_on(problems), "its model was trained": sum(map(seen, problems))}
        for who, count in counts.items():
            if count:
                which = f"{count} of the {len(problems)} problems of {one.name}"
                yield f"{who} on {which}, so that its pass rate there is no measure"


def _seen_questions(config: RunConfig, data: Data) -> str | None:
    """The embedded base was fine-tuned on the training part of chain sums; what is held out should be of the other."""
    if config.model.path not in RESERVED or data.held_out is None:
        return None
    seen = [p for p in data.held_out.problems if p.source == "chain_sum" and part_of(p.question) == "train"]
    if not seen:
        return None
    return (
        f"{len(seen)} of {len(data.held_out)} held-out sums are of the part that the embedded base may have been "
        "fine-tuned on; for a clean test set data.held_out.source.piece=ChainSum and "
        "data.held_out.source.part=held_out"
    )
