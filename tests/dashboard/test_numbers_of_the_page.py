"""The page's numbers, run by node: rounded as the terminal and the report round them, and axes that show no noise."""

from __future__ import annotations

import json
import random
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

import strop.dashboard
from strop.base.text import percent

NODE = shutil.which("node")
STATIC = Path(strop.dashboard.__file__).parent / "static"

pytestmark = pytest.mark.skipif(NODE is None, reason="needs node")


def page(expression: str) -> Any:
    """The value of an expression after the page's functions for numbers."""
    script = f"{(STATIC / 'numbers.js').read_text()}\nconsole.log(JSON.stringify({expression}))"
    assert NODE is not None
    found = subprocess.run([NODE, "-"], input=script, capture_output=True, text=True, check=True)
    return json.loads(found.stdout)


def test_numbers_are_rounded_as_in_the_terminal() -> None:
    draw = random.Random(0)
    values = [0.8125, 0.40625, 0.21875, 0.0, 1.0, 2.5e-5, 1234.5, 12344.5, 0.05, 0.0005]
    values += [count / of for of in (8, 16, 32, 64, 128, 1024) for count in range(1, of, max(1, of // 37))]
    values += [draw.uniform(0, 1) for _ in range(200)]
    assert page(f"{values}.map(percent)") == [percent(value).replace("%", " %") for value in values]
    shown = [float(text) for text in page(f"{values}.map(value => number(value))")]
    assert shown == [float(f"{value:.4g}" if value == 0 or value >= 1e-3 else f"{value:.2e}") for value in values]
    assert page("[0.8125, -0.40625, null, 3e5, 2.5e-5].map(value => number(value, 4))") == [
        "0.8125", "-0.4062", "–", "3.00e+5", "2.50e-5",
    ]  # fmt: skip


def test_float_noise_does_not_fill_an_axis() -> None:
    assert page("span(0.9999998, 1.0000004, 0.02)") == pytest.approx([0.99, 1.01], abs=1e-5)
    assert page("span(1, 1, 0.02)") == pytest.approx([0.99, 1.01])
    low, high = page("span(2048.0001, 2048.0002)")
    assert high - low > 2
    assert page("span(0.5, 1.5, 0.02)") == pytest.approx([0.44, 1.56])
    assert page("[span(null, null), span(0, 0), span(0, 1), span(3, 3)]") == [[0, 1], [0, 0.5], [0, 1.06], [2.5, 3.5]]


def test_ticks_can_be_told_apart() -> None:
    assert page("labels([0.99, 0.995, 1, 1.005, 1.01])") == ["0.99", "0.995", "1", "1.005", "1.01"]
    assert page("labels([1, 1.00001, 1.00002])") == ["1", "1.00001", "1.00002"]
    assert page("labels([0.0001001, 0.0001002])") == ["1.001e-4", "1.002e-4"]
    assert page("labels([0, 0.5, 1])") == ["0", "0.5", "1"]
