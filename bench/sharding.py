"""What sharding costs and saves here: a line of JSON for each number of ranks.

    python bench/sharding.py --ranks 1,2,4

`held_mb`: parameters, masters, moments and gradients of one rank. `update_s`: one update of the policy, the median of
`--updates`. `held_up_s`: how long a checkpoint keeps training waiting; `written_s`: until it is on the disk, training
going on meanwhile. `sync_s`: the same checkpoint with nothing beside it. 0 ranks is the plain learner of one process.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.multiprocessing.spawn import start_processes

from strop.base.types import Completion, Group, Problem, Rollout, Verdict, VersionSpan
from strop.base.view import SilentView
from strop.config.parse import edit
from strop.config.schema import RunConfig
from strop.recipes.resolve import resolve
from strop.run.assembly import assemble
from strop.run.learners import join
from strop.training.checkpoint import CheckpointEntry, Retention
from strop.training.learner import Learner
from strop.training.optimizer import own_part
from strop_verify.verdict import Status

SETS = (
    "model.fresh.hidden_size=384", "model.fresh.layers=6", "model.fresh.heads=6", "model.fresh.kv_heads=2",
    "model.fresh.head_dim=64", "model.fresh.intermediate_size=1024", "model.fresh.max_positions=512",
    "evaluation.every=none", "data.source.count=40", "data.held_out.count=8", "batch.tokens_per_microbatch=1024",
    "sampling.max_new_tokens=64",
)  # fmt: skip


def batch(step: int) -> list[Group]:
    """Four prompts of four completions, 20 to 120 tokens each."""
    random = np.random.default_rng(step)
    problem = Problem("p", "1+1=", "2")
    groups: list[Group] = []
    for ticket in range(4 * step, 4 * step + 4):
        rollouts: list[Rollout] = []
        for index in range(4):
            length = int(random.integers(20, 120))
            score = float(random.integers(0, 2))
            completion = Completion(
                request_id="r", index=index, prompt_ids=random.integers(3, 250, 8).astype(np.int32),
                token_ids=random.integers(3, 250, length).astype(np.int32),
                logprobs=np.full(length, -5.5, np.float32), versions=(VersionSpan(0, 0, length),),
                injected=np.zeros(length, np.bool_), text="", finish_reason="stop",
            )  # fmt: skip
            verdict = Verdict(score, Status.CORRECT if score else Status.WRONG)
            rollouts.append(Rollout(problem, completion, verdict, score))
        groups.append(Group(ticket, problem, tuple(rollouts)))
    return groups


def measure(learner: Learner, root: Path, updates: int) -> dict[str, Any]:
    """The figures of one rank."""
    seconds: list[float] = []
    step = 0

    def teach() -> None:
        nonlocal step
        groups = batch(step)
        begin = time.perf_counter()
        learner.learn(groups, {group.ticket for group in groups}, step, {})
        seconds.append(time.perf_counter() - begin)
        step += 1

    def save(number: int) -> float:
        begin = time.perf_counter()
        learner.save(CheckpointEntry(root, number, {}, None, Retention()), {})
        return time.perf_counter() - begin

    for _ in range(updates):
        teach()
    update_s = statistics.median(seconds[1:])
    begin = time.perf_counter()
    save(1)
    learner.settle(wait=True)
    sync_s = time.perf_counter() - begin
    begin = time.perf_counter()
    held_up_s = save(2)
    while not learner.settle(wait=False):
        teach()
    written_s = time.perf_counter() - begin
    optimizer = learner.trainer.optimizer
    state = [*optimizer.parameters.values(), *optimizer.state_dict().values(), *optimizer.parameters.values()]
    held = sum(own_part(tensor).numel() * tensor.element_size() for tensor in state)
    found = {"held_mb": held / 1e6, "update_s": update_s, "held_up_s": held_up_s, "written_s": written_s}
    return found | {"sync_s": sync_s, "parameters": learner.sizes().parameters}


def _rank(rank: int, config: RunConfig, size: int, folder: Path, updates: int) -> None:
    torch.set_num_threads(1)
    learner = join(config, rank, size, f"file://{folder}/meet", seconds=600.0)
    found = measure(learner, folder / "checkpoints", updates)
    if rank == 0:
        (folder / "found.json").write_text(json.dumps(found))


def main() -> None:
    """Print a line for each number of ranks."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", default="0,1,2", help="numbers of ranks; 0: the plain learner")
    parser.add_argument("--updates", type=int, default=4)
    options = parser.parse_args()
    config = edit(resolve("grpo"), SETS)
    torch.set_num_threads(1)
    for size in map(int, options.ranks.split(",")):
        with tempfile.TemporaryDirectory() as place:
            folder = Path(place)
            if size == 0:
                learner = assemble(config, SilentView()).learner
                assert isinstance(learner, Learner)
                found = measure(learner, folder / "checkpoints", options.updates)
            else:
                start_processes(_rank, (config, size, folder, options.updates), size, start_method="spawn")
                found = json.loads((folder / "found.json").read_text())
        row = {name: round(value, 3) for name, value in found.items()}
        sys.stdout.write(json.dumps({"ranks": size, **row}) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
