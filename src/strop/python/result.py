"""A run in Python: its metrics and rollouts as Arrow tables, its model for samples and evaluations.

    run = strop.load("runs/grpo")
    run.metrics.to_pylist(), run.rollouts(40, columns=["problem_id", "completion", "reward"])
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from strop.base.metrics_file import by_step
from strop.base.text import counted, percent
from strop.base.types import InputError
from strop.base.view import SilentView
from strop.data.columns import Columns
from strop.python.problems import Problems, source_of
from strop.run.folder import RunFolder

if TYPE_CHECKING:
    import pyarrow as pa

    from strop.run.models import NamedModel


EVALUATIONS = "evaluations"
SAMPLES = 4


def load(run: str | Path) -> Run:
    """Load a run from its folder, finished or in progress.

    Raises:
        InputError: there is no such folder, it is not a run, or a later strop wrote it.
    """
    return Run(RunFolder.open(run).path)


@dataclass(frozen=True)
class Picture:
    """A PNG file, which a notebook shows."""

    path: Path

    def __fspath__(self) -> str:
        return str(self.path)

    def _repr_png_(self) -> bytes:
        return self.path.read_bytes()


@dataclass(frozen=True)
class Run:
    """A run folder. Files are read on access, so that a run in progress can be inspected.

    Attributes:
        path: the folder.
    """

    path: Path

    @property
    def folder(self) -> RunFolder:
        """The folder's files."""
        return RunFolder.open(self.path)

    @property
    def model(self) -> Path:
        """The trained model, a Hugging Face folder.

        Raises:
            InputError: the run has written none yet.
        """
        model = self.folder.model
        if not model.is_dir():
            raise InputError(f"{self.path} has no model yet; it is written when the run ends")
        return model

    @property
    def config(self) -> dict[str, Any]:
        """The resolved configuration."""
        return self.folder.read_json("config.json")

    @property
    def summary(self) -> dict[str, Any]:
        """The summary of the finished run; empty while it goes on."""
        return self.folder.read_summary()

    # ------------------------------------------------------------------ curves and rollouts

    @property
    def metrics(self) -> pa.Table:
        """metrics.jsonl as an Arrow table, a row a line, its columns called as in docs/metrics.md."""
        import pyarrow as pa

        rows = self.folder.read_metrics()
        names = dict.fromkeys(name for row in rows for name in row)
        columns = {name: pa.array([row.get(name) for row in rows], pa.float64()) for name in names}
        if "step" in columns:
            columns["step"] = columns["step"].cast(pa.int64())
        return pa.table(columns)

    @property
    def pass_rates(self) -> dict[int, float]:
        """The pass rate on the held-out problems by step (0: before training), a fraction; empty where none are."""
        return by_step(self.folder.read_metrics(), "evaluation/pass_rate")

    def rollouts(
        self, steps: int | Iterable[int] | None = None, columns: Sequence[str] | None = None
    ) -> pa.Table:
        """The completions of one step, of several, or of all (None), a row each, as an Arrow table.

        Where the verifier failed (`status` timeout or error) reward and score are null. Advantages are null of what
        was not trained on, and 0 on tokens that were injected.

        Args:
            columns: which columns; None: all, the tokens and their log-probs among them.

        Raises:
            InputError: the run has no rollouts of such a step, or there is no such column.
        """
        import pyarrow as pa

        from strop.base import rollout_table

        folder = self.folder
        known = folder.rollout_steps()
        wanted = known if steps is None else [steps] if isinstance(steps, int) else list(steps)
        absent = [step for step in wanted if step not in known]
        if absent or not wanted:
            raise InputError(f"{self.path} has no rollouts of step {absent[0] if absent else 1}")
        return pa.concat_tables(rollout_table.read(folder.rollouts_path(step), columns) for step in wanted)

    def plot(self, out: str | Path | None = None) -> Picture:
        """The training curves as one PNG, in RUN/plots unless `out` is given; a notebook shows it."""
        from strop.report.training_figures import plot_run

        return Picture(plot_run(self.path, None if out is None else Path(out)))

    # ------------------------------------------------------------------ the model

    def sample(
        self, prompt: str | Sequence[str], n: int = 1, *, temperature: float | None = None,
        max_new_tokens: int | None = None, seed: int = 0,
    ) -> list[str]:  # fmt: skip
        """Sample answers of the trained model, or of the newest checkpoint: `n` texts for each prompt, in order.

        Args:
            temperature: 0 is greedy; None: the run's own.
            max_new_tokens: None: the run's own.

        Raises:
            StropError: the run has neither model nor checkpoint yet, or a prompt leaves no room for an answer.
        """
        from strop.run.answering import sample_model
        from strop.run.models import configure, parse_model

        named = parse_model(str(self.path))
        prompts = [prompt] if isinstance(prompt, str) else list(prompt)
        view = SilentView()
        answers = sample_model(configure(named), prompts, n, temperature, max_new_tokens, seed, view, named)
        return [answer["completion"] for answer in answers]

    def evaluate(
        self, on: Problems | None = None, *, samples: int = SAMPLES, temperature: float | None = None,
        limit: int | None = None, columns: Columns | Mapping[str, str] | None = None, out: str | Path | None = None,
    ) -> dict[str, Any]:  # fmt: skip
        """Measure the trained model, or the newest checkpoint: `pass_rate`, its `interval`, `pass_at`, `mean_length` …

        Args:
            on: a benchmark as `strop eval --list` names it (`math500`), other problems, or None for those held out.
            samples: completions of each problem.
            temperature: None: as the run measures itself; of a benchmark: as its protocol does.
            limit: the first so many problems only.
            columns: which column of other problems is what.
            out: where a benchmark's samples are kept; by default in the run folder. The same again goes on with it.

        Raises:
            StropError: the run has neither model nor checkpoint yet, or there is no such benchmark.
        """
        from strop.run.measuring import evaluate_model
        from strop.run.models import configure, parse_model

        sets = () if temperature is None else (f"evaluation.temperature={temperature}",)
        named = parse_model(str(self.path))
        if isinstance(on, str) and _is_benchmark(on):
            folder = self.path / EVALUATIONS / f"{on.replace('/', '-')}-{samples}" if out is None else Path(out)
            return _on_benchmark(named, on, samples, sets, limit, folder)
        source = None if on is None else source_of(on, columns)
        return evaluate_model(configure(named, sets=sets, source=source, limit=limit), samples, SilentView(), named)

    # ------------------------------------------------------------------ inside

    def __repr__(self) -> str:
        where, rates = "", list(self.pass_rates.values())
        if not rates:
            where, rates = " in training", list(by_step(self.folder.read_metrics(), "pass_rate").values())
        said = f", pass rate{where} {percent(rates[0])} → {percent(rates[-1])}" if rates else ""
        steps = self.summary.get("steps")
        return f"<strop run {self.path}: {'not finished' if steps is None else counted(steps, 'steps')}{said}>"


def _on_benchmark(
    model: NamedModel, name: str, samples: int, sets: tuple[str, ...], limit: int | None, out: Path
) -> dict[str, Any]:
    from strop.evaluation.benchmarks import benchmarks_named
    from strop.evaluation.protocols import PLAIN, changed
    from strop.lab.benchmarking import BenchmarkPlan, measure

    (measured,) = benchmarks_named([name])
    protocol = changed(PLAIN, samples=samples)
    plan = BenchmarkPlan((model,), (measured,), protocol, out, limit=limit, sets=sets)
    return measure(plan, SilentView()).results[model.label, measured.name].summary()


def _is_benchmark(name: str) -> bool:
    """Whether a name is a benchmark's, rather than a file's or a source's."""
    from strop.evaluation.benchmarks import SUFFIXES, benchmark

    try:
        return not name.endswith(SUFFIXES) and bool(benchmark(name).name)
    except InputError:
        return False
