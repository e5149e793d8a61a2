"""Tokens a second through the endpoint, beside the engine used directly. One JSON object a line.

    python bench/serve.py --model embedded --requests 256 --runs 3

The endpoint is `strop serve` in a process of its own, the client another one; both and the engine used directly take
`--threads` threads. Requests have the same prompts and seeds, and their completions must be the same token by token.
Parts: `whole` (one completion a request), `samples` (64 completions a request), `stream` (a chunk a token), `latency`
(one token, nothing else running).
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
from typing import Any

import httpx

SAMPLES = 64


def prompts(count: int) -> list[str]:
    """Sums of four digits, in a fixed order."""
    return ["+".join(str((7 * row + 3 * place) % 9 + 1) for place in range(4)) + "=" for row in range(count)]


def directly(model: str, texts: list[str], n: int, tokens: int) -> tuple[float, list[list[int]]]:
    """Seconds of the engine alone, and what it sampled, in order."""
    from strop.benchmarking import open_named, parse_models
    from strop.console import SilentView
    from strop.data.templates import encode_prompt
    from strop.engines.base import Request, Sampling
    from strop.engines.torch_engine import TorchEngine

    config, policy, tokenizer = open_named(parse_models([model])[0], None, (), SilentView())
    engine = TorchEngine(policy, tokenizer, config.engine)
    ids = [encode_prompt(text, tokenizer, add_bos=True) for text in texts]
    sampling = Sampling(max_new_tokens=tokens)
    for _attempt in range(2):  # the first one warms up
        begin = time.perf_counter()
        found: dict[tuple[str, int], list[int]] = {}
        for place, prompt in enumerate(ids):
            engine.submit(Request(str(place), prompt, sampling, place, n))
        while engine.unfinished:
            for completion in engine.step():
                found[completion.request_id, completion.index] = completion.token_ids.tolist()
        seconds = time.perf_counter() - begin
    return seconds, [found[str(place), index] for place in range(len(ids)) for index in range(n)]


async def through_http(
    url: str, texts: list[str], n: int, tokens: int, stream: bool
) -> tuple[float, list[list[int]]]:
    """The same through the endpoint."""
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=None)
    async with httpx.AsyncClient(base_url=url, timeout=600, limits=limits, trust_env=False) as client:

        async def ask(place: int, text: str) -> list[list[int]]:
            body = {"prompt": text, "n": n, "max_tokens": tokens, "seed": place, "return_token_ids": True}
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

        begin = time.perf_counter()
        found = await asyncio.gather(*(ask(place, text) for place, text in enumerate(texts)))
        return time.perf_counter() - begin, [ids for answer in found for ids in answer]


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
    parser.add_argument("--tokens", type=int, default=100)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--threads", type=int, default=1)
    arguments = parser.parse_args()
    os.environ["OMP_NUM_THREADS"] = str(arguments.threads)
    command = [sys.executable, "-m", "strop", "serve", arguments.model, "--port", "0", "--json",
               "--max-requests", str(arguments.requests)]  # fmt: skip
    parts = (
        ("whole", prompts(arguments.requests), 1, False),
        ("samples", prompts(max(1, arguments.requests // SAMPLES)), SAMPLES, False),
        ("stream", prompts(arguments.requests), 1, True),
    )
    for part, texts, n, stream in parts:
        alone = [directly(arguments.model, texts, n, arguments.tokens) for _ in range(arguments.runs)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, stderr=subprocess.DEVNULL) as server:
            try:
                assert server.stdout is not None
                url = json.loads(server.stdout.readline())["url"]
                served = [
                    asyncio.run(through_http(url, texts, n, arguments.tokens, stream))
                    for _ in range(arguments.runs + 1)  # the first one warms up
                ]
                idle = latencies(url, 100) if part == "whole" else None
            finally:
                server.send_signal(signal.SIGINT)
        tokens = sum(len(ids) for ids in alone[0][1])
        same = all(ids == alone[0][1] for _, ids in (*alone, *served))
        quickest, through = min(seconds for seconds, _ in alone), min(seconds for seconds, _ in served)
        show(part, {
            "requests": len(texts), "samples": n, "tokens": tokens, "same_tokens": same,
            "engine_tokens_per_second": round(tokens / quickest), "http_tokens_per_second": round(tokens / through),
            "ratio": round(quickest / through, 3),
        })  # fmt: skip
        if idle is not None:
            show("latency", {"ms_p50": round(statistics.median(idle), 2), "ms_p99": round(idle[98], 2)})


if __name__ == "__main__":
    main()
