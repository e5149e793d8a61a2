"""Statistics of tokens, by hand."""

import numpy as np
import pytest
from tests.report.cases import batch, row

from strop.algorithms.entropy_losses import ArcherClip, LowEntropyMask
from strop.algorithms.losses import Cispo, PpoClip, Reinforce
from strop.model.byte_tokenizer import byte_tokenizer
from strop.report.token_figures import (
    Bounds,
    _beyond,
    bounds_of,
    prompt_means,
    thinned,
    threshold_shares,
    token_lists,
    token_text,
)


def test_tokens_are_ranked_by_mean_entropy() -> None:
    tokenizer = byte_tokenizer()
    a, b, c = (tokenizer.encode(letter)[0] for letter in "abc")
    found = batch([row(tokens=5)], [0.5, 0.1, 0.3, 0.9, 0.2], token_id=[a, b, a, c, b])
    lists = token_lists(found, tokenizer)
    assert [(kind.text, kind.seen) for kind in lists.highest] == [("c", 1), ("a", 2)]
    assert [(kind.text, kind.seen) for kind in lists.lowest] == [("b", 2)]
    assert lists.highest[1].entropy == pytest.approx(0.4)
    assert lists.kinds == 3


def test_of_many_kinds_each_list_has_a_hundred_and_seldom_ones_are_left_out() -> None:
    ids = [token for token in range(250) for _ in range(5)] + [250]
    found = batch([row(tokens=len(ids))], [token / 100 for token in ids], token_id=ids)
    lists = token_lists(found, byte_tokenizer())
    assert (len(lists.highest), len(lists.lowest), lists.kinds, lists.at_least) == (100, 100, 250, 5)
    assert lists.highest[0].entropy == pytest.approx(2.49) and lists.lowest[0].entropy == 0.0


def test_a_token_alone_shows_its_spaces() -> None:
    tokenizer = byte_tokenizer()
    space, line, half = tokenizer.encode(" ")[0], tokenizer.encode("\n")[0], tokenizer.encode("é")[0]
    assert token_text(tokenizer, space) == "␣" and token_text(tokenizer, line) == "↵"
    assert token_text(tokenizer, half) == tokenizer.convert_ids_to_tokens(half)


def test_a_prompt_has_the_mean_of_its_tokens() -> None:
    rows = [row(ticket=3, tokens=1), row(ticket=3, tokens=3), row(ticket=7, tokens=2)]
    assert prompt_means(batch(rows, [1.0, 2.0, 3.0, 4.0, 0.5, 1.5])) == {3: 2.5, 7: 1.0}


def test_one_threshold_favours_responses_of_high_entropy() -> None:
    rows = [row(tokens=5), row(tokens=5)]
    found = batch(rows, [0.0, 0.0, 0.0, 0.0, 0.9, 0.5, 0.5, 1.0, 1.0, 1.0])
    # The 80 % quantile of the ten is 1.0, which three of the five tokens of the second response reach.
    low, high = threshold_shares(found)
    assert low == 0.0 and high == pytest.approx(0.6)


def test_bounds_are_those_of_the_loss() -> None:
    assert bounds_of(PpoClip(clip_low=0.2, clip_high=0.28)) == (Bounds("", 0.8, 1.28),)
    assert [each.name for each in bounds_of(ArcherClip())] == ["knowledge", "reasoning"]
    assert bounds_of(Cispo(max_ratio=4.0)) == (Bounds("cap", None, 4.0, capped=True),)
    assert bounds_of(LowEntropyMask()) == bounds_of(PpoClip())
    assert bounds_of(Reinforce()) == ()


def test_tokens_beyond_the_bounds_are_counted_on_their_side() -> None:
    rows = [row(reward=1.0, tokens=2), row(reward=0.0, tokens=2)]
    # Ratios 1.5 and 0.5 of a rewarded rollout, then of a punished one: 1.5 counts of the first, 0.5 of the second.
    up, down = -0.5 + float(np.log(1.5)), -0.5 + float(np.log(0.5))
    found = batch(rows, [0.1] * 4, logprob=[up, down, up, down])
    sign = found.advantage_sign()
    assert sign.tolist() == [1, 1, -1, -1]
    everything = np.zeros(4, dtype=np.bool_)
    cut = _beyond(found, (Bounds("", 0.8, 1.2),), sign, everything)
    assert cut.startswith("50.00 % of tokens would have no gradient")
    capped = _beyond(found, (Bounds("cap", None, 1.2, capped=True),), sign, everything)
    assert capped.startswith("50.00 % of tokens would have their weight capped")
    assert _beyond(found, (), sign, everything) == "The loss clips no single token."


def test_thinning_keeps_all_of_few_and_the_same_of_many() -> None:
    assert thinned(5, 10).tolist() == [0, 1, 2, 3, 4]
    many = thinned(1000, 10)
    assert len(set(many.tolist())) == 10 and many.tolist() == thinned(1000, 10).tolist()
