"""Table, figure and numbers of an ablation, written beside its runs."""

from __future__ import annotations

import json
from pathlib import Path

from strop.base.files import write_text
from strop.lab.ablation import table
from strop.lab.ablation.collect import Ablation

MARKDOWN, CSV, JSON, FIGURE = "table.md", "table.csv", "results.json", "figure.png"


def write_report(found: Ablation) -> list[Path]:
    """Write table.md, table.csv, results.json, figure.png and figure.svg once something was evaluated, and the
    linearised figure beside it once fits of two variants can be compared.

    Returns:
        What was written.
    """
    folder = found.folder
    written: list[Path] = []
    if any(run.curve is not None for variant in found.variants for run in variant.runs):
        from strop.report.figures.ablation import plot_ablation  # matplotlib takes its time to load

        written += plot_ablation(found, folder / FIGURE)
    linearised = None
    if found.asymptote is not None:
        from strop.report.figures.scaling import linearised_beside, plot_linearised

        target = linearised_beside(folder / FIGURE)
        written += plot_linearised({variant.name: variant.refits for variant in found.variants}, target)
        linearised = target.name
    texts = {
        MARKDOWN: table.as_markdown(found, FIGURE if written else None, linearised),
        CSV: table.as_csv(found),
        JSON: json.dumps(table.as_json(found), indent=2, ensure_ascii=False, allow_nan=False) + "\n",
    }
    for name, text in texts.items():
        write_text(folder / name, text)
    return [folder / name for name in texts] + written
