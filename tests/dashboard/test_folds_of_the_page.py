"""What folds in a completion on the page, run by node with elements that are lists of what is in them."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

import strop.dashboard

NODE = shutil.which("node")
COMPLETIONS = Path(strop.dashboard.__file__).parent / "static" / "completions.js"
# Folds are [title, …], all other elements their texts, which are put together.
ELEMENTS = """
class Element {
  constructor(tag, kids) { this.tag = tag; this.kids = kids; }
  append(...kids) { this.kids.push(...kids); }
  get shown() {
    const found = [];
    for (const kid of this.kids.flatMap(kid => typeof kid === "string" ? [kid] : kid.shown)) {
      const joins = this.tag !== "details" && typeof kid === "string" && typeof found.at(-1) === "string";
      found.push(joins ? found.pop() + kid : kid);
    }
    return this.tag === "details" ? [found] : found;
  }
}
const el = (tag, given, ...kids) => new Element(tag, kids);
"""

pytestmark = pytest.mark.skipif(NODE is None, reason="needs node")


def folds(*tokens: tuple[str, int | None, bool]) -> Any:
    """The completion of these tokens (text, turn, whether an environment said it) as the page folds it."""
    turns = sorted({turn for _, turn, _ in tokens if turn})
    told = [{"text": text, "turn": turn, "said": said, "injected": said} for text, turn, said in tokens]
    found = json.dumps({"tokens": told, "turns": turns, "length": len(told)})
    script = f"{ELEMENTS}{COMPLETIONS.read_text()}\nconst made = new Element('div', parts({found}));"
    assert NODE is not None
    done = subprocess.run(
        [NODE, "-"], input=f"{script}\nconsole.log(JSON.stringify(made.shown))", capture_output=True, text=True,
        check=True,
    )  # fmt: skip
    return json.loads(done.stdout)


def test_calls_of_tools_fold_within_their_turn() -> None:
    call = [("<tool_call>", 0, False), ("{}", 0, False), ("</tool_call>", 0, False)]
    later = (("42", 0, True), ("It is ", 1, False), ("42.", 1, False))
    answered = [["the answer to turn 1", "42"], ["turn 2", "It is 42."]]
    folded = ["a call of a tool", "<tool_call>{}</tool_call>"]
    assert folds(*call, ("<eos>", 0, False), *later) == [["turn 1", folded, "<eos>"], *answered]
    assert folds(("See: ", 0, False), *call, *later) == [["turn 1", "See: ", folded], *answered]
    assert folds(("See: ", 0, False), *call, (" so", 0, False), *later) == [
        ["turn 1", "See: ", folded, " so"], *answered,
    ]  # fmt: skip


def test_a_single_turn_has_no_fold_of_its_own() -> None:
    assert folds(("It ", None, False), ("is 4", None, False)) == ["It is 4"]
    assert folds(("<tool_call>", None, False), ("{}", None, False)) == [["a call of a tool", "<tool_call>{}"]]
