"""A report from start to end: the runs read, pictures drawn, tokens scored, the page written."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from strop.base.files import replacing
from strop.base.types import InputError, StropError
from strop.base.view import duration, number, percent
from strop.report import page as html
from strop.report import samples as sampling
from strop.report import token_figures as figures
from strop.report.curves import draw_groups, not_drawn, time_shares
from strop.report.page import Page
from strop.report.pictures import Studio
from strop.report.plots import benchmarks, points
from strop.report.runs import ABSENT, RunData, changes, read_runs, settings
from strop.report.scoring import Batch, after_update, check_start, matched
from strop.report.snapshots import Models, tokenizer_of
from strop.report.texts import safe

PAGE = "report.html"
Progress = Callable[[str], None]


@dataclass(frozen=True)
class Options:
    """What a report holds beside the curves.

    Attributes:
        samples: prompts that are answered for it; 0 for none.
        use_model: whether models are loaded, to score tokens and to sample.
    """

    samples: int = 8
    use_model: bool = True


@dataclass(frozen=True)
class Written:
    """The page, the PNG files of its pictures, and what is not in it, a line each."""

    page: Path
    pictures: tuple[Path, ...]
    left_out: tuple[str, ...] = field(default=())


def write_report(
    paths: Sequence[Path], out: Path | None = None, options: Options | None = None, progress: Progress | None = None
) -> Written:
    """Write the report of one or several runs.

    Args:
        paths: run folders.
        out: a folder, for page and pictures, or a file that ends in .html, whose pictures go to a folder beside it that
            is called after it; None for RUN/report of a single run and `report` for several.
        options: see there.
        progress: called with what is being done next.

    Raises:
        InputError: a folder is no run, no run has anything to show, or `out` cannot be written to.
    """
    say = progress if progress is not None else lambda _: None
    options = options if options is not None else Options()
    runs = read_runs(paths)
    target = target_of(runs, out)
    if not any(run.rows or run.folder.rollout_steps() for run in runs):
        names = ", ".join(str(run.path) for run in runs)
        raise InputError(
            f"{names}: nothing to report yet, neither metrics.jsonl nor rollouts; let the run make a step first, or "
            "put its files back"
        )
    studio = Studio(target.parent, below=pictures_of(target) if out is not None and target == out else "")
    studio.label = runs[0].short if len(runs) == 1 else ""
    page = Page(_title(runs), _intro(runs))
    say("curves")
    page.section("summary", "Summary", _summary(runs, page))
    page.section("evaluations", "Evaluations", _evaluations(runs, page))
    for heading, pictures in draw_groups(runs, studio):
        page.section(_key(heading), heading, html.gallery(pictures))
    absent, zero = not_drawn(runs)
    if zero:
        page.left_out.append("0 at every step: " + "; ".join(zero))
    if absent:
        page.left_out.append("without a metric: " + "; ".join(absent))
    tokens, texts = [], []
    for place, run in enumerate(runs):
        about, shown = _of_model(run, place, len(runs) > 1, studio, page, options, say)
        tokens.append(about)
        texts.append(shown)
    page.section("tokens", "Tokens", "".join(tokens))
    page.section("samples", "Samples", "".join(texts))
    with replacing(target) as temporary:
        temporary.write_text(page.html(), encoding="utf-8")
    return Written(target, tuple(studio.written), tuple(page.left_out))


def target_of(runs: Sequence[RunData], out: Path | None) -> Path:
    """The file to write.

    Raises:
        InputError: it is in the way of something else.
    """
    if out is None:
        out = runs[0].path / "report" if len(runs) == 1 else Path("report")
    if out.suffix == ".html":
        target = out
        if out.is_dir():
            raise InputError(f"--out {out} is a folder; name a file that ends in .html, or another folder")
    else:
        if out.exists() and not out.is_dir():
            raise InputError(f"--out {out} is a file; name a folder, or a file that ends in .html")
        target = out / PAGE
    return target


def pictures_of(page: Path) -> str:
    """The folder for the pictures of a page that was named, beside it and called after it.

    Not `first` for `first.html`: beside such a page that is often the run itself.

    Raises:
        InputError: something else has that name.
    """
    folder = page.with_name(f"{page.stem}-pictures")
    if folder.exists() and not folder.is_dir():
        raise InputError(f"--out {page}: its pictures go to the folder {folder}, and that is a file; name another page")
    return folder.name


def _key(heading: str) -> str:
    return heading.lower().replace(" ", "-")


def _title(runs: Sequence[RunData]) -> str:
    return runs[0].name if len(runs) == 1 else " · ".join(run.name for run in runs)


def _intro(runs: Sequence[RunData]) -> str:
    if len(runs) > 1:
        return f"{len(runs)} runs compared"
    run = runs[0]
    began = str(run.folder.read_json("run.json").get("began", ""))[:16].replace("T", " ")
    return f"{safe(run.recipe)}, {safe(run.outcome())}, begun {safe(began)}"


# ---------------------------------------------------------------------- summary


def _summary(runs: Sequence[RunData], page: Page) -> str:
    parts = [html.numbers(_headline(runs[0])) if len(runs) == 1 else "", _facts(runs, _fits(runs, page))]
    for run in runs:
        parts.append(_changed(run, page, several=len(runs) > 1))
        if run.unread and run.recipe != "fine-tuning":
            page.left_out.append(f"{run.name}: {run.unread}")
    return "".join(parts)


def _headline(run: RunData) -> list[tuple[str, str]]:
    found: list[tuple[str, str]] = []
    steps, rates = points(run.rows, "evaluation/pass_rate")
    if rates:
        error = dict(zip(*points(run.rows, "evaluation/stderr"), strict=True)).get(steps[-1])
        spread = f" ± {100 * error:.1f}" if error is not None else ""
        found.append((percent(rates[-1]), f"held-out pass rate{spread} after step {int(steps[-1])}"))
        if len(rates) > 1:
            found.append(
                (f"{100 * (rates[-1] - rates[0]):+.1f} points", f"since step {int(steps[0])} ({percent(rates[0])})")
            )
    trained = run.last("pass_rate")
    if trained is not None:
        found.append((percent(trained), "pass rate in training, last step"))
    loss = run.last("loss")
    if trained is None and loss is not None:
        found.append((number(loss), "loss, last step"))
    found.append((str(run.last_step), "steps"))
    if run.seconds is not None:
        found.append((run.took(), "of steps and evaluations"))
    return found


def _fits(runs: Sequence[RunData], page: Page) -> dict[str, str]:
    """The compute-performance fit of each run that has a curve, or why the curve does not support one."""
    from strop.lab.scaling import FitSettings, fit, read_curve

    found: dict[str, str] = {}
    for run in runs:
        if not points(run.rows, "evaluation/pass_rate")[0]:
            continue
        try:
            fitted = fit(read_curve(run.path), FitSettings(bootstrap=100))
        except InputError as error:
            page.left_out.append(f"{run.name}: the compute-performance fit: {error}")
            continue
        if fitted.sigmoid is None:
            found[run.name] = f"refused: {fitted.refused}"
        else:
            low, high = fitted.interval("A")
            sigmoid, unit = fitted.sigmoid, fitted.curve.unit
            found[run.name] = (
                f"A {sigmoid.A:.3f} ({low:.3f} to {high:.3f}), B {sigmoid.B:.2f}, C_mid {number(sigmoid.C_mid)} {unit}"
            )
    return found


def _facts(runs: Sequence[RunData], fits: Mapping[str, str]) -> str:
    """A table of facts, one column a run."""
    facts: list[tuple[str, Callable[[RunData], str]]] = [
        ("recipe", lambda run: run.recipe),
        ("seed", lambda run: str(run.raw.get("seed", ABSENT))),
        ("outcome", lambda run: run.outcome()),
        ("held-out pass rate, first", lambda run: _rate(run, 0)),
        ("held-out pass rate, last", lambda run: _rate(run, -1)),
        ("best step", lambda run: str(run.summary.get("best_step") or ABSENT)),
        ("pass rate in training, last", lambda run: _percent(run.last("pass_rate"))),
        ("entropy, first to last", lambda run: _from_to(run, "entropy")),
        ("mean length, first to last", lambda run: _from_to(run, "length/mean")),
        ("compute-performance fit", lambda run: fits.get(run.name, ABSENT)),
        ("truncated, last", lambda run: _percent(run.last("truncation_rate"))),
        ("mismatch k3, last", lambda run: _number(run.last("mismatch/k3"))),
        ("time", lambda run: run.took()),
        ("t_R, t_T, t_O", _times),
        ("device-seconds", lambda run: _number(run.last("compute/device_seconds"))),
        ("device-seconds of evaluations, apart", lambda run: _number(run.last("compute/evaluator_seconds"))),
        ("estimated FLOPs", lambda run: _number(run.last("compute/flops"))),
        ("completion tokens", lambda run: _number(sum(points(run.rows, "tokens/generated")[1]) or None)),
    ]
    rows = [(name, *(value(run) for run in runs)) for name, value in facts]
    rows = [row for row in rows if any(cell != ABSENT for cell in row[1:])]
    return html.table(("", *(run.name for run in runs)) if len(runs) > 1 else ("",), rows)


def _rate(run: RunData, place: int) -> str:
    steps, rates = points(run.rows, "evaluation/pass_rate")
    if not rates:
        return ABSENT
    error = dict(zip(*points(run.rows, "evaluation/stderr"), strict=True)).get(steps[place])
    return (
        percent(rates[place]) + (f" ± {100 * error:.1f}" if error is not None else "") + f" (step {int(steps[place])})"
    )


def _percent(value: float | None) -> str:
    return ABSENT if value is None else percent(value)


def _number(value: float | None) -> str:
    return ABSENT if value is None else number(value)


def _from_to(run: RunData, metric: str) -> str:
    values = points(run.rows, metric)[1]
    return f"{number(values[0])} to {number(values[-1])}" if values else ABSENT


def _times(run: RunData) -> str:
    if run.seconds is None:
        return ABSENT
    seconds = {name: share * run.seconds for name, share in time_shares(run).items()}
    parts = (seconds["rollout"], seconds["update"], seconds["verify"] + seconds["other"])
    return ", ".join(duration(part) for part in parts)


def _changed(run: RunData, page: Page, several: bool) -> str:
    """The settings that are not the recipe's, and folded all of them."""
    name = f"{run.name}: " if several else ""
    try:
        base, rows = changes(run) if run.config is not None else ("", [])
    except InputError as error:
        page.left_out.append(f"{run.name}: its settings are not compared with a recipe: {error}")
        base, rows = "", []
    found = ""
    if base:
        content = html.table(("setting", "recipe", "run"), rows, mono=True) if rows else html.paragraph("none")
        differ = "1 setting that differs" if len(rows) == 1 else f"{len(rows)} settings that differ"
        found = html.folded(f"{name}{differ} from {base}", content, is_open=0 < len(rows) <= 12)
    every = html.table(("setting", ""), list(settings(run.raw)), mono=True)
    return found + html.folded(f"{name}every setting", every, is_long=True)


