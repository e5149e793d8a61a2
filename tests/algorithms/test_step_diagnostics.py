"""Every metric of groups and samples by value, and their merging."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.made import PROBLEM, completion

from strop.algorithms.advantages import GroupRelative
from strop.algorithms.step_diagnostics import Quantile, reflections, step_diagnostics
from strop.base.metrics import Metrics, merge, values
from strop.base.sample import Sample
from strop.base.types import FinishReason, Group, Restart, Rollout, Verdict
from strop.training.samples import make_candidates, make_samples
from strop_verify.verdict import Status


def rollout(
    index: int,
    score: float,
    text: str = "x",
    length: int = 3,
    status: Status | None = None,
    finish: FinishReason = "stop",
    domain: str = "math",
    reward: float | None = None,
    injected: tuple[int, ...] = (),
) -> Rollout:
    """Tokens are all different; the reward is the score unless given."""
    made = replace(
        completion(length, finish, injected=injected, index=index),
        text=text,
        interrupted_at=injected[0] if injected else None,
    )
    found = status or (Status.CORRECT if score == 1 else Status.WRONG)
    return Rollout(replace(PROBLEM, domain=domain), made, Verdict(score, found), score if reward is None else reward)


def group(ticket: int, *rollouts: Rollout) -> Group:
    return Group(ticket, rollouts[0].problem, rollouts)


def diagnose(groups: list[Group], survivors: set[int] | None = None) -> Metrics:
    kept = {g.ticket for g in groups} if survivors is None else survivors
    return step_diagnostics(groups, make_samples(make_candidates(groups, kept, "none"), GroupRelative()), kept)


def test_outcomes_by_value() -> None:
    groups = [
        group(0, rollout(0, 1, length=2), rollout(1, 0, length=6, finish="length")),
        group(1, rollout(0, 0, status=Status.UNPARSED), rollout(1, 0, status=Status.TIMEOUT)),
        group(2, rollout(0, 1, reward=1.0, length=4), rollout(1, 1, reward=0.5, length=10)),
    ]
    found = values(diagnose(groups, {0}))
    expected = {
        "reward/mean": (1 + 0 + 0 + 1 + 0.5) / 5,
        "pass_rate": 3 / 5,
        "pass_rate/whole": 3 / 4,
        "truncation_rate": 1 / 6,
        "unparsed_rate": 1 / 6,
        "well_formed_rate": 4 / 5,
        "verifier/failures": 1,
        "verifier/failure_share": 1 / 6,
        "groups/zero_variance_share": 2 / 3,
        "groups/zero_variance_reward_share": 1 / 3,
        "groups/without_baseline": 1,
        "groups/trained": 1,
        "tokens/generated": 2 + 6 + 3 + 3 + 4 + 10,
        "effective_batch/prompts": 1,
        "effective_batch/prompts_share": 1 / 3,
        "effective_batch/completions": 2,
        "effective_batch/completions_share": 2 / 6,
        "length/mean": 28 / 6,
        "length/max": 10,
        "length/p50": 3.5,
        "length/p90": 8,
        "length/correct": (2 + 4 + 10) / 3,
    }
    assert {name: found[name] for name in expected} == {n: pytest.approx(v) for n, v in expected.items()}
    assert found["pass_rate/math"] == found["pass_rate"]


def test_undecided_answers_are_counted_by_kind_and_are_no_failures() -> None:
    left_out, wrong = (
        replace(rollout(1, 0), verdict=Verdict(0.0, status, undecided="interval"))
        for status in (Status.UNDECIDED, Status.WRONG)
    )
    found = values(diagnose([group(0, rollout(0, 1), left_out, wrong, rollout(3, 0))]))
    assert (found["undecided_rate"], found["undecided_rate/interval"]) == (0.5, 0.5)
    assert found["verifier/failures"] == 0 and found["pass_rate"] == pytest.approx(1 / 3)


def test_a_pass_rate_counts_what_is_right_not_half_scores() -> None:
    """As evaluations count, so that training's rate and the held-out one can be compared."""
    scored = (rollout(0, 0.5), rollout(1, 1, finish="length"), rollout(2, 0.9), rollout(3, 1))
    found = values(diagnose([group(0, *scored)]))
    assert found["pass_rate"] == found["pass_rate/math"] == 0.5 and found["pass_rate/whole"] == pytest.approx(1 / 3)
    assert found["reward/mean"] == pytest.approx(3.4 / 4)


def test_a_group_trained_on_without_an_advantage_is_not_in_the_effective_batch() -> None:
    groups = [group(0, rollout(0, 1), rollout(1, 1)), group(1, rollout(0, 1), rollout(1, 0))]
    found = values(diagnose(groups))
    assert found["groups/trained"] == 2 and found["effective_batch/prompts"] == 1
    assert found["effective_batch/completions"] == 2 and found["effective_batch/completions_share"] == 0.5


