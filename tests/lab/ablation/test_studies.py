"""The papers' studies: what their lines change, that every one of them runs, and how they are found."""

import json
from functools import partial
from pathlib import Path

import pytest
from tests.prepare.working import write_lines
from tests.recipes import bases
from typer.testing import CliRunner

from strop.algorithms.regularizers import EntropyBonus, KlPenalty
from strop.base.types import InputError, Problem
from strop.base.view import SilentView
from strop.cli import app
from strop.config import tiny
from strop.config.schema import RunConfig
from strop.lab.ablation.manifest import Manifest, write_manifest
from strop.lab.ablation.studies import listing, studies
from strop.lab.ablation.variants import Variant, VariantRequest, variants
from strop.model.settings import EMBEDDED, EMBEDDED_EXPERTS
from strop.prepare import Source
from strop.run.run import train

FEW = ("--set", "evaluation.samples_per_problem=1", "--set", 'data.source={piece="ChainSum", count=64}')
# Their problems are sums as the base's, or with 8 prompts and 4 samples they are as small as another variant.
LEFT_OUT = {"deepscaler_mixture", "math_7.5k", "english_only", "1_16_16_1", "group_4"}


def of(name: str, small: bool = False) -> dict[str, Variant]:
    found = variants(studies()[name].recipe, VariantRequest(study=name), (), small)
    assert not found.notes or small
    return {variant.name: variant for variant in found.all}


def learning(config: RunConfig) -> tuple[int, int, int, int]:
    """N_SGD, D_R, D_T and N_reuse of Skywork-OR1."""
    batch = config.batch
    updates, passes = batch.updates_per_step, batch.passes_per_batch
    return updates * passes, batch.prompts_per_step, batch.prompts_per_step // updates, passes


@pytest.mark.parametrize("name", studies())
def test_every_line_of_a_study_changes_its_base(name: str) -> None:
    assert list(of(name)) == ["base", *(line.name for line in studies()[name].variants)]
    assert all(line.paper for line in studies()[name].variants)


def test_the_quadruples_of_the_entropy_study_are_those_of_their_names() -> None:
    found = of("entropy_collapse")
    assert learning(found["base"].config) == (1, 64, 64, 1)
    named = [name for name in found if name[0].isdigit()]
    assert len(named) == 11
    for name in named:
        assert learning(found[name].config) == tuple(int(part) for part in name.split("_")[:4])
    config = found["base"].config
    assert (config.batch.samples_per_prompt, config.sampling.max_new_tokens) == (16, 16384)
    assert not config.algorithm.regularizers and not config.stages


def test_in_the_tiny_form_sizes_keep_their_proportions() -> None:
    found = of("entropy_collapse", small=True)
    sizes = {name: (*learning(found[name].config), found[name].config.batch.samples_per_prompt) for name in found}
    assert sizes["base"] == (1, 16, 16, 1, 8) and sizes["1_16_16_1"] == (1, 4, 4, 1, 8)
    assert sizes["4_256_64_1"] == (4, 64, 16, 1, 8) and sizes["group_4"] == (1, 16, 16, 1, 2)
    assert found["base"].config.steps == found["group_4"].config.steps == tiny.STEPS
    eight = of("design_choices", small=True)["off_policy_8"].config
    assert (eight.steps, eight.batch.prompts_per_step, eight.batch.updates_per_step) == (2, 128, 8)


def test_two_stages_share_the_first_one() -> None:
    weights = []
    for variant in of("kl_loss").values():
        kl = [stage.algorithm.regularizers[1] for stage in variant.config.stage_configs()]
        weights.append([each.beta for each in kl if isinstance(each, KlPenalty)])
    assert weights == [[1e-3, 0.0], [1e-3, 1e-3]]
    for name, variant in of("entropy_coefficient").items():
        first, second = variant.config.stage_configs()
        assert first.algorithm.regularizers[0].piece_name() == "AdaptiveEntropy"
        assert second.algorithm.regularizers == (EntropyBonus(coefficient=float(name.replace("base", "1e-4"))),)
        assert learning(first) == (2, 256, 128, 1) and learning(second) == (2, 64, 32, 1)


def test_english_only_drops_problems_with_chinese_characters(tmp_path: Path) -> None:
    rows = [{"0": {"value": text}, "1": {"ground_truth": {"value": "6"}}} for text in ("36 的平方根", "The root of 36")]
    where = of("gae_kl_data")["english_only"].changes["data.source.where"][1]
    source = Source(mapping="orz-57k", path=str(write_lines(tmp_path / "orz.jsonl", rows)), where=where)
    assert [problem.prompt for problem in source.problems() if isinstance(problem, Problem)] == ["The root of 36"]


@pytest.mark.timeout(600)  # a worker may wait for another to make the base
@pytest.mark.parametrize("name", studies())
def test_a_study_runs(
    name: str, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its runs are made in this process, where the command finds them; a step of each stage, on 8 prompts × 4."""
    study, shared = studies()[name], tmp_path_factory.getbasetemp()
    shared = shared.parent if shared.name.startswith("popen-") else shared
    bases.make(EMBEDDED_EXPERTS if name == "scout_fp32" else EMBEDDED, shared, monkeypatch)
    monkeypatch.setattr("strop.recipes.resolve.tiny", partial(tiny.tiny, steps=1))
    monkeypatch.setattr(tiny, "PROMPTS", 8)
    monkeypatch.setattr(tiny, "SAMPLES", 4)
    out = tmp_path / "out"
    arguments = ["ablate", study.recipe, "--study", name, "--tiny", *FEW, "--out", str(out)]
    said = CliRunner().invoke(app, [*arguments, "--dry-run", "--json"], catch_exceptions=False)
    manifest = Manifest.model_validate_json(said.stdout)
    write_manifest(out, manifest)
    for run in manifest.runs:
        train(manifest.config(run), manifest.path(out, run), SilentView())
    said = CliRunner().invoke(app, [*arguments, "--json"], catch_exceptions=False)
    left_out = {note.partition(":")[0] for note in manifest.notes}
    assert left_out <= LEFT_OUT
    rows = {row["variant"]: row for row in json.loads(said.stdout)["variants"]}
    assert rows.keys() == {"base", *(line.name for line in study.variants)} - left_out
    assert all(row["final"]["mean"] is not None for row in rows.values())  # of runs that are finished


def test_studies_are_listed() -> None:
    assert "clip_ranges (of archer.code)" in listing()
    with pytest.raises(InputError, match="did you mean 'clip_ranges'.*kl_weight"):
        variants("archer.code", VariantRequest(study="clip_range"))
    assert CliRunner().invoke(app, ["ablate", "archer.code", "--study", "list"]).stdout.strip() == listing()
