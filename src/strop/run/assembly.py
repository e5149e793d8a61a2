"""From a configuration to the parts of a run: each part receives its own section, never the whole."""

from __future__ import annotations

import gc
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from hashlib import blake2b
from pathlib import Path

import torch
from transformers import PreTrainedTokenizerBase

from strop.base.seeds import derive
from strop.base.view import View
from strop.config.edits import differing
from strop.config.parse import edit
from strop.config.schema import RunConfig
from strop.data.dataset import Data
from strop.engines.base import RequestLimits
from strop.engines.build import build_engine
from strop.engines.protocol import Engine
from strop.engines.settings import Vllm
from strop.evaluation.evaluate import ProblemSet
from strop.model.kernels.compiled import processor
from strop.model.location import RESERVED, in_folder
from strop.model.policy import Policy, load_policy
from strop.model.settings import ModelSettings
from strop.orchestration.evaluator import (
    EnginePool,
    Evaluator,
    EvaluatorSettings,
    InProcessEvaluator,
    PoolEvaluator,
    WorkerEvaluator,
)
from strop.orchestration.executor import Executor, InProcess, ProbeCheck
from strop.orchestration.fleet import Fleet, GeneratorSettings
from strop.orchestration.placement import EVALUATOR, GENERATOR, TRAINER, Placement
from strop.orchestration.process_registry import ProcessRegistry
from strop.orchestration.processes import Processes
from strop.orchestration.ray_workers import RayWorkers
from strop.orchestration.weight_store import WeightStore
from strop.orchestration.workers import Supervision, WorkerLauncher, WorkerSpec
from strop.run.checks import findings
from strop.run.devices import devices_apart, driver_device, local_placement, seat
from strop.run.finding import note, refuse
from strop.run.learners import Learning, RankGroupLearner, make_learner, modules_of
from strop.run.questions import facts_of, fitted_into, read_problems
from strop.run.reference import PATH, teacher_settings
from strop.training.compute import devices_of
from strop.training.embedded_base import located
from strop.verifiers.judges import OpenJudges, judge_for
from strop.verifiers.protocol import Responder


@dataclass(frozen=True)
class Parts:
    """The parts of a run, and its configuration, fitted to the model's room where the user left it to the recipe.

    What was chosen by this machine's memory is in the parts, not in the configuration, which may go on elsewhere.
    """

    config: RunConfig
    tokenizer: PreTrainedTokenizerBase
    data: Data
    executor: Executor
    judge: Responder
    learner: Learning
    validation: tuple[ProblemSet, ...]
    evaluator: Evaluator
    policy: Policy  # as it starts; the one that is trained, where one process trains
    launcher: WorkerLauncher  # of what generates and evaluates in other processes
    settled: tuple[str, ...]  # settings of training that this machine's memory decided

    def start(self, folder: Path, view: View) -> None:
        """Start the worker processes of the run in `folder`; `view` shows a line when one of them dies."""
        self.learner.start(folder)
        self.executor.start(folder)
        self.evaluator.start(folder, view)

    def close(self) -> None:
        """End everything."""
        self.evaluator.close()
        self.executor.close()
        self.judge.close()
        self.learner.close()
        self.launcher.close()


def assemble(config: RunConfig, view: View) -> Parts:
    """Load the model and the data, build engine, verifier and trainer.

    Raises:
        InputError: a model, a data set or a device that is not there, or cannot be used.
    """
    placement = local_placement(config)
    facts = facts_of(config)
    data = read_problems(config, facts.tokenizer, view)
    found = findings(config, data, facts)
    refuse(found)  # before a model is loaded that does not fit
    note(found, view)
    memory = None if facts.memory is None else facts.memory(data.longest_prompt)
    chosen, config = config, config if memory is None else memory.settle(config)
    policy, tokenizer = _policy(config, placement, view)
    engine, measuring = _engines(config, policy, tokenizer, placement)
    room = RequestLimits.of_policy(policy, tokenizer, config.engine.max_tokens).max_tokens
    asked = fitted_into(chosen, data, tokenizer, room, view)
    note(asked.findings, view)
    chosen, play, sets = asked.config, asked.play, asked.sets
    config = chosen if memory is None else memory.settle(chosen)
    for sampling in (config.sampling, *(each.sampling for each in sets)):
        config.engine.refuse_unable(sampling)
    registry = ProcessRegistry()
    launcher = _launcher(config, registry)
    learner = _learner(config, policy, launcher, registry, placement, view)
    verdicts = judge_for(config.verifier)
    judge: Responder = verdicts if play is None else play.responder(verdicts)
    executor = _executor(config, policy, engine, learner, launcher, placement, view)
    devices = devices_of(policy.device)
    if measuring is None:
        generators = 1 if config.orchestration.in_process else config.orchestration.generators
        executor = pool = EnginePool(executor, generators * config.engine.slots)
        generating = devices_apart(config, devices)[1] or devices
        goes_on = config.evaluation.asynchronous is True
        evaluator: Evaluator = PoolEvaluator(pool, sets, generating, asynchronous=goes_on)
    elif sets and config.evaluates_apart:
        evaluator = _worker_evaluator(config, policy, sets, launcher, placement, view)
    else:
        # A judge is shared where nothing else is judged meanwhile.
        judges = OpenJudges([(config.verifier, play, judge)] if engine is measuring else [])
        evaluator = InProcessEvaluator(measuring, sets, judges, devices)
    settled = _settled(chosen, config)
    return Parts(chosen, tokenizer, data, executor, judge, learner, sets, evaluator, policy, launcher, settled)


