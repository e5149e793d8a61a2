"""Problems from a table of pandas, and a run's curves and completions back as such tables."""

import random

import pandas as pd

import strop

draw = random.Random(0)
table = pd.DataFrame({"a": [draw.randint(10, 49) for _ in range(400)], "b": [draw.randint(1, 9) for _ in range(400)]})
table["question"] = table.a.astype(str) + "+" + table.b.astype(str) + "="
table["sum"] = table.a + table.b


def near(problem: strop.Problem, text: str) -> float:
    """1 for the right sum, less the further off it is."""
    found = text.rpartition("\\boxed{")[2].rstrip("}")
    return 1 / (1 + abs(int(found) - problem.extra["sum"])) if found.isdecimal() else 0.0


columns = {"prompt": "question", "answer": "sum"}
run = strop.train("embedded", table, columns=columns, reward=near, recipe="quickstart", steps=16)
print(run.metrics.to_pandas()[["step", "reward/mean", "length/mean"]])
rollouts = run.rollouts(columns=["step", "problem_id", "prompt", "completion", "reward"]).to_pandas()
print(rollouts.groupby("problem_id").reward.mean().sort_values().head())
