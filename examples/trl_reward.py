"""A reward function written for TRL's GRPOTrainer, as it is: prompts, completions and columns as lists."""

import strop
from strop.data.generators import ChainSum

problems = [{"prompt": sum.prompt, "answer": sum.reference} for sum in ChainSum(part="train", seed=1).load()]


def accuracy(prompts: list[str], completions: list[str], answer: list[str], **kwargs: object) -> list[float]:
    return [float(f"\\boxed{{{right}}}" in text) for text, right in zip(completions, answer, strict=True)]


run = strop.train("embedded", problems, reward=accuracy, recipe="quickstart")
print(run, run.sample("3+5-2+7+1="))
