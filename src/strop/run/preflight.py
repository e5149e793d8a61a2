"""Checks that need only the configuration, made before torch is loaded and before anything is begun.

    preflight.training(config, Path("runs/mine"))      # refuses in a fraction of a second, or returns
    config = preflight.resuming(RunFolder.open(out), ["steps=400"])

Each part repeats its checks when it is built. Problems that only the model or the whole data can show (a prompt that is
too long, an unknown kind of attention) are refused when these are loaded.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import ValidationError

from strop import recipes
from strop.base import machine, session
from strop.base.imports import MAIN, command, not_allowed, refuse_absent, refuse_code
from strop.base.machine import GIB
from strop.base.text import amount
from strop.base.types import InputError
from strop.config.edits import differing, explain
from strop.config.parse import edit, parse
from strop.config.schema import RunConfig, stage_configs
from strop.data.generators import Mixture
from strop.data.rows import HubDataset
from strop.data.source import ProblemSource
from strop.engines.protocol import Sampling
from strop.engines.vllm.settings import Vllm
from strop.evaluation.benchmarks import SUFFIXES
from strop.model.location import RESERVED, dtype_name, locate, on_hub, parameters, refuse_kind, stored_config
from strop.model.settings import EMBEDDED, ModelSettings
from strop.recipes.resolve import resolve
from strop.run.folder import RunFolder, check_free, holds_out, is_run, near_run

if TYPE_CHECKING:
    from strop.run.sft_config import SftConfig

LEAST_BUDGET = 8  # tokens that an answer needs at least
COMPLETION_BYTES = 1024  # of Python's objects around the shortest completion
SLOT_BYTES = 4096  # of the keys and values of a slot in the smallest of models
OPTIMIZER_BYTES = 12  # a parameter's gradient and two moments in float32
DEFAULT_RECIPE = "grpo"
NOT_TRAINING = ("evaluation.every=none", "evaluation.benchmarks=[]")  # of a model that is asked: nothing comes due
EXTRAS = {
    "tensorboard": "curves in TensorBoard", "trackio": "curves in trackio", "wandb": "curves in Weights & Biases",
}  # fmt: skip
# Settings that a resume cannot change, because a checkpoint depends on them.
FIXED = ("recipe", "seed", "model.path", "model.fresh", "model.revision", "model.lora", "model.dtype", "data")


def as_measured(sets: Sequence[str]) -> tuple[str, ...]:
    """Apply the temperature and top-p of `sampling` in `sets` to `evaluation`, which finished models are used with."""
    return tuple(re.sub(r"^\s*sampling\.(temperature|top_p)\s*=", r"evaluation.\1=", text) for text in sets)


def training(config: RunConfig, out: Path | None = None, replace: bool = False) -> None:
    """Refuse a run if a folder, model, data file, engine or package is missing, or if memory is too small.

    Raises:
        InputError: one line that names the key and the way out.
    """
    if out is not None:
        check_free(out, replace)
    named(config)
    in_session(config)
    _engine(config)
    _packages(config)
    _sizes(config)
    if config.model.path is not None:
        model(config.model, trains=True, device=config.device)
    if config.critic is not None and config.critic.path is not None:
        model_at("critic.path", config.model.model_copy(update={"path": config.critic.path, "fresh": None}))
    for role in (config.data.source, None if config.data.held_out is None else config.data.held_out.source):
        if role is not None:
            source(role)
    for place in config.data.history:
        if not Path(place).expanduser().exists():
            raise InputError(f"data.history: there is no {place}; name a run folder or its pass_rates.jsonl")
    for number, benchmark in enumerate(config.evaluation.benchmarks):
        if benchmark.name.endswith(SUFFIXES) and not Path(benchmark.name).expanduser().is_file():
            raise InputError(f"evaluation.benchmarks.{number}: there is no file {benchmark.name}")


def fitted(config: RunConfig, longest_prompt: int, room: int) -> tuple[RunConfig, str | None]:
    """Fit the token budget into a model of `room` tokens, after the longest prompt.

    The default budget of a recipe is lowered if no other setting depends on it; the second value says so.

    Raises:
        InputError: the budget does not fit, and the user chose it or other settings depend on it.
    """
    budget = max(stage.sampling.max_new_tokens for stage in stage_configs(config))
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


def named(config: RunConfig) -> None:
    """Refuse a configuration that names no model.

    Raises:
        InputError: it names none.
    """
    if config.model.path is None and config.model.fresh is None:
        raise InputError(
            f"{config.recipe} names no model: train one of yours with --set model.path=FOLDER|HUB-NAME, or see the "
            f"recipe at work on a small one that is made on the spot: strop train {config.recipe} --tiny"
        )


def in_session(config: RunConfig) -> None:
    """Refuse a run whose reward functions were defined in another Python session.

    Raises:
        InputError: naming the function.
    """
    for name in config.verifier.session_functions():
        module = name.partition(":")[0]
        if session.recall(name) is None and module != MAIN:
            raise InputError(f"the reward function {not_allowed(name, module)}")
        if session.recall(name) is None:
            raise InputError(
                f"the reward function {name.removeprefix(f'{MAIN}:')!r} is not here: only the script or notebook that "
                "defines it has it; go on from there: strop.train(…, resume=True), or set another verifier"
            )


def resuming(folder: RunFolder, sets: Sequence[str] = ()) -> RunConfig:
    """Return the configuration of a resumed run, with `sets` applied.

    Raises:
        InputError: it is a fine-tuning run, a module of the user is not imported, or a setting cannot change.
    """
    stored = folder.read_json("config.json")
    if "demonstrations" in stored:
        raise InputError(f"{folder.path} is a fine-tuning run; go on with it by {command('sft --resume', folder.path)}")
    kept = {key.partition(".")[0] for key in FIXED}
    replacing = [text for text in sets if text.partition("=")[0].partition(".")[0].strip() not in kept]
    before = parse(stored, str(folder.config_path), replacing=replacing)
    config = edit(before, tuple(sets)) if sets else before
    in_session(config)
    for key, _, _ in differing(before.model_dump(mode="json"), config.model_dump(mode="json")):
        if any(f"{key}.".startswith(f"{fixed}.") for fixed in FIXED):
            raise InputError(
                f"--set {key}: a run keeps what it began with; start a new one with it: "
                f"strop train {folder.config_path} --set {key}=…"
            )
    _engine(config)
    _packages(config)
    return config


def fine_tuning(target: str, demonstrations: Path, sets: Sequence[str], out: Path) -> SftConfig:
    """Return the configuration of `strop sft` after checking its model, demonstrations and folder.

    Raises:
        InputError: one of them, or a setting, cannot be used.
    """
    from strop.run.sft_config import FRESH, configure

    if target in RESERVED:
        raise InputError(f"{target} is made for reinforcement learning; name a folder, a hub name, or fresh")
    config = configure(target, demonstrations, sets)
    check_free(out)
    next(config.source.problems(), None)
    model(config.model, trains=True, device=config.device, made=FRESH)
    return config


def using(
    text: str, recipe: str | None = None, sets: Sequence[str] = (), problems: str | None = None, path: str | None = None
) -> None:
    """Check a model that is to be measured, sampled or served, and its settings.

    Args:
        text: the model as commands name it: a run, RUN@STEP, a folder or a name on the hub, optionally after NAME=.
        recipe: the recipe whose settings are used instead of those of the run (or of grpo).
        sets: changes to these settings.
        problems: the source of problems to use instead; it reads from `path`.
        path: the file or folder of `problems`.

    Raises:
        InputError: one line that names what is wrong; modules of the user's own that a run needs are named too.
    """
    place, step = _named_place(text)
    stored = step is not None
    if stored and step != "all":
        checkpoint(RunFolder.open(place), step)
    base = recipe
    if is_run(Path(place)):
        folder = RunFolder.open(place)
        if not stored and not folder.model.is_dir():
            checkpoint(folder)
        if base is None and not folder.fine_tunes:
            base = str(folder.config_path)
    elif place not in RESERVED:
        try:
            model(ModelSettings(path=place, revision=_last(sets, "model.revision")))
        except InputError as error:
            if Path(place).expanduser().exists():
                raise
            if place.count("/") == 1 and on_hub(place):
                why = str(error).removeprefix(f"model.path {place}: ")
                raise InputError(f"{place} looks like a name on the hub, and cannot be loaded: {why}") from error
            why = f" ({error})" if on_hub(place) else ""
            raise InputError(f"{place} is neither a run nor a model folder{near_run(Path(place))}{why}") from error
    edits = [*NOT_TRAINING]
    edits += [] if problems is None else [f"data.source={json.dumps(problems)}", "data.held_out=none"]
    edits += [] if path is None else [f"data.path={json.dumps(path)}"]
    config = resolve(DEFAULT_RECIPE if base is None else base, [*edits, *as_measured(sets)])
    if problems is not None or any(text.strip().startswith("data.source") for text in sets):
        source(config.data.source)


def measuring(text: str, recipe: str | None = None, sets: Sequence[str] = ()) -> None:
    """Check a model that is to be measured. A model without a training run needs problems to be named.

    Raises:
        InputError: see `using`; or no problems are named.
    """
    using(text, recipe, sets)
    place, _ = _named_place(text)
    said = recipe is not None or any(text.strip().startswith("data.source") for text in sets)
    if said or place in RESERVED or holds_out(place):
        return
    above = Path(place).expanduser().absolute().parent
    of_run = f"; what its run held out: {command('eval', above)}" if holds_out(str(above)) else ""
    raise InputError(
        f"{place} held out no problems: say what to measure it on by --benchmark (a name of strop eval --list, or a "
        f"file of problems), or by --set data.source=…{of_run}"
    )


def _named_place(text: str) -> tuple[str, str | None]:
    """Split the name of a model into its place, without `NAME=`, and the checkpoint of a run."""
    _, equals, rest = text.partition("=")
    place = rest if equals and not Path(text).exists() else text
    run, at, step = place.rpartition("@")
    stored = bool(at) and not Path(place).exists() and is_run(Path(run))
    return (run, step) if stored else (place, None)


def checkpoint(run: RunFolder, step: str | int | None = None) -> None:
    """Refuse a missing checkpoint (None: any will do), or one whose model would run code that the user has not allowed.

    Raises:
        InputError: it names the existing checkpoints, or the setting.
    """
    known = run.checkpoint_steps()
    if not known and step is None:
        go_on = command(f"{'sft' if run.fine_tunes else 'train'} --resume", run.path)
        raise InputError(f"{run.path} has no model yet, and no checkpoint; go on with it by {go_on}")
    if not known or (step is not None and str(step) not in map(str, known)):
        has = ", ".join(map(str, known)) or "none"
        raise InputError(f"{run.path} has no checkpoint{'' if step is None else f' {step}'}; it has {has}")
    if not run.fine_tunes:
        model_of(run)


def model_of(run: RunFolder) -> tuple[ModelSettings, int]:
    """Return the model settings and the seed of a run. Losses and verifiers are not read, as they may be missing.

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


