"""Statistics of tokens, by hand."""

from collections.abc import Sequence

import pytest
from tests.report.cases import row

from strop.model.files import byte_tokenizer
from strop.report.figures.tokens import (
    TokenBatch,
    prompt_means,
    thinned,
    threshold_shares,
    token_batch,
    token_lists,
    token_text,
)


def batch(*rollouts: tuple[int, Sequence[float]], token_id: Sequence[int] = ()) -> TokenBatch:
    """The batch of rollouts that are given by their tickets and entropies."""
    rows, start = [], 0
    for ticket, entropies in rollouts:
        ids = list(token_id[start : start + len(entropies)]) or list(range(len(entropies)))
        rows.append(row(ticket, len(entropies), token_ids=ids, entropies=list(entropies)))
        start += len(entropies)
    found = token_batch(4, rows)
    assert found is not None
    return found


def test_injected_tokens_and_rollouts_without_entropies_are_left_out() -> None:
    rows = [row(1, 4, injected=[{"start": 1, "end": 3}], entropies=[0.5, 9.0, 9.0, 0.25]), row(2, 3, entropies=None)]
    found = token_batch(7, [*rows, row(3, 1)])
    assert found is not None and found.step == 7 and found.ticket.tolist() == [1, 3]
    assert found.entropy.tolist() == [0.5, 0.25, 0.25] and found.rollout.tolist() == [0, 0, 1]
    assert found.token_id.tolist() == [10, 13, 10] and found.by_rollout().tolist() == [0.375, 0.25]
    assert token_batch(7, rows[1:]) is None
    assert token_batch(7, [row(1, 2, injected=[{"start": 0, "end": 2}])]) is None


def test_tokens_are_ranked_by_mean_entropy() -> None:
    tokenizer = byte_tokenizer()
    a, b, c = (tokenizer.encode(letter)[0] for letter in "abc")
    lists = token_lists(batch((0, [0.5, 0.1, 0.3, 0.9, 0.2]), token_id=[a, b, a, c, b]), tokenizer)
    assert [(kind.text, kind.seen) for kind in lists.highest] == [("c", 1), ("a", 2)]
    assert [(kind.text, kind.seen) for kind in lists.lowest] == [("b", 2)]
    assert lists.highest[1].entropy == pytest.approx(0.4)
    assert lists.kinds == 3


def test_of_many_kinds_each_list_has_a_hundred_and_seldom_ones_are_left_out() -> None:
    ids = [token for token in range(250) for _ in range(5)] + [250]
    lists = token_lists(batch((0, [token / 100 for token in ids]), token_id=ids), byte_tokenizer())
    assert (len(lists.highest), len(lists.lowest), lists.kinds, lists.at_least) == (100, 100, 250, 5)
    assert lists.highest[0].entropy == pytest.approx(2.49) and lists.lowest[0].entropy == 0.0


def test_a_token_alone_shows_its_spaces() -> None:
    tokenizer = byte_tokenizer()
    space, line, half = tokenizer.encode(" ")[0], tokenizer.encode("\n")[0], tokenizer.encode("é")[0]
    assert token_text(tokenizer, space) == "␣" and token_text(tokenizer, line) == "↵"
    assert token_text(tokenizer, half) == tokenizer.convert_ids_to_tokens(half)


def test_a_prompt_has_the_mean_of_its_tokens() -> None:
    assert prompt_means(batch((3, [1.0]), (3, [2.0, 3.0, 4.0]), (7, [0.5, 1.5]))) == {3: 2.5, 7: 1.0}


def test_one_threshold_favours_responses_of_high_entropy() -> None:
    # The 80 % quantile of the ten is 1.0, which three of the five tokens of the second response reach.
    low, high = threshold_shares(batch((0, [0.0, 0.0, 0.0, 0.0, 0.9]), (0, [0.5, 0.5, 1.0, 1.0, 1.0])))
    assert low == 0.0 and high == pytest.approx(0.6)


def test_thinning_keeps_all_of_few_and_the_same_of_many() -> None:
    assert thinned(5, 10).tolist() == [0, 1, 2, 3, 4]
    many = thinned(1000, 10)
    assert len(set(many.tolist())) == 10 and many.tolist() == thinned(1000, 10).tolist()
