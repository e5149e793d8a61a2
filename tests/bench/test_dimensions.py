"""Operations of a model, counted by hand and by PyTorch."""

from __future__ import annotations

import runpy
from pathlib import Path

import torch
from torch.utils.flop_counter import FlopCounterMode
from transformers import Qwen3Config, Qwen3ForCausalLM

Dimensions = runpy.run_path(str(Path(__file__).parents[2] / "bench" / "dimensions.py"))["Dimensions"]
SMALL = Dimensions(layers=2, hidden=8, inner=12, heads=4, kv_heads=2, head_dim=4, vocabulary=30)


def test_by_hand():
    # A token and layer: query 8 × 16, key and value 8 × 8 each, output 16 × 8, feed-forward 3 × 8 × 12, twice each.
    layer = 2 * (128 + 64 + 64 + 128 + 288)
    # Sequences of 3 and 1 tokens have 1 + 2 + 3 and 1 pairs; each 4 heads × 4 features, for scores and for values.
    attention = 7 * 2 * 2 * 16
    assert SMALL.forward_operations([3, 1], head_rows=2) == 2 * (4 * layer + attention) + 2 * (2 * 8 * 30)
    assert SMALL.forward_operations([], head_rows=0) == 0


def test_of_qwen3_0_6b():
    """440,401,920 weights of layers and 155,582,464 of the head, twice each, and attention over 16,384 tokens."""
    shape = Dimensions(28, 1024, 3072, 16, 8, 128, 151_936)
    a_token = shape.forward_operations([1], 1) - 28 * 4 * 16 * 128
    assert a_token == 2 * (440_401_920 + 155_582_464)
    whole = shape.forward_operations([16_384], 16_384)
    assert whole == 16_384 * a_token + 28 * 4 * 2048 * 16_384 * 16_385 // 2


def test_as_pytorch_counts_the_matrix_products_of_a_model():
    config = Qwen3Config(hidden_size=8, intermediate_size=12, num_hidden_layers=2, num_attention_heads=4,
                         num_key_value_heads=2, head_dim=4, vocab_size=30, attn_implementation="eager")  # fmt: skip
    with FlopCounterMode(display=False) as counter:
        Qwen3ForCausalLM(config)(input_ids=torch.zeros(1, 9, dtype=torch.int64))
    # PyTorch's eager attention computes the whole square, 81 pairs where causality needs 45, and angles of positions:
    # an outer product of 9 positions and 2 frequencies, or none where they are multiplied without a matrix product.
    square = 2 * 4 * 16 * (81 - 45)
    counted = counter.get_total_flops() - square
    assert counted - SMALL.forward_operations([9], 9) in (0, 2 * 9 * 2)
