"""Publication does not hold the trainer, nothing is drawn with weights older than its group, and probes are checked."""

from __future__ import annotations

import time
from pathlib import Path
from statistics import median

import numpy as np
import pytest
from tests.orchestration.invariants import assert_sound
from tests.orchestration.simulation import PROMPTS, beside, made

from strop.orchestration.executor import LEAST_TOLERANCE, PROBE_TOLERANCE, Probe, ProbeCheck, WeightMismatch

pytestmark = pytest.mark.usefixtures("forked")


def test_finding_8_a_swap_of_three_seconds_does_not_hold_the_trainer(tmp_path: Path) -> None:
    run = made(tmp_path, fault="slow", after=1)  # the first version is waited for
    ids = np.arange(3, dtype=np.int32)
    probe = Probe(ids, 0, run.learner.probe(ids))
    try:
        run.fleet.start(tmp_path)
        run.fleet.publish(0, probe)
        begin = time.monotonic()
        held = [run.fleet.publish(version, probe).seconds for version in (1, 2, 3)]
        assert max(held) < 1.5  # seconds, of which it takes a few hundredths
        first = run.fleet.generators[0]
        assert (first.sent_version, first.pending is None) == (1, False)
        assert set(run.fleet.store._descriptors) == {1, 3}  # what it takes, and what it takes next
        while first.sent_version < 3 or first.pending is not None:
            run.fleet.poll(0.01)
        assert time.monotonic() - begin > 3.0  # it did take that long, and version 2 was passed over
        assert set(run.fleet.store._descriptors) == {3}
    finally:
        run.fleet.close()


@pytest.mark.parametrize("lag", [0, 2])
def test_finding_8_no_token_is_older_than_its_group_where_swaps_are_slow(tmp_path: Path, lag: int) -> None:
    run = made(tmp_path, *beside(lag), fault="sluggish").run()
    assert_sound(run)
    for record in run.records:
        for group in record.groups:
            assert all(rollout.completion.versions[0].version <= record.step - 1 for rollout in group.rollouts)
    assert median(run.column("seconds/publish")) < 0.2  # a swap takes 0.3


def probed(*gaps: float, sampled: int = 0) -> tuple[Probe, np.ndarray]:
    """A probe of as many log-probs, and what a generator found that is so far off."""
    zeros = np.zeros(len(gaps), np.float32)
    return Probe(np.arange(len(gaps) + 1, dtype=np.int32), sampled, zeros), np.array(gaps, np.float32)


def test_finding_12_later_gaps_are_held_against_the_first_one() -> None:
    check = ProbeCheck()
    check(0, 7, *probed(0.03, 0.03))
    check(1, 7, *probed(0.09, 0.03))  # another generator of the first version
    assert check.bound == pytest.approx(5 * 0.06)
    check(0, 8, *probed(0.29, 0.29))  # of a mixture of experts, say: no reason to end the run
    with pytest.raises(WeightMismatch, match=r"generator 1 .* 0.31 nats a token with version 9, and 0.3 are allowed"):
        check(1, 9, *probed(0.31, 0.31))
    close = ProbeCheck()
    close(0, 0, *probed(1e-6))
    with pytest.raises(WeightMismatch, match=f"{LEAST_TOLERANCE}"):
        close(0, 1, *probed(0.06))  # which the fixed bound let pass
    with pytest.raises(WeightMismatch):
        ProbeCheck()(0, 0, *probed(1.1 * PROBE_TOLERANCE))


def test_finding_12_sampled_tokens_are_held_on_their_own() -> None:
    check = ProbeCheck()
    check(0, 0, *probed(0.0, 0.0))
    with pytest.raises(WeightMismatch):
        check(0, 1, *probed(*[0.0] * 90, *[0.06] * 10, sampled=10))  # 0.006 over all tokens


def test_gaps_of_bfloat16_on_a_real_model_are_no_reason_to_end_a_run() -> None:
    """Measured on Gemma 3 270M against float32: the smallest first, then the largest, and a token that is far off."""
    check = ProbeCheck()
    check(0, 0, *probed(0.0544, 0.0544))
    check(0, 1, *probed(0.203, 0.203))
    check(0, 2, *probed(*[0.06] * 64, 0.02, 1.337, 0.03, sampled=3))
    with pytest.raises(WeightMismatch):
        check(0, 3, *probed(0.411, 0.411))  # a layer's output projection is missing
    with pytest.raises(WeightMismatch):
        ProbeCheck()(0, 0, *probed(0.411, 0.411))


def test_finding_12_the_bound_of_quantised_rollouts_is_printed() -> None:
    notes: list[str] = []
    check = ProbeCheck(quantised=True, note=notes.append)
    check(0, 0, *probed(0.2))
    assert "by 0.2 nats" in notes[0] and "more than 1 ends the run" in notes[0]
    check(0, 1, *probed(0.5))


def test_finding_12_the_probe_ends_with_sampled_tokens(tmp_path: Path) -> None:
    run = made(tmp_path)
    seen: list[Probe] = []
    publish = run.fleet.publish
    run.fleet.publish = lambda version, probe: (seen.append(probe), publish(version, probe))[1]  # type: ignore
    run.run()
    drawn = [record.groups[0].rollouts[0].completion for record in run.records]
    for probe, completion in zip(seen[1:], drawn, strict=True):
        assert probe.token_ids[-probe.sampled :].tolist() == completion.token_ids[: probe.sampled].tolist()
    assert len(run.learner.trained) == 6 * PROMPTS