def _last(sets: Sequence[str], key: str) -> str | None:
    """The value of the last `--set` of a key, needed before the configuration exists."""
    found = [text.partition("=")[2].strip() for text in sets if text.partition("=")[0].strip() == key]
    return found[-1] if found else None


def model(settings: ModelSettings, trains: bool = False, device: str = "auto", made: str = EMBEDDED) -> None:
    """Refuse a model that `model.path` does not lead to, or that does not fit into this machine's memory.

    Raises:
        InputError: one line that names the key and the way out.
    """
    if device == "cuda" and not machine.has_gpu():
        raise InputError("device=cuda: this machine has no GPU that a driver shows; set device=auto or device=cpu")
    if settings.path is None or settings.path in RESERVED:
        return
    locate(settings, made=made)
    refuse_kind(f"model.path {settings.path}", stored_config(settings))
    count = parameters(settings)
    if count is None or (device != "cpu" and machine.has_gpu()):
        return
    width = 4 if dtype_name(settings) == "float32" else 2
    needed = count * width
    if trains and settings.lora is None:
        needed += count * (OPTIMIZER_BYTES + (4 if width == 2 else 0))
    total, _ = machine.memory()
    if needed > total:
        raise InputError(
            f"model.path {settings.path}: its {amount(count)} parameters take {needed / GIB:.0f} GiB "
            f"{'with gradients and optimizer' if trains else 'as weights'}, this machine has {total / GIB:.0f}; take a "
            f"smaller model{', adapters only (model.lora.rank=32),' if trains else ''} or a machine with a GPU"
        )


