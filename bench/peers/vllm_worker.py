"""vLLM as a peer of rollout.py and vllm_client.py, in an environment that has it; imports nothing else of ours."""

from __future__ import annotations

import json
import os
import sys
import time

os.environ.update(HF_HUB_OFFLINE="1", VLLM_NO_USAGE_STATS="1", DO_NOT_TRACK="1")

from vllm import LLM, SamplingParams  # noqa: E402 (reads the environment when imported)


def main() -> None:
    """Load the model, then sample everything once for each line on standard input."""
    what = json.loads(sys.argv[1])
    engine = LLM(
        model=what["model"], dtype=what["dtype"], skip_tokenizer_init=True, max_model_len=what["tokens"] + 8,
        max_num_seqs=what["rows"], enforce_eager=what["eager"], kv_cache_memory_bytes=what["kv_bytes"],
        disable_log_stats=True, logprobs_mode="processed_logprobs", seed=0,
        **what["arguments"],
    )  # fmt: skip
    prompts = [{"prompt_token_ids": prompt} for prompt, _ in what["work"]]
    sampling = [
        SamplingParams(
            temperature=1.0, max_tokens=length, ignore_eos=True, detokenize=False, logprobs=0,
            seed=place if what["seeds"] else None,
        )
        for place, (_, length) in enumerate(what["work"])
    ]  # fmt: skip
    engine.generate(prompts, SamplingParams(max_tokens=2, ignore_eos=True, detokenize=False), use_tqdm=False)  # warm
    print(json.dumps({"ready": True}), flush=True)
    for _ in sys.stdin:
        wall, cpu = time.perf_counter(), time.process_time()
        found = engine.generate(prompts, sampling, use_tqdm=False)
        spent = {"wall": time.perf_counter() - wall, "cpu": time.process_time() - cpu}
        lengths = [len(one.outputs[0].token_ids) for one in found]
        assert lengths == [length for _, length in what["work"]], "vLLM sampled other lengths than asked for"
        print(json.dumps(spent), flush=True)


if __name__ == "__main__":
    main()
