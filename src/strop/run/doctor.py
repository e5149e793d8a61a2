"""`strop doctor`: what this machine has and lacks, or all findings on a run or a configuration.

    found = examine()                                    # the machine; `accelerators` also begins `strop smoke`
    found = review("runs/grpo", (), False, 16, view)     # the checks, and the pass rate before training

`strop smoke` makes short runs on this machine, which show whether training works here. Each group is a `strop train` of
two steps in bfloat16, with rewards by chance; the second step samples with the weights of the first. A run that crashes
or hangs does not affect the others.
"""

from __future__ import annotations

import importlib.metadata
import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from statistics import fmean

import torch

from strop.base import machine
from strop.base.machine import GIB
from strop.base.progress import doing
from strop.base.text import counted
from strop.base.types import InputError, Problem
from strop.base.view import View
from strop.config.parse import edit, parse
from strop.config.schema import RunConfig
from strop.data.dataset import Dataset
from strop.engines.settings import PYTHON_VARIABLE, Vllm
from strop.model.kernels import native
from strop.model.kernels.compiled import INSTALL, LOST
from strop.orchestration.executor import PROBE_TOLERANCE
from strop.recipes.resolve import resolve
from strop.run.checks import Beginning, of_beginning, spread
from strop.run.finding import Finding, Level
from strop.run.folder import RunFolder, is_run
from strop_verify.child_process import ChildProcess, import_path

# Large initial weights make the distributions far from uniform, so that wrong weights show in the log-probs.
SHAPE = (
    "{hidden_size=256, layers=4, heads=4, kv_heads=2, head_dim=64, intermediate_size=768, max_positions=1024, "
    "initializer_range=0.1}"
)
# Nats, between the generator's and the trainer's log-probs of the same tokens in bfloat16, on average, of the new
# model; of any other what a run allows.
GAP = 0.05
SETTINGS = (
    "steps=2", "model.dtype=bfloat16", "optim.lr=1e-3", "data.source=ChainSum", "data.held_out=none",
    "evaluation.every=none", "batch.prompts_per_step=4", "batch.samples_per_prompt=4", "sampling.max_new_tokens=64",
    "engine.slots=16", 'verifier={piece="PythonFunction", function="strop.run.doctor:chance", isolation="none"}',
)  # fmt: skip
# The runs by name: what they show, and their settings.
GROUPS: dict[str, tuple[str, tuple[str, ...]]] = {
    "update": ("trainer and engine in one process", ("orchestration.executor=in_process",)),
    "engine": ("a generator in another process", ("orchestration.executor=embedded",)),
    "ranks": ("two ranks that shard the model", ("orchestration.executor=embedded", "orchestration.trainers=2")),
    "vllm": (
        "vLLM's server",
        (
            "engine=Vllm", "engine.slots=16", "engine.memory_fraction=0.3", "engine.kv_cache_gib=0.5",
            "engine.eager=true",
        ),
    ),
}  # fmt: skip


def chance(problem: Problem, text: str) -> bool:
    """A reward that says nothing of the answer, so that a model with random weights has a gradient."""
    return sum(text.encode()) % 2 == 0


def smoke(
    device: str, model: str | None, vllm: str | None, limit: float, only: Collection[str]
) -> Iterator[Finding]:
    """Run the groups one after another and yield the finding of each: `ok`, `error`, or a `note` if it was not run.

    Args:
        device: `auto`, `cuda` or `cpu`.
        model: a folder or a name on the hub; None: a new small model.
        vllm: the interpreter of an environment with vLLM; None: what STROP_VLLM_PYTHON names, if it is set.
        limit: seconds for all groups; a run that is not done by then fails.
        only: the groups to run; empty runs all of them.

    Raises:
        InputError: `only` names an unknown group.
    """
    for unknown in sorted(set(only) - GROUPS.keys()):
        raise InputError(f"--only {unknown}: the groups are {', '.join(GROUPS)}")
    end = time.monotonic() + limit
    vllm = vllm or os.environ.get(PYTHON_VARIABLE)
    chosen = [f"model.fresh={SHAPE}" if model is None else f"model.path={json.dumps(model)}"]
    for group, (shown, settings) in GROUPS.items():
        if only and group not in only:
            continue
        if group == "vllm" and not vllm:
            yield Finding(group, "note", group, f"not run: name a vLLM by --vllm or {PYTHON_VARIABLE}")
            continue
        # NCCL needs a separate GPU for each rank.
        place = "cpu" if group == "ranks" and torch.cuda.device_count() < 2 else device
        sets = [*chosen, f"device={place}", *settings]
        if group == "vllm":
            sets.append(f"engine.python={json.dumps(vllm)}")
        most = GAP if model is None else PROBE_TOLERANCE
        with tempfile.TemporaryDirectory(prefix="strop-smoke-") as folder, doing(f"{group}: {shown}"):
            level, found = _run(Path(folder), sets, end, most)
        yield Finding(group, level, group, f"{shown}: {found}")