def _evaluations(runs: Sequence[RunData], page: Page) -> str:
    found = ""
    for run in runs:
        steps, rates = points(run.rows, "evaluation/pass_rate")
        title = html.heading(run.name) if len(runs) > 1 else ""
        if not steps:
            page.left_out.append(f"{run.name}: it was not evaluated on held-out problems (evaluation.every)")
            on_benchmarks = _on_benchmarks(run)
            found += title + on_benchmarks if on_benchmarks else ""
            continue
        errors = dict(zip(*points(run.rows, "evaluation/stderr"), strict=True))
        domains = sorted({name for row in run.rows for name in row if name.startswith("evaluation/pass_rate/")})
        by_domain = [dict(zip(*points(run.rows, name), strict=True)) for name in domains]
        rows = [
            (
                str(int(step)), percent(rate), f"± {100 * errors[step]:.1f}" if step in errors else ABSENT,
                f"{100 * (rate - rates[0]):+.1f}", *(_percent(values.get(step)) for values in by_domain),
            )
            for step, rate in zip(steps, rates, strict=True)
        ]  # fmt: skip
        columns = ("step", "pass rate", "standard error", "points gained")
        labels = [name.removeprefix("evaluation/pass_rate/") for name in domains]
        found += title + html.table((*columns, *labels), rows) + _on_benchmarks(run)
    return found


