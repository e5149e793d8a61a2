"""The configuration of a run: one tree of frozen settings and pieces, and one `validate()`.

    config = resolve("scalerl", ["optim.lr=2e-6", "data.source=gsm8k", "data.path=train.jsonl"])

A run is resolved from a recipe (a Python function that returns a `RunConfig`), a TOML file (`recipe = "scalerl"` and
what it changes), a `config.json` of an earlier run, or a Python file with a function `recipe()`. `--set` edits the
dictionary and validates it again; naming another `piece` resets that piece's other fields to its defaults.
"""

from __future__ import annotations

import json
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Field, SerializeAsAny, ValidationError

from strop.algorithms import (
    Advantage,
    Aggregation,
    Correction,
    KlInReward,
    LengthShaping,
    PolicyLoss,
    Regularizer,
    Reward,
    Selection,
    TokenTypes,
)
from strop.algorithms.diagnostics import Limits
from strop.base.pieces import OneOrMore, Settings, load_module
from strop.base.types import MAX_SAMPLES, InputError
from strop.config.checks import check
from strop.config.edits import apply_edits, explain, nested
from strop.data import DataSettings, ProblemFilter
from strop.engines.protocol import KvMode, Sampling
from strop.engines.settings import EngineSettings
from strop.engines.vllm.settings import Vllm as Vllm  # so that engine=Vllm is known
from strop.model.critic import ValueLoss
from strop.model.settings import ModelSettings
from strop.orchestration.lag_gate import OnStale
from strop.orchestration.ray_settings import RaySettings
from strop.training.optimizer import AdamW
from strop.training.samples import TruncationMask
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
    samples_per_prompt: Annotated[int, Field(ge=1, le=MAX_SAMPLES)] = 16
    updates_per_step: Count = 1
    passes_per_batch: Count = 1
    tokens_per_microbatch: Count = 16_384


class ReferenceSettings(Settings):
    """The reference policy: the starting one, replaced by the present policy after every `reset_every` steps."""

    reset_every: Count | None = None


class CriticSettings(Settings):
    """The value network of actor-critic recipes: the starting model with a value head, an optimizer of its own.

    Fields:
        updates_per_step: optimizer steps on each batch, the batch split by sequences and shuffled (ORZ: 12).
        passes_per_batch: how often the batch is gone through.
        loss: the value loss.
        optim: AdamW of the critic.
        warmup_steps: training steps at the start in which only the critic learns.
        path: a model to start from, or an exported critic with its head; None takes the policy as it starts.
    """

    updates_per_step: Count = 12
    passes_per_batch: Count = 1
    loss: ValueLoss = ValueLoss()
    optim: AdamW = AdamW(lr=5e-6, betas=(0.9, 0.95), weight_decay=0.0)
    warmup_steps: Annotated[int, Field(ge=0)] = 0
    path: str | None = None


class Plateau(Settings):
    """A metric has stopped rising: its mean over the last `window` steps is not `min_rise` above the one before."""

    metric: str = "pass_rate"
    window: Count = 50
    min_rise: Annotated[float, Field(ge=0)] = 0.0

    def __call__(self, values: Sequence[float]) -> bool:
        """Whether `values`, one a step of the stage, have come to a plateau."""
        if len(values) < 2 * self.window:
            return False
        last, before = values[-self.window :], values[-2 * self.window : -self.window]
        return sum(last) / self.window < sum(before) / self.window + self.min_rise


class Stage(Settings):
    """A stretch of training with settings of its own.

    Fields:
        steps: it ends after so many steps; the last stage lasts until the run's `steps`. No group is begun in a stage
            that would be trained in the next, so that with max_lag > 0 generation runs dry towards its end.
        plateau: it ends earlier where this says so; groups that are open then are given up.
        problems: which problems it keeps of those the run began with; None keeps all that are not retired.
        set: what it changes against the stage before: dotted keys of `batch`, `sampling`, `algorithm` and `optim`. The
            learning-rate schedule starts anew where `optim` is changed.
    """

    steps: Count | None = None
    plateau: Plateau | None = None
    problems: SerializeAsAny[ProblemFilter] | None = None
    set: dict[str, Any] = {}


