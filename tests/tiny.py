"""Small random models made on the spot, over the byte tokenizer (EOS 256, PAD 257, 258 tokens)."""

from __future__ import annotations

from collections.abc import Sequence

from transformers import PreTrainedTokenizerFast

from strop.model import files
from strop.model.policy import Policy, load_policy
from strop.model.settings import FreshModel, ModelSettings

# Roles as plain text; `strop` asks for the generation prompt, which ends where the assistant begins to write.
CHAT_TEMPLATE = (
    "{% for message in messages %}{{ message['role'] }}: {{ message['content'] }}\n{% endfor %}"
    "{% if add_generation_prompt %}assistant: {% endif %}"
)


def byte_tokenizer(words: Sequence[str] = (), chat: bool = False) -> PreTrainedTokenizerFast:
    """As `files.byte_tokenizer`, with `chat` one that has a chat template."""
    tokenizer = files.byte_tokenizer(words)
    if chat:
        tokenizer.chat_template = CHAT_TEMPLATE
    return tokenizer


def tiny_settings(tie: bool = True, **changes: object) -> ModelSettings:
    """Two layers of 32, float32, head in chunks of 7 rows; weights large enough that greedy decoding does not tie."""
    fresh = FreshModel(
        hidden_size=32,
        layers=2,
        heads=4,
        kv_heads=2,
        head_dim=8,
        intermediate_size=48,
        tie_embeddings=tie,
        max_positions=512,
        initializer_range=0.3,
    )
    values: dict[str, object] = {"fresh": fresh, "chunk_tokens": 7, **changes}
    return ModelSettings.model_validate(values)


def tiny_qwen3(seed: int = 0, tie: bool = True, **changes: object) -> Policy:
    """A random Qwen3 policy over `byte_tokenizer()`."""
    return load_policy(tiny_settings(tie, **changes), byte_tokenizer(), seed)[0]
