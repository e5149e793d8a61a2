"""The configuration of a run: one tree of frozen settings and pieces, each section from the part that it is for.

`strop.recipes.resolve` makes one from a recipe's name or a file. `--set` edits the dictionary and validates it again;
naming another `piece` resets that piece's other fields to its defaults.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, SerializeAsAny, ValidationError

from strop.algorithms.alerts import AlertLimits
from strop.algorithms.settings import AlgorithmSettings
from strop.base.pieces import OneOrMore, Settings
from strop.base.types import InputError, Problem
from strop.config.edits import apply_edits, explain, nested
from strop.data.history import ProblemFilter
from strop.data.settings import DataSettings
from strop.data.templates import Instruction
from strop.engines.protocol import Sampling
from strop.engines.settings import EngineSettings, Vllm
from strop.environments.base import Environment
from strop.evaluation import EvaluationSettings
from strop.model.settings import ModelSettings
from strop.orchestration.settings import OrchestrationSettings
from strop.training.settings import AdamW, BatchSettings, CheckpointSettings, CriticSettings, LearnerSettings
from strop.verifiers.base import Verifier

Count = Annotated[int, Field(ge=1)]


class Stage(Settings):
    """A stretch of training with its own settings.

    Fields:
        steps: it ends after so many steps; the last stage lasts until the run's `steps`. No group is begun in a stage
            that would be trained in the next, so that with max_lag > 0 generation runs dry towards its end.
        problems: which problems it keeps of those the run began with; None keeps all that are not retired.
        set: what it changes against the stage before: dotted keys of `batch`, `sampling`, `algorithm` and `optim`. The
            learning-rate schedule starts anew where `optim` is changed.
    """

    steps: Count | None = None
    problems: SerializeAsAny[ProblemFilter] | None = None
    set: dict[str, Any] = {}


def _recipe_name(name: str) -> str:
    """The name of a recipe, which also names folders and stands in titles."""
    if not name.isprintable() or "/" in name or name in ("", ".", ".."):
        raise ValueError("must be a name without slashes and control characters, such as grpo or archer.math")
    return name


# What a stage can change; of `optim` only its schedule.
STAGED = ("batch", "sampling", "algorithm", "optim")
SCHEDULE = ("lr", "schedule", "warmup_steps")


class RunConfig(Settings):
    """Everything a run depends on. Written as config.json into the run folder."""

    recipe: Annotated[str, AfterValidator(_recipe_name)]
    seed: Annotated[int, Field(ge=0)] = 0
    steps: Count
    device: Literal["auto", "cpu", "cuda"] = "auto"
    model: ModelSettings
    data: DataSettings
    verifier: SerializeAsAny[Verifier]
    environment: SerializeAsAny[Environment] | None = None
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
    trackers: OneOrMore[Literal["tensorboard", "trackio", "wandb"]] = ()
    alerts: AlertLimits = AlertLimits()

    @property
    def evaluates_apart(self) -> bool:
        """Whether a separate worker evaluates, during training; where servers generate, they also evaluate."""
        if isinstance(self.engine, Vllm):
            return False
        wanted = self.evaluation.asynchronous
        return not self.orchestration.in_process if wanted == "auto" else wanted

    @property
    def learner(self) -> LearnerSettings:
        """The learner's share."""
        return LearnerSettings(
            seed=self.seed,
            temperature=self.sampling.temperature,
            batch=self.batch,
            algorithm=self.algorithm,
            optim=self.optim,
            critic=self.critic,
        )

    @property
    def longest_budget(self) -> int:
        """The most new tokens of a completion in any stage."""
        return max(stage.sampling.max_new_tokens for stage in self.stage_configs())

    def instruction(self, problem: Problem) -> Instruction | None:
        """What the problem's prompt should say: which form of answer the verifier reads, and which tools there are."""
        asked = self.verifier.instruction(problem)
        return asked if self.environment is None else self.environment.instruction(asked)

    def stage_configs(self) -> list[RunConfig]:
        """The configuration of each stage, without further stages; this one if it has no stages.

        Raises:
            InputError: a stage changes what cannot change during a run, or leaves no step to a later one.
        """
        if not self.stages:
            return [self]
        if any(stage.steps is None for stage in self.stages[:-1]):
            raise InputError("stages: every stage but the last needs steps")
        taken = sum(stage.steps or 0 for stage in self.stages[:-1])
        if taken >= self.steps:
            raise InputError(f"stages: those before the last take {taken} steps, so steps={self.steps} must be more")
        if self.stages[0].problems is not None:
            raise InputError("stages.0.problems filters by an earlier stage, and there is none; leave it out")
        whole = taken + (self.stages[-1].steps or 0)
        if self.stages[-1].steps is not None and whole != self.steps:
            raise InputError(f"stages: theirs add up to {whole} steps, and steps={self.steps}; make them equal")
        data = self.model_dump(mode="json") | {"stages": []}
        configs: list[RunConfig] = []
        for number, stage in enumerate(self.stages):
            for key, value in stage.set.items():
                place = f"stages.{number}.set"
                if key.split(".")[0] not in STAGED:
                    raise InputError(f"{place}: {key} cannot change during a run; only {', '.join(STAGED)} can")
                data = apply_edits(data, nested(key, value), RunConfig)
            try:
                configs.append(RunConfig.model_validate(data))
            except ValidationError as error:
                raise InputError(f"stages.{number}.set: {explain(error)}") from error
            changed = {k for k, v in configs[-1].optim.__dict__.items() if v != self.optim.__dict__[k]} - set(SCHEDULE)
            if changed:
                only = ", ".join(SCHEDULE)
                raise InputError(f"stages.{number}.set: of optim only {only} can change, not {min(changed)}")
        return configs


def evaluation_sampling(config: RunConfig) -> Sampling:
    """How held-out problems are sampled, at every step of the run alike.

    With the budgets of the stage that has the longest completions (the last of these), so that the points of a curve
    compare over stages and say what the model can do with the room that training gives it in the end (Skywork-OR1,
    Section 3.2.2, measures its 8K stage with 32K too). Temperature and top-p are those of `evaluation`.
    """
    longest = max(reversed(config.stage_configs()), key=lambda stage: stage.sampling.max_new_tokens).sampling
    return longest.model_copy(update={"temperature": config.evaluation.temperature, "top_p": config.evaluation.top_p})
