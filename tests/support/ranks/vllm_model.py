"""The model that vLLM's tests generate with: random, with attention to a few key heads and a tied head."""

import torch
from transformers import Qwen3Config, Qwen3ForCausalLM

EOS = 258


def small_model(
    *, seed: int = 0, vocab_size: int = 259, initializer_range: float = 0.2
) -> Qwen3ForCausalLM:
    """Two layers; the embedding is [vocab_size, 64]."""
    torch.manual_seed(seed)
    config = Qwen3Config(
        vocab_size=vocab_size,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        max_position_embeddings=128,
        tie_word_embeddings=True,
        initializer_range=initializer_range,
        eos_token_id=EOS,
        bos_token_id=257,
    )
    return Qwen3ForCausalLM(config).eval()
