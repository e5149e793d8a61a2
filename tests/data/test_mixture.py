"""Mixtures: sources that number their problems alike stay apart where they are given domains."""

from __future__ import annotations

import pytest
from tests.runs import small_config

from strop.base.types import InputError
from strop.data.generators import ChainSum, Mixture
from strop.data.loading import assert_disjoint, load_data
from strop.data.settings import DataSettings, HeldOutSettings
from strop.model.files import byte_tokenizer
from strop.run.curriculum import Curriculum

SOURCES = (ChainSum(count=3, terms=4), ChainSum(count=3, terms=5))


def test_domains_keep_ids_apart() -> None:
    problems = Mixture(sources=SOURCES, domains=("math", "code")).load()
    assert [problem.id for problem in problems][2:4] == ["math/chain_sum-2", "code/chain_sum-0"]
    assert [problem.domain for problem in problems] == ["math"] * 3 + ["code"] * 3
    assert problems[3].question == SOURCES[1].load()[0].question


def test_copies_of_a_problem_are_told_and_stay_on_one_side_of_the_split() -> None:
    source = Mixture(sources=(ChainSum(count=12, terms=4),), repeats=(3,))
    data = load_data(DataSettings(source=source, held_out=HeldOutSettings(count=4)), byte_tokenizer())
    assert data.held_out is not None and (len(data.held_out), data.held_out.different) == (4, 4)
    assert (len(data.train), data.train.different, data.removed) == (24, 8, 8)
    assert_disjoint(data.held_out.problems, data.train.problems)
    lines = data.report()
    assert lines[0].startswith("train: 24 problems (8 different ones) of ") and "held out: 4 problems of " in lines[1]


def test_a_problem_that_is_asked_no_more_is_not_asked_by_its_copies_either() -> None:
    config = small_config()
    problems = Mixture(sources=(ChainSum(count=5, terms=4),), repeats=(3,)).load()
    curriculum = Curriculum(config, problems)
    curriculum.retire([6])
    assert curriculum.sampler.retired == {1, 6, 11}


def test_without_domains_equal_ids_are_refused() -> None:
    with pytest.raises(InputError, match="'chain_sum-0'"):
        Mixture(sources=SOURCES).load()
