"""Numbers of the papers and of their code that are no setting of a recipe: defaults, limits, grids, texts."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from tests.algorithms.cases import tokens_of

from strop.algorithms.entropy_losses import ClipCov, KlCov, Opefo
from strop.algorithms.losses import Gspo
from strop.algorithms.rewards import LengthPenalty, OverlongShaping
from strop.algorithms.step_diagnostics import PATTERNS, WINDOW
from strop.algorithms.value import ValueLoss
from strop.engines.protocol import PHRASE
from strop.lab.scaling import FitSettings
from strop.lab.scaling.compare import MARGIN
from strop.model.settings import ModelSettings
from strop.prepare import Difficulty
from strop.verifiers.code_verifier import CodeVerifier
from strop_verify.code.runners import ProgramSettings
from strop_verify.sandbox import Limits


@pytest.mark.parametrize(("tests", "seconds"), [(1, 12.0), (2, 19.0), (42, 299.0), (43, 300.0), (500, 300.0)])
def test_seconds_of_a_program_under_skyworks_sandbox(tests: int, seconds: float) -> None:
    # min(7 n + 5, 300) for n tests, 6 of each
    assert ProgramSettings(Limits()).total(tests) == seconds
    assert ProgramSettings(Limits()).test_seconds == CodeVerifier().test_seconds == 6.0
    assert CodeVerifier().total_seconds is None


@pytest.mark.parametrize("samples", [16, 8])
def test_skyworks_filter_keeps_what_is_solved_sometimes(samples: int) -> None:
    # 1 to 15 of 16 (math), 1 to 7 of 8 (code)
    kept = Difficulty(model=ModelSettings(path="m"), samples=samples)
    assert (kept.min_correct, kept.highest) == (1, samples - 1)


@pytest.mark.parametrize(("share", "penalised"), [(0.002, 20), (0.0002, 2)])
def test_kl_covs_shares_for_7b_and_32b(share: float, penalised: int) -> None:
    draw = torch.Generator().manual_seed(0)
    logprob = -torch.rand(10_000, generator=draw, dtype=torch.float64)
    tokens = tokens_of(torch.randn(10_000, generator=draw, dtype=torch.float64), logprob, scored_logprob=logprob)
    plan = KlCov(share=share).prepare(tokens, 0).plan
    assert plan is not None and int(plan.sum()) == penalised
    assert (ClipCov().share, ClipCov().low, ClipCov().high) == (2e-4, 1.0, 5.0)
    assert KlCov().share == 0.002 and KlCov().coefficient == 1.0


def test_scalerls_gspo_has_both_of_its_upper_bounds() -> None:
    # A.18.3: lower 3e-3, upper 4e-3 (here) or 5e-3 (the recipe)
    assert (Gspo().clip_low, Gspo().clip_high) == (3e-3, 4e-3)


def test_the_phrase_of_scalerls_section_4() -> None:
    assert PHRASE == "Okay, time is up. Let me stop thinking and formulate an answer now. </think>"


def test_budgets_of_length_shaping() -> None:
    assert (LengthPenalty().max_tokens, LengthPenalty().cache_tokens) == (14 * 1024, 2 * 1024)
    assert (OverlongShaping().max_tokens, OverlongShaping().buffer_tokens, OverlongShaping().factor) == (20480, 4096, 1)


def test_the_grid_of_scalerls_fit() -> None:
    grid = np.linspace(*FitSettings().a_grid)
    np.testing.assert_allclose(grid, np.arange(450, 801, 5) / 1000, atol=1e-12)
    assert MARGIN == 0.02


def test_what_open_reasoner_zero_counts() -> None:
    assert set(PATTERNS) == {"wait,", "recheck", "retry", "alternatively,", "however,"}
    assert (ValueLoss().clip, ValueLoss().scale) == (0.2, 0.5)


def test_archers_repetition_is_of_20_grams_and_opefos_power_is_2() -> None:
    assert WINDOW == 20
    assert (Opefo().power, Opefo().balance, Opefo().sides, Opefo().exact) == (2, None, "both", False)