def test_solved_groups_fall_into_bins_that_add_up_to_one() -> None:
    solved = (0, 1, 2, 3, 4, 5, 6, 7, 8)
    groups = [group(n, *[rollout(i, float(i < correct)) for i in range(8)]) for n, correct in enumerate(solved)]
    groups.append(group(9, rollout(0, 0, status=Status.ERROR)))  # nothing can be said of it
    found = values(diagnose(groups))
    shares = ["none", "to_25", "to_50", "to_75", "most", "all"]
    assert [found[f"groups/solved_{s}_share"] for s in shares] == pytest.approx([1 / 9, *[2 / 9] * 3, 1 / 9, 1 / 9])


def test_each_domain_has_its_pass_rate() -> None:
    groups = [
        group(0, rollout(0, 1, domain="math"), rollout(1, 0, domain="math")),
        group(1, rollout(0, 0, domain="code"), rollout(1, 0, domain="code", status=Status.TIMEOUT)),
        group(2, rollout(0, 1, domain="whole", finish="length")),
    ]
    found = values(diagnose(groups))
    assert found["pass_rate/math"] == 0.5 and found["pass_rate/code"] == 0
    assert found["pass_rate/whole"] == pytest.approx(1 / 3), "of completions that are whole, not of a domain"


def test_interruptions() -> None:
    groups = [
        group(0, rollout(0, 1, injected=(2, 3), length=6), rollout(1, 0, injected=(4, 5), length=7)),
        group(1, rollout(0, 0, status=Status.ERROR, injected=(3, 4), length=6), rollout(1, 1)),
    ]
    found = values(diagnose(groups))
    assert found["interruption/share"] == 0.75 and found["interruption/position"] == 3
    assert found["interruption/pass_rate"] == 0.5 and found["tokens/injected"] == 6
    assert found["tokens/generated"] == sum(len(r.completion.token_ids) for g in groups for r in g.rollouts) - 6


def test_reflection_and_its_lengths() -> None:
    assert reflections("Wait, wait, that However is wrong. Alternatively, retry and recheck.") == {
        "wait,": 2,
        "recheck": 1,
        "retry": 1,
        "alternatively,": 1,
        "however,": 0,
    }
    assert not any(reflections("we waited; alternatively two").values())
    groups = [
        group(0, rollout(0, 1, "Wait, no.", 10), rollout(1, 0, "retry", 20), rollout(2, 1, "2", 4)),
        group(1, rollout(0, 1, "however, however,", 30), rollout(1, 0, "3", 6, status=Status.UNPARSED)),
    ]
    found = values(diagnose(groups))
    assert found["reflection/share"] == pytest.approx(3 / 5)
    assert found["reflection/wait"] == pytest.approx(1 / 5) and found["reflection/however"] == pytest.approx(2 / 5)
    assert found["reflection/recheck"] == 0 == found["reflection/alternatively"]
    assert found["length/mean"] == 14 and found["length/correct"] == pytest.approx(44 / 3)
    assert found["length/reflective"] == 20 and found["length/correct_reflective"] == 20


def test_repetition_is_a_mean_over_completions() -> None:
    groups = [group(0, rollout(0, 1, "a" * 10), rollout(1, 0, "no " * 30), rollout(2, 0, "a" * 10))]
    found = values(diagnose(groups))
    assert found["repetition/ngram20"] == pytest.approx(10 / 11), "texts of fewer than 20 words do not count"
    triple = 2 * sum(range(88)) / (90 * 91)  # ΣLCP of a text of period 3 and length 90
    assert found["repetition/repeatness"] == pytest.approx((2 * 90 / 110 + triple) / 3)


def test_repetition_of_many_long_completions_is_taken_of_every_kth(monkeypatch: pytest.MonkeyPatch) -> None:
    new = " ".join(map(str, range(30)))
    groups = [group(0, *(rollout(n, n % 2, "no " * 30 if n % 2 else new) for n in range(4)))]
    assert values(diagnose(groups))["repetition/ngram20"] == pytest.approx(5 / 11)
    monkeypatch.setattr("strop.algorithms.step_diagnostics.measured", lambda texts: texts[::2])
    assert values(diagnose(groups))["repetition/ngram20"] == 0.0


def looping(index: int, score: float, start: int) -> Rollout:
    """30 tokens; from `start` on, the token 7 alone: the window of 20 sevens recurs one token later."""
    made = completion(30, index=index)
    ids = np.where(np.arange(30) >= start, 7, made.token_ids).astype(np.int32)
    status = Status.CORRECT if score == 1 else Status.WRONG
    return Rollout(PROBLEM, replace(made, token_ids=ids), Verdict(score, status), score)