def _on_benchmarks(run: RunData) -> str:
    """A table of the benchmarks that were measured in training; nothing where there were none."""
    names = benchmarks(run.rows)
    if not names:
        return ""
    rates = [dict(zip(*points(run.rows, f"evaluation/{name}/pass_rate"), strict=True)) for name in names]
    errors = [dict(zip(*points(run.rows, f"evaluation/{name}/stderr"), strict=True)) for name in names]
    curves = list(zip(rates, errors, strict=True))
    rows = [
        (str(int(step)), *(_with_error(rate.get(step), error.get(step)) for rate, error in curves))
        for step in sorted(set[float]().union(*rates))
    ]
    return html.table(("step", *names), rows)


def _with_error(rate: float | None, error: float | None) -> str:
    if rate is None:
        return ABSENT
    return percent(rate) + (f" ± {100 * error:.1f}" if error is not None else "")


# ---------------------------------------------------------------------- what needs a model


def _of_model(
    run: RunData, place: int, several: bool, studio: Studio, page: Page, options: Options, say: Progress
) -> tuple[str, str]:
    """The sections on tokens and samples of one run; what cannot be had is said on the page."""
    title = html.heading(run.name) if several else ""
    studio.label = run.short
    models = _models(run, page, options, say)
    about = ""
    if models is not None:
        try:
            check_start(run, models)
            say(f"{run.name}: tokens")
            about = _tokens(run, models, f"-{place + 1}" if several else "", studio, page)
        except StropError as error:
            page.left_out.append(f"{run.name}: tokens: {error}")
        page.left_out += models.reasons
    shown = ""
    if options.samples:
        say(f"{run.name}: samples")
        try:
            shown = _samples(run, models, place, page, options.samples)
        except StropError as error:
            page.left_out.append(f"{run.name}: samples: {error}")
    return (title + about if about else ""), (title + shown if shown else "")


