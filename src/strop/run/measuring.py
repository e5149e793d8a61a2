"""Measures one model on the problems of its configuration: `strop eval RUN`, `strop doctor --ask`, Python.

    evaluate_model(configure("runs/grpo"), samples=4, view=view)
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from transformers import PreTrainedTokenizerBase

from strop.base.text import counted, percent
from strop.base.view import View
from strop.config.schema import RunConfig, evaluation_sampling
from strop.data.dataset import Data, Dataset
from strop.data.loading import build_dataset, load_data
from strop.data.source import question_digest
from strop.evaluation.evaluate import ProblemSet, fitted, held_out_seed, measure_set, reporting_to
from strop.evaluation.result import EvaluationResult
from strop.model.policy import Policy
from strop.run.checks import SHOW_EXAMPLES, findings
from strop.run.finding import note, refuse
from strop.run.folder import RunFolder, questions_of, trained_before
from strop.run.models import ModelSetup, NamedModel, open_engine, open_model
from strop.run.questions import facts_of, first_prompt, play_of
from strop.verifiers.judges import OpenJudges

MOSTLY_UNPARSED = 0.5  # share of completions without an answer, beyond which a pass rate says little about the model


def evaluate_model(
    setup: ModelSetup, samples: int, view: View, model: NamedModel | None = None, seed: int | None = None
) -> dict[str, Any]:
    """Pass rate, pass@k, majority vote, length and truncation on the problems of a setup.

    `trained_on` counts the problems that the model was trained on, by its run or the runs before it; None: not known.

    Args:
        samples: of each problem.
        model: the checkpoint, where it is one.
        seed: of the samples; by default the configuration's.

    Raises:
        StropError: the model or the problems cannot be used.
    """
    config = setup.config
    facts = facts_of(config, trains=False)
    refuse(findings(config, None, facts, trains=False))
    policy, tokenizer = open_model(config, view, model)
    dataset, trained_on = problems_of(setup, tokenizer, view)
    found = findings(config, Data(dataset, None, removed=0), replace(facts, tokenizer=tokenizer), trains=False)
    refuse(found)
    note(found, view)
    stream = held_out_seed(config.seed if seed is None else seed)
    asked = ProblemSet(dataset.name, dataset, samples, evaluation_sampling(config), config.verifier, stream)
    return measure_open(config, policy, tokenizer, asked, view, model).summary() | {"trained_on": trained_on}


def measure_open(
    config: RunConfig, policy: Policy, tokenizer: PreTrainedTokenizerBase, asked: ProblemSet, view: View,
    model: NamedModel | None = None,
) -> EvaluationResult:  # fmt: skip
    """Measure an open model on a set, in the environment of `config` where it has one.

    Raises:
        StropError: a prompt leaves no room for an answer, or the engine or the verifier cannot be used.
    """
    for line in first_prompt(asked.dataset, config.data.template, tokenizer):
        view.note(line)
    engine, judges = open_engine(config, policy, tokenizer, model, asked.sampling), OpenJudges()
    try:
        room = engine.capabilities.max_tokens
        sampling = fitted(asked.sampling, asked.dataset, room, view.note)
        asked = replace(asked, sampling=sampling, play=play_of(config, tokenizer, room))
        view.stage("evaluate", len(asked.dataset) * asked.samples, "completions")
        result = measure_set(engine, asked, judges, reporting_to(view))
    finally:
        judges.close()
        engine.close()
    failed = result.failed(result.dataset, {f"pass@{k}": k for k in result.powers})
    if failed:
        view.note(failed)
    if result.unparsed_rate > MOSTLY_UNPARSED:
        view.note(
            f"{percent(result.unparsed_rate)} of the completions hold no answer that {asked.verifier.piece_name()} "
            "finds: does the prompt above ask for it in that form? (data.template.instruct, verifier.extract) If the "
            f"model does not answer at all, {SHOW_EXAMPLES}"
        )
    return result


def problems_of(setup: ModelSetup, tokenizer: PreTrainedTokenizerBase, view: View) -> tuple[Dataset, int | None]:
    """The problems of a setup with their prompts, and how many of them the model was trained on (None: not known).

    Raises:
        InputError: a source cannot be read, or lacks what the run held out.
    """
    settings = setup.config.data
    record = None if setup.run is None else RunFolder.open(setup.run).read_problems()
    if setup.own and record is not None and record.held_out:
        source = settings.source if settings.held_out is None else settings.held_out.source or settings.source
        problems = record.held_out_of(source.load(), source.label)[: setup.limit]
        template, room = settings.template, settings.max_prompt_tokens
        chosen = build_dataset(source.label, problems, template, tokenizer, room, setup.config.instruction)
        kind = "held-out problems"
    else:
        seen = trained_before(setup.config.model.path)
        data = load_data(settings, tokenizer, setup.config.instruction, seen)
        kept = data.held_out if data.held_out is not None else data.train
        chosen = kept.subset(range(len(kept))[: setup.limit])
        none = " (the run holds out none)" if setup.own else ""
        kind = "held-out problems" if data.held_out is not None else f"problems{none}"
    place = setup.config.model.path if setup.run is None else str(setup.run)
    learned = questions_of(place)
    trained_on = None if learned is None else sum(question_digest(one) in learned for one in chosen.problems)
    view.note(f"{len(chosen)} {kind} of {chosen.name}")
    if trained_on:
        which = f"{trained_on} of these {len(chosen)} problems"
        view.note(f"{which} were among the training problems; their pass rate is no measure")
    if setup.own and record is None:
        view.note("the run kept no record of its problems: they are split anew, by the data file as it is now")
    if chosen.over_budget:
        left_out = counted(chosen.over_budget, "problems")
        view.note(f"{left_out} left out, their prompts exceed {chosen.max_prompt_tokens} tokens")
    return chosen, trained_on
