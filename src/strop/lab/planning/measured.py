"""The costs and lengths of a run, from its metrics: what `strop plan RUN` computes with.

    constants, lengths = measured(RunFolder.open("runs/first"))

Everything is taken from the second half of its steps. An update's seconds are put down to its tokens. Of decoding a run
says how long it took altogether: `decode_step` and `decode_sequence` keep the ratio of `CONSTANTS`.
"""

from __future__ import annotations

import math
from statistics import fmean

from strop.base.types import InputError
from strop.config.parse import parse
from strop.lab.planning.costs import CONSTANTS, Constant, LogNormal, setup_of
from strop.run.folder import RunFolder

_NEEDED = ("seconds/step", "tokens/generated", "trained_tokens")
_TENTH = 1.2816  # standard deviations above the median that a tenth of a normal distribution exceeds


def measured(folder: RunFolder) -> tuple[dict[str, Constant], LogNormal]:
    """`CONSTANTS` with what the run measured in their place, and a log-normal of its completions' lengths.

    Raises:
        InputError: it has trained fewer than two steps.
    """
    rows = [row for row in folder.read_metrics() if all(row.get(name) for name in _NEEDED)]
    rows = rows[-(len(rows) // 2) :] if len(rows) > 1 else []
    if not rows:
        raise InputError(f"{folder.path} has no two trained steps to take costs from; train it for a few")

    def mean(name: str) -> float:
        return fmean(row.get(name) or 0.0 for row in rows)

    config = parse(folder.read_json("config.json"), str(folder.config_path), to_run=False)
    setup = setup_of(config)
    busy = mean("seconds/rollout")
    if not setup.colocated:
        busy = setup.generators * (1 - mean("idle/generators")) * mean("seconds/step")
    tokens, longest = mean("tokens/generated"), mean("length/max") if setup.max_lag == 0 else 0.0
    steps = max(tokens / setup.at_once, setup.generators * longest)  # of all generators
    step, sequence = CONSTANTS["decode_step"].seconds, CONSTANTS["decode_sequence"].seconds
    slower = busy / (step * steps + sequence * tokens)
    found = {
        "decode_step": step * slower,
        "decode_sequence": sequence * slower,
        "train_update": 0.0,
        "train_token": mean("seconds/update") * setup.trainers / mean("trained_tokens"),
        "publish": mean("seconds/publish"),
        "record_step": max(mean("seconds/other") - mean("seconds/publish"), 0.0),
    }
    source = f"measured in {folder.path}"
    median, tenth = mean("length/p50"), mean("length/p90")
    lengths = LogNormal(max(median, 1.0), math.log(max(tenth / median, 1.0)) / _TENTH, config.sampling.max_new_tokens)
    return {name: Constant(seconds, source) for name, seconds in found.items()}, lengths
