"""Recipes of published models, each as its changes of `dapo`: JustRL, ProRL v2 and Olmo 3's RL-Zero on mathematics.

`just_rl`: arXiv 2512.16649, Section 3.1 and Table 2, and the script `run_scaling_ssh_distill.sh` of thunlp/JustRL for
warm-up, weight decay, dual clip and evaluation. Answers are compared as texts. Its verifier reads only the last 100
characters, this one all that follows the thinking.

`prorl_v2`: NVIDIA's post (August 2025) names the techniques: REINFORCE++-baseline, clip-higher, dynamic sampling, a KL
penalty by k2, a new reference every 200 to 500 steps (here 500), 3,000 steps in all, the last 1,000 of them at 8k. Its
numbers are those of OpenRLHF's `train_prorlv2_math_hybrid_engine.sh` and OpenRLHF's defaults, on mathematics. The
post's cosine length penalty has no numbers and is off there too. Prompts and the place of the answer are those of
`dapo`.

`olmo3_zero`: `7b_rlzero_math.sh` of allenai/open-instruct with 32 prompts a step (arXiv 2512.13961); later versions
have 16 × 16 completions of 12,000 tokens. The answer stands in a box, theirs behind `Answer:`.
"""

from __future__ import annotations

import json

from strop.recipes import Variants
from strop.recipes._data import BOXED

DISTILLED = "model.path=deepseek-ai/DeepSeek-R1-Distill-Qwen-1.5B"
BELOW = json.dumps(f"\n{BOXED.instruction}")  # as TOML: the instruction after a line break
K2 = '{piece="KlPenalty", estimator="k2", beta=1e-4, clamp=10.0}'


def _measured(samples: int, *names: str) -> str:
    """The setting that measures these benchmarks, where they can be had."""
    rows = (f'{{name="{name}", samples_per_problem={samples}, optional=true}}' for name in names)
    return f"evaluation.benchmarks=[{', '.join(rows)}]"


VARIANTS: Variants = {
    "just_rl": (
        "JustRL: GRPO with clip-higher, one stage and fixed settings, every group trained on, for 1.5B models.",
        "dapo", "steps=4380", DISTILLED,
        "data.max_prompt_tokens=1024", f"data.template.instruction={BELOW}",
        'verifier={piece="ExactMatch", extract="boxed", ignore_space=false}',
        "batch.prompts_per_step=256", "batch.samples_per_prompt=8", "batch.updates_per_step=4",
        "sampling.max_new_tokens=15360",
        "algorithm.shaping=[]", "algorithm.selection={zero_variance='keep', refill=false}",
        "algorithm.loss.dual_clip=10.0", "optim.warmup_steps=10",
        "evaluation.temperature=0.7", "evaluation.top_p=0.9",
        _measured(32, "aime24", "aime25", "amc23"), "checkpoint.every=50",
    ),
    "prorl_v2": (
        "ProRL v2: REINFORCE++-baseline, clip-higher, dynamic sampling, KL to a reference that is reset, IcePop.",
        "dapo", "steps=3000", DISTILLED, "data.max_prompt_tokens=1024", "verifier.require_stop=true",
        "batch.updates_per_step=8", "sampling.max_new_tokens=8192",
        "algorithm.reward.wrong=0", "algorithm.shaping=[]",
        "algorithm.advantage.normalization=token_std", "algorithm.advantage.eps=1e-8",
        'algorithm.correction={piece="IcePop", low=0.5, high=5.0}', "algorithm.loss.clip_high=0.27",
        f"algorithm.regularizers=[{K2}]", "algorithm.reference.reset_every=500",
        # 3% of 8 × 3,000 updates
        "optim.warmup_steps=720", 'optim.schedule={piece="Cosine", final_fraction=0.1}',
        "optim.betas=[0.9, 0.95]", "optim.weight_decay=0",
        "evaluation.every=5", _measured(4, "aime24"), "checkpoint.every=5",
    ),
    "olmo3_zero": (
        "Olmo 3's RL-Zero on mathematics: a base model, 8 steps ahead, TIS, centred rewards, solved prompts retired.",
        "dapo", "steps=3000", "model.path=allenai/Olmo-3-1025-7B",
        "data.source.dataset=allenai/Dolci-RL-Zero-Math-7B", "data.source.subset=none",
        'data.source.columns={prompt="prompt", answer="ground_truth", answer_json=true}',
        f'data.template={{piece="Plain", suffix={BELOW}}}',
        "batch.prompts_per_step=32", "batch.samples_per_prompt=8", "batch.updates_per_step=1",
        "sampling.max_new_tokens=16384",
        "algorithm.reward={correct=10.0, wrong=0.0}", "algorithm.shaping=[]",
        "algorithm.selection.no_positive_resampling=0.875", "algorithm.advantage.normalization=none",
        'algorithm.correction={piece="TokenTis", cap=2.0}', "algorithm.loss.clip_high=0.272",
        "optim.warmup_steps=0", "optim.weight_decay=0",
        "orchestration.max_lag=8", "orchestration.window=full",
        "evaluation.every=25", _measured(32, "aime24", "aime25"), "checkpoint.every=100",
    ),
}  # fmt: skip