def _run(folder: Path, sets: list[str], end: float, most: float) -> tuple[Level, str]:
    """Train with these settings until `end`, and return what the metrics say."""
    run = folder / "run"
    command = [sys.executable, "-m", "strop.__main__", "train", "grpo", "--out", str(run), "--import", __name__]
    command += [part for text in (*SETTINGS, *sets) for part in ("--set", text)]
    environment = {**os.environ, "PYTHONPATH": import_path(), "TOKENIZERS_PARALLELISM": "false"}
    child = ChildProcess(command, environment, (folder / "log").open("w+b"))
    try:
        status = child.end(max(end - time.monotonic(), 0.0))
        if status < 0 and time.monotonic() >= end:
            return "error", "was not done when the time was up; give it more by --limit"
        if status:
            return "error", child.last_line() or f"its process {child.exit_reason()}"
    finally:
        child.kill()  # after a Ctrl-C it still runs
        child.close()
    row = RunFolder.open(run).read_metrics()[-1]
    gap, norm = row["mismatch/mean"], row["grad_norm"]
    if gap is None or not gap < most:
        return "error", f"the generator's log-probs differ from the trainer's by {gap} nats on average"
    if norm is None or not norm > 0:
        return "error", f"the gradient's norm is {norm}"
    return "ok", (
        f"log-probs of generator and trainer within {gap:.1g} nats, gradient norm {norm:.3g}, "
        f"{row['tokens_per_second']:.0f} tokens a second"
    )


FIRST_STEPS = 3  # of a run, whose pass rate is that of the start
_SHARED = "/dev/shm"  # a container has 64 MiB there unless it is given more
_DRIVER = ("nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader")
_VLLM = "from importlib.metadata import version; print(version('vllm'))"


def examine() -> list[Finding]:
    """Look at the machine; runs would be written into the present folder."""
    return [_python(), _cores(), *_room(Path(".")), *accelerators(), _compiler(), *_sandbox()]


def _python() -> Finding:
    version = platform.python_version()
    known = (3, 11) <= sys.version_info[:2] < (3, 14)
    return _finding("Python", "ok" if known else "error", version, "" if known else "use Python 3.11, 3.12 or 3.13")


def _cores() -> Finding:
    cores = len(os.sched_getaffinity(0))
    threads = os.environ.get("OMP_NUM_THREADS")
    found = f"{cores} usable" + (f", OMP_NUM_THREADS={threads}" if threads else "")
    if threads == "1" and cores > 1:
        return _finding("CPU cores", "note", found, "unset OMP_NUM_THREADS, or training uses one core only")
    return _finding("CPU cores", "ok", found)


def _room(folder: Path) -> Iterator[Finding]:
    """Free memory and disk, each with what it should have at least."""
    total, free = machine.memory()
    advice = "the quickstart needs about 2 GiB free; end other programs"
    yield _enough("memory", free, 2, f"{total / GIB:.1f} GiB, {free / GIB:.1f} free", advice)
    free = shutil.disk_usage(folder).free
    advice = "free some space: checkpoints are about six times the model's size"
    yield _enough("disk", free, 1, f"{free / GIB:.1f} GiB free in {folder.resolve()}", advice)


def _enough(subject: str, free: int, least: float, found: str, way_out: str) -> Finding:
    """`ok` if at least `least` GiB are free."""
    return _finding(subject, "ok", found) if free >= least * GIB else _finding(subject, "error", found, way_out)


def _compiler() -> Finding:
    named = os.environ.get("CC", "cc")
    found = shutil.which(named)
    if found and native.load() is not None:
        return _finding("C compiler", "ok", found)
    lacks = f"{found}, which makes no kernels that load here" if found else f"none called {named}"
    return _finding("C compiler", "note", lacks, f"{LOST}, and the extra gym cannot be installed: {INSTALL}")


def _sandbox() -> Iterator[Finding]:
    """Code verifiers run a model's programs: which layers of isolation could be built here."""
    from strop_verify.sandbox.layers import LAYERS, MODES, probe

    found = probe()
    if not found.isolated:
        reasons = "; ".join(f"{name}: {reason}" for name, reason in found.missing.items())
        advice = "allow unprivileged user namespaces; else code needs allow_unsafe_sandbox=true"
        yield _finding("sandbox", "note", f"none ({reasons})", advice)
        return
    yield _finding("sandbox", "ok", f"{MODES[found.plan.mode]}; tried, and nothing got through")
    for step, name in LAYERS.items():
        missing = found.missing.get(name)
        yield _finding(f"sandbox {step}", *(("ok", name) if missing is None else ("note", f"lacks {name}: {missing}")))


