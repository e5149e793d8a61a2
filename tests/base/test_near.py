"""What was probably meant, and when nothing was."""

from __future__ import annotations

import pytest

from strop.base.near import near, nearest
from strop.recipes import catalogue

RECIPES = [recipe.name for recipe in catalogue()]


@pytest.mark.parametrize(
    ("name", "known", "meant"),
    [
        ("gpro", ["grpo", "dapo"], "grpo"),
        ("GRPO", ["grpo", "grpo_on_policy"], "grpo"),
        ("lx", ["eps", "lr"], "lr"),
        ("lr", ["rl", "eps"], "rl"),
        ("aime23", ["aime24", "math500"], "aime24"),
        ("Dedup", ["Deduplicate", "DeduplicateByEmbedding"], "Deduplicate"),
        ("math_7b", RECIPES, "skywork_or1.math_7b"),
        ("open_reasoner.7b", RECIPES, "open_reasoner_zero.7b"),
        ("quickstrat", RECIPES, "quickstart"),
        ("max_tokens", ["max_new_tokens", "seed"], "max_new_tokens"),
        ("nope", RECIPES, None),
        ("nope", ["eps", "none"], "none"),
        ("a", ["b", "ab"], None),
        ("or", ["scalerl", "skywork_or1.7b"], None),
        ("", RECIPES, None),
        ("x" * 10_000, RECIPES, None),
    ],
)
def test_only_what_is_near_is_meant(name: str, known: list[str], meant: str | None) -> None:
    assert near(name, known) == meant


def test_what_is_known_is_listed_where_nothing_is_near() -> None:
    assert nearest("gpro", RECIPES) == "did you mean 'grpo'?"
    assert nearest("nope", ["b", "a"]) == "known: a, b"
    assert nearest("nope", [str(number) for number in range(10, 35)]).endswith(", 28, 29 and 5 more")
