"""Generator against trainer: how far log-probs of sampled tokens are from those of the trainer's forward pass, in nats.

    python bench/mismatch.py --device cuda --model qwen3-0.6b
    python bench/mismatch.py --model 3.4m                          # bfloat16 on a CPU

ScaleRL's Figure 21 with our own engine: with the logits rounded to bfloat16 in both, and with the head in float32 in
both. Weights are random; the last norm is scaled by `--sharpness`, so that the distribution is as uneven as a trained
model's (the line has its mean entropy). The limit is float32 throughout: what the order of sums alone makes.
"""

from __future__ import annotations

import argparse

import numpy as np
import torch
from common import begin, emit, endless_tokenizer, model_of, parser_of, policy_of, shape_or_folder

from strop.engines.protocol import Request, Sampling
from strop.engines.settings import EngineSettings
from strop.engines.torch.engine import TorchEngine
from strop.model.policy import PackedInputs, Policy


def mismatch(policy: Policy, given: argparse.Namespace) -> dict[str, float]:
    """Of all sampled tokens: mean, 99th percentile and maximum of |generator − trainer|, the mean of k3 =
    r − 1 − log r with r = exp(trainer − generator), and the trainer's mean entropy; nats."""
    settings = EngineSettings(slots=max(16, given.sequences), max_tokens=64 + given.tokens)
    engine = TorchEngine(policy, endless_tokenizer(), settings)
    rng = np.random.default_rng(0)
    for place in range(given.sequences):
        prompt = rng.integers(0, policy.vocabulary, int(rng.integers(8, 64))).astype(np.int32)
        engine.submit(Request(str(place), prompt, Sampling(max_new_tokens=given.tokens), seed=place))
    done = [completion for _ in iter(lambda: engine.unfinished, 0) for completion in engine.step()]
    engine.close()
    gaps, entropies = [], []
    for completion in done:
        first = len(completion.prompt_ids) - 1
        packed = PackedInputs.whole([[*completion.prompt_ids.tolist(), *completion.token_ids.tolist()]])
        with torch.inference_mode():
            logprob, entropy = policy(packed.to(policy.device), 1.0)
        gaps.append(logprob[first:].double().cpu().numpy() - completion.logprobs)
        entropies.append(entropy[first:].double().cpu().numpy())
    gap = np.concatenate(gaps)
    return {
        "mean": float(np.abs(gap).mean()), "p99": float(np.quantile(np.abs(gap), 0.99)),
        "worst": float(np.abs(gap).max()), "k3": float((np.expm1(gap) - gap).mean()),
        "entropy": float(np.concatenate(entropies).mean()), "tokens": float(len(gap)),
    }  # fmt: skip


def measured(given: argparse.Namespace, dtype: torch.dtype, fp32: bool) -> dict[str, float]:
    """The mismatch of a model of its own, in one precision, with the head's logits in float32 or rounded."""
    model = model_of(given.model, dtype, given.device)
    with torch.no_grad():
        model.base_model.norm.weight.mul_(given.sharpness)
    return mismatch(policy_of(model, trainer_fp32_head=fp32, generator_fp32_head=fp32), given)


def main() -> None:
    """Both heads, and float32 beside them."""
    parser = parser_of(__doc__, ())
    parser.add_argument("--model", type=shape_or_folder, default="3.4m")
    parser.add_argument("--sequences", type=int, default=64)
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--sharpness", type=float, default=8.0)
    given = parser.parse_args()
    begin(given)
    least = measured(given, torch.float32, True)
    found = {fp32: measured(given, torch.bfloat16, fp32) for fp32 in (False, True)}
    rounded = found[False]["mean"]
    for fp32, one in found.items():
        emit("mismatch", f"{given.model} bfloat16, head in {'float32' if fp32 else 'bfloat16'}", one.pop("mean"),
             rounded if fp32 else None, "head in bfloat16" if fp32 else None, "nats", least["mean"],
             device=given.device, **one)  # fmt: skip


if __name__ == "__main__":
    main()
