"""Three rewards with weights: right above all, in a box at all, and brief."""

import strop
from strop.data.generators import ChainSum


def right(problem: strop.Problem, text: str) -> bool:
    return f"\\boxed{{{problem.reference}}}" in text


def boxed(problem: strop.Problem, text: str) -> bool:
    return "\\boxed{" in text


def brief(problem: strop.Problem, text: str) -> float:
    return -len(text) / 100


run = strop.train(
    "embedded", ChainSum(part="train"), held_out=ChainSum(part="held_out", count=64),
    reward={right: 1.0, boxed: 0.1, brief: 0.2}, recipe="quickstart",
)  # fmt: skip
# The two functions that return a bool say what is right, so pass rates count boxed right answers, brief or not.
print(f"{run.path}: {run.pass_rates}")
rows = run.rollouts(run.summary["steps"], ["prompt", "completion", "reward", "detail"]).to_pylist()
for row in list({row["completion"]: row for row in rows}.values())[:5]:  # what a group agrees on once
    print(row)
