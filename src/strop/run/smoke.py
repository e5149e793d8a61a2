"""`strop smoke`: short runs of what training on this machine rests on; each passes, or fails with the reason.

Each group of checks has processes of its own, so that one which crashes or hangs takes no other with it.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from strop.base.types import InputError
from strop.base.view import markdown_table
from strop.engines.vllm.settings import PYTHON_VARIABLE
from strop.run.accelerators import Finding
from strop_verify.child_process import ChildProcess, import_path

if TYPE_CHECKING:
    from strop.run.smoke_checks import Plan

Result = Literal["pass", "FAIL", "not run"]
WORSE: tuple[Result, ...] = ("pass", "not run", "FAIL")


@dataclass(frozen=True)
class Outcome:
    """The result of a check: `found` says what it measured, or why it failed or was not run."""

    check: str
    result: Result
    found: str
    seconds: float = 0.0


def smoke(
    device: str, model: str | None, vllm: str | None, limit: float, only: Collection[str], tell: Callable[[str], None]
) -> Iterator[Outcome]:
    """Run the groups one after another.

    Args:
        device: `cuda` or `cpu`.
        model: a folder or a name on the hub; None: a new small model.
        vllm: the interpreter of an environment with vLLM; None: what STROP_VLLM_PYTHON names, if it is set.
        limit: seconds for everything; what is not done by then has failed.
        only: the groups to run; none: all of them.
        tell: hears which group begins.

    Raises:
        InputError: `only` names a group that there is not.
    """
    from strop.run.smoke_checks import GROUPS, Plan

    for unknown in sorted(set(only) - GROUPS.keys()):
        raise InputError(f"--only {unknown}: the groups are {', '.join(GROUPS)}")
    end = time.monotonic() + limit
    vllm = vllm or os.environ.get(PYTHON_VARIABLE)
    with tempfile.TemporaryDirectory(prefix="strop-smoke-") as folder:
        for group, (_, names) in GROUPS.items():
            if only and group not in only:
                continue
            if group == "vllm" and not vllm:
                yield Outcome(names[0], "not run", f"no vLLM is named: --vllm /path/to/bin/python or {PYTHON_VARIABLE}")
                continue
            tell(group)
            place = device_of_ranks(device) if group == "ranks" else device
            count = 2 if group == "ranks" else 1
            plans = [Plan(group, place, model, vllm, folder, os.getpid(), rank) for rank in range(count)]
            yield from _run(plans, names, end)


def device_of_ranks(device: str) -> str:
    """`cuda` with two GPUs or more, else `cpu`: NCCL wants a GPU of its own for each rank."""
    import torch

    return device if device == "cuda" and torch.cuda.device_count() > 1 else "cpu"


def _run(plans: Sequence[Plan], names: Sequence[str], end: float) -> Iterator[Outcome]:
    """Run the processes of a group side by side; an outcome for each of its checks."""
    from strop.run.smoke_checks import as_argument

    folder = Path(plans[0].folder)
    environment = {**os.environ, "PYTHONPATH": import_path(), "TOKENIZERS_PARALLELISM": "false"}
    children = []
    for plan in plans:
        command = [sys.executable, "-m", "strop.run.smoke_checks", as_argument(plan)]
        log = (folder / f"{plan.group}-{plan.rank}.log").open("w+b")
        children.append(ChildProcess(command, environment, log))
    found = []
    for plan, child in zip(plans, children, strict=True):
        status = child.end(max(end - time.monotonic(), 0.0))
        late = status < 0 and time.monotonic() >= end
        reason = None if status == 0 else child.exit_reason()
        child.close()
        late_reason = "was not done when the time was up; give it more by --limit"
        found.append(_outcomes(names, _written(plan.outcomes), late_reason if late else reason))
    for each in zip(*found, strict=True):
        yield max(each, key=lambda outcome: WORSE.index(outcome.result))


def _written(file: Path) -> dict[str, Outcome]:
    """The outcomes that a process has written, by check."""
    found: dict[str, Outcome] = {}
    for line in file.read_text().splitlines() if file.is_file() else ():
        given = json.loads(line)
        result: Result = "pass" if given["passed"] else "FAIL"
        found[given["check"]] = Outcome(given["check"], result, given["found"], given["seconds"])
    return found


def _outcomes(names: Sequence[str], written: dict[str, Outcome], reason: str | None) -> list[Outcome]:
    """One outcome for each check of a process; `reason` says how it ended where it did not end well."""
    found: list[Outcome] = []
    for name in names:
        broken = next((one.check for one in found if one.check not in written or one.result == "FAIL"), None)
        if name in written:
            found.append(written[name])
        elif reason is not None and all(one.check in written for one in found):
            found.append(Outcome(name, "FAIL", f"its process {reason}"))
        else:
            found.append(Outcome(name, "not run", f"{broken} failed before"))
    return found


def as_markdown(findings: Sequence[Finding], outcomes: Sequence[Outcome]) -> str:
    """A table to paste into an issue: what the machine is, then what passed."""
    marks = {"ok": "", "note": "note", "problem": "PROBLEM"}
    rows = [(one.topic, marks[one.level], one.found, "") for one in findings]
    rows += [(one.check, one.result, one.found, f"{one.seconds:.1f}" if one.seconds else "") for one in outcomes]
    return markdown_table(("check", "result", "found", "s"), rows, numbers=("s",))