def model_at(key: str, settings: ModelSettings) -> None:
    """Call `model` for a model that another key names.

    Raises:
        InputError: naming `key`.
    """
    try:
        model(settings)
    except InputError as error:
        raise InputError(f"{key}: {error}") from error


def source(of: ProblemSource) -> None:
    """Refuse problems that cannot be read: the file is missing, or its first row is not a problem.

    Raises:
        InputError: one line that names the file and the row.
    """
    for each in _leaves(of):
        if isinstance(each, HubDataset) and not Path(each.dataset).is_dir():
            refuse_absent("datasets", extra="hub", purpose="data sets of the Hugging Face hub")
        in_a_file = "path" in type(each).model_fields and each.model_dump()["path"] is not None
        if in_a_file and next(each.problems(), None) is None:
            raise InputError(f"{each.label}: no problems in it")


def _leaves(of: ProblemSource) -> Iterator[ProblemSource]:
    if isinstance(of, Mixture):
        for inner in of.sources:
            yield from _leaves(inner)
    else:
        yield of


def _engine(config: RunConfig) -> None:
    for stage in stage_configs(config):
        config.engine.refuse_unable(stage.sampling)
    if isinstance(config.engine, Vllm) and not config.engine.urls:
        config.engine.interpreter()
    if isinstance(config.engine, Vllm) and config.model.replay_routing and not config.engine.prefix_caching:
        raise InputError("model.replay_routing: vLLM records experts with its prefix cache; engine.prefix_caching=true")
    if config.environment is not None and config.environment.history == "separate" and config.model.replay_routing:
        raise InputError("model.replay_routing: experts of several sequences are not kept; set it false")


