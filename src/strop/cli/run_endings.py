"""What a run prints when it has ended: the result, the curves, and what to type next."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import accumulate, pairwise
from pathlib import Path
from shlex import quote

from strop.base.imports import command
from strop.base.text import amount, duration, percent
from strop.cli.options import print_table
from strop.report.runs import interval_suffix, read_runs
from strop.report.training_figures import plot_run
from strop.run.folder import SUMMARY, RunFolder

PARTS = {
    "sft": "imitation", "evaluation": "evaluations", "rl": "RL", "other": "all else", "total": "together",
}  # fmt: skip


def report_quickstart(folder: Path) -> None:
    """The table of pass rates, the picture, and three commands to go on with."""
    run = RunFolder.open(folder)
    summary = run.read_json(SUMMARY)
    plays = run.read_json("config.json").get("environment") is not None
    problem = "237+682+967+921=" if plays else "7+5-3+8+2="
    low, high = summary["gain_interval"]
    seconds: Mapping[str, float] = summary["seconds"]
    rows = [
        ("pass rate before RL", percent(summary["pass_rate_before"])),
        ("pass@8 before RL", percent(summary["pass_at_8_before"])),
        ("pass rate after RL", percent(summary["pass_rate_after"])),
        ("gain", f"{100 * summary['gain']:+.1f} points (95 % interval {100 * low:+.1f} to {100 * high:+.1f})"),
        ("parameters", amount(summary["parameters"])),
        ("time", ", ".join(f"{PARTS[name]} {duration(value)}" for name, value in whole_seconds(seconds).items())),
    ]
    print_table(("", "held-out problems"), rows)
    print(f"curves   {plot_run(run.path)}")
    print(f"model    {run.path / summary['model']}")
    print_next(
        (command("sample", folder, f" --prompt '{problem}'"), "let the model work on a sum of yours"),
        (command("eval", folder, " --samples 16"), "measure it again, with more samples"),
        ("strop recipes", "what else can be trained"),
    )


def whole_seconds(seconds: Mapping[str, float]) -> dict[str, int]:
    """Parts and their total, the last of them, in whole seconds that add up to it."""
    ends = [0, *(round(end) for end in accumulate(list(seconds.values())[:-1]))]
    parts = [end - begin for begin, end in pairwise(ends)]
    return dict(zip(seconds, [*parts, ends[-1]], strict=True))


def report_run(folder: Path) -> None:
    """Where model and curves are, and what the last evaluation said."""
    run = RunFolder.open(folder)
    rows = _last_values(run.path)
    if rows:
        print_table(("", "at the end"), rows)
        print(f"curves   {plot_run(run.path)}")
    print(f"model    {run.model}")
    if run.fine_tunes:
        print_next(
            (f"strop train grpo --set {quote(f'model.path={run.model}')}", "go on with reinforcement learning"),
            (command("sample", folder, " --prompt '...'"), "try it"),
        )
        return
    print_next(
        (command("eval", folder), "measure it on held-out problems"),
        (command("sample", folder, " --prompt '...'"), "try it"),
        (command("export", folder, " --out my-model"), "copy the model out of the run"),
    )


def _last_values(folder: Path) -> list[tuple[str, str]]:
    """Held-out pass rate before and after, the gain with its interval, and the last pass rate or loss of training."""
    run = read_runs([folder])[0]
    steps, rates = run.series("evaluation/pass_rate")
    rows = [
        (f"held-out pass rate, step {step}", f"{percent(rate)}{interval_suffix(run.interval(step))}")
        for step, rate in list(zip(steps, rates, strict=True))[:: max(1, len(rates) - 1)]
    ]
    if len(rates) > 1:
        gained = run.gain(steps[-1])
        known = "" if gained is None else f"{gained[0]} points{interval_suffix(gained[1])}"
        rows.append(("gain", known or "not known: evaluations were changed since the first"))
    trained, loss = run.last("pass_rate"), run.last("loss")
    if trained is not None:
        rows.append(("pass rate in training", percent(trained)))
    elif loss is not None:  # that of a policy gradient says nothing by itself
        rows.append(("loss", f"{loss:.4g}"))
    return rows


def print_next(*commands: tuple[str, str]) -> None:
    """Commands to try, each with what it does."""
    width = max(len(words) for words, _ in commands)
    print("\nnext")
    for words, purpose in commands:
        print(f"  {words:<{width}}   {purpose}")
