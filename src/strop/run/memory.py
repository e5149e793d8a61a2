"""Whether a run fits into a device's memory, found out before its model is loaded: "needs about 61 of 80 GiB".

    need = need_of(config, "cuda")                      # bytes by what takes them
    line = fitting(config, "cuda", room=80 * GIB)       # or refused, with the settings that would fit
"""

from __future__ import annotations

import traceback
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path

from transformers import PreTrainedTokenizerBase

from strop.base import machine
from strop.base.machine import GIB
from strop.base.types import InputError, StropError, first_line
from strop.config.parse import edit
from strop.config.schema import RunConfig, stage_configs
from strop.engines.vllm.settings import Vllm
from strop.model.attention_kinds import longest_sequence
from strop.model.policy import Policy, meta_policy
from strop.model.settings import AUTO, ModelSettings
from strop.run.devices import seen_gpus
from strop.training.embedded_base import named_base
from strop.training.memory import Device, cached_bytes, update_need

BLOCK = 32  # tokens by which the embedded engine's cache grows, by half as much again each time
LEAST_TOKENS = 1024  # of a micro-batch that is suggested
RANKS = (2, 4, 8)
_STROP = Path(__file__).parents[1]


class NotKnownBeforehand(StropError):
    """What a model needs shows only once it is loaded."""


class TooLarge(InputError):
    """A run that does not fit into a device's memory, though it may into another's."""


def need_of(config: RunConfig, device: Device, room: int) -> dict[str, int]:
    """Bytes on the device that trains, by what takes them; on a CPU those of all processes of the run.

    Args:
        config: of the run.
        device: what kind it is.
        room: bytes that it has; a vLLM server that shares it takes a part of them.

    Raises:
        NotKnownBeforehand: the model's code cannot be gone through without its weights.
    """
    with _without_data():
        return _need_of(config, device, room)


def outline(model: ModelSettings, tokenizer: PreTrainedTokenizerBase | None = None) -> Policy:
    """The shapes of a model, on torch's meta device; `tokenizer` is that of one that is made on the spot.

    Raises:
        InputError: no such model, or a model the policy cannot compute.
        NotKnownBeforehand: see `need_of`.
    """
    with _without_data():
        return meta_policy(_settings(model), tokenizer)


@contextmanager
def _without_data() -> Iterator[None]:
    try:
        yield
    except (RuntimeError, TypeError, ValueError, AttributeError) as error:  # of a model's code, on tensors without data
        if _raised_here(error):
            raise
        reason = f"{type(error).__name__}: {first_line(error)}"
        raise NotKnownBeforehand(
            "what this model needs is not known before it is loaded, because its code cannot be gone through without "
            f"its weights ({reason}); watch the memory of a run of a few steps (steps=3)"
        ) from error


def _raised_here(error: Exception) -> bool:
    """Whether a line of strop's own raised it, rather than one of a model, or of what this calls."""
    *_, last = traceback.extract_tb(error.__traceback__)
    return Path(last.filename).is_relative_to(_STROP)


