"""Tokens a second through the endpoint, beside the engine used directly. One JSON object a line.

    python bench/serve.py --model embedded --requests 256 --runs 3

The endpoint is `strop serve` in a process of its own, the client another one; both and the engine used directly take
`--threads` threads. Requests have the same prompts and seeds, and their completions must be the same token by token.
Parts: `whole` (one completion a request), `samples` (64 completions a request), `stream` (a chunk a token), `latency`
(one token, nothing else running). Beside the time on the wall, which says little on a busy machine, stands that of the
processor: of the engine alone, of the serving process (engine and HTTP), of the client.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, NamedTuple

import httpx

SAMPLES = 64
TICKS = os.sysconf("SC_CLK_TCK")


class Run(NamedTuple):
    """Seconds on the wall, of the processor where it was sampled, and of the client's; what was sampled, in order."""

    wall: float
    cpu: float
    client_cpu: float
    ids: list[list[int]]


def cpu_of(process: int) -> float:
    """Seconds of processor time that a process has used."""
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


def prompts(count: int) -> list[str]:
    """Sums of four digits, in a fixed order."""
    return ["+".join(str((7 * row + 3 * place) % 9 + 1) for place in range(4)) + "=" for row in range(count)]


def directly(model: str, texts: list[str], n: int, sampling: dict[str, Any]) -> Run:
    """The engine alone."""
    from strop.base.view import SilentView
    from strop.data.templates import encode_prompt
    from strop.engines.protocol import Request, Sampling
    from strop.engines.torch.engine import TorchEngine
    from strop.run.models import configure, open_model, parse_model

    named = parse_model(model)
    config = configure(named).config
    policy, tokenizer = open_model(config, SilentView(), named)
    engine = TorchEngine(policy, tokenizer, config.engine)
    ids = [encode_prompt(text, tokenizer, add_bos=True) for text in texts]
    asked = Sampling(max_new_tokens=sampling["max_tokens"], temperature=sampling["temperature"])
    for _attempt in range(2):  # the first one warms up
        begin, cpu = time.perf_counter(), time.process_time()
        found: dict[tuple[str, int], list[int]] = {}
        for place, prompt in enumerate(ids):
            engine.submit(Request(str(place), prompt, asked, place, n))
        while engine.unfinished:
            for completion in engine.step():
                found[completion.request_id, completion.index] = completion.token_ids.tolist()
        wall, cpu = time.perf_counter() - begin, time.process_time() - cpu
    return Run(wall, cpu, 0.0, [found[str(place), index] for place in range(len(ids)) for index in range(n)])


async def through_http(url: str, server: int, texts: list[str], n: int, sampling: dict[str, Any], stream: bool) -> Run:
    """The same through the endpoint, whose process is `server`."""
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=None)
    async with httpx.AsyncClient(base_url=url, timeout=600, limits=limits, trust_env=False) as client:

        async def ask(place: int, text: str) -> list[list[int]]:
            body = {"prompt": text, "n": n, "seed": place, "return_token_ids": True, **sampling}
            if not stream:
                answer = await client.post("/completions", json=body)
                answer.raise_for_status()
                return [choice["token_ids"] for choice in answer.json()["choices"]]
            ids: list[list[int]] = [[] for _ in range(n)]
            async with client.stream("POST", "/completions", json={**body, "stream": True}) as chunks:
                async for line in chunks.aiter_lines():
                    if line.startswith("data: {"):
                        for choice in json.loads(line[6:])["choices"]:
                            ids[choice["index"]] += choice["token_ids"]
            return ids

        begin, cpu, own = time.perf_counter(), cpu_of(server), time.process_time()
        found = await asyncio.gather(*(ask(place, text) for place, text in enumerate(texts)))
        wall, cpu, own = time.perf_counter() - begin, cpu_of(server) - cpu, time.process_time() - own
        return Run(wall, cpu, own, [ids for answer in found for ids in answer])


def latencies(url: str, count: int) -> list[float]:
    """Milliseconds of one-token requests, one after another."""
    taken = []
    with httpx.Client(base_url=url, trust_env=False) as client:
        for seed in range(count):
            begin = time.perf_counter()
            client.post("/completions", json={"prompt": "3+5=", "max_tokens": 1, "seed": seed}).raise_for_status()
            taken.append(1000 * (time.perf_counter() - begin))
    return sorted(taken)


def show(part: str, values: dict[str, Any]) -> None:
    """One line of results."""
    print(json.dumps({"bench": "serve", "part": part, **values}), flush=True)


def main() -> None:
    """Every part, `--runs` times; the quickest run counts, on either side."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="embedded")
    parser.add_argument("--requests", type=int, default=256)
    parser.add_argument("--tokens", type=int, default=200)
    parser.add_argument("--temperature", type=float, default=3.0, help="high, so that completions are long")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--threads", type=int, default=1)
    arguments = parser.parse_args()
    os.environ["OMP_NUM_THREADS"] = str(arguments.threads)
    command = [sys.executable, "-m", "strop", "serve", arguments.model, "--port", "0", "--json",
               "--max-requests", str(arguments.requests)]  # fmt: skip
    sampling = {"max_tokens": arguments.tokens, "temperature": arguments.temperature}
    parts = (
        ("whole", prompts(arguments.requests), 1, False),
        ("samples", prompts(max(1, arguments.requests // SAMPLES)), SAMPLES, False),
        ("stream", prompts(arguments.requests), 1, True),
    )
    for part, texts, n, stream in parts:
        alone = [directly(arguments.model, texts, n, sampling) for _ in range(arguments.runs)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, stderr=subprocess.DEVNULL) as server:
            try:
                assert server.stdout is not None
                url = json.loads(server.stdout.readline())["url"]
                served = [
                    asyncio.run(through_http(url, server.pid, texts, n, sampling, stream))
                    for _ in range(arguments.runs + 1)  # the first one warms up
                ]
                idle = latencies(url, 100) if part == "whole" else None
            finally:
                server.send_signal(signal.SIGINT)
        tokens = sum(len(ids) for ids in alone[0].ids)
        quickest, through = min(run.wall for run in alone), min(run.wall for run in served)
        cpu = {"engine": min(run.cpu for run in alone), "server": min(run.cpu for run in served),
               "client": min(run.client_cpu for run in served)}  # fmt: skip
        show(part, {
            "requests": len(texts), "samples": n, "tokens": tokens,
            "same_tokens": all(run.ids == alone[0].ids for run in (*alone, *served)),
            "engine_tokens_per_second": round(tokens / quickest), "http_tokens_per_second": round(tokens / through),
            "ratio": round(quickest / through, 3), "cpu_ratio": round(cpu["engine"] / cpu["server"], 3),
            "cpu_seconds": {name: round(seconds, 2) for name, seconds in cpu.items()},
        })  # fmt: skip
        if idle is not None:
            show("latency", {"ms_p50": round(statistics.median(idle), 2), "ms_p99": round(idle[98], 2)})


if __name__ == "__main__":
    main()
