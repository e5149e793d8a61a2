"""Schedules computed by hand, and what must hold of every schedule."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from strop.base.types import InputError, StropError
from strop.lab.planning import (
    Bound,
    ConstantLength,
    Costs,
    LogNormal,
    Setup,
    Simulation,
    Straggling,
    settled_bound,
    simulate,
)
from strop.lab.planning.costs import IntLengths, Lengths


class InOrder(Lengths):
    """Groups of the given lengths, one after the other: ticket t gets entry t, and again from the first."""

    def __init__(self, *groups: tuple[int, ...]) -> None:
        self.groups = groups
        self.next = 0

    def draw(self, rng: np.random.Generator, samples: int) -> IntLengths:
        group = self.groups[self.next % len(self.groups)]
        self.next += 1
        assert len(group) == samples
        return np.array(group)


def ends(found: Simulation) -> list[float]:
    return np.cumsum(found.step_seconds).tolist()


# ---------------------------------------------------------------------- by hand


def test_synchronous_steps_are_generation_then_update() -> None:
    # Two prompts × two samples of 10 tokens; a decode step of n sequences takes 1 + 0.5·n s. All run: 10 × 3 = 30 s.
    # The update: 2 s and 0.1 s for each of 40 tokens: 6 s. Publication 1 s, writing down 3 s.
    costs = Costs(decode_step=1, decode_sequence=0.5, train_update=2, train_token=0.1, publish=1, record_step=3)
    found = simulate(Setup(2, 2), costs, ConstantLength(10), steps=3)
    assert found.step_seconds == pytest.approx((40, 40, 40))
    assert found.trainer_busy == pytest.approx(18)
    assert found.trainer_idle == pytest.approx(1 - 6 / 40)
    assert found.generators_idle == pytest.approx(1 - 30 / 40)
    assert found.running == pytest.approx(4 * 30 / 40)
    assert found.tokens == 120 and found.mean_lag == 0
    assert found.trained == (0, 1, 2, 3, 4, 5)


def test_updates_behind_are_those_since_the_weights_that_sampled() -> None:
    costs = Costs(decode_step=1, train_update=2)
    off_policy = simulate(Setup(2, 2).alternating(4), costs, ConstantLength(10), steps=3)
    assert off_policy.mean_lag == 0 and off_policy.updates_behind == (0 + 1 + 2 + 3) / 4
    assert simulate(Setup(2, 2), costs, ConstantLength(10), steps=3).updates_behind == 0
    # Two passes over two updates: the third and fourth use the first pass's tokens again.
    again = simulate(Setup(2, 2, updates_per_step=2, passes_per_batch=2), costs, ConstantLength(10), steps=3)
    assert again.updates_behind == (0 + 1 + 2 + 3) / 4
    pipeline = simulate(Setup(2, 2, max_lag=2, updates_per_step=2), costs, ConstantLength(10), steps=9)
    assert pipeline.mean_lag > 0 and pipeline.updates_behind == pytest.approx(2 * pipeline.mean_lag + 0.5)


def test_with_one_version_of_lag_the_longer_of_both_sets_the_pace() -> None:
    # Solo decode: 10 s a group of one sample, slots for one: groups end at 10, 20, 30 … An update takes 4 s.
    # k = 1, P = 1: groups 0 and 1 are admitted at 0. Step 1 trains 10–14, then group 2 is admitted, and so on: the
    # generator never waits, so that steps end at 14, 24, 34.
    costs = Costs(decode_step=1, train_update=4)
    found = simulate(Setup(1, 1, max_lag=1, slots=1), costs, ConstantLength(10), steps=3)
    assert ends(found) == pytest.approx([14, 24, 34])
    # Group 1 was sampled from 10 to 20: by version 0 until the update ended at 14, by version 1 in the 6 steps after,
    # and trained on version 1: lag 1 in 4 of 10 tokens. Group 2, admitted at 14 under version 1, runs from 20 to 30
    # and takes version 2 at 24: 4 of 10 again.
    assert found.lags == pytest.approx((0, 0.4, 0.4))
    # At k = 0 each step is 10 + 4.
    assert ends(simulate(Setup(1, 1, slots=1), costs, ConstantLength(10), steps=3)) == pytest.approx([14, 28, 42])


def test_where_training_is_slower_generation_waits_for_the_gate() -> None:
    # Update 25 s, generation 10 s. k = 1: groups 0, 1 end at 10 and 20; updates run 10–35, 35–60, 60–85 without a gap.
    found = simulate(
        Setup(1, 1, max_lag=1, slots=1), Costs(decode_step=1, train_update=25), ConstantLength(10), steps=3
    )
    assert ends(found) == pytest.approx([35, 60, 85])
    assert found.trainer_idle == pytest.approx(10 / 85)
    assert found.generators_idle == pytest.approx(1 - 30 / 85)


def test_a_straggler_is_waited_for_when_its_lag_is_spent() -> None:
    # One slot a sequence, no trainer cost. Group 0 takes 50 s, all others 10. k = 1, P = 1: groups 0 and 1 start at 0.
    # At 10 group 1 is trained (version 1); group 2 starts. At 20 group 2 may not be trained: group 0, of version 0,
    # would then be trained on version 2. So the trainer waits until 50, trains group 0, then group 2 at once.
    lengths = InOrder((50,), (10,), (10,), (10,), (10,))
    found = simulate(Setup(1, 1, max_lag=1), Costs(decode_step=1), lengths, steps=4)
    assert ends(found) == pytest.approx([10, 50, 50, 60])
    assert found.trained == (1, 0, 2, 3)
    assert found.max_lag == 1


def test_a_free_slot_is_filled_at_once() -> None:
    # Two slots, lengths 4, 10, 3, 2 in order: slot A takes 4, 3 and 2 (steps 0–4–7–9), slot B 10. A step of two
    # sequences takes 1 + 2·1 = 3 s, of one 2 s: 9 × 3 + 1 × 2 = 29 s.
    costs = Costs(decode_step=1, decode_sequence=1)
    assert simulate(Setup(1, 4, slots=2), costs, InOrder((4, 10, 3, 2)), steps=1).total == pytest.approx(29)


def test_context_costs_grow_with_every_token() -> None:
    # One sequence behind 5 prompt tokens: steps cost 0.1 × (5 + 6 + 7 + 8) on top of 4 × 1. Prefill 0.5 s.
    costs = Costs(decode_step=1, decode_context=0.1, start_sequence=0.5)
    assert simulate(Setup(1, 1, prompt_tokens=5), costs, ConstantLength(4), steps=1).total == pytest.approx(
        4 + 2.6 + 0.5
    )


def test_groups_go_to_generators_in_ticket_order_or_samples_are_spread() -> None:
    # Groups of (9, 9) and (1, 1) on two generators, 1 s a sequence and step. By group: 9 × 2 = 18 s. Spread: each
    # generator has a 9 and a 1: 1 × 2 + 8 × 1 = 10 s.
    costs = Costs(decode_sequence=1)
    setup = Setup(2, 2, generators=2)
    assert simulate(setup, costs, InOrder((9, 9), (1, 1)), steps=1).total == pytest.approx(18)
    spread = simulate(replace(setup, assign="sample"), costs, InOrder((9, 9), (1, 1)), steps=1)
    assert spread.total == pytest.approx(10)


def test_on_shared_devices_nothing_is_generated_while_training() -> None:
    # As with lag above, but generation stands still for 4 s in each step: 14 s a step at any lag.
    costs = Costs(decode_step=1, train_update=4)
    found = simulate(Setup(1, 1, max_lag=1, slots=1, colocated=True), costs, ConstantLength(10), steps=4)
    assert ends(found) == pytest.approx([14, 28, 42, 56])


def test_weights_are_swapped_between_two_decode_steps() -> None:
    # Decode steps of 3 s; the update of group 0 ends at 12 + 4 = 16, within the step that ends at 18. The swap takes
    # 2 s there, so that group 1 ends at 12 + 12 + 2 = 26.
    costs = Costs(decode_step=3, train_update=4, swap=2)
    found = simulate(Setup(1, 1, max_lag=1, slots=1), costs, ConstantLength(4), steps=2)
    assert ends(found) == pytest.approx([16, 30])
    assert found.lags == pytest.approx((0, 0.5))  # two of its four tokens are of version 0


def test_a_dropped_group_is_replaced_with_refill_and_leaves_a_hole_without() -> None:
    costs = Costs(decode_step=1, train_token=1)
    refilled = simulate(Setup(4, 1, refill=True, drop=0.5), costs, ConstantLength(10), steps=20)
    assert len(refilled.trained) == 80
    assert refilled.dropped > 40
    holed = simulate(Setup(4, 1, drop=0.5), costs, ConstantLength(10), steps=20)
    assert len(holed.trained) + holed.dropped >= 80
    assert holed.tokens == 10 * len(holed.trained) < 800


def test_tokens_of_dropped_groups_were_generated_and_are_written_down() -> None:
    costs = Costs(decode_step=1, record_token=0.1)
    for refill in (False, True):
        found = simulate(Setup(1, 1, refill=refill, drop=0.5, slots=1), costs, ConstantLength(10), steps=20)
        assert found.dropped > 5 and found.generated == 10 * (20 + found.dropped)
        assert found.tokens_per_second == pytest.approx(found.generated / found.total)


def test_a_run_that_keeps_nothing_ends() -> None:
    with pytest.raises(StropError, match="drop="):
        simulate(Setup(1, 1, drop=0.999999), Costs(decode_step=1), ConstantLength(1), steps=1)


def test_a_verdict_takes_its_time() -> None:
    found = simulate(Setup(1, 1), Costs(decode_step=1, verdict=7), ConstantLength(3), steps=2)
    assert found.step_seconds == pytest.approx((10, 10))


def test_ppo_off_policy_makes_k_updates_of_a_batch_k_times_as_large() -> None:
    # k = 3: 30 s for three groups one after the other, then 3 updates of 4 s: 42 s, 14 s an update.
    setup = Setup(1, 1, slots=1).alternating(3)
    assert setup.name == "PPO-off-policy-3"
    found = simulate(setup, Costs(decode_step=1, train_update=4), ConstantLength(10), steps=2)
    assert found.step_seconds == pytest.approx((42, 42))
    assert found.update_seconds == pytest.approx(14)


def test_truncated_completions_cost_generation_and_no_training() -> None:
    # Lengths 4 and 10 of prompts of 3 tokens, masked from 10 on: 10 s of generation, 1 s for each of 4 + 3 tokens.
    setup = Setup(1, 2, prompt_tokens=3, masked_from=10)
    found = simulate(setup, Costs(decode_step=1, train_token=1), InOrder((4, 10)), steps=1)
    assert found.total == pytest.approx(10 + 7)
    assert found.tokens == 14


def test_settings_that_make_no_sense_are_refused() -> None:
    with pytest.raises(InputError, match="generators=0"):
        Setup(1, 1, generators=0)
    with pytest.raises(InputError, match="drop=1"):
        Setup(1, 1, drop=1.0)


# ---------------------------------------------------------------------- the bound by hand


def bound_of(setup: Setup, costs: Costs, lengths: Lengths) -> Bound:
    return settled_bound(simulate(setup, costs, lengths, 200), costs)


def test_the_bound_of_one_lag_is_its_formula() -> None:
    # P = 2, G = 2, 10 tokens each; a = 1, b = 0.5; two generators; U = 6 + 1 + 3.
    costs = Costs(decode_step=1, decode_sequence=0.5, train_update=2, train_token=0.1, publish=1, record_step=3)
    setup = Setup(2, 2, generators=2)
    synchronous = bound_of(setup, costs, ConstantLength(10))
    assert synchronous.trainer == pytest.approx(10)
    assert synchronous.generation == pytest.approx(40 * (1 / 2 + 0.5) / 2)  # two sequences in each generator
    assert synchronous.longest == pytest.approx(10 * 1.5)
    assert synchronous.seconds == pytest.approx(20 + 10)
    # k = 3: eight sequences in each: 40·(1/8 + 1/2)/2 = 12.5, the longest (15 + 10)/4, the trainer 10.
    piped = bound_of(setup.pipeline(3), costs, ConstantLength(10))
    assert piped.seconds == pytest.approx(12.5, rel=0.05)
    assert piped.limit == "generation"
    # On shared devices generation and training add up.
    shared = replace(setup, colocated=True, max_lag=3)
    assert bound_of(shared, costs, ConstantLength(10)).seconds == pytest.approx(22.5, rel=0.05)


def test_stragglers_are_spread_over_the_versions_they_may_take() -> None:
    lengths = Straggling(ConstantLength(10), share=1.0, factor=30)
    costs = Costs(decode_step=1, train_update=20)
    bound = bound_of(Setup(4, 4, max_lag=8, generators=64), costs, lengths)
    assert bound.limit == "longest"
    assert bound.seconds == pytest.approx((300 + 20) / 9, rel=0.1)


# ---------------------------------------------------------------------- of every schedule

SETUPS = st.builds(
    Setup,
    prompts_per_step=st.integers(1, 5),
    samples_per_prompt=st.integers(1, 4),
    max_lag=st.integers(0, 5),
    refill=st.booleans(),
    drop=st.sampled_from([0.0, 0.4]),
    generators=st.integers(1, 3),
    trainers=st.integers(1, 2),
    slots=st.sampled_from([1, 3, 1000]),
    colocated=st.booleans(),
    assign=st.sampled_from(["group", "sample"]),
    prompt_tokens=st.sampled_from([0.0, 7.0]),
    masked_from=st.sampled_from([None, 12]),
)
SECOND = st.sampled_from([0.0, 0.3, 1.0, 5.0])
COSTS = st.builds(
    Costs,
    decode_step=st.sampled_from([0.1, 1.0]),
    decode_sequence=st.sampled_from([0.0, 0.2]),
    decode_context=st.sampled_from([0.0, 0.01]),
    start_sequence=SECOND,
    verdict=SECOND,
    train_update=SECOND,
    train_token=st.sampled_from([0.0, 0.05]),
    publish=SECOND,
    swap=SECOND,
    record_step=SECOND,
)
TAILED = Straggling(LogNormal(6, 0.5, 40), share=0.1, factor=30)


@settings(max_examples=80)
@given(setup=SETUPS, costs=COSTS, seed=st.integers(0, 1000))
def test_every_group_is_trained_once_within_its_lag(setup: Setup, costs: Costs, seed: int) -> None:
    steps = 12
    found = simulate(setup, costs, TAILED, steps, seed)
    assert len(set(found.trained)) == len(found.trained)
    if setup.drop == 0 or setup.refill:
        assert len(found.trained) == steps * setup.prompts_per_step
    assert found.max_lag <= setup.max_lag
    assert len(found.lags) == steps
    assert all(-1e-9 <= lag <= setup.max_lag + 1e-9 for lag in found.lags)
    assert -1e-9 <= found.trainer_idle <= 1 and -1e-9 <= found.generators_idle <= 1
    assert all(seconds >= -1e-9 for seconds in found.step_seconds)


@settings(max_examples=120)
@example(  # a lag whose pipeline is filled by half of the run, and the stock that is left of it
    setup=Setup(2, 4, max_lag=5), costs=Costs(decode_step=1, decode_sequence=0.2), seed=0, steps=12
)
@example(  # sequences that are being started when a step ends
    setup=Setup(1, 1, max_lag=2, slots=3), costs=Costs(decode_step=0.1, start_sequence=1.0), seed=1, steps=12
)
@given(setup=SETUPS, costs=COSTS, seed=st.integers(0, 1000), steps=st.sampled_from([1, 12, 30]))
def test_a_simulation_never_beats_the_bound_of_its_own_completions(
    setup: Setup, costs: Costs, seed: int, steps: int
) -> None:
    found = simulate(setup, costs, TAILED, steps, seed)
    bound = settled_bound(found, costs)
    assert found.mean >= bound.seconds * (1 - 1e-9)
    assert bound.seconds > 0 or steps <= setup.max_lag


def test_the_bound_of_a_simulation_is_the_expected_one_where_all_completions_are_alike() -> None:
    costs = Costs(decode_step=1, decode_sequence=0.5, train_update=2, train_token=0.1, publish=1, record_step=3)
    found = simulate(Setup(2, 2, generators=2), costs, ConstantLength(10), 5)
    assert settled_bound(found, costs).seconds == pytest.approx(30)
    assert found.mean == pytest.approx(30)
    # k = 1: in four settled steps two are two steps apart, each with 100 of its longest and an update of 3.
    costs = Costs(decode_step=1, train_update=3)
    piped = simulate(Setup(2, 2, max_lag=1, generators=8), costs, InOrder((10, 100), (10, 10)), 8)
    assert piped.settled_steps == slice(2, 6)
    assert settled_bound(piped, costs).seconds == pytest.approx(2 * 103 / 4)


def never_full(setup: Setup, costs: Costs) -> tuple[Setup, Costs]:
    """What runs beside a sequence does not slow it; nor do updates cost by the token.

    Where it does, more open groups may delay the next batch; and which groups come first depends on the lag, so that
    long ones may come sooner.
    """
    free = ("decode_sequence", "decode_context", "start_sequence", "swap", "train_token", "record_token")
    costs = costs.model_copy(update=dict.fromkeys(free, 0.0))
    return replace(setup, slots=1000, drop=0.0, colocated=False), costs


@settings(max_examples=60)
@given(setup=SETUPS, costs=COSTS, seed=st.integers(0, 1000), lag=st.integers(0, 4))
def test_more_lag_is_never_slower_with_the_window_open(setup: Setup, costs: Costs, seed: int, lag: int) -> None:
    setup, costs = never_full(replace(setup, window="full"), costs)
    times = [simulate(setup.pipeline(k), costs, TAILED, 20, seed).total for k in (lag, lag + 1)]
    assert times[1] <= times[0] * (1 + 1e-9) + setup.generators * costs.decode_step


@settings(max_examples=60)
@example(  # where the window still learns of stragglers more lag may be slower: k = 3 takes 756 s, k = 4 986 s
    setup=Setup(3, 1), costs=Costs(decode_step=1, publish=5, record_step=5), seed=297, lag=4
)
@given(setup=SETUPS, costs=COSTS, seed=st.integers(0, 1000), lag=st.integers(1, 5))
def test_the_window_that_adapts_is_never_slower_than_a_lag_of_one(
    setup: Setup, costs: Costs, seed: int, lag: int
) -> None:
    setup, costs = never_full(setup, costs)
    one, more = (simulate(setup.pipeline(k), costs, TAILED, 20, seed).total for k in (1, lag))
    assert more <= one * (1 + 1e-9) + setup.generators * costs.decode_step


def test_lengths_follow_from_seed_and_ticket_alone() -> None:
    costs = Costs(decode_step=1, decode_sequence=0.1, train_update=3)
    runs = [simulate(Setup(4, 4, max_lag=k, generators=2), costs, TAILED, 30, seed=5) for k in (0, 4)]
    assert set(runs[0].trained) == set(runs[1].trained)
    assert runs[0].tokens == runs[1].tokens
    assert simulate(Setup(4, 4), costs, TAILED, 30, seed=6).tokens != runs[0].tokens