def machine() -> str:
    """A digest of what rounding depends on here: torch, the processor and the GPU."""
    gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else None
    return blake2b(repr((torch.__version__, processor(), gpu)).encode(), digest_size=8).hexdigest()


@contextmanager
def learner_of(config: RunConfig, settled: Sequence[str], folder: Path, view: View) -> Iterator[Learning]:
    """The learner of a run without the rest, started; `folder` is for the files of its workers.

    Args:
        config: of the run.
        settled: see `Parts`.
        folder: where workers write.
        view: shows what is loaded.
    """
    config = edit(config, list(settled)) if settled else config
    placement, registry = local_placement(config), ProcessRegistry()
    policy, _ = _policy(config, placement, view)
    launcher = _launcher(config, registry)
    learner = _learner(config, policy, launcher, registry, placement, view)
    try:
        learner.start(folder)
        gc.freeze()  # to search all that torch has imported takes as long as a small model's step
        yield learner
    finally:
        gc.unfreeze()
        learner.close()
        launcher.close()


def _policy(config: RunConfig, placement: Placement | None, view: View) -> tuple[Policy, PreTrainedTokenizerBase]:
    """The policy as it starts, and its tokenizer."""
    model = located(config.model, config.seed, view)  # which may train a base
    torch.manual_seed(derive(config.seed, "torch"))
    policy, tokenizer = load_policy(model, seed=derive(config.seed, "model"))
    return policy.to(driver_device(config, placement)), tokenizer


def _settled(asked: RunConfig, chosen: RunConfig) -> tuple[str, ...]:
    """The settings of training by which `chosen` differs from `asked`, as `--set` takes them."""
    trained = {"model", "optim", "critic"}
    before, now = (config.model_dump(mode="json", include=trained) for config in (asked, chosen))
    return tuple(f"{key}={value}" for key, _, value in differing(before, now))


def _worker_evaluator(
    config: RunConfig, policy: Policy, sets: tuple[ProblemSet, ...], launcher: WorkerLauncher,
    placement: Placement | None, view: View,
) -> WorkerEvaluator:  # fmt: skip
    """A worker that evaluates with the engine settings of this process, so that the results are equal."""
    threads, given = _threads(config), seat(config, placement, EVALUATOR)
    settings = EvaluatorSettings(
        model=_plain_model(config, view),
        engine=config.engine,
        seed=derive(config.seed, "model"),
        device=given.device,
        sets=sets,
    )
    entry = "strop.orchestration.evaluator:main"
    return WorkerEvaluator(
        launcher=launcher,
        spec=WorkerSpec(EVALUATOR, entry, settings, threads, given.environment, given.gpus),
        devices=threads if given.device == "cpu" else 1,
        version_bytes=_version_bytes(policy),
        supervision=_supervision(config),
    )