def accelerators(vllm: str | None = None) -> list[Finding]:
    """torch, driver, GPUs and vLLM.

    `vllm` is the interpreter of an environment with vLLM; None: what STROP_VLLM_PYTHON names.
    """
    return [_torch(), *_gpus(), _vllm(vllm or os.environ.get(PYTHON_VARIABLE))]


def _torch() -> Finding:
    major_minor = tuple(int(part) for part in torch.__version__.split(".")[:2])
    cuda = f"CUDA {torch.version.cuda}" if torch.version.cuda else "without CUDA"
    transformers = importlib.metadata.version("transformers")
    found = f"{torch.__version__}, {cuda}, {torch.get_num_threads()} threads; transformers {transformers}"
    if major_minor < (2, 11):
        return _finding("torch", "error", found, "strop needs torch 2.11 or later: pip install -U torch")
    return _finding("torch", "ok", found)


def _gpus() -> Iterator[Finding]:
    """The driver and NCCL, and each GPU."""
    driver = _driver()
    if not torch.cuda.is_available():
        if driver is None:
            yield _finding("GPU", "note", "none", "small models train on the CPU; for real ones use an NVIDIA GPU")
        elif torch.version.cuda is None:
            found = f"driver {driver}, but this torch has no CUDA"
            yield _finding("GPU", "error", found, "install a CUDA build of torch")
        else:
            advice = "update the driver, or use an older CUDA"
            yield _finding("GPU", "error", f"driver {driver}, but torch cannot use it", advice)
        return
    yield _finding("driver", "ok", f"{driver}, NCCL {'.'.join(map(str, torch.cuda.nccl.version()))}")
    if torch.cuda.device_count() > 1:
        size = shutil.disk_usage(_SHARED).total
        advice = f"NCCL and vLLM's tensor parallelism exchange through {_SHARED}: docker run --shm-size=16g"
        yield _enough("shared memory", size, 1, f"{size / GIB:.3g} GiB", advice)
    for number in range(torch.cuda.device_count()):
        gpu = torch.cuda.get_device_properties(number)
        free, _ = torch.cuda.mem_get_info(number)
        found = f"{gpu.name}, {gpu.total_memory / GIB:.0f} GiB, {free / GIB:.0f} free, sm_{gpu.major}{gpu.minor}"
        if gpu.major < 8:
            yield _finding(f"GPU {number}", "note", found, "bfloat16 is slow before Ampere (sm_80)")
        else:
            yield _finding(f"GPU {number}", "ok", found)


def _driver() -> str | None:
    """The version of NVIDIA's driver; None without nvidia-smi, which comes with it."""
    if shutil.which(_DRIVER[0]) is None:
        return None
    try:
        done = subprocess.run(_DRIVER, capture_output=True, text=True, timeout=20, check=True)
        return done.stdout.split()[0]
    except (subprocess.SubprocessError, IndexError):
        return "unknown (nvidia-smi fails)"


def _vllm(python: str | None) -> Finding:
    advice = f"for engine=Vllm name the interpreter of an environment with vLLM by {PYTHON_VARIABLE}"
    if not python:
        return _finding("vLLM", "note", "none named", advice)
    try:
        done = subprocess.run([python, "-I", "-c", _VLLM], capture_output=True, text=True, timeout=60, check=True)
    except (OSError, subprocess.SubprocessError) as error:
        return _finding("vLLM", "error", f"{python}: {error}", advice)
    return _finding("vLLM", "ok", f"{done.stdout.strip()} in {python}")


def _finding(subject: str, level: Level, found: str, way_out: str = "") -> Finding:
    """A finding on a part of the machine, which names its code."""
    return Finding(subject.lower().replace(" ", "-"), level, subject, found, way_out)


# ---------------------------------------------------------------------- a run or a configuration


