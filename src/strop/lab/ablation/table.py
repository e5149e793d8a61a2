"""The one table of an ablation: as cells for a terminal, as Markdown, as JSON."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import stdev
from typing import Any

from strop.base.text import markdown_table, number
from strop.lab.ablation.collect import Ablation, Paired, RunResult, SeedMean, VariantResult, mean
from strop.lab.ablation.power import MOST, PROBABILITY, fewest, look_level, power
from strop.lab.scaling.compare import MARGIN
from strop.lab.scaling.curves import UNITS
from strop.lab.scaling.fitting import Fit, Parameter
from strop.lab.scaling.study import slope, slope_mean

COLUMNS = (
    "variant", "runs", "A", "B", "C_mid", "B, A fixed", "final", "against base", "verdict", "trunc. max",
    "entropy", "mism. max", "spikes", "device-s", "wall s",
)  # fmt: skip

SHORT = ("variant", "runs", "A", "B", "C_mid", "final", "against base", "verdict")  # for a terminal


def cells(found: Ablation) -> list[tuple[str, ...]]:
    """A row for each variant, in the order of `COLUMNS`."""
    return [_row(variant) for variant in found.variants]


def _row(variant: VariantResult) -> tuple[str, ...]:
    return (
        variant.name,
        progress(variant),
        *_fit_cells(variant),
        slope(variant.refits),
        rate(variant.mean(lambda run: run.final)),
        "" if variant.is_base else difference(variant.difference),
        said(variant),
        _plain(variant.largest(lambda run: run.truncation), ".1%"),
        _mean(variant.mean(lambda run: run.entropy), ".3g"),
        _plain(variant.largest(lambda run: run.mismatch), ".1e"),
        _mean(variant.mean(lambda run: run.grad_spikes), ".1f"),
        _mean(variant.mean(lambda run: run.device_seconds), ".0f"),
        _mean(variant.mean(lambda run: run.wall_seconds), ".0f"),
    )


def short_cells(found: Ablation) -> list[tuple[str, ...]]:
    """The columns of `SHORT`."""
    return [tuple(row[COLUMNS.index(column)] for column in SHORT) for row in cells(found)]


def progress(variant: VariantResult) -> str:
    """`3/3`, or what the first unfinished run is doing: `1/3, step 12/20`, `1/3, 1 failed`."""
    parts = [f"{len(variant.finished)}/{len(variant.runs)}"]
    failed = sum(run.entry.state == "failed" for run in variant.runs)
    parts += [f"{failed} failed"] if failed else []
    going = [run for run in variant.runs if run.entry.state in ("running", "stopped")]
    parts += [f"{'stopped at' if run.entry.state == 'stopped' else 'step'} {run.step}/{run.steps}" for run in going[:1]]
    return ", ".join(parts)


def _fit_cells(variant: VariantResult) -> tuple[str, str, str]:
    """A, B and C_mid: mean ± standard error over seeds; of one fit its bootstrap interval."""
    if not variant.fits:
        return ("refused" if variant.refusals else "", "", "")
    few = f" [{len(variant.fits)} of {len(variant.runs)}]" if len(variant.fits) < len(variant.runs) else ""
    return (
        _parameter(variant.fits, "A", ".3f") + few,
        _parameter(variant.fits, "B", ".2f"),
        _parameter(variant.fits, "C_mid", None),
    )


def parameter_mean(fits: Sequence[Fit], name: Parameter) -> SeedMean | None:
    """The mean of a parameter over accepted fits."""
    return mean([float(getattr(fit.sigmoid, name)) for fit in fits if fit.sigmoid is not None])


def _parameter(fits: Sequence[Fit], name: Parameter, form: str | None) -> str:
    def write(value: float) -> str:
        return number(value) if form is None else f"{value:{form}}"

    found = parameter_mean(fits, name)
    if found is None:
        return ""
    if found.stderr is not None:
        return f"{write(found.value)} ± {f'{found.stderr:.2g}' if form is None else write(found.stderr)}"
    low, high = fits[0].interval(name)
    return f"{write(found.value)} ({write(low)} to {write(high)})"


def rate(found: SeedMean | None) -> str:
    """`61.2 ± 0.8 %`; without an error for one seed."""
    if found is None:
        return ""
    error = "" if found.stderr is None else f" ± {100 * found.stderr:.1f}"
    return f"{100 * found.value:.1f}{error} %"


def difference(found: Paired | None) -> str:
    """`+1.2 (-0.3 to +2.7)` in points of a hundred."""
    if found is None:
        return ""
    span = "" if found.interval is None else " ({:+.1f} to {:+.1f})".format(*(100 * end for end in found.interval))
    return f"{100 * found.value:+.1f}{span}"


def said(variant: VariantResult) -> str:
    """`worse (A)`, `same`, `undecided`; nothing for the base and before there is something to compare."""
    if variant.verdict is None or (variant.difference is None and variant.comparison is None):
        return ""
    return f"{variant.verdict} ({variant.by})" if variant.by in ("A", "B", "C_mid", "final") else variant.verdict


def _plain(value: float | None, form: str) -> str:
    return "" if value is None else f"{value:{form}}"


def _mean(found: SeedMean | None, form: str) -> str:
    return "" if found is None else f"{found.value:{form}}"


# ---------------------------------------------------------------------- what stands below it


def notes(found: Ablation) -> list[str]:
    """Notes below the table: failures, refused fits, verdicts in words, what was left out."""
    lines = [f"{run.label} failed: {run.error}" for run in found.failures]
    for variant in found.variants:
        lines += [f"{variant.name}: {reason}" for reason in _refusals(variant)]
        if variant.comparison is not None:
            lines.append(f"{variant.name} against base by their fits: {variant.comparison}")
        lines += dict.fromkeys(f"{variant.name}: {note}" for fit in variant.fits for note in fit.notes)
        lines += _underpowered(variant, found)
    lines += found.manifest.notes
    if len(found.manifest.seeds) == 1:
        lines.append("one seed says nothing about seeds: no intervals over them; add some with --seeds 0,1,2")
    return lines


def _underpowered(variant: VariantResult, found: Ablation) -> list[str]:
    """Where the seeds of an undecided variant would too rarely decide twice the margin: how many would."""
    pairs, difference = variant.pairs, 2 * (found.margin or MARGIN)
    if variant.verdict != "undecided" or len(pairs) < 2:
        return []
    likely = power(difference, stdev(pairs), len(pairs), found.margin, found.level)
    chance = (likely.until if found.manifest.until_decided else likely.once)[min(len(pairs), MOST) - 1]
    if chance >= PROBABILITY:
        return []
    most = fewest(likely.until)
    more = f"more than {MOST} are needed" if most is None else f"--until-decided {most} does with {PROBABILITY:.0%}"
    return [
        f"{variant.name} is underpowered: {len(pairs)} seeds decide a difference of {100 * difference:g} points with "
        f"a probability of {chance:.0%}; {more}"
    ]


def _refusals(variant: VariantResult) -> list[str]:
    """`fit refused for 2 of 3 seeds, flat`: the kinds of reasons; whole they stand in results.json."""
    kinds = [reason.partition(":")[0] for run in variant.runs if run.fit is not None and (reason := run.fit.refused)]
    return [f"fit refused for {kinds.count(kind)} of {len(variant.runs)} runs, {kind}" for kind in dict.fromkeys(kinds)]


def interval_words(found: Ablation) -> str:
    """`95 % interval`; where seeds are added until variants are decided, the level of the looks too."""
    words = f"{100 * found.level:g} % interval"
    if not found.manifest.until_decided:
        return words
    return f"{words} over all looks, {100 * look_level(found.level):.1f} % at each"


def explanation(found: Ablation) -> str:
    """The meaning of the columns, in a few lines; docs/ablate.md has more."""
    shared = "" if found.asymptote is None else f" A fixed: to {found.asymptote:.3f}, the average of all fits."
    return (
        f"Means ± standard errors over the finished of the seeds {', '.join(map(str, found.manifest.seeds))}; maxima "
        f"over steps and seeds.{shared} against base: difference of final pass rates in points, paired by seed, with "
        f"its {interval_words(found)}. verdict: beyond ± {found.margin:g}, by the fits over "
        f"{UNITS[found.unit].words} where they decide, else by the final pass rate."
    )


def as_markdown(found: Ablation, figure: str | None, linearised: str | None = None) -> str:
    """The table with its settings, figures and notes."""
    names = ("variant", "setting", "base", "here")
    changes = [
        (variant.name, f"`{key}`", f"`{old}`", f"`{new}`")
        for variant in found.variants for key, (old, new) in variant.changes.items()
    ]  # fmt: skip
    parts = [f"# Ablation of {found.manifest.recipe}", markdown_table(COLUMNS, cells(found)), explanation(found)]
    if figure is not None:
        parts.append(f"![pass rate against {UNITS[found.unit].words}, and paired differences to the base]({figure})")
    if linearised is not None:
        parts.append(f"![log F(R_C) against log C with one A for all: slopes are B]({linearised})")
    said = notes(found)
    if said:
        parts.append("\n".join(f"- {line}" for line in said))
    parts += ["## Variants", markdown_table(names, changes)]
    return "\n\n".join(parts) + "\n"


# ---------------------------------------------------------------------- for machines


def as_json(found: Ablation) -> dict[str, Any]:
    """Everything in the table and behind it; numbers that are not known are null."""
    return {
        "recipe": found.manifest.recipe,
        "seeds": list(found.manifest.seeds),
        "unit": found.unit,
        "level": found.level,
        "until_decided": found.manifest.until_decided,
        "margin": found.margin,
        "finished": found.finished,
        "asymptote": found.asymptote,
        "variants": [
            _variant_json(variant) | {"changes": {key: list(pair) for key, pair in variant.changes.items()},
                                      "refused": list(variant.refusals),
                                      "runs": [_run_json(found, run) for run in variant.runs]}
            for variant in found.variants
        ],
        "notes": notes(found),
    }  # fmt: skip


def _variant_json(variant: VariantResult) -> dict[str, Any]:
    def parts(value: SeedMean | None) -> dict[str, float | None]:
        return {"mean": None if value is None else value.value, "stderr": None if value is None else value.stderr}

    paired = variant.difference
    low, high = (None, None) if paired is None or paired.interval is None else paired.interval
    return {
        "variant": variant.name,
        "seeds": len(variant.runs),
        "finished": len(variant.finished),
        "failed": sum(run.entry.state == "failed" for run in variant.runs),
        "fits": len(variant.fits),
        "A": parts(parameter_mean(variant.fits, "A")),
        "B": parts(parameter_mean(variant.fits, "B")),
        "C_mid": parts(parameter_mean(variant.fits, "C_mid")),
        "B_at_common_A": parts(slope_mean(variant.refits)),
        "final": parts(variant.mean(lambda run: run.final)),
        "difference": {"mean": None if paired is None else paired.value, "low": low, "high": high,
                       "pairs": 0 if paired is None else paired.n},
        "verdict": variant.verdict,
        "by": variant.by,
        "truncation_max": variant.largest(lambda run: run.truncation),
        "entropy": parts(variant.mean(lambda run: run.entropy)),
        "mismatch_max": variant.largest(lambda run: run.mismatch),
        "grad_spikes": parts(variant.mean(lambda run: run.grad_spikes)),
        "device_seconds": parts(variant.mean(lambda run: run.device_seconds)),
        "wall_seconds": parts(variant.mean(lambda run: run.wall_seconds)),
    }  # fmt: skip


def _run_json(found: Ablation, run: RunResult) -> dict[str, Any]:
    sigmoid = None if run.fit is None else run.fit.sigmoid
    return {
        "seed": run.seed,
        "folder": str(found.manifest.path(found.folder, run.entry)),
        "state": run.entry.state,
        "error": run.entry.error,
        "step": run.step,
        "steps": run.steps,
        "final": run.final,
        "A": None if sigmoid is None else sigmoid.A,
        "B": None if sigmoid is None else sigmoid.B,
        "C_mid": None if sigmoid is None else sigmoid.C_mid,
        "refused": None if run.fit is None else run.fit.refused,
    }
