"""From plain values to a valid `RunConfig`: parsing, edits, and the checks of settings that contradict each other."""

from __future__ import annotations

import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from strop.base.imports import refuse_code
from strop.base.types import InputError
from strop.config.edits import apply_edits, explain, flatten, parse_set
from strop.config.schema import RunConfig
from strop.engines.settings import Vllm
from strop.orchestration.settings import RaySettings


def validated(config: RunConfig) -> RunConfig:
    """Return the configuration after checking that its settings do not contradict each other in any stage.

    Raises:
        InputError: one line that names the keys, their values and the way out.
    """
    _check(config)
    for number, stage in enumerate(config.stage_configs() if config.stages else ()):
        _check(stage)
        for key in ("path", "domains", "url", "prompt"):
            if getattr(stage.algorithm.reference, key) != getattr(config.algorithm.reference, key):
                raise InputError(f"stages.{number}.set: algorithm.reference.{key} cannot change during a run")
    return config


def _check(config: RunConfig) -> None:
    _check_batch(config)
    _check_sampling(config)
    _check_algorithm(config)
    _check_critic(config)
    _check_orchestration(config)
    _check_routing(config)
    _check_evaluation(config)


def _check_evaluation(config: RunConfig) -> None:
    evaluation = config.evaluation
    if evaluation.every is not None and config.data.held_out is None and not evaluation.benchmarks:
        raise InputError(
            f"evaluation.every={evaluation.every}, but no problems are held out: set data.held_out.count, or "
            "evaluation.every=none"
        )
    for number, benchmark in enumerate(evaluation.benchmarks):
        if benchmark.every is None and evaluation.every is None and not benchmark.optional:
            raise InputError(
                f"evaluation.benchmarks.{number}: {benchmark.name} is never measured; say every how many steps: "
                f'{{name="{benchmark.name}", every=10}}, or set evaluation.every'
            )


def _check_batch(config: RunConfig) -> None:
    batch = config.batch
    if batch.updates_per_step > batch.prompts_per_step:
        raise InputError(
            f"batch.updates_per_step={batch.updates_per_step} exceeds batch.prompts_per_step="
            f"{batch.prompts_per_step}: an update needs a prompt group at least; lower it to "
            f"{batch.prompts_per_step} or less"
        )
    if batch.samples_per_prompt == 1 and config.algorithm.selection.zero_variance == "drop":
        raise InputError(
            "batch.samples_per_prompt=1 with algorithm.selection.zero_variance=drop drops every group (one "
            "completion cannot differ from itself); raise samples_per_prompt to 2 or more, or keep such groups"
        )
    allocation = config.algorithm.allocation
    if allocation is not None and not allocation.least <= batch.samples_per_prompt <= allocation.most:
        raise InputError(
            f"batch.samples_per_prompt={batch.samples_per_prompt} is the mean of groups of {allocation.least} to "
            f"{allocation.most} completions: set algorithm.allocation.least and algorithm.allocation.most around it"
        )
    advantage = config.algorithm.advantage
    if batch.samples_per_prompt == 1 and advantage.needs_several:
        raise InputError(
            f"batch.samples_per_prompt=1 has advantage 0 whatever its reward: algorithm.advantage="
            f"{advantage.piece_name()} compares completions of a prompt; raise samples_per_prompt to 2 or more"
        )


def _check_sampling(config: RunConfig) -> None:
    sampling = config.sampling
    if sampling.truncates:
        raise InputError(
            f"sampling.temperature={sampling.temperature}, top_p={sampling.top_p}, "
            f"top_k={sampling.top_k}: training needs the whole distribution, or its log-probs are not those "
            "of the sampler; set sampling.top_p=1, no sampling.top_k and a temperature above 0"
        )


def _check_routing(config: RunConfig) -> None:
    separate = config.environment is not None and config.environment.history == "separate"
    if config.model.replay_routing and separate:
        raise InputError("model.replay_routing: experts of several sequences are not kept; set it false")
    if config.algorithm.reference.prompt is not None and separate:
        raise InputError("algorithm.reference.prompt replaces one prompt a completion; set environment.history=keep")


def _check_algorithm(config: RunConfig) -> None:
    algorithm, batch = config.algorithm, config.batch
    updates = batch.updates_per_step * batch.passes_per_batch
    lag = config.orchestration.max_lag
    if algorithm.loss.strictly_on_policy and (updates > 1 or lag > 0):
        raise InputError(
            f"algorithm.loss={algorithm.loss.piece_name()} is right only strictly on-policy, which "
            f"batch.updates_per_step={batch.updates_per_step}, batch.passes_per_batch={batch.passes_per_batch} and "
            f"orchestration.max_lag={lag} are not; set them to 1, 1 and 0"
        )
    if algorithm.needs_token_types and algorithm.token_types is None:
        raise InputError(
            f"algorithm.loss={algorithm.loss.piece_name()} or a regularizer tells reasoning from knowledge tokens; say "
            "how to tell them apart: algorithm.token_types=EntropyQuantile"
        )
    if algorithm.correction is not None and algorithm.anchor == "generator":
        raise InputError(
            f"algorithm.correction={algorithm.correction.piece_name()} makes up for the gap between generator and "
            "trainer, which algorithm.anchor=generator leaves in the ratio; set algorithm.anchor=recomputed"
        )
    for key in algorithm.reference.model_fields_set if not algorithm.needs_reference else ():
        if value := getattr(algorithm.reference, key):
            raise InputError(
                f"algorithm.reference.{key}={value}, but nothing reads a reference policy; add a KL term, or set "
                f"algorithm.reference.{key}=none"
            )
    if algorithm.reference.url is not None and config.sampling.temperature != 1:
        raise InputError(
            f"algorithm.reference.url={algorithm.reference.url}: a server scores tokens at temperature 1, and "
            f"sampling.temperature={config.sampling.temperature}; set it to 1, or load the teacher here: "
            "algorithm.reference.url=none"
        )
    if algorithm.advantage.needs_token_rewards and algorithm.kl_in_reward is None:
        raise InputError(
            f"algorithm.advantage={algorithm.advantage.piece_name()} learns from the KL to a teacher, and "
            "algorithm.kl_in_reward is not set; set algorithm.kl_in_reward.beta=1"
        )


