"""What is compared: grids, named changes, leaving one out."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.lab.ablation.cases import write_base
from tests.runs import small_config

from strop.base.types import InputError
from strop.config.parse import edit
from strop.lab.ablation.variants import VariantRequest, differences, split, variants


@pytest.fixture
def small(tmp_path: Path) -> str:
    return str(write_base(tmp_path))


def test_a_grid_is_the_product_without_the_base_itself(small: str) -> None:
    grid = ("optim.lr=1e-3,2e-3", "batch.samples_per_prompt=4,2")
    found = variants(small, VariantRequest(grid=grid))
    assert [variant.name for variant in found.all] == [
        "base", "lr=1e-3,samples_per_prompt=2", "lr=2e-3,samples_per_prompt=4", "lr=2e-3,samples_per_prompt=2",
    ]  # fmt: skip
    assert [(v.config.optim.lr, v.config.batch.samples_per_prompt) for v in found.all] == [
        (1e-3, 4), (1e-3, 2), (2e-3, 4), (2e-3, 2),
    ]  # fmt: skip
    assert found.all[1].changes == {"batch.samples_per_prompt": ("4", "2")}
    assert found.all[1].folder == "lr=1e-3-samples_per_prompt=2"
    assert len(found.notes) == 1 and "is the base itself" in found.notes[0]


def test_a_named_variant_changes_several_settings(small: str) -> None:
    text = 'both:algorithm.loss={piece="PpoClip", clip_high=0.28},optim.lr=2e-3'
    (_, found) = variants(small, VariantRequest(named=(text,))).all
    assert found.name == "both" and found.config == edit(
        small_config(), ['algorithm.loss={piece="PpoClip", clip_high=0.28}', "optim.lr=2e-3"]
    )
    assert found.changes["optim.lr"] == ("0.001", "0.002")


def test_sets_hold_for_every_variant(small: str) -> None:
    found = variants(small, VariantRequest(grid=("optim.lr=2e-3",)), ["steps=9"])
    assert [variant.config.steps for variant in found.all] == [9, 9]


def test_another_piece_is_one_difference() -> None:
    base = small_config()
    other = edit(base, ["algorithm.aggregation=PromptMean", "seed=3"])
    found = differences(base, other)
    assert list(found) == ["algorithm.aggregation"]
    assert found["algorithm.aggregation"][1].startswith("PromptMean")


def test_a_recipe_declares_what_may_be_left_out_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    from strop.recipes import grpo

    declared = {"grpo.loo_slow": ("Slow.", "grpo", "optim.lr=1e-7"), "grpo.other": ("Other.", "grpo")}
    monkeypatch.setattr(grpo, "VARIANTS", declared, raising=False)
    found = variants("grpo", VariantRequest(leave_one_out=True))
    assert [variant.name for variant in found.all] == ["base", "slow"]
    assert list(found.all[1].changes) == ["optim.lr"]


@pytest.mark.parametrize(
    ("wanted", "expected"),
    [
        (VariantRequest(), "--leave-one-out"),
        (VariantRequest(leave_one_out=True), r"grpo\.loo_NAME"),
        (VariantRequest(grid=("optim.lr",)), "--grid 'optim.lr'"),
        (VariantRequest(grid=("optim.lr=1", "optim.lr=2")), r"optim\.lr"),
        (VariantRequest(grid=("optim.lx=1",)), r"--grid: .*optim\.lx"),
        (VariantRequest(grid=("seed=1,2",)), "--seeds"),
        (VariantRequest(grid=("optim.lr=1e-3",)), "small.json"),
        (VariantRequest(named=("a",)), "--variant 'a'"),
        (VariantRequest(named=("a:optim.lr=2", "a:optim.lr=3")), "'a'"),
        (VariantRequest(named=("base:optim.lr=2",)), "'base'"),
    ],
)
def test_refusals(small: str, wanted: VariantRequest, expected: str) -> None:
    target = "grpo" if wanted.leave_one_out else small
    with pytest.raises(InputError, match=expected):
        variants(target, wanted)


def test_commas_in_brackets_and_quotes_part_nothing() -> None:
    assert split('{piece="A", b=[1, 2]},"x,y", 3,') == ['{piece="A", b=[1, 2]}', '"x,y"', "3"]


@given(st.lists(st.text("abc=.0", min_size=1), max_size=5))
def test_splitting_undoes_joining(parts: list[str]) -> None:
    assert split(",".join(parts)) == parts