class AlgorithmSettings(Settings):
    """What turns judged completions into a gradient, in the order of the loop.

    Fields:
        reward: from a verdict to a number.
        shaping: what a completion's length adds to its reward.
        selection: which groups are trained on.
        kl_in_reward: a penalty on every token for leaving the reference policy, taken off the reward.
        advantage: from rewards (and the critic's values) to an advantage per token.
        truncation_mask: what becomes of truncated completions (see `samples`).
        anchor: what importance ratios are taken against: the log-probs the `generator` recorded, or those the trainer
            finds for the same tokens before the batch's first update (`recomputed`, as verl and Open-Reasoner-Zero do).
        correction: with a recomputed anchor, the factor on each token's loss for π_anchor / π_generator.
        token_types: which tokens reason and which recall, for the pieces that tell them apart.
        loss: the policy loss.
        regularizers: terms beside it.
        reference: the policy that KL terms hold on to.
        aggregation: from a loss per token to one number.
    """

    reward: SerializeAsAny[Reward]
    shaping: tuple[SerializeAsAny[LengthShaping], ...] = ()
    selection: Selection = Selection()
    kl_in_reward: KlInReward | None = None
    advantage: SerializeAsAny[Advantage]
    truncation_mask: TruncationMask = "none"
    anchor: Literal["generator", "recomputed"] = "generator"
    correction: SerializeAsAny[Correction] | None = None
    token_types: SerializeAsAny[TokenTypes] | None = None
    loss: SerializeAsAny[PolicyLoss]
    regularizers: tuple[SerializeAsAny[Regularizer], ...] = ()
    reference: ReferenceSettings = ReferenceSettings()
    aggregation: SerializeAsAny[Aggregation]

    @property
    def needs_reference(self) -> bool:
        """Whether a copy of the starting policy is kept."""
        return self.kl_in_reward is not None or any(term.needs_reference for term in self.regularizers)

    @property
    def needs_old_scores(self) -> bool:
        """Whether the batch is scored by the policy once, before its first update."""
        types = self.token_types is not None and self.token_types.needs_old_entropy
        return (types and self.needs_token_types) or self.anchor == "recomputed"

    @property
    def needs_token_types(self) -> bool:
        """Whether a piece tells reasoning from knowledge tokens."""
        return self.loss.needs_token_types or any(term.needs_token_types for term in self.regularizers)


class OrchestrationSettings(Settings):
    """Who generates, how stale it may become (`lag_gate`), and what becomes of generators that fail.

    Fields:
        max_lag: k; versions that may lie between the start of a group and its training.
        on_stale: a step waits for groups that would otherwise become too old, or drops them.
        executor: `in_process` generates in turn with training, on the trainer's own parameters; `embedded` in worker
            processes beside it; `ray` in actors of a Ray cluster. `auto` is the first at max_lag = 0 with one generator
            and one trainer, the second otherwise.
        ray: the cluster of `executor=ray`.
        generators: workers that generate, each with `engine.slots`.
        trainers: ranks that the trainer's modules are sharded over, each a process with a GPU of its own where there
            are GPUs; 1 trains in this process.
        trainer_restarts: how often a run whose ranks were lost goes on from its last checkpoint.
        weights: how they get to workers that generate: `shared_memory` (where there is no room, files), `files` in the
            run's folder, or `collective`, a broadcast from device to device. `auto` is the last where the trainer and
            each embedded generator have a GPU of their own, else the first.
        kv: what becomes of the cached keys and values of running completions when weights change.
        restarts: deaths of generators that a run survives, and as many of its evaluator.
        silence_seconds: a worker of which nothing was heard for so long is killed and counts as dead.
        stall_seconds: so does one that lives but makes nothing for so long: no token, no micro-batch; loading a model
            must fit into it.
        watchdog_seconds: a run in which nothing is made for so long (no tokens, verdict, micro-batch or publication)
            is ended with the stacks of its processes; none never ends one.
    """

    max_lag: Annotated[int, Field(ge=0)] = 0
    on_stale: OnStale = "wait"
    executor: Literal["auto", "in_process", "embedded", "ray"] = "auto"
    ray: RaySettings = RaySettings()
    generators: Count = 1
    trainers: Count = 1
    trainer_restarts: Annotated[int, Field(ge=0)] = 3
    weights: Literal["auto", "shared_memory", "files", "collective"] = "auto"
    kv: KvMode = "keep"
    restarts: Annotated[int, Field(ge=0)] = 10
    silence_seconds: Annotated[float, Field(ge=5)] = 60.0
    stall_seconds: Annotated[float, Field(ge=5)] = 900.0
    watchdog_seconds: Annotated[float, Field(gt=0)] | None = 1800.0

    @property
    def in_process(self) -> bool:
        """Whether the trainer's process generates too."""
        alone = self.max_lag == 0 and self.generators == 1 and self.trainers == 1
        return self.executor == "in_process" or (self.executor == "auto" and alone)


