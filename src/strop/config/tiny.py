"""The tiny form of a recipe: every piece as the paper has it, every size as two cores can train it in a minute.

    config = tiny(build("archer.math"))          # strop train archer.math --tiny

The model is the embedded base (a mixture of experts where the recipe trains one), the problems are chain sums, and 20
steps of 16 × 8 completions of up to 38 tokens are trained. Settings in tokens or steps shrink in proportion: length
penalties, thinking budgets, stages, warm-ups. Learning rates grow to suit a model of this size. A recipe's thresholds,
ranges and coefficients are unchanged. Sums are judged by `Answer`, which needs no worker process.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from strop.algorithms.aggregation import ConstantDenominator
from strop.algorithms.rewards import LengthPenalty, LengthShaping, OverlongShaping
from strop.algorithms.settings import ReferenceSettings
from strop.config.parse import validated
from strop.config.schema import RunConfig, Stage
from strop.data.generators import ChainSum, Mixture
from strop.data.history import HardOnly, ProblemFilter
from strop.data.settings import DataSettings, HeldOutSettings
from strop.data.source import ProblemSource
from strop.engines.protocol import Interruption, Sampling
from strop.engines.settings import EngineSettings
from strop.model.settings import (
    EMBEDDED,
    EMBEDDED_CALLER,
    EMBEDDED_EXPERTS,
    EMBEDDED_HINTED,
    EMBEDDED_TEACHER,
    ModelSettings,
)
from strop.training.settings import AdamW, BatchSettings, CriticSettings, LinearDecay
from strop.verifiers.answer import Answer

STEPS = 20
PROMPTS, SAMPLES = 16, 8
# Of a completion. A sum worked out in full takes the embedded base 26 to 36 tokens, a guess takes 4.
TOKENS, SHORTEST = 38, 26
ANSWER_TOKENS = 5
LEARNING_RATE = 3e-4
ANSWER = "\\boxed{"  # what ends the embedded base's thinking
STOP = "}"  # what ends its answer
HINTED = "{answer}={question}"  # a prompt that helps `EMBEDDED_HINTED`
# ScaleRL's recipes and those it compares with have the head in float32 or not. In float32 throughout that would make no
# difference, so that all of them compute in bfloat16, which takes up to twice as long.
COMPARE_HEADS = ("scalerl", "scalerl_base", "minimax")
BESIDE = ("orchestration.generators", "orchestration.trainers", "orchestration.max_lag")
HELD_OUT, HELD_OUT_COUNT = "data.held_out", 16


def edits_of(sets: Sequence[str]) -> list[str]:
    """Further edits of a tiny form that is changed by `sets`, where they do not name these settings themselves.

    If `sets` name generators, trainers or a lag, the executor is chosen automatically; if they name a source of
    problems, the held-out problems are drawn from it.
    """
    keys = [text.partition("=")[0].strip() for text in sets]
    more = []
    if any(key in BESIDE for key in keys) and "orchestration.executor" not in keys:
        more.append("orchestration.executor=auto")
    if "data.source" in keys and not any(key.startswith(HELD_OUT) for key in keys):
        more.append(f'{HELD_OUT}={{count={HELD_OUT_COUNT}, source="none"}}')
    return more


def tiny(config: RunConfig, steps: int = STEPS, base: RunConfig | None = None) -> RunConfig:
    """The tiny form of `config` over `steps` steps (at least one a stage), validated.

    Args:
        base: what `config` is compared with, None for nothing: that has the usual prompts, samples and steps of a tiny
            form, and those of `config` are in proportion.

    Raises:
        InputError: the shrunk settings contradict each other (your own recipe with unusual sizes).
    """
    base = base or config
    steps = max(steps * config.steps // base.steps, len(config.stages), 1)
    contexts = [int(stage.set.get("sampling.max_new_tokens", 0)) for stage in config.stages]
    longest = max([config.sampling.max_new_tokens, *contexts])
    aggregation = config.algorithm.aggregation
    if isinstance(aggregation, ConstantDenominator):  # scaled with the longest completion
        aggregation = aggregation.model_copy(update={"tokens": max(TOKENS * aggregation.tokens // longest, 1)})
    algorithm = config.algorithm.model_copy(
        update={
            "shaping": tuple(_shaping(shape) for shape in config.algorithm.shaping),
            "aggregation": aggregation,
            "reference": _reference(config.algorithm.reference, steps),
        }
    )
    small = config.model_copy(
        update={
            "steps": steps,
            "model": _model(config),
            "data": _data(config),
            "verifier": Answer(extract="boxed", require_stop=config.verifier.require_stop),
            "batch": _batch(config.batch, base.batch),
            "sampling": _sampling(config.sampling, longest),
            "algorithm": algorithm,
            "optim": _optim(config.optim, LEARNING_RATE, steps),
            "critic": None if config.critic is None else _critic(config.critic, steps),
            "engine": EngineSettings(slots=_slots(config)),
            # A generator next to the trainer would share its cores; in turn with it, a run can be repeated bit for bit.
            "orchestration": config.orchestration.model_copy(update={"executor": "in_process", "generators": 1}),
            "stages": _stages(config, longest, steps),
            "evaluation": config.evaluation.model_copy(
                update={"every": max(steps // 2, 1), "samples_per_problem": 4, "benchmarks": ()}
            ),
            "checkpoint": config.checkpoint.model_copy(update={"every": steps}),
        }
    )
    return validated(RunConfig.model_validate(small.model_dump(mode="json")))


def _slots(config: RunConfig) -> int:
    """Half of a step's completions at once; where generators may run ahead, four steps' worth, so that they do."""
    return PROMPTS * SAMPLES // 2 if config.orchestration.max_lag == 0 else 4 * PROMPTS * SAMPLES


def _model(config: RunConfig) -> ModelSettings:
    """The embedded base, in float32; in bfloat16 where the precision of the head matters."""
    name = EMBEDDED_EXPERTS if config.model.mixture_of_experts else EMBEDDED
    if config.environment is not None:
        name = EMBEDDED_CALLER
    if config.algorithm.reference.prompt is not None:
        name = EMBEDDED_HINTED
    heads = (config.model.trainer_fp32_head, config.model.generator_fp32_head)
    half = config.recipe.partition(".")[0] in COMPARE_HEADS or not all(heads)
    dtype = "bfloat16" if half else "float32"
    return config.model.model_copy(
        update={"path": name, "fresh": None, "dtype": dtype, "gradient_checkpointing": False, "revision": None}
    )


def _reference(reference: ReferenceSettings, steps: int) -> ReferenceSettings:
    """A teacher, or a prompt, that an embedded base can learn from, and resets in proportion."""
    reset = None if reference.reset_every is None else max(steps // 2, 1)
    path = None if reference.path is None else EMBEDDED_TEACHER
    prompt = None if reference.prompt is None else HINTED
    domains = dict.fromkeys(reference.domains, EMBEDDED_TEACHER)
    fitted = {"path": path, "domains": domains, "url": None, "reset_every": reset, "prompt": prompt}
    return reference.model_copy(update=fitted)


def _data(config: RunConfig) -> DataSettings:
    """Chain sums; where the recipe mixes domains, longer and shorter ones under the names of its domains."""
    source, weights = config.data.source, config.data.weights
    names = source.domains if isinstance(source, Mixture) else ()
    names = names or tuple(sorted(weights or ()))
    if not names:
        train: ProblemSource = ChainSum(part="train", count=4096, seed=1)
        held_out: ProblemSource = ChainSum(part="held_out", count=64, seed=2)
    else:
        terms = [max(5 - number, 2) for number in range(len(names))]
        train = Mixture(
            sources=tuple(ChainSum(part="train", count=1024, terms=t, seed=1) for t in terms), domains=names
        )
        held_out = Mixture(
            sources=tuple(ChainSum(part="held_out", count=32, terms=t, seed=2) for t in terms), domains=names
        )
    return DataSettings(source=train, weights=weights, held_out=HeldOutSettings(source=held_out))


def _batch(batch: BatchSettings, base: BatchSettings) -> BatchSettings:
    prompts = max(PROMPTS * batch.prompts_per_step // base.prompts_per_step, 4)
    samples = min(SAMPLES, base.samples_per_prompt) * batch.samples_per_prompt // base.samples_per_prompt
    return batch.model_copy(
        update={
            "prompts_per_step": prompts,
            "samples_per_prompt": max(samples, min(batch.samples_per_prompt, 2)),
            "updates_per_step": min(batch.updates_per_step, prompts // 2),
            "tokens_per_microbatch": 8192,
        }
    )


def _sampling(sampling: Sampling, longest: int) -> Sampling:
    tokens = _shrunk(sampling.max_new_tokens, longest)
    small = Sampling(
        temperature=sampling.temperature, max_new_tokens=tokens, stop=(STOP,) if sampling.stop else ()
    )
    if not sampling.watches_thinking:
        return small
    thinking, cut = tokens - ANSWER_TOKENS, sampling.interruption
    budget = sampling.thinking_tokens or sampling.max_new_tokens
    interruption = None
    if cut is not None:
        after = (thinking * cut.after[0] // budget, thinking * cut.after[1] // budget)
        interruption = Interruption(after=after, phrase=ANSWER)
    return small.model_copy(
        update={
            "end_of_thinking": ANSWER,
            "answer_tokens": None if sampling.answer_tokens is None else ANSWER_TOKENS,
            "thinking_tokens": None if sampling.thinking_tokens is None else thinking,
            "interruption": interruption,
        }
    )


def _shrunk(tokens: int, longest: int) -> int:
    """Tokens of a stage's completions: those of the longest stage have room for every sum, a shorter one's for some."""
    return SHORTEST + (TOKENS - SHORTEST) * tokens // longest


def _shaping(shape: LengthShaping) -> LengthShaping:
    if isinstance(shape, LengthPenalty):
        cache = max(TOKENS * shape.cache_tokens // shape.max_tokens, 1)
        return shape.model_copy(update={"max_tokens": TOKENS, "cache_tokens": cache})
    if isinstance(shape, OverlongShaping):
        buffer = max(TOKENS * shape.buffer_tokens // shape.max_tokens, 1)
        return shape.model_copy(update={"max_tokens": TOKENS, "buffer_tokens": buffer})
    return shape


def _optim(optim: AdamW, lr: float, steps: int) -> AdamW:
    schedule = optim.schedule
    if isinstance(schedule, LinearDecay) and schedule.steps is not None:
        schedule = schedule.model_copy(update={"steps": max(steps // 4, 1)})
    return optim.model_copy(update={"lr": lr, "warmup_steps": min(optim.warmup_steps, 2), "schedule": schedule})


def _critic(critic: CriticSettings, steps: int) -> CriticSettings:
    optim = _optim(critic.optim, LEARNING_RATE, steps)
    return critic.model_copy(update={"optim": optim, "warmup_steps": min(critic.warmup_steps, 2), "path": None})


def _stages(config: RunConfig, longest: int, steps: int) -> tuple[Stage, ...]:
    """The recipe's stages, their lengths in proportion, at least a step each."""
    stages: list[Stage] = []
    free = steps
    for number, stage in enumerate(config.stages):
        later = len(config.stages) - number - 1
        share = (stage.steps or config.steps // len(config.stages)) / config.steps
        length = min(max(int(steps * share), 1), free - later) if later else None
        free -= length or 0
        changes = {key: _smaller(key, value, config, longest, free) for key, value in stage.set.items()}
        smaller = {"steps": length, "problems": _problems(stage.problems), "set": changes}
        stages.append(stage.model_copy(update=smaller))
    return tuple(stages)


def _problems(keeps: ProblemFilter | None) -> ProblemFilter | None:
    """A filter by difficulty, with a bound that chain sums meet: few are as hard as what a paper mines."""
    return HardOnly(below=0.5) if isinstance(keeps, HardOnly) else keeps


def _smaller(key: str, value: Any, config: RunConfig, longest: int, left: int) -> Any:
    if key == "sampling.max_new_tokens":
        return _shrunk(value, longest)
    if key == "batch.prompts_per_step":
        return max(PROMPTS * value // config.batch.prompts_per_step, 4)
    if key == "batch.samples_per_prompt":
        return max(SAMPLES * value // config.batch.samples_per_prompt, 2)
    if key == "batch.updates_per_step":
        return min(value, PROMPTS // 2)
    if key == "optim.lr":
        return LEARNING_RATE * value / config.optim.lr
    if key == "optim.schedule" and isinstance(value, dict) and value.get("steps") is not None:
        return value | {"steps": max(left, 1)}
    return value
