"""What users bring: models of many families, made from their configurations, with the chat templates of real models."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM

from strop.model.files import byte_tokenizer

FOLDER = Path(__file__).parent / "templates"
TEMPLATES = ("qwen2_5", "qwen3", "mistral_nemo")
SPECIAL = ("<|im_start|>", "<|im_end|>", "<|endoftext|>", "[INST]", "[/INST]", "<s>", "</s>")

SIZES: dict[str, Any] = {
    "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 512, "initializer_range": 0.3, "bos_token_id": None,
}  # fmt: skip
HEAD = {"head_dim": 16}
EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 24}
LATENT = {
    "kv_lora_rank": 16, "q_lora_rank": 16, "qk_rope_head_dim": 16, "qk_nope_head_dim": 16, "v_head_dim": 16,
    "num_key_value_heads": 4, "n_routed_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16,
    "first_k_dense_replace": 1,
}  # fmt: skip
ROPE = {"rope_theta": 1e4, "factor": 4.0, "original_max_position_embeddings": 128}
# By name the model type of its configuration, and what it has beside `SIZES`.
FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("llama", {}),
    "llama 3.1": (
        "llama", {"rope_parameters": {**ROPE, "rope_type": "llama3", "low_freq_factor": 1.0, "high_freq_factor": 4.0}}
    ),
    "mistral": ("mistral", {**HEAD, "sliding_window": None}),
    "mixtral": ("mixtral", {**HEAD, "num_local_experts": 4}),
    "qwen2": ("qwen2", {}),
    "qwen2 with yarn": ("qwen2", {"rope_parameters": {**ROPE, "rope_type": "yarn"}}),
    "qwen2_moe": ("qwen2_moe", {**EXPERTS, "shared_expert_intermediate_size": 24}),
    "qwen3": ("qwen3", HEAD),
    "qwen3_moe": ("qwen3_moe", {**HEAD, **EXPERTS}),
    "gemma": ("gemma", HEAD),
    "gemma3_text": ("gemma3_text", {**HEAD, "sliding_window": 512}),
    "phi": ("phi", {}),
    "phi3": ("phi3", {"sliding_window": None}),
    "olmo": ("olmo", {}),
    "olmo2": ("olmo2", {}),
    "olmo3": ("olmo3", {"sliding_window": 512}),
    "olmoe": ("olmoe", {"num_experts": 4, "num_experts_per_tok": 2}),
    "granite": ("granite", {"embedding_multiplier": 3.0, "residual_multiplier": 0.3, "attention_multiplier": 0.2}),
    "smollm3": ("smollm3", {}),
    "gpt_neox": ("gpt_neox", {}),
    "gpt2": ("gpt2", {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 512}),
    "glm": ("glm", HEAD),
    "glm4": ("glm4", HEAD),
    "glm4_moe": (
        "glm4_moe", {"n_routed_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16,
                     "first_k_dense_replace": 1},
    ),
    "cohere": ("cohere", {"logit_scale": 1.0}),
    "starcoder2": ("starcoder2", {}),
    "opt": ("opt", {"word_embed_proj_dim": 32, "ffn_dim": 48}),
    "deepseek_v2": ("deepseek_v2", LATENT),
    "deepseek_v3": ("deepseek_v3", {**LATENT, "n_group": 1, "topk_group": 1}),
    "exaone4": ("exaone4", HEAD),
    "ernie4_5": ("ernie4_5", HEAD),
    "hunyuan": ("hunyuan_v1_dense", HEAD),
    "seed_oss": ("seed_oss", HEAD),
    "arcee": ("arcee", {}),
    "cohere with scaled logits": ("cohere", {"logit_scale": 0.0625}),
    "granite with scaled logits": ("granite", {"logits_scaling": 8.0}),
}  # fmt: skip
# Windows and chunks are shorter than the sequences of the tests, so that they matter.
WINDOW = {"sliding_window": 8}
FOUR = {"num_hidden_layers": 4}
LLAMA4 = {
    **HEAD, **FOUR, "intermediate_size_mlp": 48, "num_local_experts": 4, "num_experts_per_tok": 2,
    "interleave_moe_layer_step": 2, "attention_chunk_size": 8, "floor_scale": 8, "attn_scale": 0.5,
}  # fmt: skip
WINDOWED: dict[str, tuple[str, dict[str, Any]]] = {
    "mistral with a window": ("mistral", {**HEAD, **WINDOW}),
    "mistral with a window, wide heads": ("mistral", {"head_dim": 32, **WINDOW}),
    "ministral": ("ministral", {**HEAD, **WINDOW}),
    "mixtral with a window": ("mixtral", {**HEAD, **WINDOW, "num_local_experts": 4}),
    "qwen2 with a window": ("qwen2", {**WINDOW, "use_sliding_window": True, "max_window_layers": 1}),
    "qwen2_moe with a window": (
        "qwen2_moe", {**EXPERTS, **WINDOW, "shared_expert_intermediate_size": 24, "use_sliding_window": True,
                      "max_window_layers": 1}
    ),
    "qwen3 with a window": ("qwen3", {"head_dim": 32, **WINDOW, "use_sliding_window": True, "max_window_layers": 1}),
    "qwen3_moe with a window": (
        "qwen3_moe", {**HEAD, **EXPERTS, **WINDOW, "use_sliding_window": True, "max_window_layers": 1}
    ),
    "phi3 with a window": ("phi3", WINDOW),
    "starcoder2 with a window": ("starcoder2", WINDOW),
    "olmo3 with a window": ("olmo3", {**WINDOW, **FOUR}),
    "smollm3 with a window": ("smollm3", {**WINDOW, **FOUR, "use_sliding_window": True}),
    "exaone4 with a window": ("exaone4", {**HEAD, **WINDOW, **FOUR}),
    "cohere2": ("cohere2", {**HEAD, **WINDOW, **FOUR}),
    "gemma2": (
        "gemma2", {**HEAD, **WINDOW, "query_pre_attn_scalar": 24, "attn_logit_softcapping": 2.0,
                   "final_logit_softcapping": 3.0}
    ),
    "gemma3_text with a window": (
        "gemma3_text", {**HEAD, **WINDOW, "num_hidden_layers": 7, "query_pre_attn_scalar": 24}
    ),
    "gpt_oss": ("gpt_oss", {**HEAD, **WINDOW, "num_local_experts": 4, "num_experts_per_tok": 2}),
    "llama4_text": ("llama4_text", LLAMA4),
    "llama4_text without query norms": (
        "llama4_text", {**LLAMA4, "use_qk_norm": False, "attn_temperature_tuning": False,
                        "no_rope_layers": [1, 0, 1, 1]}
    ),
}  # fmt: skip
FAMILIES |= WINDOWED


def tokenizer(name: str) -> Any:
    """A byte tokenizer with the special tokens and the chat template of a model."""
    made = byte_tokenizer(SPECIAL)
    made.add_special_tokens({"bos_token": "<s>", "eos_token": "</s>"})
    made.chat_template = (FOLDER / f"{name}.jinja").read_text()
    return made


def bring(family: str, template: str, folder: Path) -> Path:
    """A model folder as users have them: random weights of a family, written by transformers, and a tokenizer."""
    words = tokenizer(template)
    kind, more = FAMILIES[family]
    tokens = {"vocab_size": len(words), "pad_token_id": words.pad_token_id, "eos_token_id": words.eos_token_id}
    known = AutoConfig.for_model(kind)  # what it does not know would stand in the configuration of no published model
    sizes = {name: value for name, value in SIZES.items() if hasattr(known, name)}
    torch.manual_seed(0)
    AutoModelForCausalLM.from_config(AutoConfig.for_model(kind, **{**sizes, **tokens, **more})).save_pretrained(folder)
    words.save_pretrained(folder)
    return folder
