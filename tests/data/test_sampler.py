"""The sampler neither skips nor repeats, across epochs and across a resume."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strop.base.types import InputError, Problem
from strop.data.sampler import NoProblemsLeft, Sampler, make_sampler
from strop.data.settings import DataSettings

sizes, seeds = st.integers(1, 30), st.integers(0, 2**63 - 1)


@given(size=sizes, seed=seeds, epochs=st.integers(1, 4))
def test_every_epoch_is_a_permutation(size: int, seed: int, epochs: int) -> None:
    sampler = Sampler(size, seed)
    for _ in range(epochs):
        assert sorted(sampler.next() for _ in range(size)) == list(range(size))


@given(size=sizes, seed=seeds, before=st.integers(0, 70), after=st.integers(0, 70))
def test_a_resumed_sampler_goes_on_where_it_stood(size: int, seed: int, before: int, after: int) -> None:
    whole = Sampler(size, seed)
    expected = [whole.next() for _ in range(before + after)]
    first = Sampler(size, seed)
    drawn = [first.next() for _ in range(before)]
    second = Sampler(size, seed)
    second.restore(json.loads(json.dumps(first.state)))
    assert drawn + [second.next() for _ in range(after)] == expected
    assert second.state == whole.state


def test_orders_differ_between_epochs_and_seeds() -> None:
    sampler = Sampler(50, 3)
    orders = [tuple(sampler.next() for _ in range(50)) for _ in range(2)]
    other = Sampler(50, 4)
    assert len({*orders, tuple(other.next() for _ in range(50))}) == 3


def test_the_order_stays_the_same() -> None:
    """A checkpoint of today is resumed with the libraries of tomorrow: this order may not change."""
    sampler = Sampler(8, 7)
    assert [sampler.next() for _ in range(16)] == [7, 4, 6, 1, 5, 0, 2, 3, 7, 4, 3, 0, 1, 5, 2, 6]
    mixed = Sampler(6, 7, ["math"] * 4 + ["code"] * 2, {"math": 3.0, "code": 1.0})
    assert [mixed.next() for _ in range(16)] == [3, 5, 1, 4, 0, 5, 4, 2, 2, 0, 3, 1, 3, 5, 4, 1]


def test_refusals() -> None:
    with pytest.raises(InputError):
        Sampler(0, 0)
    sampler = Sampler(5, 0)
    with pytest.raises(InputError):
        sampler.restore(Sampler(6, 0).state)


def problems(*domains: str) -> list[Problem]:
    return [Problem(str(number), "1+1=", "2", domain) for number, domain in enumerate(domains)]


def test_the_shuffle_seed_is_the_runs_where_none_is_set() -> None:
    nine = problems(*["math"] * 9)
    assert make_sampler(DataSettings(), nine, 4).state == Sampler(9, 4).state
    assert make_sampler(DataSettings(shuffle_seed=1), nine, 4).state == Sampler(9, 1).state


DOMAINS = ["math"] * 12 + ["code"] * 5
WEIGHTS = {"math": 3.0, "code": 1.0}


def test_a_mixture_draws_by_weight_and_each_domain_without_replacement() -> None:
    sampler = Sampler(17, 1, DOMAINS, WEIGHTS)
    drawn = [sampler.next() for _ in range(2000)]
    code = [index for index in drawn if index >= 12]
    assert 0.22 < len(code) / len(drawn) < 0.28
    for start in range(0, len(code) - 5, 5):
        assert sorted(code[start : start + 5]) == [12, 13, 14, 15, 16]


@given(before=st.integers(0, 60), retired=st.sets(st.integers(0, 16), max_size=16))
def test_a_resumed_mixture_goes_on_where_it_stood(before: int, retired: set[int]) -> None:
    first = Sampler(17, 5, DOMAINS, WEIGHTS)
    for _ in range(before):
        first.next()
    first.retire(retired)
    second = Sampler(17, 5, DOMAINS, WEIGHTS)
    second.restore(json.loads(json.dumps(first.state)))
    after = [first.next() for _ in range(40)]
    assert after == [second.next() for _ in range(40)]
    assert not retired & set(after)
    assert first.left == 17 - len(retired)


def test_a_retired_problem_never_comes_back_and_an_empty_domain_is_passed_over() -> None:
    sampler = Sampler(17, 2, DOMAINS, WEIGHTS)
    sampler.retire(range(12))
    assert {sampler.next() for _ in range(30)} == {12, 13, 14, 15, 16}
    sampler.retire(range(12, 17))
    with pytest.raises(NoProblemsLeft):
        sampler.next()


def test_weights_must_name_the_domains_there_are() -> None:
    with pytest.raises(InputError, match="data.weights"):
        make_sampler(DataSettings(weights=WEIGHTS), problems("math", "logic"), 0)
