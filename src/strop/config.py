"""The configuration of a run: one tree of frozen settings and pieces, and one `validate()`.

    config = resolve("scalerl", ["optim.lr=2e-6", "data.source=gsm8k", "data.path=train.jsonl"])

A run is resolved from a recipe (a Python function that returns a `RunConfig`), a TOML file (`recipe = "scalerl"` and
what it changes), a `config.json` of an earlier run, or a Python file with a function `recipe()`. `--set` edits the
dictionary and validates it again; naming another `piece` resets that piece's other fields to its defaults.
"""

from __future__ import annotations

import json
import traceback
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import Field, SerializeAsAny, ValidationError

from strop.algorithms import Advantage, Aggregation, PolicyLoss, Reward, Selection
from strop.config_edit import apply_edits, explain
from strop.data import DataSettings
from strop.engines.base import Sampling
from strop.engines.torch_engine.settings import EngineSettings
from strop.model_settings import ModelSettings
from strop.pieces import OneOrMore, Settings, load_module
from strop.samples import TruncationMask
from strop.trainer.optimizer import AdamW
from strop.types import InputError
from strop.verifiers import Verifier

Count = Annotated[int, Field(ge=1)]


class BatchSettings(Settings):
    """The size of a training step.

    Fields:
        prompts_per_step: prompt groups of one step (one weight version).
        samples_per_prompt: completions of each prompt, G.
        updates_per_step: optimizer steps a pass over the batch is split into; k for PPO-off-policy-k.
        passes_per_batch: how often the batch is gone through.
        tokens_per_microbatch: packed tokens of one forward-backward pass; a longer sequence gets one of its own.
    """

    prompts_per_step: Count = 48
    samples_per_prompt: Count = 16
    updates_per_step: Count = 1
    passes_per_batch: Count = 1
    tokens_per_microbatch: Count = 16_384


class AlgorithmSettings(Settings):
    """What turns judged completions into a gradient, in the order of the loop."""

    reward: SerializeAsAny[Reward]
    selection: Selection = Selection()
    advantage: SerializeAsAny[Advantage]
    truncation_mask: TruncationMask = "none"
    loss: SerializeAsAny[PolicyLoss]
    aggregation: SerializeAsAny[Aggregation]


class OrchestrationSettings(Settings):
    """Who generates, and how stale it may become (`lag_gate`)."""

    max_lag: Annotated[int, Field(ge=0)] = 0


class EvaluationSettings(Settings):
    """Pass rate on the held-out problems during training: every `every` steps, and before the first."""

    every: Count | None = None
    samples_per_problem: Count = 4
    temperature: Annotated[float, Field(ge=0)] = 1.0


class CheckpointSettings(Settings):
    """A checkpoint every `every` steps and at the end; the last `keep` stay, and the best by held-out pass rate."""

    every: Count = 10
    keep: Count = 2
    keep_best: bool = True


class RunConfig(Settings):
    """Everything a run depends on. Written as config.json into the run folder."""

    recipe: str
    seed: Annotated[int, Field(ge=0)] = 0
    steps: Count
    device: Literal["auto", "cpu", "cuda"] = "auto"
    model: ModelSettings
    data: DataSettings
    verifier: SerializeAsAny[Verifier]
    batch: BatchSettings = BatchSettings()
    sampling: Sampling = Sampling()
    algorithm: AlgorithmSettings
    optim: AdamW = AdamW()
    engine: EngineSettings = EngineSettings()
    orchestration: OrchestrationSettings = OrchestrationSettings()
    evaluation: EvaluationSettings = EvaluationSettings()
    checkpoint: CheckpointSettings = CheckpointSettings()
    trackers: OneOrMore[Literal["tensorboard", "wandb"]] = ()

    def validate_run(self) -> Self:
        """Refuse settings that contradict each other.

        Raises:
            InputError: one line that names the keys, their values and the way out.
        """
        batch = self.batch
        if batch.updates_per_step > batch.prompts_per_step:
            raise InputError(
                f"batch.updates_per_step={batch.updates_per_step} exceeds batch.prompts_per_step="
                f"{batch.prompts_per_step}: an update needs a prompt group at least; lower it to "
                f"{batch.prompts_per_step} or less"
            )
        if self.sampling.truncates:
            raise InputError(
                f"sampling.temperature={self.sampling.temperature}, top_p={self.sampling.top_p}, "
                f"top_k={self.sampling.top_k}: training needs the whole distribution, or its log-probs are not those "
                "of the sampler; set sampling.top_p=1, no sampling.top_k and a temperature above 0"
            )
        if self.evaluation.every is not None and self.data.held_out is None:
            raise InputError(
                f"evaluation.every={self.evaluation.every}, but no problems are held out: set data.held_out.count, or "
                "evaluation.every=none"
            )
        if batch.samples_per_prompt == 1 and self.algorithm.selection.zero_variance == "drop":
            raise InputError(
                "batch.samples_per_prompt=1 with algorithm.selection.zero_variance=drop drops every group (one "
                "completion cannot differ from itself); raise samples_per_prompt to 2 or more, or keep such groups"
            )
        if self.orchestration.max_lag > 0:
            raise InputError(
                f"orchestration.max_lag={self.orchestration.max_lag}: generation beside training is not built yet; "
                "set orchestration.max_lag=0"
            )
        return self

    def to_json(self) -> str:
        """The configuration as JSON text that `resolve` reads back, as a run's config.json."""
        return json.dumps(self.model_dump(mode="json"), indent=2) + "\n"


