"""llama.cpp as a peer of rollout.py, by the package xllamacpp; imports nothing else of ours."""

from __future__ import annotations

import json
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import xllamacpp


def main() -> None:
    """Load the model, then sample everything once for each line on standard input."""
    what = json.loads(sys.argv[1])
    params = xllamacpp.CommonParams()
    params.model.path = what["gguf"]
    params.n_parallel = what["rows"]
    params.n_ctx = what["rows"] * (what["tokens"] + 8)
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = what["threads"]
    server = xllamacpp.Server(params)

    def complete(place: int) -> int:
        prompt, length = what["work"][place]
        given = {"prompt": prompt, "max_tokens": length, "ignore_eos": True, "temperature": 1.0, "top_k": 0,
                 "top_p": 1.0, "min_p": 0.0, "seed": place}  # fmt: skip
        found: dict[str, Any] = server.handle_completions(given)
        return int(found["usage"]["completion_tokens"])

    complete(0)  # warm
    print(json.dumps({"ready": True}), flush=True)
    with ThreadPoolExecutor(len(what["work"])) as pool:
        for _ in sys.stdin:
            wall, cpu = time.perf_counter(), time.process_time()
            lengths = list(pool.map(complete, range(len(what["work"]))))
            spent = {"wall": time.perf_counter() - wall, "cpu": time.process_time() - cpu}
            assert lengths == [length for _, length in what["work"]], "llama.cpp sampled other lengths than asked for"
            print(json.dumps(spent), flush=True)


if __name__ == "__main__":
    main()