def review(target: str, sets: Sequence[str], small: bool, ask: int, view: View) -> list[Finding]:
    """Run all checks on a run folder, a recipe or a configuration file, and add the pass rate before training.

    Args:
        target: the run folder, recipe or file.
        sets: changes to its configuration.
        small: use the tiny form of the recipe.
        ask: how many problems to ask the model, to measure its pass rate; 0 does not load it.
        view: receives the notes of a dry run.

    Raises:
        InputError: there is no such run or configuration, or it is a fine-tuning run.
    """
    from strop.run.questions import known_room, preview

    config, run = _reviewed(target, sets, small)
    data, found = preview(config, view)
    if data is None or any(one.level == "error" for one in found):
        return found
    if not any(one.code == "references-as-text" for one in found):
        every = f"{config.verifier.piece_name()} can decide each of {len(data.train.problems):,}"
        found = [*found, Finding("references", "ok", "references", every)]
    try:
        if run is None and not any(one.code == "memory" and one.level != "ok" for one in found):
            found += _timed(config, data.train)
        beginning = _asked(config, data.train, ask, view) if ask else _first_steps(run)
    except InputError as error:
        return [*found, Finding("model", "error", "model", f"it cannot be asked: {error}")]
    if beginning is None:
        advice = "ask the model some problems (--ask 16), or train a few steps and review that run: strop doctor RUN"
        return [*found, Finding("pass-rate-unknown", "note", "pass rate", "not known", advice)]
    room = known_room(config)
    left = None if room is None else room - data.longest_prompt
    return [*found, *of_beginning(beginning, config.sampling.max_new_tokens, left)]


def _timed(config: RunConfig, train: Dataset) -> Iterator[Finding]:
    """How long a step takes, where one process decodes and trains; with random weights where a base is yet to be made.

    Raises:
        InputError: the model cannot be loaded.
    """
    from strop.engines.build import build_engine
    from strop.engines.torch.engine import TorchEngine
    from strop.evaluation.evaluate import fitted
    from strop.model.device import pick_device
    from strop.model.files import byte_tokenizer
    from strop.model.policy import load_policy
    from strop.run.learners import Modules, make_learner
    from strop.run.timing import is_tiny, measure, of_time
    from strop.training.embedded_base import named_base

    orchestration, model = config.orchestration, config.model
    if not orchestration.in_process or orchestration.trainers > 1 or isinstance(config.engine, Vllm):
        return
    base = None if model.path is None else named_base(model.path, config.seed)
    words = None if base is None else byte_tokenizer(base.words)
    if base is not None:
        model = model.model_copy(update={"path": None, "fresh": base.model})
    policy, tokenizer = load_policy(model, words, config.seed)
    if is_tiny(config, policy):
        return
    engine = build_engine(config.engine, model, tokenizer, policy.to(pick_device(config.device)))
    assert isinstance(engine, TorchEngine)
    sampling = fitted(config.sampling, train, engine.capabilities.max_tokens, lambda text: None)
    config = config.model_copy(update={"sampling": sampling})
    try:
        yield of_time(config, measure(engine, make_learner(config, Modules(policy)).trainer, config, train), train)
    finally:
        engine.close()


def _reviewed(target: str, sets: Sequence[str], small: bool) -> tuple[RunConfig, RunFolder | None]:
    if not is_run(Path(target)):
        return resolve(target, tuple(sets), small), None
    run = RunFolder.open(target)
    stored = run.read_json("config.json")
    if "demonstrations" in stored:
        raise InputError(f"{target} is a fine-tuning run; strop doctor reviews runs of reinforcement learning")
    config = parse(stored, str(run.config_path), replacing=sets)
    return (edit(config, tuple(sets)) if sets else config), run


def _first_steps(run: RunFolder | None) -> Beginning | None:
    rows = [] if run is None else run.read_metrics()
    rows = [row for row in rows if row.get("pass_rate") is not None][:FIRST_STEPS]
    if not rows:
        return None
    rates, cut_off = ([row.get(name) or 0.0 for row in rows] for name in ("pass_rate", "truncation_rate"))
    over = "the first step" if len(rows) == 1 else f"the first {len(rows)} steps"
    return Beginning(fmean(rates), over, fmean(cut_off))


def _asked(config: RunConfig, train: Dataset, count: int, view: View) -> Beginning:
    """Measure the model on `count` training problems spread over the source, sampled as in the first stage."""
    from strop.evaluation.evaluate import ProblemSet, held_out_seed
    from strop.run.measuring import measure_open
    from strop.run.models import open_model

    first = config.stage_configs()[0]
    policy, tokenizer = open_model(first, view)
    chosen, samples = train.subset(spread(len(train), count)), first.batch.samples_per_prompt
    seed = held_out_seed(first.seed)
    asked = ProblemSet(chosen.name, chosen, samples, first.sampling, first.verifier, seed)
    found = measure_open(first, policy, tokenizer, asked, view)
    over = f"{counted(len(chosen), 'problems')}, {counted(samples, 'answers')} each"
    return Beginning(found.pass_rate, over, found.truncation_rate)
