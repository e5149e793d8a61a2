"""Small counterparts of figures of the papers, from tiny runs; docs/figures.md shows them. Takes some minutes.

python examples/paper_figures.py docs/figures
"""

import subprocess
import sys
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from PIL import Image

from strop.lab.scaling import Sigmoid
from strop.report.drawing import Draw, log_axis, percent_axis, write_panels
from strop.report.runs import read_runs
from strop.report.training_figures import training_charts

OUT = Path(sys.argv[1] if len(sys.argv) > 1 else "figures")
RUNS = Path("runs/figures")
SHRUNK, COLOURS = 0.5, 64  # of a small picture


def strop(*words: str | Path) -> None:
    """A command of strop."""
    subprocess.run([sys.executable, "-m", "strop", *map(str, words)], check=True)


def curves(changes: dict[str, Sigmoid]) -> Draw:
    """Curves of ScaleRL's Eq. 1, each with the pass rate at its C_mid."""
    hours = np.geomspace(100.0, 100_000.0, 200)

    def draw(axes: Axes) -> None:
        for name, curve in changes.items():
            (line,) = axes.plot(hours, curve.value(hours), label=name)
            axes.plot(curve.C_mid, curve.value(curve.C_mid), "o", color=line.get_color(), markersize=4)
        log_axis(axes, "x")
        percent_axis(axes)
        axes.set_xlabel("GPU-hours")

    return draw


def sigmoids(target: Path) -> None:
    """What B, C_mid and A do, and a recipe that is less efficient and ends higher (ScaleRL, Figures 3, 8 and 9)."""
    both = {"efficient": Sigmoid(0.55, 2.5, 1500.0, 0.15), "higher": Sigmoid(0.7, 1.5, 5000.0, 0.15)}
    panels = [
        ("8a: only B", {f"B = {b:g}": Sigmoid(0.61, b, 2500.0, 0.15) for b in (1.0, 2.0, 4.0)}),
        ("8b: only C_mid", {f"C_mid = {c:g}": Sigmoid(0.61, 2.0, c, 0.15) for c in (1000.0, 2500.0, 6000.0)}),
        ("9a: only A", {f"A = {a:g}": Sigmoid(a, 2.0, 2500.0, 0.15) for a in (0.5, 0.6, 0.7)}),
        ("9b: less efficient, and a higher A", both),
    ]
    title = "Eq. 1: the point lies at C_mid, where half of the gain is reached"
    write_panels(target, title, [(name, curves(of)) for name, of in panels], 2)


def trained(recipe: str, *sets: str) -> Path:
    """A tiny run of a recipe, made unless it is there."""
    run = RUNS / recipe
    if not (run / "summary.json").exists():
        strop("train", recipe, "--tiny", "--plain", "--out", run, *(word for each in sets for word in ("--set", each)))
    return run


def small(*pictures: Path) -> None:
    """Shrink PNGs and give them a palette."""
    for path in pictures:
        picture = Image.open(path).convert("RGB")
        size = (round(SHRUNK * picture.width), round(SHRUNK * picture.height))
        shrunk = picture.resize(size, Image.Resampling.LANCZOS)
        few = shrunk.quantize(COLOURS, Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE)
        few.save(path, optimize=True)
        print(f"{path}: {path.stat().st_size / 1000:.0f} kB")


OUT.mkdir(parents=True, exist_ok=True)
archer = trained("archer.math")
critic = trained("open_reasoner_zero.7b", "optim.lr=1e-2", "sampling.max_new_tokens=80")  # it ends in repetition
sigmoids(OUT / "sigmoid.png")
charts = [chart for _, group in training_charts(read_runs([archer])) for chart in group]
shown = [(chart.title, chart.draw) for chart in charts if chart.key in ("entropy", "entropy-flow")]
write_panels(OUT / "training.png", archer.name, shown)
for run, name in ((critic, "values"), (archer, "tokens"), (archer, "entropy"), (archer, "clip"), (archer, "mismatch")):
    strop("plot", run, "--figure", name, "--seen", "5", "--out", OUT / f"{name}.png")
verifiers = ("Answer", "ExactMatch", "MathVerifier", "MathVerify")
asked = [word for name in verifiers for word in ("--verifier", name)]
strop("verify", "compare", archer, *asked, "--plot", OUT / "verifiers.png")
(OUT / "verifiers.svg").unlink()
models = ("base=embedded", f"trained={archer}")
strop("eval", *models, "--benchmark", "held_out", "--samples", "8", "--out", RUNS / "evals")
(RUNS / "evals" / "plots" / "problems.png").replace(OUT / "problems.png")
small(*sorted(OUT.glob("*.png")))
