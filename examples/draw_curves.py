"""Some curves of a run side by side, as one small picture; docs/curves.md has four of them.

python examples/draw_curves.py runs/quickstart
python examples/draw_curves.py runs/quickstart curves.png pass_rate,evaluation/pass_rate lag/mean ratio/max
"""

import sys

from matplotlib.figure import Figure

import strop

if len(sys.argv) < 2:
    raise SystemExit(__doc__)
run = strop.load(sys.argv[1])
picture = sys.argv[2] if len(sys.argv) > 2 else "curves.png"
panels = sys.argv[3:] or ["pass_rate,evaluation/pass_rate", "entropy", "length/mean", "groups/zero_variance_share"]
metrics = run.metrics.to_pydict()
if unknown := [name for panel in panels for name in panel.split(",") if name not in metrics]:
    raise SystemExit(f"{run.path} has no {', '.join(unknown)}; it has {', '.join(metrics)}")
figure = Figure(figsize=(3.0 * len(panels), 2.4), layout="constrained")
for axes, names in zip(figure.subplots(1, len(panels), squeeze=False)[0], panels, strict=True):
    for name in names.split(","):
        rows = zip(metrics["step"], metrics[name], strict=True)
        points = [(step, value) for step, value in rows if value is not None]
        axes.plot(*zip(*points, strict=True), marker="o" if len(points) < 10 else None, label=name)
    axes.update_datalim([(metrics["step"][0], 0)])  # from 0, with a margin: a curve at 0 is not hidden by the frame
    axes.autoscale_view()
    axes.set_xlabel("step")
    axes.legend(fontsize=7, frameon=False)
    axes.grid(alpha=0.3)
figure.savefig(picture, dpi=100)
print(picture)
