"""Two recipes on the same problems from the same model; each goes on where it was interrupted."""

import strop
from strop.data.generators import ChainSum

problems, others = ChainSum(part="train"), ChainSum(part="held_out", count=128)
for recipe in ("grpo", "dapo"):
    settings = {
        "optim.lr": 3e-4, "sampling.max_new_tokens": 64, "algorithm.shaping": [], "optim.warmup_steps": 2,
        "data.template": "Auto", "evaluation.every": 4,
        "batch.prompts_per_step": 16, "batch.samples_per_prompt": 8, "batch.updates_per_step": 1,
    }  # fmt: skip
    run = strop.train(
        "embedded", problems, held_out=others, recipe=recipe, steps=16, settings=settings,
        out=f"runs/compare-{recipe}", resume=True,
    )  # fmt: skip
    print(recipe, run.pass_rates)
