"""Random models in Hugging Face directories, for benchmarks that compare engines.

Shapes: `0.8M` is the builtin `tiny`, `135M` is SmolLM2's; the others lie between.
"""

from pathlib import Path

from rljob_runtime.models.architecture import Architecture
from rljob_runtime.models.decoder import Decoder
from rljob_runtime.models.families import hf_config
from rljob_runtime.models.rope import Rope
from rljob_runtime.models.weights import save_hf


def _qwen3(hidden: int, inner: int, layers: int, head_dim: int) -> Architecture:
    heads = hidden // head_dim
    return Architecture(
        name="Qwen3ForCausalLM",
        vocab_size=259,
        hidden_size=hidden,
        intermediate_size=inner,
        num_layers=layers,
        num_heads=heads,
        num_kv_heads=heads // 2,
        head_dim=head_dim,
        norm_epsilon=1e-6,
        rope=Rope(),
        tied=True,
        qkv_bias=False,
        output_bias=False,
        mlp_bias=False,
        qk_norm=True,
        max_length=4096,
    )


SMOLLM2 = Architecture(
    name="LlamaForCausalLM",
    vocab_size=49152,
    hidden_size=576,
    intermediate_size=1536,
    num_layers=30,
    num_heads=9,
    num_kv_heads=3,
    head_dim=64,
    norm_epsilon=1e-5,
    rope=Rope(theta=100_000.0),
    tied=True,
    qkv_bias=False,
    output_bias=False,
    mlp_bias=False,
    qk_norm=False,
    max_length=8192,
)
SIZES = {
    "0.8M": _qwen3(128, 384, 4, 32),
    "3.8M": _qwen3(256, 640, 5, 64),
    "24.7M": _qwen3(512, 1536, 8, 64),
    "135M": SMOLLM2,
}


def make_model(path: Path, architecture: Architecture) -> Path:
    """Save a random model of this shape in the new folder; returns the folder."""
    decoder = Decoder(architecture)
    decoder.initialize(0)
    save_hf(decoder.named_hf_parameters(), folder=path, config=hf_config(architecture))
    return path
