"""`strop smoke`: short runs on this machine, which show whether training works here.

Each group is a `strop train` of two steps in bfloat16, with rewards by chance. The second step samples with the weights
of the first. A run that crashes or hangs does not affect the others.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Collection, Iterator
from pathlib import Path

import torch

from strop.base.types import InputError, Problem
from strop.engines.settings import PYTHON_VARIABLE
from strop.run.finding import Finding, Level
from strop.run.folder import RunFolder
from strop_verify.child_process import ChildProcess, import_path

# Large initial weights make the distributions far from uniform, so that wrong weights show in the log-probs.
SHAPE = (
    "{hidden_size=256, layers=4, heads=4, kv_heads=2, head_dim=64, intermediate_size=768, max_positions=1024, "
    "initializer_range=0.1}"
)
GAP = 0.05  # nats, between the generator's and the trainer's log-probs of the same tokens in bfloat16, on average
SETTINGS = (
    "steps=2", "model.dtype=bfloat16", "optim.lr=1e-3", "data.source=ChainSum", "data.held_out=none",
    "evaluation.every=none", "batch.prompts_per_step=4", "batch.samples_per_prompt=4", "sampling.max_new_tokens=64",
    "engine.slots=16", 'verifier={piece="PythonFunction", function="strop.run.smoke:chance", isolation="none"}',
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
    device: str, model: str | None, vllm: str | None, limit: float, only: Collection[str], tell: Callable[[str], None]
) -> Iterator[Finding]:
    """Run the groups one after another and yield the finding of each: `ok`, `error`, or a `note` if it was not run.

    Args:
        device: `auto`, `cuda` or `cpu`.
        model: a folder or a name on the hub; None: a new small model.
        vllm: the interpreter of an environment with vLLM; None: what STROP_VLLM_PYTHON names, if it is set.
        limit: seconds for all groups; a run that is not done by then fails.
        only: the groups to run; empty runs all of them.
        tell: is called with the name of each group before it begins.

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
        tell(group)
        # NCCL needs a separate GPU for each rank.
        place = "cpu" if group == "ranks" and torch.cuda.device_count() < 2 else device
        sets = [*chosen, f"device={place}", *settings]
        if group == "vllm":
            sets.append(f"engine.python={json.dumps(vllm)}")
        with tempfile.TemporaryDirectory(prefix="strop-smoke-") as folder:
            level, found = _run(Path(folder), sets, end)
        yield Finding(group, level, group, f"{shown}: {found}")


def _run(folder: Path, sets: list[str], end: float) -> tuple[Level, str]:
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
    if gap is None or not gap < GAP:
        return "error", f"the generator's log-probs differ from the trainer's by {gap} nats on average"
    if norm is None or not norm > 0:
        return "error", f"the gradient's norm is {norm}"
    return "ok", (
        f"log-probs of generator and trainer within {gap:.1g} nats, gradient norm {norm:.3g}, "
        f"{row['tokens_per_second']:.0f} tokens a second"
    )
