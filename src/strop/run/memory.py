"""Estimates the memory of a run before its model is loaded: "needs about 61 of 80 GiB".

    need = need_of(config, "cuda", 80 * GIB)            # bytes by what takes them
    found = fitting(need, 80 * GIB, WAYS_OUT)           # a finding: `ok`, or an error
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
from strop.base.types import StropError, first_line
from strop.config.schema import RunConfig, stage_configs
from strop.engines.vllm.settings import Vllm
from strop.model.attention_kinds import longest_sequence
from strop.model.policy import Policy, meta_policy
from strop.model.settings import ModelSettings
from strop.run.devices import seen_gpus
from strop.run.finding import Finding
from strop.training.embedded_base import named_base
from strop.training.memory import Device, cached_bytes, update_need

BLOCK = 32  # tokens by which the embedded engine's cache grows, by half as much again each time
COMPLETION_BYTES = 1024  # of Python's objects for a completion, at least
WAYS_OUT = (
    "set model.gradient_checkpointing=true, lower batch.tokens_per_microbatch or engine.slots, train adapters "
    "(model.lora.rank=32) or take a smaller model"
)
TUNING_WAYS_OUT = "lower training.tokens_per_microbatch, train adapters (model.lora.rank=32) or take a smaller model"
_STROP = Path(__file__).parents[1]


class NotKnownBeforehand(StropError):
    """The memory of a model is known only after loading it."""


def need_of(
    config: RunConfig, device: Device, room: int, tokenizer: PreTrainedTokenizerBase | None = None
) -> dict[str, int]:
    """Bytes on the training device by purpose; on a CPU, those of all processes of the run.

    Args:
        config: the configuration of the run.
        device: the kind of device.
        room: its bytes of memory; a vLLM server on the same device takes a share of them.
        tokenizer: a fresh model takes its vocabulary from it.

    Raises:
        NotKnownBeforehand: the model's code cannot be gone through without its weights.
    """
    with _without_data():
        return _need_of(config, device, room, tokenizer)


def outline(model: ModelSettings, tokenizer: PreTrainedTokenizerBase | None = None) -> Policy:
    """Build a model on torch's meta device, without weights; a fresh model takes its vocabulary from `tokenizer`.

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
    """Whether strop's code raised the error, rather than the model's code or a library."""
    *_, last = traceback.extract_tb(error.__traceback__)
    return Path(last.filename).is_relative_to(_STROP)


def _need_of(
    config: RunConfig, device: Device, room: int, tokenizer: PreTrainedTokenizerBase | None
) -> dict[str, int]:
    policy = outline(config.model, tokenizer)
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
        found["completions"] = COMPLETION_BYTES * (orchestration.max_lag + 1) * _samples(config)
    if isinstance(config.engine, Vllm):
        if orchestration.in_process and not config.engine.urls and device == "cuda":
            found["vLLM's server"] = int(config.engine.memory_fraction * room)
        return found
    cache = _cache_bytes(config, policy)
    in_driver = orchestration.in_process or (ranks == 1 and not config.evaluates_apart)
    engines = int(in_driver) + (orchestration.generators if device == "cpu" and not orchestration.in_process else 0)
    copies = engines - int(in_driver and config.engine.share_parameters)
    return found | ({"engines": engines * cache + copies * own} if engines else {})


def of_memory(config: RunConfig, tokenizer: PreTrainedTokenizerBase | None = None, trains: bool = True) -> Finding:
    """Whether this machine has the memory that a run needs; of a model that is only measured, that of its weights.

    Raises:
        InputError: no such model, or one that cannot be trained so on any device.
    """
    device: Device = "cuda" if seen_gpus(config) else "cpu"
    room = room_of(device)
    try:
        if trains:
            return fitting(need_of(config, device, room, tokenizer), room, WAYS_OUT)
        weights = sum(parameter.nbytes for parameter in outline(config.model, tokenizer).model.parameters())
        return fitting({"weights": weights}, room, "take a smaller model")
    except NotKnownBeforehand as error:
        return Finding("memory-unknown", "note", "memory", str(error))