def _models(run: RunData, page: Page, options: Options, say: Progress) -> Models | None:
    if not options.use_model:
        page.left_out.append(
            f"{run.name}: entropies, values, clip regions and scatter, which need its model (--no-model)"
        )
        return None
    say(f"{run.name}: models")
    try:
        return Models(run)
    except StropError as error:
        page.left_out.append(f"{run.name}: whatever needs its model: {error}")
        return None


def _tokens(run: RunData, models: Models, suffix: str, studio: Studio, page: Page) -> str:
    assert run.config is not None
    parts = ""
    pictures = []
    batch = after_update(run, models)
    if batch is None:
        page.left_out.append(f"{run.name}: token statistics: no rollouts of a step whose weights are at hand")
    else:
        parts += html.paragraph(_about(batch))
        pictures += [
            figures.draw_entropies(batch, studio, f"token-entropy{suffix}"),
            figures.draw_spread(batch, studio, f"entropy-spread{suffix}"),
        ]
        bounds = figures.bounds_of(run.config.algorithm.loss)
        pictures.insert(1, figures.draw_ratios(batch, bounds, studio, f"ratio-histogram{suffix}"))
        if (batch.advantage_sign() != 0).any():
            pictures.append(figures.draw_clip_regions(batch, bounds, studio, f"clip-regions{suffix}"))
        else:
            page.left_out.append(f"{run.name}: clip regions: every prompt of step {batch.step} has equal rewards")
    same = matched(run, models)
    if same is None:
        page.left_out.append(
            f"{run.name}: generator against trainer: no kept rollouts were sampled by weights that are at hand (of "
            f"{', '.join(each.name for each in models.snapshots)})"
        )
    else:
        pictures.insert(2, figures.draw_scatter(same, studio, f"generator-trainer{suffix}"))
    parts += html.gallery(pictures)
    return parts + (_lists(batch, models) if batch is not None else "")


def _about(batch: Batch) -> str:
    beyond = f" ({batch.left_out} more rollouts were left out to bound the work)" if batch.left_out else ""
    return (
        f"{len(batch.token_id):,} tokens of {len(batch.rows)} rollouts of step {batch.step}{beyond}, scored by "
        f"{batch.snapshot.name}, which is after that step's last update."
    )


def _lists(batch: Batch, models: Models) -> str:
    lists = figures.token_lists(batch, models.tokenizer)
    seldom = f" seen {lists.at_least} times or more" if lists.at_least > 1 else ""
    note = f"By mean entropy in nats, with how often each was seen; {lists.kinds} different tokens{seldom}."
    return html.heading("Tokens by entropy (Archer, Figure 2)") + html.paragraph(note) + html.kinds(lists)


def _samples(run: RunData, models: Models | None, place: int, page: Page, count: int) -> str:
    found = None
    if models is not None and run.config is not None:
        found = sampling.sampled(run, models, count)
    if found is None:
        tokenizer = models.tokenizer if models is not None else tokenizer_of(run)
        if tokenizer is None:
            page.left_out.append(f"{run.name}: samples: no tokenizer is at hand")
            return ""
        found = sampling.recorded(run, tokenizer, models, count)
    if found is None or not found.answers:
        page.left_out.append(f"{run.name}: samples: it has no rollouts, and not both its first and its last model")
        return ""
    return html.samples(found, f"r{place}")
