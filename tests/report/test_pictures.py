"""One drawing, two files: a PNG beside the page, an SVG in it that follows the page's colours."""

from pathlib import Path
from typing import TYPE_CHECKING

from strop.report.catalogue import GROUPS
from strop.report.curves import draw_curves
from strop.report.pictures import INK, SERIES, Studio, short
from strop.report.runs import read_runs
from strop.run.folder import RunFolder

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def _draw(axes: "Axes") -> None:
    axes.plot([0, 1], [0, 1], color=SERIES[1], label="<b>&$x")
    axes.set_title("</svg><script>alert(1)</script>", color=INK)
    axes.legend()


def test_a_picture_is_a_png_and_an_svg_of_theme_colours(tmp_path: Path) -> None:
    studio = Studio(tmp_path, "a")
    picture = studio.picture("line", "A line", "", _draw, _draw)
    assert picture.png == "a/line.png" and studio.written == [tmp_path / "a" / "line.png"]
    assert studio.written[0].read_bytes().startswith(b"\x89PNG")
    assert len(picture.svgs) == 2
    for svg in picture.svgs:
        assert svg.startswith('<svg viewBox="0 0 ') and svg.rstrip().endswith("</svg>")
        assert "var(--s1)" in svg and "var(--ink)" in svg and SERIES[1] not in svg
        assert "<style" not in svg and "<metadata" not in svg and 'id="axes_1"' not in svg
        assert "<script" not in svg and "&lt;script&gt;" in svg and "&lt;b&gt;&amp;$x" in svg


def test_the_same_figures_give_the_same_svg_and_two_pictures_share_no_name(tmp_path: Path) -> None:
    studio = Studio(tmp_path)
    one, again, other = (studio.picture(key, "", "", _draw).svgs[0] for key in ("one", "one", "other"))
    assert one == again and one != other


def test_numbers_are_short() -> None:
    assert [short(value) for value in (0.25, 1500.0, 2.5e12, 3e-7, -20.0)] == ["0.25", "1.5k", "2.5T", "3e−7", "−20"]


def test_of_several_metrics_the_only_one_that_is_known_is_named(tmp_path: Path) -> None:
    folder = RunFolder.create(tmp_path / "run", {"recipe": "grpo"})
    for step in (1, 2):
        folder.append_metrics(step, {"length/correct": 3.0 + step})
    folder.close()
    curves = next(each for _, group in GROUPS for each in group if each.key == "length-correct")
    picture = draw_curves(curves, read_runs([tmp_path / "run"]), Studio(tmp_path))
    assert ">correct<" in picture.svgs[0] and ">reflective<" not in picture.svgs[0]