def parse(data: dict[str, Any], origin: str) -> RunConfig:
    """A validated configuration from a plain dictionary.

    Raises:
        InputError: one line that names `origin`, the key, its value and what would be valid.
    """
    try:
        return RunConfig.model_validate(data).validate_run()
    except ValidationError as error:
        raise InputError(f"{origin}: {explain(error)}") from error


def edit(config: RunConfig, sets: list[str] | tuple[str, ...]) -> RunConfig:
    """The configuration with `key=value` settings applied, validated again."""
    from strop.config_edit import parse_set

    data = config.model_dump(mode="json")
    for text in sets:
        data = apply_edits(data, parse_set(text), RunConfig)
    return parse(data, "--set")


def resolve(target: str, sets: list[str] | tuple[str, ...] = ()) -> RunConfig:
    """The configuration for a recipe name or a .toml, .json or .py file, with `--set` edits applied.

    Raises:
        InputError: no such recipe or file, or an invalid setting.
    """
    from strop import recipes

    suffix = Path(target).suffix
    if suffix in (".toml", ".json", ".py"):
        if not Path(target).is_file():
            raise InputError(f"{target}: no such file; name a .toml, .json or .py file, or a recipe: strop recipes")
        config = {".toml": _from_toml, ".json": _from_json, ".py": _from_python}[suffix](Path(target))
    else:
        config = recipes.build(target)
    return edit(config, sets).validate_run() if sets else config.validate_run()


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: not UTF-8 text (byte {error.start + 1})") from error


def _from_json(path: Path) -> RunConfig:
    try:
        return parse(json.loads(_text(path)), str(path))
    except json.JSONDecodeError as error:
        raise InputError(f"{path}, line {error.lineno}: not JSON: {error.msg}") from error


def _from_toml(path: Path) -> RunConfig:
    import tomllib

    from strop import recipes

    try:
        changes = tomllib.loads(_text(path))
    except tomllib.TOMLDecodeError as error:
        raise InputError(f"{path}: not TOML: {error}") from error
    name = changes.pop("recipe", None)
    if not isinstance(name, str):
        raise InputError(f'{path}: say which recipe it changes, e.g. recipe = "grpo"; the list: strop recipes')
    try:
        data = apply_edits(recipes.build(name).model_dump(mode="json"), changes, RunConfig)
    except InputError as error:
        raise InputError(f"{path}: {error}") from error
    return parse(data, str(path))


def _from_python(path: Path) -> RunConfig:
    try:
        module = load_module(path)
        found = module.__dict__.get("recipe")
        config = found() if callable(found) else found
    except ValidationError as error:
        raise InputError(f"{path}: {explain(error)}") from error
    except InputError:
        raise
    except Exception as error:
        # The user's own code: where it failed and why says more than our frames around it.
        frames = reversed(traceback.extract_tb(error.__traceback__))
        line = next((frame.lineno for frame in frames if frame.filename == str(path)), 0)
        line = error.lineno or 0 if isinstance(error, SyntaxError) else line
        raise InputError(f"{path}, line {line}: {type(error).__name__}: {error}") from error
    if not isinstance(config, RunConfig):
        raise InputError(f"{path}: define a function recipe() that returns a strop.config.RunConfig")
    return config
