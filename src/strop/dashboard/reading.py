"""What the dashboard reads of run folders: metrics as they grow, settings that differ, one completion by its tokens."""

from __future__ import annotations

import json
import math
import threading
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from strop.base.rollout_table import completed
from strop.base.types import InputError
from strop.config.edits import flatten
from strop.report.runs import RunData, read_runs
from strop.run.folder import RunFolder
from strop.run.runs import differences
from strop.run.status import read_status

PER_TOKEN = ("token_ids", "logprobs", "entropies", "advantages", "trainer_logprobs", "prompt_ids")
LARGEST_LOG_RATIO = 20.0  # of a token's probabilities; JSON has no infinity
LONGEST_READ = 4 * 2**20  # bytes of metrics in one answer; the page asks again for the rest


class Runs:
    """The runs that a dashboard shows, by the names that tell them apart.

    Raises:
        InputError: a folder is no run, is named twice, or a file in it is broken.
    """

    def __init__(self, paths: Sequence[Path]) -> None:
        self._known = {run.name: run for run in read_runs(paths)}
        self._decoding = threading.Lock()  # a tokenizer is no thing for two threads

    @property
    def names(self) -> list[str]:
        """The names, in the order in which the runs were given."""
        return list(self._known)

    def folder(self, name: str) -> RunFolder:
        """The folder of a run.

        Raises:
            InputError: there is no run of that name here.
        """
        if name not in self._known:
            raise InputError(f"no run is called {name!r} here")
        return self._known[name].folder

    def overview(self) -> list[dict[str, Any]]:
        """Every run with its status, and the steps whose completions are there; of a broken one, the reason."""
        found = []
        for name, run in self._known.items():
            row: dict[str, Any] = {"name": name, "path": str(run.path), "steps_kept": run.folder.rollout_steps()}
            try:
                row["status"] = read_status(run.folder).as_json()
            except InputError as error:
                row["error"] = str(error)
            found.append(row)
        return found

    def metrics(self, name: str, offset: int = 0) -> dict[str, Any]:
        """The whole lines of metrics.jsonl from byte `offset` on, and the offset to go on from.

        Where the file has become shorter, because the run was resumed from an earlier step, it begins anew (`reset`).
        """
        path = self.folder(name).metrics_path
        if not path.is_file():
            return {"rows": [], "offset": 0, "reset": offset > 0}
        with path.open("rb") as lines:
            lines.seek(max(offset - 1, 0))
            reset = offset > 0 and lines.read(1) != b"\n"  # no line begins there any more
            begin = 0 if reset else max(offset, 0)
            lines.seek(begin)
            text = lines.read(LONGEST_READ)
        whole = text[: text.rfind(b"\n") + 1]
        rows = [json.loads(line) for line in whole.splitlines() if line.strip()]
        return {"rows": rows, "offset": begin + len(whole), "reset": reset}

    def settings(self, names: Sequence[str]) -> dict[str, Any]:
        """The settings in which runs differ; of one run all of them."""
        folders = [self.folder(name).path for name in names]
        if len(folders) == 1:
            own = flatten(self.folder(names[0]).read_json("config.json"))
            return {"runs": list(names), "rows": [[key, [value]] for key, value in own]}
        return {"runs": list(names), "rows": [[key, list(values)] for key, values in differences(folders)]}

    def completion(self, name: str, step: int, row: int) -> dict[str, Any]:
        """One completion with everything that was recorded of it, its tokens as pieces of text where they are known.

        Raises:
            InputError: the run has no such completion.
        """
        import pyarrow.parquet as pq

        path = self.folder(name).rollouts_path(step)
        table = pq.read_table(path) if path.is_file() else None
        if table is None or not 0 <= row < table.num_rows:
            raise InputError(f"{name} has no completion {row} of step {step}")
        (found,) = completed(table.slice(row, 1))
        with self._decoding:
            tokens = _tokens(self._known[name], found)
        kept = {key: value for key, value in found.items() if key not in PER_TOKEN}
        return kept | {"row": row, "length": len(found["token_ids"]), "tokens": tokens}


@cache
def _tokenizer(path: Path) -> Any:
    """The run's tokenizer; loading it takes a few seconds, once."""
    from strop.report.samples import tokenizer_of

    (run,) = read_runs([path])
    return tokenizer_of(run)


def _tokens(run: RunData, row: Mapping[str, Any]) -> list[dict[str, Any]] | None:
    from strop.report.samples import shown_tokens

    tokenizer = _tokenizer(run.path)
    if tokenizer is None:
        return None
    tokens = [token._asdict() for token in shown_tokens(tokenizer, row)]
    for token, advantage in zip(tokens, row["advantages"] or (), strict=False):
        token["advantage"] = None if token["injected"] else advantage
    for token, logprob in zip(tokens, row["trainer_logprobs"] or (), strict=False):
        known = token["logprob"] is not None
        token["ratio"] = math.exp(min(logprob - token["logprob"], LARGEST_LOG_RATIO)) if known else None
    for span in row["versions"] or ():
        for token in tokens[span["start"] : span["end"]]:
            token["version"] = span["version"]
    return tokens
