"""The memory of a run before its model is loaded: what lies on each GPU, and which settings make it fit.

    plan = planned(config)
    plan.claims             # bytes by GPU, process and purpose
    plan.config             # with what was left to strop: offloading, the part of a GPU that a vLLM server takes
    plan.finding            # "needs about 61 of 80 GiB" of the fullest GPU, or an error with the setting that would fit

Everything that the placement puts on a GPU is a `Claim`: trainer, ranks, servers, evaluator, driver. A host's memory is
one more place; without GPUs everything is there. A Ray cluster is assumed to have hosts like this one.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import torch
from transformers import PreTrainedTokenizerBase

from strop.base import machine
from strop.base.machine import GIB
from strop.base.types import InputError
from strop.config.parse import edit
from strop.config.schema import RunConfig
from strop.engines.settings import MEMORY_FRACTION, Vllm
from strop.engines.torch import fused_forward
from strop.model.attention_kinds import longest_sequence
from strop.model.location import RESERVED, found_config
from strop.model.policy import Policy
from strop.model.settings import ModelSettings
from strop.orchestration.placement import DRIVER, EVALUATOR, GENERATOR, TRAINER, Placement
from strop.run.devices import assumed_placement, seen_gpus
from strop.run.finding import Finding
from strop.run.reference import teacher_settings
from strop.run.update_memory import (
    MASTER,
    MOMENTS,
    BatchSizes,
    Device,
    Offload,
    computes_in_c,
    head_widths,
    largest_microbatch,
    offloaded,
    outline,
    update_need,
)
from strop.training.embedded_base import EmbeddedBase

BLOCK = 32  # tokens by which the embedded engine's cache grows, by half as much again each time
COPY = "a checkpoint's copy"
MOST_OVER = 1.15  # how far above the peak an estimate may be: its bar, and 1.05 is what was measured
PROGRAM = GIB * 6 // 10  # of a process with its libraries, on a CPU
MARGIN = 0.05  # of a GPU, that a server leaves free where nobody said what it takes
CONTEXT = GIB  # of a process on a GPU: CUDA's context, kernels, what NCCL exchanges
COMPLETION_BYTES = 1024  # of Python's objects for a completion, at least
SERVER_WORKING = 3 * GIB  # of a vLLM server besides weights and cache: activations, captured graphs
SEQUENCES = 4  # of the greatest length, that a server's cache must hold at least
SERVER, WEIGHTS = "vLLM's server", "weights"
WAYS_OUT = (
    "set model.gradient_checkpointing=true, lower batch.tokens_per_microbatch or engine.slots, train adapters "
    "(model.lora.rank=32) or take a smaller model"
)
TUNING_WAYS_OUT = "lower training.tokens_per_microbatch, train adapters (model.lora.rank=32) or take a smaller model"


class MemoryPlace(NamedTuple):
    """A GPU of a host, or with `gpu` None the host's own memory."""

    host: int
    gpu: int | None


class Room(NamedTuple):
    """Bytes of memory of each GPU and of each host."""

    gpu: int
    host: int


class Claim(NamedTuple):
    """Bytes that a process takes for a purpose."""

    place: MemoryPlace
    role: str
    purpose: str
    size: int


class MemoryPlan(NamedTuple):
    """The configuration with what was left to strop, what it takes where, and whether that fits."""

    config: RunConfig
    claims: tuple[Claim, ...]
    finding: Finding

    def settle(self, config: RunConfig) -> RunConfig:
        """A variant of the run's configuration with what was chosen."""
        chosen = ("model", "optim", "critic", "engine")
        return config.model_copy(update={name: getattr(self.config, name) for name in chosen})


