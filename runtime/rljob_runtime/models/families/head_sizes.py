"""Read and write the sizes of families with separate keys and values per head.

The modules of these families call this.
"""

from rljob_runtime.models.architecture import Architecture, MoeArchitecture
from rljob_runtime.models.config import Config, UnsupportedArchitecture
from rljob_runtime.models.rope import read_rope


def read_heads(
    config: Config,
    *,
    head_dim: int | None = None,
    num_kv_heads: int | None = None,
    qkv_bias: bool = False,
    output_bias: bool = False,
    mlp_bias: bool = False,
    qk_norm: bool = False,
    experts: MoeArchitecture | None = None,
) -> Architecture:
    """Return the architecture. head_dim, num_kv_heads: the family's defaults if config.json has none.

    Raises UnsupportedArchitecture if neither gives a number of key heads.
    """
    if num_kv_heads is None and config.get("num_key_value_heads") is None:
        raise UnsupportedArchitecture(f"num_key_value_heads is not given ({config.name})")
    num_heads, hidden = config.integer("num_attention_heads"), config.integer("hidden_size")
    return Architecture(
        name=config.name,
        vocab_size=config.integer("vocab_size"),
        hidden_size=hidden,
        intermediate_size=config.integer("intermediate_size"),
        num_layers=config.integer("num_hidden_layers"),
        num_heads=num_heads,
        num_kv_heads=config.integer("num_key_value_heads", num_kv_heads),
        head_dim=config.integer("head_dim", head_dim or hidden // num_heads),
        norm_epsilon=config.number("rms_norm_eps", 1e-6),
        rope=read_rope(config),
        tied=config.flag("tie_word_embeddings"),
        qkv_bias=qkv_bias,
        output_bias=output_bias,
        mlp_bias=mlp_bias,
        qk_norm=qk_norm,
        max_length=config.integer("max_position_embeddings", 2048),
        experts=experts,
    )


def refuse_windows(config: Config, *, window: object) -> None:
    """Raise UnsupportedArchitecture for sliding-window attention. window: None if there is none."""
    layers = config.get("layer_types")
    kinds = layers if isinstance(layers, list) else []
    if window is not None or any(kind != "full_attention" for kind in kinds):
        raise UnsupportedArchitecture(
            f"sliding_window={window} is not computed here ({config.name})"
        )


def refuse_qwen_windows(config: Config) -> None:
    """Raise UnsupportedArchitecture if `use_sliding_window` of config.json enables a window."""
    used = config.flag("use_sliding_window")
    refuse_windows(config, window=config.get("sliding_window") if used else None)


def write_heads(architecture: Architecture) -> dict[str, object]:
    """Return the entries that all of these families have."""
    return {
        "head_dim": architecture.head_dim,
        "sliding_window": None,
        "use_sliding_window": False,
    }
