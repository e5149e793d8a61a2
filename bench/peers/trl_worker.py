"""TRL's GRPOTrainer as a peer of bench/step.py; runs in a virtual environment that has trl, imports nothing of ours."""

from __future__ import annotations

import json
import re
import sys
import tempfile
import time
from typing import Any

import torch
from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback
from trl import GRPOConfig, GRPOTrainer

NUMBER = re.compile(r"\d+")
drawn = 0  # completion tokens of the last step


def reward(completions: list[str], completion_ids: list[list[int]], reference: list[str], **_: Any) -> list[float]:
    """1 where the last number of the completion is the reference."""
    global drawn
    drawn = sum(map(len, completion_ids))
    last = [(NUMBER.findall(completion) or [""])[-1] for completion in completions]
    return [float(found == wanted) for found, wanted in zip(last, reference, strict=True)]


class Turns(TrainerCallback):
    """Holds training at the beginning of each step until a line comes in, and says at its end what it took."""

    def on_step_begin(self, args: Any, state: Any, control: Any, **_: Any) -> Any:
        """Wait for the turn."""
        if not sys.stdin.readline():
            control.should_training_stop = True
        self.wall, self.cpu = time.perf_counter(), time.process_time()
        return control

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> Any:
        """Say what the step took."""
        spent = {"wall": time.perf_counter() - self.wall, "cpu": time.process_time() - self.cpu}
        print(json.dumps(spent | {"tokens": drawn}), flush=True)
        return control


def main() -> None:
    """Train as many steps as there are lines on standard input."""
    what = json.loads(sys.argv[1])
    if what["threads"] is not None:
        torch.set_num_threads(what["threads"])
    model = AutoModelForCausalLM.from_pretrained(what["model"], dtype=getattr(torch, what["dtype"]))
    tokenizer = AutoTokenizer.from_pretrained(what["model"])
    rows = [{"prompt": prompt, "reference": reference} for prompt, reference in what["problems"]]
    completions = what["prompts"] * what["samples"]
    with tempfile.TemporaryDirectory() as folder:
        config = GRPOConfig(
            output_dir=folder, use_cpu=what["device"] == "cpu", bf16=False, fp16=False, gradient_checkpointing=False,
            per_device_train_batch_size=what["rows"], generation_batch_size=completions,
            gradient_accumulation_steps=completions // what["rows"],
            num_generations=what["samples"], max_completion_length=what["longest"], temperature=1.0, beta=0.0,
            loss_type="grpo", learning_rate=1e-6, lr_scheduler_type="constant", max_steps=10_000, report_to="none",
            logging_strategy="no", save_strategy="no", disable_tqdm=True, dataloader_pin_memory=False,
        )  # fmt: skip
        trainer = GRPOTrainer(
            model=model, reward_funcs=reward, args=config, train_dataset=Dataset.from_list(rows),
            processing_class=tokenizer, callbacks=[Turns()],
        )  # fmt: skip
        print(json.dumps({"ready": True}), flush=True)
        trainer.train()


if __name__ == "__main__":
    main()
