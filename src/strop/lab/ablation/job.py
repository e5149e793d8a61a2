"""One run of an ablation in a process of its own: `python -m strop.lab.ablation.job`, its job on standard input.

The first line of standard input is the job as JSON: {"folder", "config", "imports"}. The pipe stays open for as long as
the parent lives: when it ends, the parent is gone, and so is this process, at once. What the run says goes to standard
error, its end as one JSON line to standard output: {"error": null or one line, "code": exit code}.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import traceback
from pathlib import Path
from typing import Any

from strop.base.types import InputError, StropError
from strop.base.view import PlainView


def main() -> int:
    """Do the job; the exit code."""
    job: dict[str, Any] = json.loads(sys.stdin.buffer.readline())
    threading.Thread(target=_end_with_parent, daemon=True).start()
    error, code = None, 0
    try:
        _run(Path(job["folder"]), job["config"], job["imports"])
    except StropError as problem:
        error, code = str(problem), problem.exit_code
    except KeyboardInterrupt:
        error, code = "stopped at once", 130
    except Exception as problem:  # whatever a variant does wrong is recorded, and the other variants go on
        traceback.print_exc()
        error, code = f"{type(problem).__name__}: {problem}".splitlines()[0], 1
    if error is not None:
        sys.stderr.write(f"{error}\n")
    sys.stdout.write(json.dumps({"error": error, "code": code}) + "\n")
    return code


def _end_with_parent() -> None:
    # The descriptor is read past Python's buffer, whose lock a daemon thread would hold at the interpreter's end.
    while os.read(0, 4096):
        pass
    os._exit(1)


def _run(folder: Path, data: dict[str, Any], imports: list[str]) -> None:
    from strop.base.imports import allow_module
    from strop.config.parse import parse
    from strop.run.folder import RunFolder, is_run
    from strop.run.run import resume, train

    for module in imports:
        allow_module(module)
    config = parse(data, str(folder))
    view = PlainView(sys.stderr)
    try:
        if not is_run(folder):
            train(config, folder, view)
            return
        kept = RunFolder.open(folder)
        if parse(kept.read_json("config.json"), str(kept.config_path)) != config:
            raise InputError(f"{kept.config_path} is not that of the ablation; remove {folder} to run it again")
        resume(folder, view)
    finally:
        view.close()


if __name__ == "__main__":
    sys.exit(main())
