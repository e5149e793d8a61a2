"""Packing: every sample once, budgets kept, fields aligned, weights right by value, splits by whole groups."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.training.cases import EOS, make_sample, make_samples

from strop.algorithms.aggregation import ConstantDenominator, PromptMean, SampleMean, TokenMean
from strop.algorithms.tokens import Tokens, concatenate
from strop.base.sample import Sample
from strop.base.types import InputError
from strop.training.packing import EMPTY, NothingToTrain, TooFewGroups, Update, fill_bins, pack, split_into_updates

shapes = st.lists(
    st.tuples(st.integers(1, 12), st.integers(0, 12), st.integers(0, 4)), min_size=1, max_size=25
).filter(lambda found: any(completion for _, completion, _ in found))


def all_tokens(update: Update) -> Tokens:
    return concatenate([batch.tokens for batch in update.micro_batches])


@settings(max_examples=60, deadline=None)
@given(shapes, st.integers(1, 40))
def test_every_trained_sample_is_packed_once_within_the_budget(found, budget):
    samples = [make_sample(p, c, group=g, seed=index) for index, (p, c, g) in enumerate(found)]
    update = pack(samples, TokenMean(), budget)
    seen: Counter[int] = Counter()
    for batch in update.micro_batches:
        packed, tokens = batch.packed, batch.tokens
        assert len(packed.token_ids) == len(packed.positions) == sum(packed.lengths)
        assert len(packed.token_ids) <= budget or len(packed.lengths) == 1
        assert len(packed.rows) == len(packed.targets) == len(tokens)
        assert torch.equal(packed.token_ids[packed.rows + 1], packed.targets)
        assert torch.equal(packed.positions[packed.rows + 1], tokens.position)
        members = tokens.sequence.unique_consecutive().tolist()
        assert len(set(members)) == len(members) == len(packed.lengths)
        seen.update(members)
        for index, ids in zip(members, packed.token_ids.split(list(packed.lengths)), strict=True):
            check_rows(samples[index], tokens, index)
            assert np.array_equal(ids.numpy(), samples[index].token_ids)
    assert seen == Counter(index for index, sample in enumerate(samples) if sample.trained_tokens)
    assert 0 < update.efficiency <= 1
    assert update.tokens == sum(len(sample) for sample in samples if sample.trained_tokens)
    assert update.trained_tokens == sum(sample.trained_tokens for sample in samples)


def check_rows(sample: Sample, tokens: Tokens, index: int) -> None:
    """The rows of a sequence are its trained tokens, in order, field by field."""
    mine = tokens.sequence == index
    position = tokens.position[mine].numpy()
    assert np.array_equal(position, np.flatnonzero(sample.trained))
    assert np.array_equal(tokens.generator_logprob[mine].numpy(), sample.logprobs[position])
    assert np.array_equal(tokens.advantage[mine].numpy(), sample.advantages[position])
    assert np.array_equal(tokens.version[mine].numpy(), sample.versions[position])


@settings(max_examples=100, deadline=None)
@given(st.lists(st.integers(1, 60), min_size=1, max_size=60), st.integers(1, 64))
def test_bins_hold_every_length_once_and_are_never_more_than_twice_the_optimum(lengths, budget):
    bins = fill_bins(lengths, budget)
    assert sorted(index for members in bins for index in members) == list(range(len(lengths)))
    loads = [sum(lengths[index] for index in members) for members in bins]
    assert all(load <= budget or len(members) == 1 for load, members in zip(loads, bins, strict=True))
    fitting = [load for load in loads if load <= budget]
    assert sum(2 * load <= budget for load in fitting) <= 1  # two half-empty bins would have been one


def test_bins_by_hand():
    assert fill_bins([3, 7, 5, 2, 3], 10) == [[1, 0], [2, 4, 3]]
    assert fill_bins([4, 25, 6], 10) == [[1], [2, 0]]
    assert fill_bins([10, 10], 10) == [[0], [1]]


def test_many_short_sequences_pack_tightly():
    lengths = np.random.default_rng(0).integers(100, 4000, 2000).tolist()
    bins = fill_bins(lengths, 16_384)
    assert sum(lengths) / (16_384 * len(bins)) > 0.99


@pytest.mark.parametrize("budget", [1, 12, 40, 10_000])
def test_weights_sum_by_value(budget):
    samples = make_samples()
    weight = all_tokens(pack(samples, TokenMean(), budget)).weight
    total = sum(sample.trained_tokens for sample in samples)
    torch.testing.assert_close(weight, torch.full_like(weight, 1 / total))

    tokens = all_tokens(pack(samples, SampleMean(), budget))
    by_sequence = torch.zeros(len(samples)).index_add(0, tokens.sequence, tokens.weight)
    torch.testing.assert_close(by_sequence, torch.full((len(samples),), 1 / len(samples)))

    tokens = all_tokens(pack(samples, PromptMean(), budget))
    group = torch.tensor([sample.group for sample in samples])[tokens.sequence]
    torch.testing.assert_close(torch.zeros(4).index_add(0, group, tokens.weight), torch.full((4,), 0.25))

    weight = all_tokens(pack(samples, ConstantDenominator(tokens=64), budget)).weight
    torch.testing.assert_close(weight, torch.full_like(weight, 1 / (len(samples) * 64)))


def test_untrained_samples_are_left_out_of_the_denominators():
    samples = make_samples(6)
    idle = make_sample(4, 0, group=9)
    with_idle = all_tokens(pack([idle, *samples, idle], PromptMean(), 40))
    without = all_tokens(pack(samples, PromptMean(), 40))
    assert torch.equal(with_idle.weight, without.weight)
    assert torch.equal(with_idle.sequence, without.sequence + 1)


def test_a_token_equal_to_pad_or_eos_is_trained_by_its_mask_alone():
    sample = make_sample(3, 5)
    sample.token_ids[:] = EOS
    update = pack([sample], TokenMean(), 100)
    assert update.trained_tokens == 5
    assert update.micro_batches[0].tokens.position.tolist() == [3, 4, 5, 6, 7]


def test_packing_is_deterministic_and_keeps_longest_first():
    samples = make_samples(20)
    first, second = pack(samples, TokenMean(), 30), pack(samples, TokenMean(), 30)
    for one, two in zip(first.micro_batches, second.micro_batches, strict=True):
        assert torch.equal(one.packed.token_ids, two.packed.token_ids)
        assert list(one.packed.lengths) == sorted(one.packed.lengths, reverse=True)


def test_nothing_to_train_and_a_bad_budget_are_errors():
    with pytest.raises(NothingToTrain):
        pack([make_sample(3, 0), make_sample(2, 0)], TokenMean(), 10)
    with pytest.raises(InputError):
        pack(make_samples(2), TokenMean(), 0)


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 12), st.integers(1, 5), st.integers(1, 3), st.integers(0, 3))
def test_updates_are_whole_groups_balanced_and_each_pass_is_complete(groups, updates, passes, seed):
    samples = make_samples(2 * groups + 1, groups)
    if groups < updates:
        with pytest.raises(TooFewGroups, match="updates_per_step"):
            split_into_updates(samples, updates, passes, seed)
        return
    split = split_into_updates(samples, updates, passes, seed)
    assert len(split) == updates * passes
    for start in range(0, len(split), updates):
        parts = split[start : start + updates]
        assert sorted(id(s) for part in parts for s in part) == sorted(id(s) for s in samples)
        sets = [{s.group for s in part} for part in parts]
        assert sum(map(len, sets)) == groups  # no group in two updates
        assert max(map(len, sets)) - min(map(len, sets)) <= 1


def test_each_pass_has_a_fresh_shuffle_that_the_seed_fixes():
    samples = make_samples(40, 20)
    passes = [[s.group for s in part] for part in split_into_updates(samples, 2, 2, seed=5)]
    assert passes[:2] != passes[2:]
    assert passes == [[s.group for s in part] for part in split_into_updates(samples, 2, 2, seed=5)]
    assert passes != [[s.group for s in part] for part in split_into_updates(samples, 2, 2, seed=6)]
    # The order in which samples arrive does not change which groups share an update.
    backwards = split_into_updates(samples[::-1], 2, 2, seed=5)
    assert [{s.group for s in part} for part in backwards] == [set(groups) for groups in passes]


def test_groups_without_trained_tokens_do_not_count_when_splitting():
    samples = [make_sample(2, 3, group=0), make_sample(2, 0, group=1), make_sample(2, 4, group=2)]
    split = split_into_updates(samples, 2, 1, seed=0)
    assert sorted(s.group for part in split for s in part) == [0, 2]
    with pytest.raises(TooFewGroups):
        split_into_updates(samples, 3, 1, seed=0)
    with pytest.raises(NothingToTrain):
        split_into_updates(samples[1:2], 1, 1, seed=0)


def test_the_shuffle_is_the_one_that_no_numpy_changes():
    samples = [make_sample(2, 3, group=group) for group in (10, 20, 30, 40, 50, 60)]
    split = split_into_updates(samples, 2, 2, seed=5)
    # Of numpy's frozen RandomState: [4 2 5 3 1 0] and [2 3 4 1 5 0].
    assert [[s.group for s in part] for part in split] == [[50, 30, 60], [40, 20, 10], [30, 40, 50], [20, 60, 10]]


def test_who_has_no_work_computes_one_token_that_is_not_trained() -> None:
    assert [len(column) for column in vars(EMPTY.tokens).values() if column is not None] == [0] * 8
    packed = EMPTY.packed
    assert packed.lengths == (1,) and packed.token_ids.tolist() == packed.positions.tolist() == [0]
    assert packed.rows.tolist() == packed.targets.tolist() == []