def _check_critic(config: RunConfig) -> None:
    wants = config.algorithm.advantage.needs_values
    name = config.algorithm.advantage.piece_name()
    if wants and config.critic is None:
        raise InputError(
            f"algorithm.advantage={name} reads a critic's values; give the run one: critic.updates_per_step=12"
        )
    if not wants and config.critic is not None:
        raise InputError(f"algorithm.advantage={name} never reads the critic that is trained; set critic=none, or Gae")


def _check_orchestration(config: RunConfig) -> None:
    orchestration = config.orchestration
    servers = config.engine.urls if isinstance(config.engine, Vllm) else ()
    if servers and len(servers) != orchestration.generators:
        raise InputError(
            f"engine.urls names {len(servers)} servers for orchestration.generators={orchestration.generators}: each "
            f"generator has one; set orchestration.generators={len(servers)}"
        )
    if orchestration.trainers % orchestration.sequence_parallel:
        raise InputError(
            f"orchestration.sequence_parallel={orchestration.sequence_parallel} does not divide "
            f"orchestration.trainers={orchestration.trainers}; set orchestration.trainers to a multiple of it"
        )
    if orchestration.sequence_parallel > 1 and config.algorithm.reference_top:
        raise InputError(
            "algorithm.regularizers: TopKl does not share a sequence among ranks; set orchestration.sequence_parallel=1"
        )
    if orchestration.executor == "in_process" and orchestration.generators > 1:
        raise InputError(
            f"orchestration.generators={orchestration.generators} are separate processes, and "
            "orchestration.executor=in_process has none; set orchestration.executor=embedded, or generators=1"
        )
    if orchestration.executor != "ray" and orchestration.ray != RaySettings():
        usual = RaySettings().model_dump()
        name, value = next(item for item in orchestration.ray.model_dump().items() if item[1] != usual[item[0]])
        raise InputError(
            f"orchestration.ray.{name}={value} is of a Ray cluster, which orchestration.executor="
            f"{orchestration.executor} does not use; set orchestration.executor=ray, or leave {name} out"
        )
    if orchestration.ray.train_in_cluster and orchestration.trainers == 1:
        raise InputError(
            "orchestration.ray.train_in_cluster is of the trainer's ranks, and orchestration.trainers=1 trains in the "
            "driver; set trainers=2 or more, or leave train_in_cluster out"
        )
    if orchestration.executor == "in_process" and orchestration.trainers > 1:
        raise InputError(
            f"orchestration.trainers={orchestration.trainers} keep the parameters in separate processes, where "
            "orchestration.executor=in_process cannot generate with them; set executor=embedded, or trainers=1"
        )
    if orchestration.stall_seconds < orchestration.silence_seconds:
        raise InputError(
            f"orchestration.stall_seconds={orchestration.stall_seconds:g} is below silence_seconds="
            f"{orchestration.silence_seconds:g}: one that is silent has stalled too; make it the longer one"
        )


def parse(data: dict[str, Any], origin: str, to_run: bool = True, replacing: Sequence[str] = ()) -> RunConfig:
    """A validated configuration from a plain dictionary.

    Args:
        data: plain values, as a file or a run folder holds them.
        origin: where they are from, for errors.
        to_run: whether something is to be run by it; False where it is only looked at, or comes from this very user.
        replacing: `key=value` settings that will be applied to it. Where it is not valid without them, they are
            applied at once: a piece that is replaced need not be there any more.

    Raises:
        InputError: one line that names `origin`, the key, its value and what would be valid; or a setting that would
            run code, which the user has not named.
    """
    try:
        return _parsed(data, origin, to_run)
    except InputError:
        if not replacing:
            raise
        return _parsed(_edited(data, replacing), origin, to_run)


def _parsed(data: dict[str, Any], origin: str, to_run: bool) -> RunConfig:
    try:
        config = validated(RunConfig.model_validate(data))
    except ValidationError as error:
        raise InputError(f"{origin}: {explain(error)}") from error
    except RecursionError as error:
        raise InputError(f"{origin}: it is nested too deeply") from error
    if to_run:
        refuse_code(config.model_dump(mode="json"), origin)
    return config


def edit(config: RunConfig, sets: list[str] | tuple[str, ...]) -> RunConfig:
    """The configuration with `key=value` settings applied, validated again."""
    return parse(_edited(config.model_dump(mode="json"), sets), "--set", to_run=False)


def _edited(data: dict[str, Any], sets: Sequence[str]) -> dict[str, Any]:
    for text in sets:
        data = apply_edits(data, parse_set(text), RunConfig)
    return data


def edits_of_file(path: Path) -> list[str]:
    """The settings of a TOML file as `--set` takes them one by one, the choice of a piece before its fields.

    Raises:
        InputError: there is no such file, or it is not TOML.
    """
    try:
        changes = tomllib.loads(path.read_text(encoding="utf-8-sig"))
    except FileNotFoundError as error:
        raise InputError(f"--set @{path}: no such file") from error
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise InputError(f"--set @{path}: not a TOML file that can be read: {error}") from error
    found = sorted(flatten(changes), key=lambda item: not item[0].endswith(".piece"))
    return [f"{key}={value}" for key, value in found]