class _Run(NamedTuple):
    """A run whose memory is looked at: `prompt` is tokens of the longest prompt, None as many as may be."""

    config: RunConfig
    policy: Policy
    placement: Placement
    room: Room
    prompt: int | None

    @property
    def device(self) -> Device:
        return "cuda" if sum(self.placement.hosts) else "cpu"

    @property
    def own(self) -> int:
        """Bytes of the model's parameters."""
        return _own(self.policy)

    @property
    def serves(self) -> Vllm | None:
        """The settings of the servers that are started here."""
        engine = self.config.engine
        return engine if isinstance(engine, Vllm) and not engine.urls else None

    @property
    def offload(self) -> Offload:
        """What lies in the host's memory instead of a GPU's."""
        if self.device == "cpu":
            return Offload()
        return Offload(self.config.optim.offload is True, self.config.model.offload_activations is True)

    def room_at(self, place: MemoryPlace) -> int:
        """Bytes that there are."""
        return self.room.host if place.gpu is None else self.room.gpu

    def at(self, role: str) -> list[MemoryPlace]:
        """Where a role's bytes lie."""
        share = self.placement.of(role)
        return [MemoryPlace(share.host, gpu) for gpu in share.gpus] or [MemoryPlace(share.host, None)]

    def longest(self) -> int:
        """Tokens of the longest possible sequence."""
        limits = (longest_sequence(self.policy.model.config.to_dict()), self.config.engine.max_tokens)
        prompt = self.config.data.max_prompt_tokens if self.prompt is None else self.prompt
        return min([prompt + self.config.longest_budget, *(limit for limit in limits if limit is not None)])


# ---------------------------------------------------------------------- who takes what


def claims(run: _Run) -> Iterator[Claim]:
    """All that is taken of GPUs, or on a machine without them of its memory; and of the host's memory by offloading."""
    yield from _trainers(run)
    yield from _generators(run)
    yield from _evaluator(run)
    driver = MemoryPlace(0, None)
    if run.device == "cpu":
        orchestration = run.config.orchestration
        processes = orchestration.trainers + (0 if orchestration.in_process else orchestration.generators)
        yield Claim(driver, DRIVER, "Python", PROGRAM * processes)
    completions = COMPLETION_BYTES * (run.config.orchestration.max_lag + 1) * _samples(run.config)
    yield Claim(driver, DRIVER, "completions", completions)


def _own(policy: Policy) -> int:
    """Bytes of a model's parameters, each counted once."""
    return sum(parameter.nbytes for parameter in policy.model.parameters())