def _need_of(config: RunConfig, device: Device, room: int) -> dict[str, int]:
    policy = outline(config.model)
    ranks = config.orchestration.trainers
    shared = config.orchestration.sequence_parallel
    update = update_need(policy, [-(-length // shared) for length in _lengths(config, policy)], device, ranks)
    found: dict[str, int] = asdict(update)
    own = sum(parameter.nbytes for parameter in policy.model.parameters())
    if config.critic is not None:
        found["critic"] = update.weights + update.gradients + update.optimizer
    if any(stage.algorithm.needs_reference for stage in stage_configs(config)) and policy.adapters is None:
        found["reference policy"] = own // ranks
    orchestration = config.orchestration
    if device == "cpu":
        found = {name: size * ranks for name, size in found.items()}
    if isinstance(config.engine, Vllm):
        if orchestration.in_process and not config.engine.urls and device == "cuda":
            found["vLLM's server"] = int(config.engine.memory_fraction * room)
        return found
    cache = _cache_bytes(config, policy)
    in_driver = orchestration.in_process or (ranks == 1 and not config.evaluates_apart)
    engines = int(in_driver) + (orchestration.generators if device == "cpu" and not orchestration.in_process else 0)
    copies = engines - int(in_driver and config.engine.share_parameters)
    return found | ({"engines": engines * cache + copies * own} if engines else {})


def fitting(config: RunConfig, device: Device, room: int) -> str:
    """One line that says how much of the room a run needs.

    Raises:
        TooLarge: it does not fit; with settings that do, where there are any.
        InputError: no such model, or one that cannot be trained so on any device.
        NotKnownBeforehand: see `need_of`.
    """
    need = need_of(config, device, room)
    said = _said(need, room)
    if sum(need.values()) <= room:
        return f"memory: {said}"
    tried: dict[str, str] = {}
    for key, value in _changes(config, device):
        if key == "orchestration.trainers":  # which train every parameter
            tried.pop("model.lora.rank", None)
        tried[key] = f"{key}={value}"
        try:
            smaller = sum(need_of(edit(config, list(tried.values())), device, room).values())
        except InputError:  # not for this model, such as adapters larger than its layers
            del tried[key]
            continue
        if smaller <= room:
            way_out = " and ".join(tried.values())
            raise TooLarge(f"this run {said}; with {way_out} it would need {_gib(smaller)}")
    raise TooLarge(f"this run {said}, and no setting makes it fit; take a smaller model")


def _said(need: Mapping[str, int], room: int) -> str:
    """How much of the room is needed, and what takes it."""
    whole = sum(need.values())
    largest = sorted(need.items(), key=lambda item: -item[1])
    parts = ", ".join(f"{name} {_gib(size)}" for name, size in largest if size >= 0.01 * whole)
    return f"needs about {_gib(whole)} of {_gib(room)} GiB ({parts})"


def tuning_noted(
    model: ModelSettings, tokenizer: PreTrainedTokenizerBase, lengths: Sequence[int], device: Device, ranks: int
) -> str:
    """One line that says how much of the device's room fine-tuning needs, or why that is not known.

    Args:
        model: what is tuned.
        tokenizer: of a model that is made on the spot.
        lengths: tokens of each sequence of the largest micro-batch.
        device: what kind it is.
        ranks: over how many the model is sharded.

    Raises:
        TooLarge: it does not fit.
        InputError: no such model, or one that cannot be trained so on any device.
    """
    try:
        with _without_data():
            update = update_need(outline(model, tokenizer), lengths, device, ranks)
    except NotKnownBeforehand as error:
        return f"memory: {error}"
    need = {name: size * (ranks if device == "cpu" else 1) for name, size in asdict(update).items()}
    room = room_of(device)
    said = _said(need, room)
    if sum(need.values()) > room:
        raise TooLarge(f"this run {said}; lower training.tokens_per_microbatch, or train adapters: model.lora.rank=32")
    return f"memory: {said}"


def fitting_here(config: RunConfig) -> str:
    """`fitting` on the device of this machine that the run would take.

    Raises:
        InputError, NotKnownBeforehand: see `fitting`.
    """
    device: Device = "cuda" if seen_gpus(config) else "cpu"
    return fitting(config, device, room_of(device))


def noted(config: RunConfig) -> str:
    """`fitting_here`, or a line that says why it is not known.

    Raises:
        InputError: see `fitting`.
    """
    try:
        return fitting_here(config)
    except NotKnownBeforehand as error:
        return f"memory: {error}"


def room_of(device: Device) -> int:
    """Bytes of memory that a device of this machine has at all."""
    if device == "cpu":
        return machine.memory()[0]
    import torch

    return torch.cuda.get_device_properties(0).total_memory


def known(model: ModelSettings) -> bool:
    """Whether a model is large enough to be looked at: the bases that are made on the spot have a few MiB."""
    return model.path is None or named_base(model.path, 0) is None


def _settings(model: ModelSettings) -> ModelSettings:
    """The settings with the shape of a base that is made on the spot in place of its name."""
    base = None if model.path is None else named_base(model.path, 0)
    return model if base is None else model.model_copy(update={"path": None, "fresh": base.model})


def _longest(config: RunConfig, policy: Policy) -> int:
    """Tokens of the longest sequence there can be."""
    budget = max(stage.sampling.max_new_tokens for stage in stage_configs(config))
    limits = (longest_sequence(policy.model.config.to_dict()), config.engine.max_tokens)
    return min([config.data.max_prompt_tokens + budget, *(limit for limit in limits if limit is not None)])


def _lengths(config: RunConfig, policy: Policy) -> list[int]:
    """The sequences of the largest micro-batch."""
    most = max(stage.batch.prompts_per_step * stage.batch.samples_per_prompt for stage in stage_configs(config))
    budget = max(stage.batch.tokens_per_microbatch for stage in stage_configs(config))
    return largest_microbatch(_longest(config, policy), most, budget)


def largest_microbatch(longest: int, count: int, budget: int) -> list[int]:
    """The lengths of as many of `count` sequences of `longest` tokens as a budget of tokens takes, one at least."""
    tokens = max(longest, min(budget, count * longest))
    whole, rest = divmod(tokens, longest)
    return [longest] * whole + ([rest] if rest else [])


def _cache_bytes(config: RunConfig, policy: Policy) -> int:
    """Keys and values of the embedded engine once its sequences have been as long as they may."""
    capacity = BLOCK
    while capacity < _longest(config, policy):
        capacity = -(-(capacity * 3 // 2) // BLOCK) * BLOCK
    return config.engine.slots * capacity * cached_bytes(policy)


def _changes(config: RunConfig, device: Device) -> Iterator[tuple[str, str]]:
    """Settings that need less, those that cost least first; each is tried with those before it."""
    if config.model.gradient_checkpointing in (False, AUTO):
        yield "model.gradient_checkpointing", "true"
    tokens = config.batch.tokens_per_microbatch
    while tokens > LEAST_TOKENS:
        tokens = max(tokens // 4, LEAST_TOKENS)
        yield "batch.tokens_per_microbatch", str(tokens)
    if not isinstance(config.engine, Vllm) and config.engine.slots > 16:
        yield "engine.slots", "16"
    if config.model.lora is None and not config.model.mixture_of_experts:
        yield "model.lora.rank", "32"
    if device == "cuda" and config.model.lora is None:
        for ranks in RANKS:
            if ranks > config.orchestration.trainers:
                yield "orchestration.trainers", str(ranks)


def _gib(size: int) -> str:
    return f"{size / GIB:.0f}" if size >= 10 * GIB else f"{size / GIB:.2g}"
