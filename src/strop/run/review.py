"""`strop doctor RUN|CONFIG`: the findings of all checks, and the pass rate before training if it is known."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from statistics import fmean

from strop.base.text import counted
from strop.base.types import InputError
from strop.base.view import View
from strop.config.parse import edit, parse
from strop.config.schema import RunConfig
from strop.data.dataset import Dataset
from strop.evaluation.evaluate import ProblemSet, held_out_seed
from strop.recipes.resolve import resolve
from strop.run.checks import Beginning, of_beginning, spread
from strop.run.finding import Finding
from strop.run.folder import RunFolder, is_run
from strop.run.measuring import measure_open
from strop.run.models import open_model
from strop.run.questions import known_room, preview

FIRST_STEPS = 3  # of a run, whose pass rate is that of the start


def review(target: str, sets: Sequence[str], small: bool, ask: int, view: View) -> list[Finding]:
    """Run all checks on a run folder, a recipe or a configuration file, and add the pass rate before training.

    Args:
        target: the run folder, recipe or file.
        sets: changes to its configuration.
        small: use the tiny form of the recipe.
        ask: how many problems to ask the model, to measure its pass rate; 0 does not load it.
        view: receives the notes of a dry run.

    Raises:
        InputError: there is no such run or configuration, or it is a fine-tuning run.
    """
    config, run = _reviewed(target, sets, small)
    data, found = preview(config, view)
    if data is None or any(one.level == "error" for one in found):
        return found
    try:
        beginning = _asked(config, data.train, ask, view) if ask else _first_steps(run)
    except InputError as error:
        return [*found, Finding("model", "error", "pass rate", f"the model cannot be asked: {error}")]
    if beginning is None:
        advice = "ask the model some problems (--ask 16), or train a few steps and review that run: strop doctor RUN"
        return [*found, Finding("pass-rate-unknown", "note", "pass rate", "not known", advice)]
    room = known_room(config)
    longest = max(part.longest_prompt for part in (data.train, data.held_out) if part is not None)
    left = None if room is None else room - longest
    return [*found, *of_beginning(beginning, config.sampling.max_new_tokens, left)]


def _reviewed(target: str, sets: Sequence[str], small: bool) -> tuple[RunConfig, RunFolder | None]:
    if not is_run(Path(target)):
        return resolve(target, tuple(sets), small), None
    run = RunFolder.open(target)
    stored = run.read_json("config.json")
    if "demonstrations" in stored:
        raise InputError(f"{target} is a fine-tuning run; strop doctor reviews runs of reinforcement learning")
    config = parse(stored, str(run.config_path), replacing=sets)
    return (edit(config, tuple(sets)) if sets else config), run


def _first_steps(run: RunFolder | None) -> Beginning | None:
    rows = [] if run is None else run.read_metrics()
    rows = [row for row in rows if row.get("pass_rate") is not None][:FIRST_STEPS]
    if not rows:
        return None
    rates, cut_off = ([row.get(name) or 0.0 for row in rows] for name in ("pass_rate", "truncation_rate"))
    over = "the first step" if len(rows) == 1 else f"the first {len(rows)} steps"
    return Beginning(fmean(rates), over, fmean(cut_off))


def _asked(config: RunConfig, train: Dataset, count: int, view: View) -> Beginning:
    """Measure the model on `count` training problems spread over the source, sampled as in the first stage."""
    first = config.stage_configs()[0]
    policy, tokenizer = open_model(first, view)
    chosen, samples = train.subset(spread(len(train), count)), first.batch.samples_per_prompt
    seed = held_out_seed(first.seed)
    asked = ProblemSet(chosen.name, chosen, samples, first.sampling, first.verifier, seed)
    found = measure_open(first, policy, tokenizer, asked, view)
    over = f"{counted(len(chosen), 'problems')}, {counted(samples, 'answers')} each"
    return Beginning(found.pass_rate, over, found.truncation_rate)