def _trainers(run: _Run) -> Iterator[Claim]:
    config, ranks = run.config, run.config.orchestration.trainers
    batch = _micro_batch(run)
    need = update_need(run.policy, batch, run.device, ranks, run.offload)
    activations = need.pop("activations")
    if config.critic is not None:
        need["critic"] = sum(need.values())
    need["activations"] = activations
    served = config.algorithm.reference.url is not None
    if not served and any(stage.algorithm.needs_reference for stage in config.stage_configs()):
        teachers = teacher_settings(config)
        if teachers:
            loaded = {teacher.path: teacher for teacher in teachers.values()}
            need["teachers"] = sum(_own(outline(teacher)) // ranks for teacher in loaded.values())
        if None not in teachers and run.policy.adapters is None:
            need["reference policy"] = run.own // ranks
    if run.device == "cpu":
        # Written while training goes on, when the activations are gone; `Storage.begin` does without where there is no
        # room.
        need[COPY] = max(need["optimizer"] * (MOMENTS + MASTER) // MOMENTS - activations, 0)
    else:
        need["CUDA"] = CONTEXT
    for role in [DRIVER] if ranks == 1 else [f"{TRAINER}-{rank}" for rank in range(ranks)]:
        (place,) = run.at(role)
        for purpose, size in need.items():
            yield Claim(place, role, purpose, size)
        if run.device == "cuda":
            times = 1 if config.critic is None else 2
            size = times * offloaded(run.policy, batch, ranks, run.offload)
            yield Claim(MemoryPlace(place.host, None), role, "offloaded state", size)


def _generators(run: _Run) -> Iterator[Claim]:
    orchestration, engine = run.config.orchestration, run.serves
    if orchestration.in_process and engine is None and not isinstance(run.config.engine, Vllm):
        yield Claim(run.at(DRIVER)[0], DRIVER, "engines", _engine_bytes(run, run.config.engine.share_parameters))
        return
    for number in range(1 if orchestration.in_process else orchestration.generators):
        role = f"{GENERATOR}-{number}"
        for place in run.at(role):
            if engine is not None and run.device == "cuda":
                yield Claim(place, role, SERVER, _server_bytes(run, engine))
            elif not isinstance(run.config.engine, Vllm):
                yield Claim(place, role, "engines", _engine_bytes(run, shares=False))


def _evaluator(run: _Run) -> Iterator[Claim]:
    """What evaluates where no server and no engine that takes turns with training does."""
    orchestration, ranks = run.config.orchestration, run.config.orchestration.trainers
    if isinstance(run.config.engine, Vllm) or (orchestration.in_process and orchestration.max_lag == 0):
        return
    if run.config.evaluates_apart:
        yield Claim(run.at(EVALUATOR)[0], EVALUATOR, "evaluation", _engine_bytes(run, shares=False))
    elif ranks == 1:
        yield Claim(run.at(DRIVER)[0], DRIVER, "evaluation", _engine_bytes(run, shares=True))
    else:  # a policy, and a copy of it that follows the ranks
        yield Claim(run.at(DRIVER)[0], DRIVER, "evaluation", _engine_bytes(run, shares=False) + run.own)


def _engine_bytes(run: _Run, shares: bool) -> int:
    """Bytes of an embedded engine; one that `shares` parameters has no copy of them."""
    copies = 0 if shares else 1
    if run.device == "cpu" and run.config.engine.native and fused_forward.copies(run.own):
        copies += 1  # joined and packed for its products
    capacity, longest = BLOCK, run.longest()
    while capacity < longest:
        capacity = -(-(capacity * 3 // 2) // BLOCK) * BLOCK
    return run.config.engine.slots * capacity * _token_bytes(run.policy) + copies * run.own


def _token_bytes(policy: Policy) -> int:
    """Bytes of a token's keys and values in all layers."""
    shape = policy.model.config.get_text_config()
    return int(shape.num_hidden_layers * sum(head_widths(shape)) * policy.head_weight.element_size())


def _server_bytes(run: _Run, engine: Vllm) -> int:
    """Bytes that a server takes of each of its GPUs; where nobody said, what it cannot do without."""
    if engine.kv_cache_gib is not None:
        return run.own // engine.tensor_parallel + int(engine.kv_cache_gib * GIB) + SERVER_WORKING
    if engine.memory_fraction is not None:
        return int(engine.memory_fraction * run.room.gpu)
    return _held(run, engine, SEQUENCES) + SERVER_WORKING


def _held(run: _Run, engine: Vllm, sequences: int) -> int:
    """Bytes of a server's weights, and of the cache of so many of the longest sequences, on each of its GPUs."""
    return (run.own + sequences * run.longest() * _token_bytes(run.policy)) // engine.tensor_parallel


def _too_small(run: _Run) -> Finding | None:
    """The error where the part of a GPU that a server is given does not hold its weights and a single sequence."""
    engine = run.serves
    if engine is None or run.device == "cpu" or engine.memory_fraction is None or engine.kv_cache_gib is not None:
        return None
    least, given = _held(run, engine, 1), int(engine.memory_fraction * run.room.gpu)
    if given >= least:
        return None
    said = (
        f"engine.memory_fraction={engine.memory_fraction:g} gives a server {_gib(given)} of {_gib(run.room.gpu)} GiB "
        f"of a GPU; its weights and the cache of one sequence take {_gib(least)}"
    )
    share = math.ceil(100 * (least + SERVER_WORKING) / run.room.gpu) / 100
    way_out = f"set at least {share:g}, or leave it out" if share <= 1 else "raise engine.tensor_parallel"
    return Finding("memory", "error", "memory", said, way_out)


def _group_sizes(config: RunConfig) -> tuple[int, int]:
    """The least and the most completions of a prompt."""
    samples, allocation = config.batch.samples_per_prompt, config.algorithm.allocation
    return (samples, samples) if allocation is None else (allocation.least, allocation.most)


def _samples(config: RunConfig) -> int:
    """The most completions of a step."""
    return max(stage.batch.prompts_per_step * _group_sizes(stage)[1] for stage in config.stage_configs())


def _micro_batch(run: _Run) -> BatchSizes:
    """The largest one of a step, of the longest completions."""
    config, parts = run.config, run.config.orchestration.sequence_parallel
    budget = max(stage.batch.tokens_per_microbatch for stage in config.stage_configs())
    longest = run.longest()
    lengths = [-(-length // parts) for length in largest_microbatch(longest, _samples(config), budget)]
    if run.prompt is None or config.environment is not None:
        return BatchSizes.of(lengths)
    asked = -(-min(run.prompt, longest - 1) // parts)
    scored = sum(max(length - asked, 0) for length in lengths)
    together = _group_sizes(config)[0] if computes_in_c(run.policy, run.device) and parts == 1 else 1
    return BatchSizes(tuple(lengths), scored + asked * -(-len(lengths) // together), scored)


# ---------------------------------------------------------------------- whether it fits


def planned(
    config: RunConfig, policy: Policy | None = None, trains: bool = True, prompt: int | None = None,
    room: Room | None = None, placement: Placement | None = None,
) -> MemoryPlan:  # fmt: skip
    """What a run takes, where strop chooses what was left to it; of a model that is only measured, its weights.

    Args:
        config: the configuration of the run.
        policy: its `outline`; None makes one.
        trains: whether the model is trained.
        prompt: tokens of the longest prompt; None: as many as may be.
        room: of a GPU and of a host; None: of this machine's.
        placement: of its processes; None: on this machine, or a cluster of such.

    Raises:
        InputError: no such model, or one that cannot be trained so on any device.
    """
    policy = outline(config.model) if policy is None else policy
    device: Device = "cuda" if placement is not None or seen_gpus(config) else "cpu"
    if not trains:
        weights = {WEIGHTS: sum(parameter.nbytes for parameter in policy.model.parameters())}
        return MemoryPlan(config, (), fitting(weights, room_of(device), "take a smaller model"))
    try:
        placement = assumed_placement(config) if placement is None else placement
    except InputError as error:
        return MemoryPlan(config, (), Finding("gpus", "error", "GPUs", str(error)))
    room = Room(room_of(device), room_of("cpu")) if room is None else room
    run, found = _settled(_Run(config, policy, placement, room, prompt))
    if (small := _too_small(run)) is not None:
        return MemoryPlan(run.config, found, small)
    over = _fullest(run, found)
    way_out = _way_out(config, policy, prompt, room) if over[2] > 0 else ""
    return MemoryPlan(run.config, found, _said(run, over, way_out))


def _settled(run: _Run) -> tuple[_Run, tuple[Claim, ...]]:
    """The run with the first choice of what was left to strop that fits, else with the last one; and its claims."""
    found: list[tuple[_Run, tuple[Claim, ...]]] = []
    for offload in _offloads(run):
        config = run.config
        optim, model = config.optim.model_copy(update={"offload": offload.state}), config.model
        model = model.model_copy(update={"offload_activations": offload.activations})
        config = config.model_copy(update={"optim": optim, "model": model})
        if config.critic is not None:
            optim = config.critic.optim.model_copy(update={"offload": offload.state})
            config = config.model_copy(update={"critic": config.critic.model_copy(update={"optim": optim})})
        one = _sharing(run._replace(config=config))
        found.append((one, tuple(claims(one))))
        if _fullest(*found[-1])[2] <= 0:
            return found[-1]
    return found[-1]


def _offloads(run: _Run) -> list[Offload]:
    """The choices, that with the fastest updates first."""
    asked = (run.config.optim.offload, run.config.model.offload_activations)
    ways = [Offload(), Offload(state=True), Offload(state=True, activations=True)]
    if run.device == "cpu":
        ways = ways[:1]
    wanted = [Offload(*(one if own == "auto" else own for one, own in zip(way, asked, strict=True))) for way in ways]
    return list(dict.fromkeys(wanted))


def _sharing(run: _Run) -> _Run:
    """The run with the part of each GPU that its servers take where nobody said: the usual, or what others leave."""
    engine = run.serves
    if engine is None or engine.memory_fraction is not None:
        return run
    found, others = list(claims(run)), Counter[MemoryPlace]()
    for claim in found:
        others[claim.place] += 0 if claim.purpose == SERVER else claim.size
    taken = max((others[claim.place] for claim in found if claim.purpose == SERVER), default=0)
    free = int((1 - MARGIN) * run.room.gpu) - taken
    least = math.ceil(100 * _server_bytes(run, engine) / run.room.gpu) / 100  # also where there is no room for it
    fraction = max(min(int(100 * free / run.room.gpu) / 100, MEMORY_FRACTION), least)
    settled = engine.model_copy(update={"memory_fraction": fraction})
    return run._replace(config=run.config.model_copy(update={"engine": settled}))


def _fullest(run: _Run, found: Sequence[Claim]) -> tuple[MemoryPlace, Mapping[str, int], int]:
    """The place with the least left: its need by purpose, and by how many bytes that exceeds its room."""
    needs: defaultdict[MemoryPlace, Counter[str]] = defaultdict(Counter)
    for claim in found:
        needs[claim.place][claim.purpose] += claim.size
    if run.device == "cuda":  # the host only where it is too small: a run is known by its GPUs
        needs = defaultdict(Counter, {p: n for p, n in needs.items() if p.gpu is not None or _over(run, p, n) > 0})
    # A server takes what it is given, so of places that are large enough others say more.
    place = max(needs, key=lambda one: (max(_over(run, one, needs[one]), 0), needs[one].total() - needs[one][SERVER]))
    return place, needs[place], _over(run, place, needs[place])


def _over(run: _Run, place: MemoryPlace, need: Mapping[str, int]) -> int:
    return sum(need.values()) - need.get(COPY, 0) - run.room_at(place)


def _said(run: _Run, over: tuple[MemoryPlace, Mapping[str, int], int], way_out: str) -> Finding:
    place, need, _ = over
    where = ""
    if sum(run.placement.hosts) > 1:
        host = f" of host {place.host}" if len(run.placement.hosts) > 1 else ""
        where = f" on GPU {place.gpu}{host}" if place.gpu is not None else " of the host"
    found = fitting(need, run.room_at(place), way_out, where)
    if run.device == "cpu" or run.offload == Offload() or found.level != "ok":
        return found
    kept = " and activations" if run.offload.activations else ""
    return replace(found, found=f"{found.found}; the optimizer's state{kept} in the host's memory")


def _way_out(config: RunConfig, policy: Policy, prompt: int | None, room: Room) -> str:
    """The first setting that would make the run fit, else what makes it smaller."""
    for sets in _changes(config):
        try:
            changed = edit(config, sets)
            shapes = policy if changed.model == config.model else outline(changed.model)
            run, found = _settled(_Run(changed, shapes, assumed_placement(changed), room, prompt))
        except InputError:  # it goes with another setting, or there are too few GPUs
            continue
        if _fullest(run, found)[2] <= 0:
            return f"set {' and '.join(sets)}, with which it fits"
    return WAYS_OUT


def _changes(config: RunConfig) -> Iterator[tuple[str, ...]]:
    """What may help, that which costs least first."""
    orchestration, engine = config.orchestration, config.engine
    if isinstance(engine, Vllm) and engine.memory_fraction is not None:
        yield ("engine.memory_fraction=none",)
    if config.model.gradient_checkpointing is not True:
        yield ("model.gradient_checkpointing=true",)
    if config.optim.offload is False or config.model.offload_activations is False:
        yield ("optim.offload=auto", "model.offload_activations=auto")
    for tokens in (tokens for tokens in (16_384, 8192, 4096) if tokens < config.batch.tokens_per_microbatch):
        yield (f"batch.tokens_per_microbatch={tokens}",)
    if not isinstance(engine, Vllm):
        for slots in (slots for slots in (128, 64, 32, 16) if slots < engine.slots):
            yield (f"engine.slots={slots}",)
        if config.evaluates_apart:
            yield ("evaluation.asynchronous=false",)
            yield "evaluation.asynchronous=false", "engine.slots=16"
    if orchestration.generators > 1:  # which leaves the evaluator a GPU
        yield (f"orchestration.generators={orchestration.generators - 1}",)
    if isinstance(engine, Vllm):
        for width in (2, 4, 8):
            count = max(orchestration.generators // width, 1)
            yield f"engine.tensor_parallel={width}", f"orchestration.generators={count}"
    for ranks in (2, 4, 8):
        if ranks > orchestration.trainers:
            yield (f"orchestration.trainers={ranks}",)
    if config.model.lora is None:
        yield ("model.lora.rank=32",)


def fitting(need: Mapping[str, int], room: int, ways_out: str, where: str = "") -> Finding:
    """Whether `need` (bytes by purpose) fits into `room` bytes: `ok`, a warning where it may, or else an error."""
    whole = sum(need.values())
    largest = sorted(need.items(), key=lambda item: -item[1])
    parts = ", ".join(f"{name} {_gib(size)}" for name, size in largest if size >= 0.01 * whole)
    found = f"needs about {_gib(whole)} of {_gib(room)} GiB{where} ({parts})"
    least, exact = whole - need.get(COPY, 0), need.get(SERVER, 0)
    if least <= room:
        return Finding("memory", "ok", "memory", found)
    if least - exact <= MOST_OVER * (room - exact):
        found = f"this run {found}, unless the estimate is too high, as it may be by 15 %"
        return Finding("memory", "warning", "memory", found, ways_out)
    return Finding("memory", "error", "memory", f"this run {found}", ways_out)


def of_tuning(
    model: ModelSettings, tokenizer: PreTrainedTokenizerBase, lengths: Sequence[int], device: Device, ranks: int
) -> Finding:
    """Whether this machine has the memory that fine-tuning needs.

    Args:
        model: the model to tune.
        tokenizer: the tokenizer, which a fresh model takes its vocabulary from.
        lengths: tokens of each sequence of the largest micro-batch, all of them scored.
        device: the kind of device.
        ranks: the number of ranks that shard the model.

    Raises:
        InputError: no such model, or one that cannot be trained so on any device.
    """
    update = update_need(outline(model, tokenizer), BatchSizes.of(lengths), device, ranks)
    need = {name: size * (ranks if device == "cpu" else 1) for name, size in update.items()}
    return fitting(need, room_of(device), TUNING_WAYS_OUT)


def positions(model: ModelSettings) -> int | None:
    """The longest sequence of a model that is not loaded; None where it does not say."""
    if model.fresh is not None:
        return model.fresh.max_positions
    if model.path in RESERVED:
        return EmbeddedBase().model.max_positions
    return longest_sequence(found_config(model))


def room_of(device: Device) -> int:
    """Total bytes of memory of a device of this machine."""
    return machine.memory()[0] if device == "cpu" else torch.cuda.get_device_properties(0).total_memory


def _gib(size: int) -> str:
    return f"{size / GIB:.0f}" if size >= 10 * GIB else f"{size / GIB:.2g}"
