"""On-policy distillation (Thinking Machines Lab, 2025): a teacher scores every token that the student samples.

    A_t = log π_T(o_t) − log π(o_t)        at each token, with nothing of later tokens; no reward

The numbers are those of tinker-cookbook's `on_policy_distillation`: DeepMath, 512 × 4 completions of up to 4,096
tokens, about 100 steps at 5e-5. The report's student was fine-tuned on OpenThoughts3 before (`strop sft`).
"""

from __future__ import annotations

from strop.algorithms.advantages import Distillation
from strop.algorithms.aggregation import TokenMean
from strop.algorithms.losses import Cispo
from strop.algorithms.regularizers import KlInReward
from strop.algorithms.rewards import BinaryReward
from strop.algorithms.settings import AlgorithmSettings, ReferenceSettings, Selection
from strop.config.schema import RunConfig
from strop.data.columns import Columns
from strop.data.rows import HubDataset
from strop.data.settings import DataSettings, HeldOutSettings
from strop.engines.protocol import Sampling
from strop.evaluation import EvaluationSettings
from strop.model.settings import ModelSettings
from strop.recipes import Variants
from strop.recipes._data import BOXED, math_verifier
from strop.training.settings import AdamW, BatchSettings


def recipe() -> RunConfig:
    """On-policy distillation: the reverse KL to a teacher, token by token, is the advantage; there is no reward."""
    source = HubDataset(dataset="zwhe99/DeepMath-103K", columns=Columns(prompt="question", answer="final_answer"))
    return RunConfig(
        recipe="distill",
        steps=100,
        model=ModelSettings(path="Qwen/Qwen3-8B-Base", dtype="bfloat16", gradient_checkpointing=True),
        data=DataSettings(source=source, template=BOXED, held_out=HeldOutSettings(count=256)),
        verifier=math_verifier(),  # for the pass rates
        batch=BatchSettings(prompts_per_step=512, samples_per_prompt=4),
        sampling=Sampling(temperature=1.0, max_new_tokens=4096),
        algorithm=AlgorithmSettings(
            reward=BinaryReward(correct=1.0, wrong=0.0),
            selection=Selection(zero_variance="keep"),
            kl_in_reward=KlInReward(beta=1.0, estimator="k1"),
            reference=ReferenceSettings(path="Qwen/Qwen3-8B"),
            advantage=Distillation(),
            loss=Cispo(max_ratio=5.0),
            aggregation=TokenMean(),
        ),
        optim=AdamW(lr=5e-5, weight_decay=0.0),
        evaluation=EvaluationSettings(every=20, samples_per_problem=4),
    )


SOLUTION = "{question}\\n\\nA solution of this problem:\\n{solution}\\n\\nNow solve it in your own words."
ATTEMPT = "{question}\\n\\nA right answer of another student:\\n{success}\\n\\nNow solve it yourself."

VARIANTS: Variants = {
    "distill.top_k": (
        "On-policy distillation with the exact KL over the teacher's 64 most probable tokens as the loss.",
        "distill", "algorithm.kl_in_reward.beta=0", 'algorithm.regularizers=[{piece="TopKl", beta=1.0, top_k=64}]',
    ),
    "self_distill": (
        "Self-distillation as in OPSD (2601.18734): the teacher is the first policy, the solution in its prompt.",
        "distill", "model.path=Qwen/Qwen3-8B", "algorithm.reference.path=none",
        f'algorithm.reference.prompt="{SOLUTION}"',
    ),
    "self_distill.success": (
        "Self-distillation as in SDPO (2601.20802): the present policy that has seen a right completion of the group.",
        "self_distill", "algorithm.reference.reset_every=1", f'algorithm.reference.prompt="{ATTEMPT}"',
        "algorithm.advantage.outcome=GroupRelative", "batch.samples_per_prompt=8",
    ),
}  # fmt: skip
