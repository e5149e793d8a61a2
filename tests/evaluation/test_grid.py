"""Tables of models × benchmarks, comparisons and the best model, by value; and the pictures of them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from tests.evaluation.results import keep, result

from strop.base.types import InputError
from strop.evaluation.grid import Column, Grid, compare, load_grid, value_of
from strop.evaluation.result import EvaluationResult
from strop.report.evaluation_report import draw_all, draw_transfer, pass_tables, table, write_report

PNG = b"\x89PNG\r\n"
EASY, HARD = [[1, 1], [1, 0], [1, 1], [1, 1]], [[0, 0], [1, 0], [0, 0], [0, 0]]


def grid(results: Mapping[tuple[str, str], EvaluationResult], domains: Sequence[str] = ("math", "math")) -> Grid:
    models = tuple(dict.fromkeys(model for model, _ in results))
    names = tuple(dict.fromkeys(name for _, name in results))
    columns = tuple(Column(name, name.upper(), domain) for name, domain in zip(names, domains, strict=False))
    return Grid(models, columns, results, dict.fromkeys(results, {"max_new_tokens": 100}))


def two_by_two() -> Grid:
    return grid(
        {
            ("base", "aime"): result(HARD),
            ("base", "lcb"): result(EASY),
            ("rl", "aime"): result(EASY),
            ("rl", "lcb"): result(EASY),
        },
        ("math", "code"),
    )


def test_the_table_is_that_of_the_papers() -> None:
    assert table(two_by_two(), ("avg", "pass")).splitlines() == [
        "| Model | AIME avg@2 | AIME pass@2 | LCB avg@2 | LCB pass@2 |     Avg. |",
        "| ----- | ---------: | ----------: | --------: | ---------: | -------: |",
        "| base  |       12.5 |        25.0 |  **87.5** |  **100.0** |     50.0 |",
        "| rl    |   **87.5** |   **100.0** |  **87.5** |  **100.0** | **87.5** |",
    ]


def test_pass_at_powers_of_two_stands_in_every_report(tmp_path: Path) -> None:
    """The unbiased estimate: of c right of 6, 1 − C(6 − c, k) / C(6, k)."""
    found = grid({("a", "x"): result([[1, 0, 0, 0, 0, 0]]), ("b", "x"): result([[1, 1, 0, 0, 0, 0]])})
    (lines,) = (text.splitlines() for text in pass_tables(found))
    assert [cell.strip() for cell in lines[0].split("|")[1:-1]] == ["X", "pass@1", "pass@2", "pass@4", "pass@6"]
    assert [cell.strip() for cell in lines[2].split("|")[1:-1]] == ["a", "16.7", "33.3", "66.7", "**100.0**"]
    assert [cell.strip(" *") for cell in lines[3].split("|")[1:-1]] == ["b", "33.3", "60.0", "93.3", "100.0"]
    write_report(found, tmp_path, pictures=False)
    assert "\n".join(lines) in (tmp_path / "report.md").read_text()


def test_a_benchmark_that_a_model_lacks_is_a_dash_and_there_is_no_average() -> None:
    lines = table(grid({("a", "x"): result(EASY), ("b", "y"): result(HARD)})).splitlines()
    assert lines[0].split("|")[1:-1] == [" Model ", " X avg@2 ", " Y avg@2 "]
    assert lines[2].split() == ["|", "a", "|", "87.5", "|", "–", "|"]


def test_values() -> None:
    found = result([[1, 1, 0, 0], [0, 0, 0, 1]])
    assert value_of(found, "avg") == 0.375
    assert value_of(found, "pass@2") == pytest.approx((5 / 6 + 1 / 2) / 2)
    assert value_of(found, "pass") == 1.0
    assert value_of(found, "maj") == pytest.approx(0.25)  # 1 and 0 tie on the first, 0 wins on the second
    assert value_of(found, "maj@2") == pytest.approx((0.5 + 0.25) / 2)
    with pytest.raises(InputError, match="pass@8"):
        value_of(found, "pass@8")
    with pytest.raises(InputError, match="maj@8"):
        value_of(found, "maj@8")


def test_an_error_of_a_metric_names_the_evaluation_that_has_too_few_samples(tmp_path: Path) -> None:
    found = grid({("rl", "aime"): result([[1, 1, 0, 0]]), ("rl", "gsm8k"): result([[1, 0]])})
    with pytest.raises(InputError, match="^rl on gsm8k: pass@4"):
        table(found, ("avg", "pass@4"))
    with pytest.raises(InputError, match="^rl on gsm8k: pass@4"):
        write_report(found, tmp_path, ("pass@4",), pictures=False)


def test_a_majority_is_not_known_where_the_verifier_tells_no_answers(tmp_path: Path) -> None:
    """Of programs, and of rewards from Python: 0 % would look like a rate."""
    untold = replace(result(EASY), answers=((None, None),) * 4)
    assert value_of(untold, "maj") is None and untold.summary()["majority_rate"] is None
    assert value_of(replace(result([[0, 0]]), answers=((None, None),)), "maj") == 0.0  # nothing was right either
    both = grid({("base", "lcb"): untold, ("rl", "lcb"): result(EASY)})
    assert table(both, ("avg", "maj")).splitlines()[2].split()[-2] == "–"
    written = write_report(both, tmp_path, ("avg", "maj"), pictures=False)
    assert written["models"]["base"]["lcb"]["metrics"]["maj@2"]["value"] is None
    (line,) = [line for line in (tmp_path / "report.md").read_text().splitlines() if "maj@N" in line]
    assert line.split("|")[2].strip() == "–"


def test_a_table_says_of_how_many_problems_a_metric_is_where_the_verifier_failed(tmp_path: Path) -> None:
    """pass@N was that of the few problems with the most samples judged, one of the three here."""
    found = replace(result([[1, 0, 0, 0], [0, 0, 0, 1], [0, 0, 0, 0], [1, 1, 1, 1]]), first_failure="it hangs")
    found.usable[:3, 3] = False
    found.usable[2] = False
    assert value_of(found, "pass") == pytest.approx(2 / 3) and value_of(found, "avg") == pytest.approx((1 / 3 + 1) / 3)
    assert value_of(found, "pass@4") == 1.0
    written = write_report(grid({("rl", "aime"): found}), tmp_path, ("avg", "pass", "pass@4", "maj@2"), pictures=False)
    said = "the verifier failed on 6 of 16 samples of rl, which count in no rate; rates are over 3 of 4 problems"
    assert written["notes"] == [f"aime: {said}; pass@4 is over 1 of 4 problems; it hangs"]
    assert written["notes"][0] in (tmp_path / "report.md").read_text()
    assert result(EASY).failed("rl", {"pass@2": 2}) == ""


def test_comparison_is_paired() -> None:
    rows = compare(two_by_two(), "base", "rl")
    assert [(row.benchmark, row.gain) for row in rows] == [("aime", 0.75), ("lcb", 0.0), ("Avg.", 0.375)]
    aime, lcb, mean = rows
    assert (aime.problems, mean.problems) == (4, 8)
    assert aime.p_value == pytest.approx(2 / 8, abs=0.02)  # three problems differ, all for the better
    assert lcb.interval == pytest.approx((-0.602, 0.602), abs=1e-3) and lcb.p_value == 1.0  # 1 - 0.025^(1/4)
    assert mean.interval == (0.125, 0.5)  # 5 % of resamples of the four gains [1, 0, 1, 1] hold one 1 or none
    with pytest.raises(InputError, match="'base'"):
        compare(two_by_two(), "basee", "rl")


A = {"1": ["1", "9"], "2": ["2", "2"], "3": ["9", "9"]}
B = {"1": ["1", "1"], "2": ["2", "9"], "3": ["3", "3"]}


def test_a_report_from_kept_samples_alone(tmp_path: Path) -> None:
    for folder, model, answers in (("one", "base", A), ("two", "rl", B)):
        keep(tmp_path / folder, answers, model, "x")
        keep(tmp_path / folder, answers, model, "y")
    found = load_grid([tmp_path / "one", tmp_path / "two"])
    assert found.models == ("base", "rl") and [column.title for column in found.columns] == ["X", "Y"]
    value = write_report(found, tmp_path, ("avg", "maj@1"), baseline="rl")
    stored = json.loads((tmp_path / "results.json").read_text())
    assert stored["averages"]["rl"]["value"] == pytest.approx(5 / 6)
    assert stored["models"]["base"]["x"]["pass_rate"] == 0.5
    assert [(row["after"], row["benchmark"], round(row["gain"], 4)) for row in stored["comparisons"]] == [
        ("base", "x", -0.3333), ("base", "y", -0.3333), ("base", "Avg.", -0.3333),
    ]  # fmt: skip
    text = (tmp_path / "report.md").read_text()
    assert "| rl    | **83.3** |" in text and "X avg@2" in text
    names = sorted(Path(path).name for path in value["pictures"])
    assert names == ["budget.png", "problems.png", "transfer.png"]
    for path in value["pictures"]:
        assert Path(path).read_bytes().startswith(PNG)


def test_one_model_needs_no_comparison(tmp_path: Path) -> None:
    value = write_report(grid({("only", "x"): result(EASY)}), tmp_path)
    assert value["comparisons"] == [] and value["averages"] == {}
    assert [Path(path).name for path in value["pictures"]] == ["budget.png"]


def test_reports_refuse(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=str(tmp_path)):
        load_grid([tmp_path])
    with pytest.raises(InputError, match="nowhere"):
        load_grid([tmp_path / "nowhere"])
    keep(tmp_path, A)
    with pytest.raises(InputError, match=str(tmp_path)):
        load_grid([tmp_path, tmp_path])
    with pytest.raises(InputError, match="--baseline rl"):
        write_report(load_grid([tmp_path]), tmp_path, baseline="rl")
    apart = grid({("a", "x"): result(EASY), ("b", "y"): result(HARD)})
    with pytest.raises(InputError):
        draw_transfer(apart, tmp_path / "transfer.png")
    assert [path.name for path in draw_all(apart, tmp_path / "plots", "a")] == ["budget.png"]


def test_what_makes_columns_less_comparable_is_said() -> None:
    made = two_by_two()
    assert made.notes() == []
    drawn = "temperature 1, top-p 1, up to"
    assert made.sampled() == [f"Sampled at {drawn} 100 tokens: AIME, LCB"]
    sampling = {**made.sampling, ("rl", "lcb"): {"max_new_tokens": 200}}
    left_out = {("base", "aime"): 3, ("rl", "aime"): 0, ("rl", "lcb"): 1}
    assert replace(made, sampling=sampling, left_out=left_out).notes() == [
        "LCB: max_new_tokens is not the same for all models: base 100, rl 200",
        "aime: 3 problems left out, base has no room for their prompts",
        "lcb: 1 problem left out, rl has no room for their prompts",
    ]
    assert replace(made, sampling=sampling).sampled() == [
        f"Sampled at {drawn} 100 tokens: AIME, LCB of base", f"Sampled at {drawn} 200 tokens: LCB of rl"
    ]  # fmt: skip


def test_models_with_less_room_are_compared_on_what_both_were_asked() -> None:
    found = grid({("short", "x"): result(HARD[:2]), ("long", "x"): result(EASY)})
    (row,) = compare(found, "short", "long")
    assert (row.problems, row.gain) == (2, 0.5)
