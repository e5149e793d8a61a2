"""Models as commands name them: a run folder, a checkpoint of a run, a model folder or a hub name.

    (named,) = parse_models(["ours=runs/grpo@40"])
    setup = configure(named)                                      # template, verifier and sampling: the run's own
    policy, tokenizer = open_model(setup.config, view, named)
    engine = open_engine(setup.config, policy, tokenizer, named)
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from pydantic import ValidationError

from strop.base.imports import command, refuse_code
from strop.base.seeds import derive
from strop.base.types import InputError
from strop.base.view import SilentView, View
from strop.config.edits import explain, flatten
from strop.config.parse import edit
from strop.config.schema import RunConfig
from strop.data.source import ProblemSource
from strop.engines.protocol import Engine, Sampling
from strop.model.location import RESERVED, locate, on_hub
from strop.model.settings import ModelSettings
from strop.recipes.resolve import resolve
from strop.run.checks import findings
from strop.run.finding import refuse
from strop.run.folder import RunFolder, holds_out, is_run, near_run, write_questions
from strop.run.sft_config import stored_config

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from strop.model.policy import Policy

DEFAULT_RECIPE = "grpo"
NOT_TRAINING = ("evaluation.every=none", "evaluation.benchmarks=[]")  # of a model that is asked: nothing comes due
ALL = "all"
_SOURCES = ("data.source", "data.source.path")  # settings that name another source
_PROBLEMS = (*_SOURCES, "data.source.", "data.limit", "data.held_out")  # settings that choose other problems


class NamedModel(NamedTuple):
    """A model: its label in tables, where it is, and of a run which checkpoint (None: its final model)."""

    label: str
    place: str
    step: int | None = None

    @property
    def version(self) -> int:
        """The weight version: the step of a checkpoint, 0 for any other model."""
        return self.step or 0


def parse_models(texts: Sequence[str]) -> tuple[NamedModel, ...]:
    """Models as the command line names them: `MODEL`, `LABEL=MODEL`, `RUN@STEP`, `RUN@all` for every checkpoint.

    A run without a final model stands for its newest checkpoint.

    Raises:
        InputError: a run has no such checkpoint, or none at all, or two models have one label.
    """
    found: list[NamedModel] = []
    for text in texts:
        label, equals, place = text.partition("=")
        if not equals or Path(text).exists():
            label, place = text, text
        run, at, step = place.rpartition("@")
        if not at or Path(place).exists() or not is_run(Path(run)):
            newest = _newest(place)
            name = label if newest is None or label != place else f"{place}@{newest}"
            found.append(NamedModel(name, place, newest))
        elif step == ALL:
            name = label if equals and label != place else run
            known = stored_steps(RunFolder.open(run))
            found += [NamedModel(f"{name}@{each}", run, each) for each in known]
        else:
            stored_steps(RunFolder.open(run), step)
            found.append(NamedModel(label, run, int(step)))
    labels = [model.label for model in found]
    for label in labels:
        if labels.count(label) > 1:
            raise InputError(f"two models are called {label!r}; give one another name with NAME={label}")
    return tuple(found)


def _newest(place: str) -> int | None:
    """The newest checkpoint of a run without a final model; None for any other model."""
    if not is_run(Path(place)) or RunFolder.open(place).model.is_dir():
        return None
    return stored_steps(RunFolder.open(place))[-1]


def stored_steps(run: RunFolder, step: str | int | None = None) -> list[int]:
    """The steps of a run that have a checkpoint, at least one; `step` must be among them.

    Raises:
        InputError: there is none, or not that of `step`.
    """
    known = run.checkpoint_steps()
    if not known and step is None:
        go_on = command(f"{'sft' if run.fine_tunes else 'train'} --resume", run.path)
        raise InputError(f"{run.path} has no model yet, and no checkpoint; go on with it by {go_on}")
    if step is not None and str(step) not in map(str, known):
        has = ", ".join(map(str, known)) or "none"
        raise InputError(f"{run.path} has no checkpoint {step}; it has {has} (@all takes every one)")
    return known


def parse_model(text: str) -> NamedModel:
    """The one model that `text` names, as in `parse_models`.

    Raises:
        InputError: a run has no such checkpoint, or it names several.
    """
    found = parse_models([text])
    if len(found) != 1:
        raise InputError(f"{text}: one model is used at a time; name one checkpoint, or several with --benchmark")
    return found[0]


# ---------------------------------------------------------------------- configuration


@dataclass(frozen=True)
class ModelSetup:
    """The configuration that a model is used with, and which problems it gets.

    Attributes:
        config: as `configure` made it.
        run: the run that the model was named by, if any.
        own: whether the problems are those that the run held out.
        limit: use the first so many of the problems.
        verbatim: without a chat template, use a prompt as is.
    """

    config: RunConfig
    run: Path | None = None
    own: bool = False
    limit: int | None = None
    verbatim: bool = True


def configure(
    model: NamedModel | str,
    recipe: str | None = None,
    sets: Sequence[str] = (),
    source: str | ProblemSource | None = None,
    limit: int | None = None,
) -> ModelSetup:
    """The configuration of a model and its problems; another source replaces both its problems and its held-out ones.

    Template, verifier and sampling come from `recipe`, else from the run, else from GRPO's recipe; `sets` change them.
    Problems that a run held out are chosen before `limit` applies.

    Raises:
        InputError: no such model or recipe, or an invalid setting.
    """
    model = NamedModel(model, model) if isinstance(model, str) else model
    base, place, template = recipe, model.place, None
    sets, run = as_measured(sets), RunFolder.open(model.place) if is_run(Path(model.place)) else None
    if run is not None:
        place = str(run.model)
        if base is None and run.fine_tunes:
            template = stored_config(run).template
        elif base is None:
            base = str(run.config_path)
    edits = [*NOT_TRAINING]
    if model.step is None:
        edits += ["model.fresh=none", "model.lora=none", f"model.path={json.dumps(place)}"]
    if template is not None:
        edits += _edits("template", template.model_dump(mode="json"))
    if source is not None:
        edits += _edits("source", source if isinstance(source, str) else source.model_dump(mode="json"))
    if source is not None or any(text.partition("=")[0].strip() in _SOURCES for text in sets):
        edits.append("data.held_out=none")
    other = source is not None or any(text.strip().startswith(_PROBLEMS) for text in sets)
    own = holds_out(model.place) and recipe is None and not other
    config = resolve(base if base is not None else DEFAULT_RECIPE, [*edits, *sets])
    if limit is not None and config.data.held_out is None:
        config = edit(config, [f"data.limit={limit}"])  # no more are read
    return ModelSetup(config, None if run is None else Path(model.place), own, limit, verbatim=template is None)


def as_measured(sets: Sequence[str]) -> tuple[str, ...]:
    """Apply the temperature and top-p of `sampling` in `sets` to `evaluation`, which finished models are used with."""
    return tuple(re.sub(r"^\s*sampling\.(temperature|top_p)\s*=", r"evaluation.\1=", text) for text in sets)


def usable(
    model: NamedModel, recipe: str | None = None, sets: Sequence[str] = (), limit: int | None = None, *,
    reads_problems: bool = False,
) -> ModelSetup:  # fmt: skip
    """The configuration of a model after the checks that need no torch.

    Args:
        model, recipe, sets, limit: see `configure`.
        reads_problems: whether the problems of its configuration are used.

    Raises:
        InputError: the first error that the checks found.
    """
    setup = configure(model, recipe, sets, limit=limit)
    if setup.run is None:
        _refuse_unknown(model.place, setup.config.model)
    refuse(findings(setup.config, trains=False, reads_problems=reads_problems))
    return setup


def refuse_without_problems(model: NamedModel, recipe: str | None, sets: Sequence[str]) -> None:
    """Refuse to ask a model without a training run if no problems are named.

    Raises:
        InputError: no problems are named.
    """
    said = recipe is not None or any(text.strip().startswith("data.source") for text in sets)
    if said or model.place in RESERVED or holds_out(model.place):
        return
    above = Path(model.place).expanduser().absolute().parent
    of_run = f"; what its run held out: {command('eval', above)}" if holds_out(str(above)) else ""
    raise InputError(
        f"{model.place} held out no problems: name some by --set data.source=…, a benchmark by strop eval --benchmark, "
        f"or a prompt by strop sample --prompt{of_run}"
    )


def _refuse_unknown(place: str, settings: ModelSettings) -> None:
    """Refuse what is neither a run nor a model.

    Raises:
        InputError: it says what `place` looks like.
    """
    if place in RESERVED or Path(place).expanduser().exists():
        return
    try:
        locate(settings)
    except InputError as error:
        why = str(error).removeprefix(f"model.path {place}: ")
        if place.count("/") == 1 and on_hub(place):
            raise InputError(f"{place} looks like a name on the hub, and cannot be loaded: {why}") from error
        why = f" ({error})" if on_hub(place) else ""
        raise InputError(f"{place} is neither a run nor a model folder{near_run(Path(place))}{why}") from error


def _edits(key: str, value: object) -> list[str]:
    return [f"{name}={text}" for name, text in flatten({"data": {key: value}})]


# ---------------------------------------------------------------------- loading


def open_model(
    config: RunConfig, view: View, model: NamedModel | None = None
) -> tuple[Policy, PreTrainedTokenizerBase]:
    """The policy of a configuration, or of the checkpoint that `model` names, on its device; its tokenizer."""
    from strop.model.device import pick_device
    from strop.model.policy import load_policy
    from strop.training.embedded_base import located

    if model is not None and model.step is not None:
        run = RunFolder.open(model.place)
        if not run.model.is_dir():
            view.note(f"{run.path} has no model yet; its checkpoint of step {model.step} is taken")
        policy, tokenizer = open_checkpoint(run, model.step)
    else:
        settings = located(config.model, config.seed, view)
        policy, tokenizer = load_policy(settings, seed=derive(config.seed, "model"))
    policy.to(pick_device(config.device)).requires_grad_(False)
    return policy.eval(), tokenizer


def open_checkpoint(run: RunFolder, step: int | None = None) -> tuple[Policy, PreTrainedTokenizerBase]:
    """The policy of a checkpoint (None: the newest) with its tokenizer.

    Raises:
        StropError: there is none.
    """
    from strop.model.policy import load_policy
    from strop.run.fine_tuning import load_model
    from strop.training import checkpoint
    from strop.training.embedded_base import located

    found = checkpoint.load(run.checkpoints, step)
    if run.fine_tunes:
        policy, tokenizer = load_model(stored_config(run))
    else:
        settings, seed = _model_of(run)
        policy, tokenizer = load_policy(located(settings, seed, SilentView()), seed=derive(seed, "model"))
        policy.requires_grad_(False).eval()
    policy.load_weights(found.tensors["policy"])
    return policy, tokenizer


def _model_of(run: RunFolder) -> tuple[ModelSettings, int]:
    """The model settings and the seed of a run. Losses and verifiers are not read, as they may be missing.

    Raises:
        InputError: the settings are not valid, or would run code that the user has not named.
    """
    stored = run.read_json("config.json")
    try:
        found = ModelSettings.model_validate(stored.get("model"))
    except ValidationError as error:
        raise InputError(f"{run.config_path}: model.{explain(error)}") from error
    refuse_code({"model": found.model_dump(mode="json")}, str(run.config_path))
    return found, int(stored.get("seed", 0))


def open_engine(
    config: RunConfig, policy: Policy, tokenizer: PreTrainedTokenizerBase, model: NamedModel | None = None,
    sampling: Sampling | None = None,
) -> Engine:  # fmt: skip
    """The engine that samples from an open model.

    Raises:
        StropError: see `build_engine`.
    """
    from strop.engines.build import build_engine

    version = 0 if model is None else model.version
    return build_engine(config.engine, config.model, tokenizer, policy, version, sampling=sampling)


def export_checkpoint(
    run_path: Path, out: Path | None = None, step: int | None = None, adapter: bool = False,
    dtype: str | None = None,
) -> Path:  # fmt: skip
    """Write the model of a checkpoint (None: the newest) as a Hugging Face folder, RUN/model unless `out` is given.

    With `adapter` only the adapters, in peft's format, to RUN/adapter; otherwise they are merged into the model, whose
    weights are written as `dtype` (None: as they were trained).

    Raises:
        StropError: no such run or checkpoint, or one without adapters; `out` holds something else.
    """
    from strop.model.files import EXPORTED, cast_parameters, export
    from strop.model.lora import export_adapter

    if dtype is not None and adapter:
        raise InputError(f"--dtype {dtype}: adapters keep the type that they have; leave it out")

    run = RunFolder.open(run_path)
    target = out if out is not None else run.path / "adapter" if adapter else run.model
    if out is not None and out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise InputError(f"{out} exists and is not empty; choose another folder with --out")
    policy, tokenizer = open_checkpoint(run, step)
    if not adapter:
        if dtype is not None:
            cast_parameters(policy.model, EXPORTED[dtype])
        export(policy.model, tokenizer, target)
        write_questions(target, run)
        return target
    if policy.adapters is None:
        raise InputError(f"{run_path} trained no adapters (model.lora); export its model without --adapter")
    if policy.settings.path is None:
        raise InputError(f"{run_path} began with a fresh model, which is in no folder; export it without --adapter")
    export_adapter(policy.adapters, policy.settings.path, tokenizer, target)
    return target
