"""A report from start to end: the runs read, figures drawn, the page written."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from transformers import PreTrainedTokenizerBase

from strop.base.files import write_text
from strop.base.types import InputError
from strop.report.figures.tokens import TokenBatch, entropy_chart, spread_chart, token_batch, token_lists
from strop.report.figures.training import not_drawn, training_charts
from strop.report.figures.writer import PageFigures
from strop.report.page import Block, Figures, Kinds, Page, Samples, Table, Text
from strop.report.runs import RunData, read_runs
from strop.report.samples import recorded_answers, tokenizer_of
from strop.report.summary import evaluations, summary
from strop_verify.verdict import UNDECIDED

PAGE = "report.html"
SAMPLES = 8
MOST_UNDECIDED = 10  # examples of a run
Progress = Callable[[str], None]


@dataclass(frozen=True)
class Written:
    """The page, the PNG files of its figures, and what is not in it, a line each."""

    page: Path
    pictures: tuple[Path, ...]
    left_out: tuple[str, ...]


def write_report(
    paths: Sequence[Path], out: Path | None = None, samples: int = SAMPLES, progress: Progress | None = None
) -> Written:
    """Write the report of one or several runs.

    Args:
        paths: run folders.
        out: a folder, for page and figures, or a file that ends in .html, whose figures go to a folder beside it that
            is called after it; None for RUN/report of a single run and `report` for several.
        samples: completions of each run that are shown token by token; 0 for none.
        progress: called with what is being done next.

    Raises:
        InputError: a folder is no run, no run has anything to show, or `out` cannot be written to.
    """
    say = progress if progress is not None else lambda _: None
    runs = read_runs(paths)
    target = target_of(runs, out)
    if not any(run.rows or run.folder.rollout_steps() for run in runs):
        names = ", ".join(str(run.path) for run in runs)
        raise InputError(
            f"{names}: nothing to report yet, neither metrics.jsonl nor rollouts; let the run make a step first, or "
            "put its files back"
        )
    figures = PageFigures(target.parent, below=pictures_of(target) if out is not None and target == out else "")
    figures.label = runs[0].short if len(runs) == 1 else ""
    page = Page(" · ".join(run.name for run in runs), _intro(runs))
    say("curves")
    page.section("Summary", summary(runs, page.left_out))
    page.section("Evaluations", evaluations(runs, page.left_out))
    for heading, charts in training_charts(runs):
        page.section(heading, [Figures([figures.add(chart) for chart in charts])])
    absent, zero = not_drawn(runs)
    page.left_out += ["0 at every step: " + "; ".join(zero)] if zero else []
    page.left_out += ["without a metric: " + "; ".join(absent)] if absent else []
    _rollouts(runs, figures, page, samples, say)
    write_text(target, page.html())
    return Written(target, tuple(figures.written), tuple(page.left_out))


def target_of(runs: Sequence[RunData], out: Path | None) -> Path:
    """The file to write.

    Raises:
        InputError: it is in the way of something else.
    """
    if out is None:
        out = runs[0].path / "report" if len(runs) == 1 else Path("report")
    if out.suffix == ".html":
        if out.is_dir():
            raise InputError(f"--out {out} is a folder; name a file that ends in .html, or another folder")
        return out
    if out.exists() and not out.is_dir():
        raise InputError(f"--out {out} is a file; name a folder, or a file that ends in .html")
    return out / PAGE


def pictures_of(page: Path) -> str:
    """The folder for the figures of a page that was named, beside it and called after it.

    Not `first` for `first.html`: beside such a page that is often the run itself.

    Raises:
        InputError: something else has that name.
    """
    folder = page.with_name(f"{page.stem}-pictures")
    if folder.exists() and not folder.is_dir():
        raise InputError(f"--out {page}: its pictures go to the folder {folder}, and that is a file; name another page")
    return folder.name


def _intro(runs: Sequence[RunData]) -> str:
    if len(runs) > 1:
        return f"{len(runs)} runs compared"
    run = runs[0]
    began = str(run.folder.read_json("run.json").get("began", ""))[:16].replace("T", " ")
    return f"{run.recipe}, {run.outcome()}, begun {began}"


# ---------------------------------------------------------------------- from the rollouts


def _rollouts(runs: Sequence[RunData], figures: PageFigures, page: Page, samples: int, say: Progress) -> None:
    """Add what the recorded rollouts of each run show: statistics of their tokens, and some of them as they are."""
    tokens: list[Block] = []
    texts: list[Block] = []
    undecided: list[Block] = []
    for place, run in enumerate(runs):
        say(f"{run.name}: rollouts")
        title: list[Block] = [Text(run.name, "heading")] if len(runs) > 1 else []
        tokenizer = tokenizer_of(run)
        figures.label = run.short
        batch = _latest_batch(run)
        if batch is None:
            page.left_out.append(f"{run.name}: tokens: no rollouts of it have entropies")
        else:
            suffix = f"-{place + 1}" if len(runs) > 1 else ""
            tokens += title + _token_blocks(batch, tokenizer, figures, suffix)
        if tokenizer is None:
            page.left_out.append(f"{run.name}: lists of tokens, and samples: no tokenizer is at hand")
            continue
        answers = recorded_answers(run, tokenizer, samples) if samples else []
        if answers:
            texts += [*title, Samples(f"r{place}", "Rollouts of the first and of the last step.", answers)]
        elif samples:
            page.left_out.append(f"{run.name}: samples: it has no rollouts")
    for run in runs:
        found = undecided_answers(run)
        note = f"{run.name}: answers of its last step that were proved neither right nor wrong; they score 0."
        undecided += [Text(note), Table(("reference", "answer, and what was tried"), found)] if found else []
    page.section("Tokens", tokens)
    page.section("Samples", texts)
    page.section("Undecided answers", undecided)


def undecided_answers(run: RunData) -> list[tuple[str, str]]:
    """References and details of different answers of the last step that the verifier could not decide."""
    steps = run.folder.rollout_steps()
    rows = run.folder.read_rollouts(steps[-1]) if steps else []
    found = [(row["reference"], row["detail"]) for row in rows if (row["detail"] or "").startswith(UNDECIDED)]
    return [(reference, detail.removeprefix(UNDECIDED)) for reference, detail in dict.fromkeys(found)][:MOST_UNDECIDED]


def _latest_batch(run: RunData) -> TokenBatch | None:
    """The tokens of the last step with rollouts; None where generation recorded no entropies of them."""
    steps = run.folder.rollout_steps()
    return token_batch(steps[-1], run.folder.read_rollouts(steps[-1])) if steps else None


def _token_blocks(
    batch: TokenBatch, tokenizer: PreTrainedTokenizerBase | None, figures: PageFigures, suffix: str
) -> list[Block]:
    about = f"{len(batch.entropy):,} tokens of {len(batch.ticket)} rollouts of step {batch.step}, as they were sampled."
    charts = [entropy_chart(batch, f"token-entropy{suffix}"), spread_chart(batch, f"entropy-spread{suffix}")]
    blocks: list[Block] = [Text(about), Figures([figures.add(chart) for chart in charts])]
    if tokenizer is not None:
        lists = token_lists(batch, tokenizer)
        seldom = f" seen {lists.at_least} times or more" if lists.at_least > 1 else ""
        note = f"By mean entropy in nats, with how often each was seen; {lists.kinds} different tokens{seldom}."
        blocks += [Text("Tokens by entropy (Archer, Figure 2)", "heading"), Text(note), Kinds(lists)]
    return blocks