class BenchmarkSettings(Settings):
    """A benchmark that is measured beside the held-out problems; its name alone stands for it.

    Fields:
        name: as `strop eval --benchmark` takes it: aime24, livecodebench:v5, reasoning-gym:TASK, a file.
        every: it is measured every so many steps, and after the last; None is `evaluation.every`.
        samples_per_problem: None is `evaluation.samples_per_problem`.
        limit: the first so many problems only.
    """

    name: str
    every: Count | None = None
    samples_per_problem: Count | None = None
    limit: Count | None = None


_Named = Annotated[BenchmarkSettings, BeforeValidator(lambda text: {"name": text} if isinstance(text, str) else text)]


class EvaluationSettings(Settings):
    """Pass rate on the held-out problems during training: every `every` steps, and before the first.

    Fields:
        every: None measures no held-out problems.
        samples_per_problem: n of avg@n.
        temperature, top_p: of the samples; budgets are those of training.
        benchmarks: measured beside them, each with a curve of its own.
        benchmark_data: a folder with the benchmarks' files (`strop eval --data`); None reads the hub.
        asynchronous: whether a worker of its own evaluates while training goes on; `auto`: where generators are workers
            of their own too.
    """

    every: Count | None = None
    samples_per_problem: Count = 4
    temperature: Annotated[float, Field(ge=0)] = 1.0
    top_p: Annotated[float, Field(gt=0, le=1)] = 1.0
    benchmarks: OneOrMore[_Named] = ()
    benchmark_data: str | None = None
    asynchronous: bool | Literal["auto"] = "auto"


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
    critic: CriticSettings | None = None
    stages: tuple[Stage, ...] = ()
    engine: SerializeAsAny[EngineSettings] = EngineSettings()
    orchestration: OrchestrationSettings = OrchestrationSettings()
    evaluation: EvaluationSettings = EvaluationSettings()
    checkpoint: CheckpointSettings = CheckpointSettings()
    trackers: OneOrMore[Literal["tensorboard", "wandb"]] = ()
    alerts: Limits = Limits()

    @property
    def evaluates_apart(self) -> bool:
        """Whether a worker of its own evaluates, beside training."""
        wanted = self.evaluation.asynchronous
        return not self.orchestration.in_process if wanted == "auto" else wanted

    def validate_run(self) -> Self:
        """Refuse settings that contradict each other.

        Raises:
            InputError: one line that names the keys, their values and the way out.
        """
        check(self)
        for config in stage_configs(self) if self.stages else ():
            check(config)
        return self

    def to_json(self) -> str:
        """The configuration as JSON text that `resolve` reads back, as a run's config.json."""
        return json.dumps(self.model_dump(mode="json"), indent=2) + "\n"


STAGED = ("batch", "sampling", "algorithm", "optim")
SCHEDULE = ("lr", "schedule", "warmup_steps")


