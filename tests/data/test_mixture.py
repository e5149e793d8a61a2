"""Mixtures: sources that number their problems alike stay apart where they are given domains."""

from __future__ import annotations

import pytest

from strop.base.types import InputError
from strop.data.chain_sum import ChainSum
from strop.data.mixture import Mixture

SOURCES = (ChainSum(count=3, terms=4), ChainSum(count=3, terms=5))


def test_domains_keep_ids_apart() -> None:
    problems = Mixture(sources=SOURCES, domains=("math", "code")).load()
    assert [problem.id for problem in problems][2:4] == ["math/chain_sum-2", "code/chain_sum-0"]
    assert [problem.domain for problem in problems] == ["math"] * 3 + ["code"] * 3
    assert problems[3].question == SOURCES[1].load()[0].question


def test_without_domains_equal_ids_are_refused() -> None:
    with pytest.raises(InputError, match="two problems have the id 'chain_sum-0'"):
        Mixture(sources=SOURCES).load()
