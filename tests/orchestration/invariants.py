"""What holds of a run whatever dies in it, read off what it leaves behind; every test of a fault asks for all of it.

1. every group is trained once, with all of its samples
2. every token is of the weights that its version names, and of no others
3. no token is older than k versions when it is trained, and the metrics say how old they are
4. at k = 0 the loss curve is that of a run in which nobody died
"""

from __future__ import annotations

import hashlib
import itertools
import json
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from bench.simulated import Simulation, sampled_token
from tests.orchestration.simulation import Made
from tests.runs import assert_same_run, metrics

from strop.base.seeds import derive
from strop.base.types import Group
from strop.base.view import SilentView
from strop.config.parse import parse
from strop.config.schema import RunConfig
from strop.model.policy import PackedInputs
from strop.run.folder import RunFolder
from strop.run.models import open_model
from strop.training import checkpoint

NATS = 1e-4  # between two computations of one log-prob in float32


def assert_sound(run: Made) -> None:
    """All four of a finished run of simulated workers, whose tokens follow from seed and weights."""
    assert [record.step for record in run.records] == list(range(1, run.config.steps + 1))
    groups = [(record.step, group) for record in run.records for group in record.groups]
    _assert_once(run, [group for _, group in groups])
    curve = run.learner.curve
    for step, group in groups:
        _assert_of_its_versions(run, group, curve[: step - 1])
    _assert_lag(run)
    if run.config.orchestration.max_lag == 0:
        assert curve == undisturbed_curve(run.config, run.simulation)


def _assert_once(run: Made, groups: list[Group]) -> None:
    tickets = sorted(group.ticket for group in groups)
    assert tickets == sorted(run.learner.trained) and len(tickets) == len(set(tickets))
    steps, prompts = run.config.steps, run.config.batch.prompts_per_step
    assert len(tickets) == steps * prompts
    for group in groups:
        assert [rollout.completion.index for rollout in group.rollouts] == list(
            range(run.config.batch.samples_per_prompt)
        )
    assert tickets == list(range(steps * prompts))


def _assert_of_its_versions(run: Made, group: Group, curve: list[float]) -> None:
    """Every token is computed anew from the weight that the learner had at the version it names."""
    weights = [1.0, *curve]
    seed = derive(run.config.seed, "request", group.ticket)
    for index, rollout in enumerate(group.rollouts):
        found = rollout.completion
        assert len(found.token_ids) == run.simulation.length(seed, index)
        assert found.token_ids.tolist() == [
            sampled_token(seed, index, place, weights[version])
            for version, start, end in found.versions
            for place in range(start, end)
        ]


def _assert_lag(run: Made) -> None:
    """Counted anew, token by token, and held against what the metrics say."""
    k = run.config.orchestration.max_lag
    for record in run.records:
        lags: Counter[int] = Counter()
        for rollout in (rollout for group in record.groups for rollout in group.usable):
            for version, start, end in rollout.completion.versions:
                lags[record.step - 1 - version] += end - start
        assert min(lags) >= 0 and max(lags) <= k
        assert record.metrics["lag/max"] == max(lags)
        for lag in range(k + 1 if k else 0):
            assert record.metrics[f"lag/share_{lag}"] == pytest.approx(lags[lag] / lags.total())


def undisturbed_curve(config: RunConfig, simulation: Simulation) -> list[float]:
    """What a simulated learner comes to at k = 0, computed here without a process, a gate or a ledger."""
    tickets = itertools.count()
    curve: list[float] = []
    for step in range(config.steps):
        digest = hashlib.blake2b(str(step).encode(), digest_size=4)
        weight = curve[-1] if curve else 1.0
        for _ in range(config.batch.prompts_per_step):
            seed = derive(config.seed, "request", next(tickets))
            for index in range(config.batch.samples_per_prompt):
                length = min(simulation.length(seed, index), config.sampling.max_new_tokens)
                tokens = [sampled_token(seed, index, place, weight) for place in range(length)]
                digest.update(np.array(tokens, np.int32).tobytes())
        value = 1.0 + int.from_bytes(digest.digest(), "big") / 2**32 + 100 * (step + 1)
        curve.append(float(np.float32(value)))
    return curve


# ---------------------------------------------------------------------- of a run's folder, with a real model


def assert_sound_folder(run: Path, undisturbed: Path | None, unsaved: Collection[int] = ()) -> None:
    """All four of a finished run of a real model, from what it wrote.

    At k = 0 it is `undisturbed`, bit for bit. At k > 0, where no two runs are the same, the log-prob of every token is
    computed anew with the weights of the version that the token names, which takes `checkpoint.every=1` with all kept,
    and `orchestration.kv=recompute` (else the keys of earlier tokens are of earlier weights, as they should be).

    Args:
        unsaved: versions of which there is no checkpoint, so that their tokens cannot be computed anew.
    """
    config = parse(json.loads((run / "config.json").read_text()), "config.json")
    k, samples = config.orchestration.max_lag, config.batch.samples_per_prompt
    rows = list(_rollouts(run))
    assert {row["step"] for row in rows} == set(range(1, config.steps + 1))
    seen = Counter((row["ticket"], row["sample"]) for row in rows)
    last = max(row["ticket"] for row in rows)
    assert seen == Counter((ticket, sample) for ticket in range(last + 1) for sample in range(samples))
    for row in rows:
        ages = [row["step"] - 1 - span["version"] for span in row["versions"]]
        assert ages == sorted(ages, reverse=True) and ages[-1] >= 0 and ages[0] <= k
    told = [row for row in metrics(run) if "lag/max" in row]
    assert [row["step"] for row in told] == list(range(1, config.steps + 1))
    assert max(row["lag/max"] for row in told) <= k
    if k == 0:
        assert undisturbed is not None
        assert max(row["mismatch/max"] for row in told) < NATS
        assert_same_run(undisturbed, run)
    else:
        assert _tokens_of_their_versions(run, unsaved) > 0


def _tokens_of_their_versions(run: Path, unsaved: Collection[int]) -> int:
    """See `assert_sound_folder`; how many tokens were computed anew with weights that training had changed."""
    config = parse(json.loads((run / "config.json").read_text()), "config.json")
    assert config.orchestration.kv == "recompute"
    rows = list(_rollouts(run))
    versions = sorted({span["version"] for row in rows for span in row["versions"]})
    policy, _ = open_model(config, SilentView())
    checked = 0
    for version in (version for version in versions if version not in unsaved):
        if version > 0:
            policy.load_weights(checkpoint.load(run / "checkpoints", version).tensors["policy"])
        for row in rows:
            for span in row["versions"]:
                if span["version"] == version:
                    part = slice(span["start"], span["end"])
                    whole = [*row["prompt_ids"], *row["token_ids"]]
                    logprob, _ = policy(PackedInputs.whole([whole]), config.sampling.temperature)
                    expected = logprob.detach().numpy()[len(row["prompt_ids"]) - 1 :][part]
                    np.testing.assert_allclose(np.array(row["logprobs"][part], np.float32), expected, atol=NATS)
                    checked += len(expected) * (version > 0)
    return checked


def _rollouts(run: Path) -> Iterator[Mapping[str, Any]]:
    folder = RunFolder.open(run)
    for step in folder.rollout_steps():
        yield from folder.read_rollouts(step)