def stage_configs(config: RunConfig) -> list[RunConfig]:
    """The configuration of each stage, without stages of its own; the one given where it has none.

    Raises:
        InputError: a stage changes what cannot change during a run, or leaves no step to a later one.
    """
    if not config.stages:
        return [config]
    before_last = [stage.steps for stage in config.stages[:-1]]
    if any(stage.steps is None and stage.plateau is None for stage in config.stages[:-1]):
        raise InputError("stages: every stage but the last needs steps, a plateau, or both, to end by")
    if sum(steps or 0 for steps in before_last) >= config.steps:
        raise InputError(f"stages: the first {len(before_last)} take all of steps={config.steps}; raise steps")
    _refuse_idle_settings(config.stages)
    whole = sum(steps or 0 for steps in before_last) + (config.stages[-1].steps or 0)
    if config.stages[-1].steps is not None and all(before_last) and whole != config.steps:
        raise InputError(f"stages: theirs add up to {whole} steps, and steps={config.steps}; make them equal")
    data = config.model_dump(mode="json") | {"stages": []}
    configs: list[RunConfig] = []
    for number, stage in enumerate(config.stages):
        for key, value in stage.set.items():
            place = f"stages.{number}.set"
            if key.split(".")[0] not in STAGED:
                raise InputError(f"{place}: {key} cannot change during a run; only {', '.join(STAGED)} can")
            # TOML has no null; where None is not allowed, `apply_edits` gives the word back.
            value = None if isinstance(value, str) and value.lower() == "none" else value
            data = apply_edits(data, nested(key, value), RunConfig)
        try:
            configs.append(RunConfig.model_validate(data))
        except ValidationError as error:
            raise InputError(f"stages.{number}.set: {explain(error)}") from error
        changed = {k for k, v in configs[-1].optim.__dict__.items() if v != config.optim.__dict__[k]} - set(SCHEDULE)
        if changed:
            raise InputError(f"stages.{number}.set: of optim only {', '.join(SCHEDULE)} can change, not {min(changed)}")
    return configs


def evaluation_sampling(config: RunConfig) -> Sampling:
    """How held-out problems are sampled, at every step of the run alike.

    With the budgets of the stage that has the longest completions (the last of these), so that the points of a curve
    compare over stages and say what the model can do with the room that training gives it in the end (Skywork-OR1,
    Section 3.2.2, measures its 8K stage with 32K too). Temperature and top-p are those of `evaluation`.
    """
    longest = max(reversed(stage_configs(config)), key=lambda stage: stage.sampling.max_new_tokens).sampling
    return longest.model_copy(update={"temperature": config.evaluation.temperature, "top_p": config.evaluation.top_p})


def _refuse_idle_settings(stages: Sequence[Stage]) -> None:
    """Refuse what a stage says and nobody would hear.

    Raises:
        InputError: one line that names the key and the way out.
    """
    if stages[0].problems is not None:
        raise InputError("stages.0.problems filters by an earlier stage, and there is none; leave it out")
    if stages[-1].plateau is not None:
        raise InputError(f"stages.{len(stages) - 1}.plateau: the last stage lasts until the run's steps; leave it out")
    for number, stage in enumerate(stages):
        if stage.plateau is not None and stage.plateau.metric.startswith("evaluation/"):
            raise InputError(
                f"stages.{number}.plateau.metric={stage.plateau.metric} is not measured at every step; name a metric "
                "of the training step, such as pass_rate"
            )


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
    from strop.config.edits import parse_set

    data = config.model_dump(mode="json")
    for text in sets:
        data = apply_edits(data, parse_set(text), RunConfig)
    return parse(data, "--set")


def resolve(target: str, sets: list[str] | tuple[str, ...] = (), small: bool = False) -> RunConfig:
    """The configuration for a recipe name or a .toml, .json or .py file, with `--set` edits applied.

    With `small` it is the tiny form of that (see `tiny`) which is edited.

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
    if small:
        from strop.config.tiny import tiny

        config = tiny(config)
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
        raise InputError(f"{path}: define a function recipe() that returns a strop.config.schema.RunConfig")
    return config
