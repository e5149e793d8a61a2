"""Figures as files, and as SVGs in a page that follow its colours."""

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from strop.report.drawing import INK, SERIES, Chart, page_svg, percent_tick, short_number, write_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def _draw(axes: "Axes") -> None:
    axes.plot([0, 1], [0, 1], color=SERIES[1], label="<b>&$x")
    axes.set_title("</svg><script>alert(1)</script>", color=INK)


def test_the_svg_of_a_page_has_theme_colours_and_no_markup_of_a_run() -> None:
    svg = page_svg(Chart("line", "A line", "", _draw))
    assert svg.startswith('<svg viewBox="0 0 ') and svg.rstrip().endswith("</svg>")
    assert "var(--s1)" in svg and "var(--ink)" in svg and SERIES[1] not in svg
    assert "<style" not in svg and "<metadata" not in svg and 'id="axes_1"' not in svg
    assert "<script" not in svg and "&lt;script&gt;" in svg and "&lt;b&gt;&amp;$x" in svg


def test_the_same_drawing_gives_the_same_svg_and_two_figures_share_no_name() -> None:
    one, again, other = (page_svg(Chart(key, "", "", _draw)) for key in ("one", "one", "other"))
    assert one == again and one != other


def test_a_file_is_written_as_png_and_svg_and_the_same_each_time(tmp_path: Path) -> None:
    def write(name: str) -> list[bytes]:
        written = write_figure(tmp_path / name, (3, 2), lambda figure: _draw(figure.add_subplot()), svg=True)
        assert [path.suffix for path in written] == [".png", ".svg"]
        return [path.read_bytes() for path in written]

    first = write("deep/one.png")
    assert first[0].startswith(b"\x89PNG") and b"&lt;script&gt;" in first[1]
    assert first == write("two.svg")


def test_numbers_are_short() -> None:
    assert [short_number(value) for value in (0.25, 1500.0, 2.5e12, 3e-7, -20.0)] == [
        "0.25", "1.5k", "2.5T", "3e−7", "−20",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("share", "said"),
    [(0.425, "42.5%"), (0.4, "40%"), (0.1 + 0.2, "30%"), (-1e-17, "0%"), (0.0025, "0.25%"), (1, "100%")],
)
def test_a_tick_says_where_it_lies(share: float, said: str) -> None:
    assert percent_tick(share) == said