def fitting(need: Mapping[str, int], room: int, ways_out: str) -> Finding:
    """Whether `need` (bytes by purpose) fits into `room` bytes: `ok`, or an error with the ways out."""
    whole = sum(need.values())
    largest = sorted(need.items(), key=lambda item: -item[1])
    parts = ", ".join(f"{name} {_gib(size)}" for name, size in largest if size >= 0.01 * whole)
    found = f"needs about {_gib(whole)} of {_gib(room)} GiB ({parts})"
    if whole <= room:
        return Finding("memory", "ok", "memory", found)
    return Finding("memory", "error", "memory", f"this run {found}", ways_out)


def of_tuning(
    model: ModelSettings, tokenizer: PreTrainedTokenizerBase, lengths: Sequence[int], device: Device, ranks: int
) -> Finding:
    """Whether this machine has the memory that fine-tuning needs.

    Args:
        model: the model to tune.
        tokenizer: the tokenizer, which a fresh model takes its vocabulary from.
        lengths: tokens of each sequence of the largest micro-batch.
        device: the kind of device.
        ranks: the number of ranks that shard the model.

    Raises:
        InputError: no such model, or one that cannot be trained so on any device.
    """
    try:
        with _without_data():
            update = update_need(outline(model, tokenizer), lengths, device, ranks)
    except NotKnownBeforehand as error:
        return Finding("memory-unknown", "note", "memory", str(error))
    need = {name: size * (ranks if device == "cpu" else 1) for name, size in asdict(update).items()}
    return fitting(need, room_of(device), TUNING_WAYS_OUT)


def room_of(device: Device) -> int:
    """Total bytes of memory of a device of this machine."""
    if device == "cpu":
        return machine.memory()[0]
    import torch

    return torch.cuda.get_device_properties(0).total_memory


def _settings(model: ModelSettings) -> ModelSettings:
    """Replace the name of an embedded base by its shape."""
    base = None if model.path is None else named_base(model.path, 0)
    return model if base is None else model.model_copy(update={"path": None, "fresh": base.model})


def _longest(config: RunConfig, policy: Policy) -> int:
    """Tokens of the longest possible sequence."""
    budget = max(stage.sampling.max_new_tokens for stage in stage_configs(config))
    limits = (longest_sequence(policy.model.config.to_dict()), config.engine.max_tokens)
    return min([config.data.max_prompt_tokens + budget, *(limit for limit in limits if limit is not None)])


def _samples(config: RunConfig) -> int:
    """The most completions of a step."""
    return max(stage.batch.prompts_per_step * stage.batch.samples_per_prompt for stage in stage_configs(config))


def _lengths(config: RunConfig, policy: Policy) -> list[int]:
    """The sequences of the largest micro-batch."""
    most = _samples(config)
    budget = max(stage.batch.tokens_per_microbatch for stage in stage_configs(config))
    return largest_microbatch(_longest(config, policy), most, budget)


def largest_microbatch(longest: int, count: int, budget: int) -> list[int]:
    """Lengths of the sequences in a micro-batch: up to `count` of `longest` tokens within the budget, at least one."""
    tokens = max(longest, min(budget, count * longest))
    whole, rest = divmod(tokens, longest)
    return [longest] * whole + ([rest] if rest else [])


def _cache_bytes(config: RunConfig, policy: Policy) -> int:
    """Bytes of the embedded engine's keys and values after sequences of the greatest length."""
    capacity = BLOCK
    while capacity < _longest(config, policy):
        capacity = -(-(capacity * 3 // 2) // BLOCK) * BLOCK
    return config.engine.slots * capacity * cached_bytes(policy)


def _gib(size: int) -> str:
    return f"{size / GIB:.0f}" if size >= 10 * GIB else f"{size / GIB:.2g}"