def _packages(config: RunConfig) -> None:
    for tracker in config.trackers:
        refuse_absent(tracker, extra=tracker, purpose=EXTRAS[tracker])
    if config.orchestration.executor == "ray":
        refuse_absent("ray", extra="ray", purpose="generators on a Ray cluster")


def _sizes(config: RunConfig) -> None:
    """Refuse ranks that cannot share sequences, and a batch or engine too large for this machine's memory."""
    ranks, team = config.orchestration.trainers, config.orchestration.sequence_parallel
    if ranks % team:
        raise InputError(
            f"orchestration.sequence_parallel={team} does not divide orchestration.trainers={ranks}; set "
            f"orchestration.trainers={team} or a multiple of it"
        )
    total, _ = machine.memory()
    for stage in stage_configs(config):
        batch = stage.batch
        count = batch.prompts_per_step * batch.samples_per_prompt * (config.orchestration.max_lag + 1)
        if count * COMPLETION_BYTES > total:
            raise InputError(
                f"batch.prompts_per_step={batch.prompts_per_step} × batch.samples_per_prompt="
                f"{batch.samples_per_prompt}: {count:.3g} completions at once are more than the {total / GIB:.0f} GiB "
                "of this machine hold; lower them"
            )
    if config.orchestration.executor != "ray" and config.engine.slots * SLOT_BYTES > total:
        raise InputError(
            f"engine.slots={config.engine.slots}: the keys and values of so many sequences at once are more than the "
            f"{total / GIB:.0f} GiB of this machine hold; lower it"
        )
