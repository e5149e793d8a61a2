"""The memory that an update is said to need, beside the peak of real updates; each measured in a process of its own.

    python bench/update_memory.py                        # 30 million parameters, both types, every way to compute
    python bench/update_memory.py --shape qwen3-0.6b --only bfloat16
    python bench/update_memory.py --device cuda --shape qwen3-1.7b --tokens 16384

`ours` is the estimate and `peer` the peak, in MiB; the ratio is estimate / peak. On a CPU the peak is of resident
memory, and glibc is told to give back at once what is freed.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from common import emit, parser_of

sys.path.insert(0, str(Path(__file__).parent / "peers"))
from update_memory_worker import policy_of  # noqa: E402  (beside the peers, which run in processes of their own)

from strop.run.update_memory import BatchSizes, update_need

MEBIBYTE = 2**20
AT_ONCE = {"MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "65536"}
SHAPES: dict[str, dict[str, Any]] = {
    "30m": {"hidden_size": 512, "intermediate_size": 1536, "num_hidden_layers": 4, "num_attention_heads": 8,
            "num_key_value_heads": 4, "head_dim": 64, "vocab_size": 32_768},
    "120m": {"hidden_size": 768, "intermediate_size": 2304, "num_hidden_layers": 10, "num_attention_heads": 12,
             "num_key_value_heads": 4, "head_dim": 64, "vocab_size": 65_536},
    "qwen3-0.6b": {"hidden_size": 1024, "intermediate_size": 3072, "num_hidden_layers": 28, "num_attention_heads": 16,
                   "num_key_value_heads": 8, "head_dim": 128, "vocab_size": 151_936},
    "qwen3-1.7b": {"hidden_size": 2048, "intermediate_size": 6144, "num_hidden_layers": 28, "num_attention_heads": 16,
                   "num_key_value_heads": 8, "head_dim": 128, "vocab_size": 151_936},
}  # fmt: skip
WAYS: dict[str, dict[str, Any]] = {
    "": {}, "checkpointed": {"gradient_checkpointing": True}, "LoRA": {"lora": {"rank": 32}},
    "LoRA, checkpointed": {"lora": {"rank": 32}, "gradient_checkpointing": True},
    "plain layers": {"cpu_kernels": False},
}  # fmt: skip


def main() -> None:
    """Measure every combination asked for."""
    parser = parser_of(__doc__, ())
    parser.add_argument("--shape", choices=tuple(SHAPES), default="30m")
    parser.add_argument("--tokens", type=int, default=2048, help="of a micro-batch, in sequences of 512")
    parser.add_argument("--only", default="", help="cases whose name contains this")
    given = parser.parse_args()
    shape = {**SHAPES[given.shape], "tie_word_embeddings": True, "max_position_embeddings": 8192}
    lengths = [512] * (given.tokens // 512)
    for dtype in ("float32", "bfloat16"):
        for name, way in WAYS.items():
            case = ", ".join(part for part in (given.shape, dtype, name) if part)
            if given.only not in case or (given.device == "cuda" and "cpu_kernels" in way):
                continue
            settings = {"dtype": dtype, "gradient_checkpointing": False, **way}
            what = {"device": given.device, "shape": shape, "settings": settings, "lengths": lengths}
            worker = Path(__file__).parent / "peers" / "update_memory_worker.py"
            command = [sys.executable, str(worker), json.dumps(what)]
            done = subprocess.run(command, check=True, stdout=subprocess.PIPE, env={**os.environ, **AT_ONCE})
            measured = json.loads(done.stdout)["bytes"]
            need = sum(update_need(policy_of(what, None), BatchSizes.of(lengths), given.device).values())
            emit("update_memory", case, need / MEBIBYTE, measured / MEBIBYTE, "peak of updates", "MiB",
                 tokens=sum(lengths), estimate_over_peak=need / measured)  # fmt: skip


if __name__ == "__main__":
    main()