def _threads(config: RunConfig) -> int:
    """Threads of each worker.

    At max_lag = 0 the trainer waits between two updates, else it computes while they generate.
    """
    orchestration = config.orchestration
    return max(torch.get_num_threads() // (orchestration.generators + (orchestration.max_lag > 0)), 1)


def _supervision(config: RunConfig) -> Supervision:
    orchestration = config.orchestration
    return Supervision(orchestration.silence_seconds, orchestration.stall_seconds, orchestration.restarts)


def _version_bytes(policy: Policy) -> int:
    return sum(weight.nbytes for weight in policy.weights().values())


def _engines(
    config: RunConfig, policy: Policy, tokenizer: PreTrainedTokenizerBase, placement: Placement | None
) -> tuple[Engine | None, Engine | None]:
    """The engine that generates here (None: workers do), and the embedded one that evaluates (None: servers do).

    It is the same where they take turns. Elsewhere completions in flight must not mix with those of an evaluation, so
    another one evaluates. It reads the trainer's parameters; if these are in other processes, it reads a copy that
    follows their publications.
    """
    orchestration, sampling = config.orchestration, config.sampling
    engine = None
    if orchestration.in_process:
        own = () if placement is None else placement.of(f"{GENERATOR}-0").gpus
        engine = build_engine(config.engine, config.model, tokenizer, policy, sampling=sampling, gpus=own or None)
    if isinstance(config.engine, Vllm):
        return engine, None
    if engine is not None and orchestration.max_lag == 0:
        return engine, engine
    shared = orchestration.trainers == 1 or config.evaluates_apart  # else it needs a copy of the weights
    settings = config.engine if shared else config.engine.model_copy(update={"share_parameters": False})
    return engine, build_engine(settings, config.model, tokenizer, policy, sampling=sampling)


def _launcher(config: RunConfig, registry: ProcessRegistry) -> WorkerLauncher:
    """The launcher of generators and the evaluator: processes of this machine, or actors of a Ray cluster.

    Raises:
        InputError: ray is wanted and not installed.
    """
    if config.orchestration.executor == "ray":
        return RayWorkers(config.orchestration.ray, registry)
    return Processes(registry=registry)


def _executor(
    config: RunConfig, policy: Policy, engine: Engine | None, learner: Learning, launcher: WorkerLauncher,
    placement: Placement | None, view: View,
) -> Executor:  # fmt: skip
    """The executor: an engine in the trainer's process, or workers that each build one."""
    orchestration = config.orchestration
    check = ProbeCheck(config.engine.quantises, view.note)
    if engine is not None:
        return InProcess(engine, policy, check, orchestration.kv)
    plain = _plain_model(config, view)
    return Fleet(
        launcher=launcher,
        specs=[generator_spec(config, plain, placement, number) for number in range(orchestration.generators)],
        source=learner.publish,
        store=WeightStore(_version_bytes(policy), view.note),
        supervision=_supervision(config),
        note=view.note,
        check=check,
        kv=orchestration.kv,
    )


def _plain_model(config: RunConfig, view: View) -> ModelSettings:
    """The model as workers with an engine load it, without adapters: these are merged into what is published.

    It is in a folder, so that all processes of this host share its pages. Each node of a cluster has a cache of the
    hub's models, and finds a name there itself.
    """
    by_name = config.orchestration.executor == "ray" and config.model.path not in RESERVED
    model = config.model if by_name else located(config.model, config.seed, view)
    return model.model_copy(update={"lora": None})


def generator_spec(config: RunConfig, model: ModelSettings, placement: Placement | None, number: int) -> WorkerSpec:
    """The worker of the generator with this number."""
    role = f"{GENERATOR}-{number}"
    given = seat(config, placement, role)
    engine = config.engine
    if isinstance(engine, Vllm):  # each generator has its own server if servers run already
        engine = engine.model_copy(update={"urls": engine.urls[number : number + 1]})
    settings = GeneratorSettings(model, engine, derive(config.seed, "model"), given.device)
    entry = "strop.orchestration.fleet:main"
    return WorkerSpec(role, entry, settings, _threads(config), given.environment, given.gpus)


def _learner(
    config: RunConfig, policy: Policy, launcher: WorkerLauncher, registry: ProcessRegistry,
    placement: Placement | None, view: View,
) -> Learning:  # fmt: skip
    """A learner in this process, or over several ranks."""
    trainers = config.orchestration.trainers
    if trainers == 1:
        return make_learner(config, modules_of(config, policy, view))
    # By default the ranks meet on this host, also where generators live in a cluster.
    in_cluster = config.orchestration.ray.train_in_cluster
    launcher = launcher if in_cluster else Processes(registry=registry)
    seats = [seat(config, placement, f"{TRAINER}-{rank}") for rank in range(trainers)]
    if not in_cluster:  # processes of this host, where Ray reserves nothing
        seats = [replace(one, gpus=0) for one in seats]
        config = _in_folders(config, view)
    return RankGroupLearner(config, launcher, view.note, in_cluster, seats)


def _in_folders(config: RunConfig, view: View) -> RunConfig:
    """The configuration with its models in folders, for ranks of this host: each reads only its rows from there."""
    critic = config.critic
    if critic is not None and critic.path is not None:
        other = config.model.model_copy(update={"path": critic.path, "revision": None})
        critic = critic.model_copy(update={"path": in_folder(other, "critic.path").path})
    model, algorithm = located(config.model, config.seed, view), config.algorithm
    if algorithm.reference.url is None:
        teachers = teacher_settings(config).items()
        paths = {domain: located(teacher, config.seed, view, PATH).path for domain, teacher in teachers}
        path = paths.pop(None, None)
        reference = algorithm.reference.model_copy(update={"path": path, "domains": paths})
        algorithm = algorithm.model_copy(update={"reference": reference})
    return config.model_copy(update={"model": model, "critic": critic, "algorithm": algorithm})