def test_credit_of_repeating_tokens_beside_grpo() -> None:
    groups = [group(5, looping(0, 1.0, 4), rollout(1, 0, length=10), rollout(2, 0), rollout(3, 0))]
    samples = make_samples(make_candidates(groups, {5}, "none"), GroupRelative())
    found = values(step_diagnostics(groups, samples, {5}))
    # Sevens from token 4; the window at 5 is the first that has begun before: 25 of 46 trained tokens.
    assert found["repetition/share"] == 0.25 and found["repetition/first_token"] == 5
    assert found["repetition/token_share"] == pytest.approx(25 / 46)
    assert found["repetition/advantage"] == pytest.approx(1.499997)
    assert found["repetition/advantage_grpo"] == pytest.approx(1.499997)

    # Divided into two sequences where its turns begin, the completion counts as one, in every metric.
    first, *others = groups[0].rollouts
    turns = (Restart(12, np.array([8], np.int32)), Restart(21, np.array([9, 8], np.int32)))
    divided = replace(first, completion=replace(first.completion, restarts=turns))
    parts = make_samples(make_candidates([group(5, divided, *others)], {5}, "none"), GroupRelative())
    assert len(parts) == len(samples) + 2
    assert values(step_diagnostics([group(5, divided, *others)], parts, {5})) == pytest.approx(found)

    # As a critic would: the advantage falls along the completion (prompt of two tokens before it).
    falling = np.concatenate([np.zeros(2), 1.0 - np.arange(30) / 10]).astype(np.float32)
    with_critic = [replace(samples[0], advantages=falling), *samples[1:]]
    found = values(step_diagnostics(groups, with_critic, {5}))
    assert found["repetition/advantage"] == pytest.approx(np.mean(1.0 - np.arange(5, 30) / 10))
    assert found["repetition/advantage_grpo"] == pytest.approx(1.499997)


def test_credit_counts_trained_tokens_only_and_samples_in_the_loss_only() -> None:
    groups = [group(0, looping(0, 1.0, 4), looping(1, 0.0, 8))]
    samples = make_samples(make_candidates(groups, {0}, "none"), GroupRelative())
    masked = samples[0].trained.copy()
    masked[2 + 20 :] = False
    found = values(step_diagnostics(groups, [replace(samples[0], trained=masked)], {0}))
    assert found["repetition/share"] == 1 and found["repetition/first_token"] == 7
    assert found["repetition/token_share"] == pytest.approx(15 / 20)
    assert found["repetition/advantage_grpo"] == pytest.approx(0.707106)  # (1 − ½) / (√½ + 1e-6)


def test_quantiles_merge_exactly_and_only_with_their_own_kind() -> None:
    merged = Quantile((1.0, 9.0), 0.9).merge(Quantile((2.0, 3.0, 4.0), 0.9))
    assert merged.value == pytest.approx(np.quantile([1, 2, 3, 4, 9], 0.9))
    assert Quantile((), 0.5).value is None
    with pytest.raises(ValueError):
        Quantile((1.0,), 0.5).merge(Quantile((1.0,), 0.9))


TEXTS = st.sampled_from(["", "a", "aaaa", "Wait, no", "However, " * 25, "x y " * 12])
ROLLOUTS = st.tuples(
    st.sampled_from([0.0, 0.5, 1.0]),
    TEXTS,
    st.integers(1, 40),
    st.sampled_from([None, Status.UNPARSED, Status.ERROR]),
    st.sampled_from(["stop", "length"]),
    st.sampled_from(["math", "code"]),
)


@settings(max_examples=40, deadline=None)
@given(st.lists(st.lists(ROLLOUTS, min_size=1, max_size=3), max_size=5), st.integers(0, 5))
def test_the_parts_of_a_step_merge_into_the_whole(rows: list[list[tuple]], cut: int) -> None:  # type: ignore[type-arg]
    groups = [
        Group(
            ticket,
            PROBLEM,
            tuple(
                rollout(i, score, text, length, status, finish, domain)
                for i, (score, text, length, status, finish, domain) in enumerate(members)
            ),
        )
        for ticket, members in enumerate(rows)
    ]
    samples = make_samples(make_candidates(groups, set(range(len(groups))), "none"), GroupRelative())

    def part(chosen: list[Group]) -> Metrics:
        tickets = {g.ticket for g in chosen}
        mine: list[Sample] = [s for s in samples if s.group in tickets]
        return step_diagnostics(chosen, mine, tickets)

    whole, split = values(part(groups)), values(merge([part(groups[:cut]), part(groups[cut:])]))
    assert split == {name: pytest.approx(value) for name, value in whole.items()}
