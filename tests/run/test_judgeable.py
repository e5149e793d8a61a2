"""Problems that a verifier cannot judge, or judges as texts, are told before any model answers them."""

from __future__ import annotations

import json
import re
import tomllib
from pathlib import Path

import pytest
from tests.runs import small_config

from strop.base.types import InputError, Problem
from strop.base.view import SilentView
from strop.prepare import parse_config, prepare
from strop.run.judgeable import caution
from strop.run.questions import Preview, preview
from strop.run.run import train
from strop.verifiers.answer import Answer
from strop.verifiers.combined import ByDomain
from strop.verifiers.math_verifier import MathVerifier

FORMULAS = ("\\frac{1}{2}", "3x^2", "x_{1}", "1/2", "(1, 2)", "[0, 3)", "\\boxed{2\\sqrt{3}}", "some work #### 3/4")
OTHERS = ("72", "1,250", "-3.5", "$5", "\\$5", "3{,}000", "north_east", "a/b", "yes (or no)", "\\(1\\) #### 18", "C++")


class Notes(SilentView):
    """Keeps what is noted."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def note(self, text: str) -> None:
        self.lines.append(text)


@pytest.mark.parametrize("reference", [*FORMULAS, *OTHERS, 7, 0.5, ["1"]])
def test_formulas_are_compared_as_texts_by_answer_alone(reference: object) -> None:
    problem = Problem("p", "q", reference)
    assert (Answer().caution(problem) is not None) == (reference in FORMULAS)
    assert MathVerifier().caution(problem) is None
    mixed = ByDomain(members={"math": Answer(), "code": MathVerifier()})
    assert mixed.caution(problem) == Answer().caution(problem)
    assert all(mixed.caution(Problem("p", "q", reference, domain)) is None for domain in ("code", "unknown"))


def test_how_many_and_the_first_of_them() -> None:
    problems = [Problem(str(n), "q", text) for n, text in enumerate(("3", *FORMULAS, *OTHERS))]
    found = caution(Answer(), problems)
    assert found is not None and found[0] == f"{len(FORMULAS)} of {len(problems)} references, such as \\frac{{1}}{{2}}"
    assert "verifier=MathVerifier" in found[1]
    assert caution(Answer(), problems[:1]) is caution(MathVerifier(), problems) is None


def source(folder: Path, *answers: object) -> str:
    file = folder / "rows.jsonl"
    rows = [{"prompt": f"{n}+1=", "answer": answer} for n, answer in enumerate(answers)]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return f"data.source={file}"


def test_a_dry_run_and_a_run_say_it(tmp_path: Path) -> None:
    sets = (source(tmp_path, *FORMULAS, *"1234"), "data.held_out=none", "evaluation.every=none", "steps=1")
    for begin in (preview, lambda config, view: train(config, tmp_path / "run", view)):
        notes = Notes()
        warned = begin(small_config(*sets), notes)
        lines = [*notes.lines, *(warned.warnings if isinstance(warned, Preview) else ())]
        assert [line for line in lines if line.startswith("8 of 12 references, such as \\frac{1}{2}: ")]


STEP = '{ piece = "Verifiable", verifier = "Answer" }'
OUT = re.escape(f"strop data prepare with the step {STEP} mends or drops them, or choose another verifier")


@pytest.mark.parametrize("part", ["data.source", "data.held_out.source"])
def test_both_refuse_what_can_never_be_judged(part: str, tmp_path: Path) -> None:
    named = source(tmp_path, "1", ["2", "3"]).replace("data.source", part)
    sets = (named, *(("data.held_out=none", "evaluation.every=none") if part == "data.source" else ()))
    for begin in (preview, lambda config, view: train(config, tmp_path / "run", view)):
        with pytest.raises(InputError, match=f"1 of 2 .* the first of them 'rows-2': .*the reference is list; {OUT}"):
            begin(small_config(*sets), SilentView())


def test_what_is_refused_is_counted_over_both_parts_of_a_source(tmp_path: Path) -> None:
    """The way out of the message works, unless the verifier can judge nothing of the source."""
    lists = [["2", "3"], ["4", "5"], ["6", "7"]]
    every = ("data.held_out=none", "evaluation.every=none")
    sets = (source(tmp_path, "1", "2", "3", *lists), "data.held_out.count=3", "evaluation.every=none")
    with pytest.raises(InputError, match=f"rows.jsonl: Answer cannot judge 3 of 6 problems, the first .*; {OUT}"):
        preview(small_config(*sets), SilentView())
    files = {"sources": [{"path": str(tmp_path / "rows.jsonl")}], "out": str(tmp_path / "out")}
    prepare(parse_config(files | tomllib.loads(f"steps = [{STEP}]")), SilentView())
    mended = preview(small_config(f"data.source={tmp_path / 'out' / 'train.parquet'}", *every), SilentView())
    assert len(mended.data.train) == 3
    with pytest.raises(InputError, match="cannot judge 3 of 3 problems, .* the reference is list; choose another"):
        preview(small_config(source(tmp_path, *lists), *every), SilentView())
