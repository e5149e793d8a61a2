"""A reward function of one's own on problems of one's own: the embedded model learns to add, in about two minutes."""

import strop
from strop.data.generators import ChainSum

problems = [{"prompt": sum.prompt, "answer": sum.reference} for sum in ChainSum(part="train", seed=1).load()]


def correct(problem: strop.Problem, text: str) -> float:
    return float(f"\\boxed{{{problem.reference}}}" in text)


run = strop.train("embedded", problems, reward=correct, recipe="quickstart")
print(run, run.sample("3+5-2+7+1="))
