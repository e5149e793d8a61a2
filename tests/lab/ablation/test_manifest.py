"""What a folder remembers of its ablation, and what it refuses."""

from pathlib import Path

import pytest
from tests.lab.ablation.cases import small_plan, write_run

from strop.base.types import InputError
from strop.lab.ablation.manifest import held, merged, read_manifest, write_manifest

SLOW, HOT = "slow:optim.lr=1e-4", "hot:sampling.temperature=1.5"


def test_seeds_are_paired_over_all_variants(tmp_path: Path) -> None:
    found = small_plan(tmp_path, (3, 5), [SLOW, HOT])
    assert [(run.seed, run.variant) for run in found.runs] == [
        (3, "base"), (3, "slow"), (3, "hot"), (5, "base"), (5, "slow"), (5, "hot"),
    ]  # fmt: skip
    configs = [found.config(run) for run in found.runs]
    assert [config.seed for config in configs] == [3, 3, 3, 5, 5, 5]
    assert len({config.data.model_dump_json() for config in configs}) == 1
    assert [config.optim.lr for config in configs] == [1e-3, 1e-4, 1e-3] * 2


def test_seeds_and_variants_may_be_added(tmp_path: Path) -> None:
    out = tmp_path / "out"
    first = small_plan(tmp_path, (0,), [SLOW])
    write_manifest(out, first.marked(first.runs[1], "failed", "no luck"))
    found = merged(out, small_plan(tmp_path, (0, 1), [SLOW, HOT]))
    assert len(found.runs) == 6
    assert [run.error for run in found.runs if run.state == "failed"] == ["no luck"]


@pytest.mark.parametrize(
    ("seeds", "named", "sets", "named_in_it"),
    [
        ((0, 1), ["slow:optim.lr=2e-4"], (), r"slow .*optim\.lr=0\.0001"),
        ((0, 1), [SLOW], ("steps=5",), "base .*steps=4"),
        ((0, 1), [HOT], (), "variant slow"),
        ((0,), [SLOW], (), "seed 1"),
    ],
)
def test_a_changed_definition_is_refused(
    tmp_path: Path, seeds: tuple[int, ...], named: list[str], sets: tuple[str, ...], named_in_it: str
) -> None:
    out = tmp_path / "out"
    write_manifest(out, small_plan(tmp_path, (0, 1), [SLOW]))
    with pytest.raises(InputError, match=named_in_it) as caught:
        merged(out, small_plan(tmp_path, seeds, named, *sets))
    assert "\n" not in str(caught.value) and "--out" in str(caught.value)


def test_states_are_read_from_the_runs(tmp_path: Path) -> None:
    out = tmp_path / "out"
    found = small_plan(tmp_path, (0,), [SLOW, HOT])
    for run in found.runs[1:]:
        found = found.marked(run, "running")
    write_manifest(out, found)
    write_run(out, found, found.runs[0], [0.1, 0.2])
    write_run(out, found, found.runs[1], [0.1, 0.2], finish=False)
    assert [run.state for run in read_manifest(out).runs] == ["finished", "stopped", "stopped"]
    with held(out):
        assert [run.state for run in read_manifest(out).runs] == ["finished", "running", "running"]
        with pytest.raises(InputError, match=str(out)), held(out):
            pass


def test_folders_that_hold_something_else_are_refused(tmp_path: Path) -> None:
    found = small_plan(tmp_path, (0,), [SLOW])
    with pytest.raises(InputError, match=str(tmp_path)):
        merged(tmp_path, found)
    with pytest.raises(InputError, match="ablation.json"):
        read_manifest(tmp_path)
    (tmp_path / "ablation.json").write_text('{"recipe": "x"}')
    with pytest.raises(InputError, match="ablation.json: seeds"):
        read_manifest(tmp_path)
