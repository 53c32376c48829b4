"""Read vision-language models from their config.json: the sizes of the decoder, and the tensors of the tower.

Called by `architecture`, and by the runtime when it reads the same file.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import prod
from typing import Any

from rljob_api.model.config_sizes import size_in
from rljob_api.spec.messages import show

VISION = ("qwen2_5_vl", "qwen3_vl")
"""Vision-language families, by their model_type."""
TOWER = "visual."
"""Prefix of the names of a tower's tensors."""
Sized = tuple[str, tuple[int, ...]]


def language_part(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a configuration with the sizes of its decoder at the top level. Vision-language models have them
    in `text_config`, or, in older files, already at the top level. Other configurations are returned
    unchanged."""
    family = config.get("model_type")
    text = config.get("text_config") if family in VISION else None
    if not isinstance(text, dict):
        return config
    tied = bool(config.get("tie_word_embeddings", False))
    if (
        family == "qwen2_5_vl"
    ):  # transformers reads it at both levels, and for qwen3_vl only at the top level
        tied = tied or bool(text.get("tie_word_embeddings", False))
    top_level = {key: config[key] for key in ("architectures", "model_type") if key in config}
    return {**config, **text, **top_level, "tie_word_embeddings": tied}


def token_side(config: Mapping[str, Any]) -> int:
    """Return the pixels along the side of one picture token; 0 for other models. Raises ValueError."""
    if config.get("model_type") not in VISION:
        return 0
    sizes = _sizes(config)
    return size_in(sizes, "patch_size") * size_in(sizes, "spatial_merge_size", 2)


def tower_outputs(config: Mapping[str, Any]) -> int:
    """Return the vectors per picture token: one replaces its embedding, the others are added behind the first
    layers."""
    if config.get("model_type") not in VISION:
        return 1
    return 1 + len(_sizes(config).get("deepstack_visual_indexes") or ())


@dataclass(frozen=True, slots=True, kw_only=True)
class TowerSizes:
    """Sizes of a vision tower. gated: as in Qwen2.5-VL, feed-forwards have a gate and norms have no bias.
    patch: values of one patch. merged: patches that become one token; out: width of that token. positions:
    learned positions, 0 for none. added: mergers of intermediate blocks, whose outputs the decoder's first
    layers get."""

    gated: bool
    depth: int
    hidden: int
    inner: int
    patch: int
    merged: int
    out: int
    positions: int = 0
    added: int = 0

    @property
    def parameters(self) -> int:
        """Return the number of parameters of all tensors."""
        return sum(prod(size) for _, size in self.tensors())

    def tensors(self) -> Iterator[Sized]:
        """Yield the names that transformers gives the tensors, under `TOWER`, with their shapes. The
        convolution over patches counts as a matrix."""
        wide = self.hidden * self.merged
        yield TOWER + "patch_embed.proj.weight", (self.hidden, self.patch)
        for name, size in self._around(wide):
            yield TOWER + name, size
        for number in range(self.depth):
            for name, size in self._block(f"blocks.{number}"):
                yield TOWER + name, size

    def _around(self, wide: int) -> Iterator[Sized]:
        """Yield the tensors outside of blocks, without the matrix over patches. wide: width of the patches
        that become one token."""
        if self.gated:
            yield "merger.ln_q.weight", (self.hidden,)
            yield from _matrix("merger.mlp.0", wide, wide)
            yield from _matrix("merger.mlp.2", wide, self.out)
            return
        yield "patch_embed.proj.bias", (self.hidden,)
        yield "pos_embed.weight", (self.positions, self.hidden)
        norms = {"merger": self.hidden}
        norms |= {f"deepstack_merger_list.{number}": wide for number in range(self.added)}
        for name, width in norms.items():
            yield from _norm(f"{name}.norm", width)
            yield from _matrix(f"{name}.linear_fc1", wide, wide)
            yield from _matrix(f"{name}.linear_fc2", wide, self.out)

    def _block(self, name: str) -> Iterator[Sized]:
        for norm in ("norm1", "norm2"):
            norm_tensors = list(_norm(f"{name}.{norm}", self.hidden))
            yield from norm_tensors[:1] if self.gated else norm_tensors
        yield from _matrix(f"{name}.attn.qkv", self.hidden, 3 * self.hidden)
        yield from _matrix(f"{name}.attn.proj", self.hidden, self.hidden)
        *wide, last = (
            ("gate_proj", "up_proj", "down_proj") if self.gated else ("linear_fc1", "linear_fc2")
        )
        for name_in_mlp in wide:
            yield from _matrix(f"{name}.mlp.{name_in_mlp}", self.hidden, self.inner)
        yield from _matrix(f"{name}.mlp.{last}", self.inner, self.hidden)


def read_tower(config: Mapping[str, Any]) -> TowerSizes | None:
    """Return the tower of a vision-language model, or None for another model. Raises ValueError if a size is
    missing or out of range."""
    family = config.get("model_type")
    if family not in VISION:
        return None
    sizes, gated = _sizes(config), family == "qwen2_5_vl"
    channels = size_in(sizes, "in_channels", size_in(sizes, "in_chans", 3))
    added = [] if gated else sizes.get("deepstack_visual_indexes")
    if not isinstance(added, list):
        raise ValueError(f"deepstack_visual_indexes is {show(added)}; must be a list")
    frames = size_in(sizes, "temporal_patch_size", 2)
    return TowerSizes(
        gated=gated,
        depth=size_in(sizes, "depth"),
        hidden=size_in(sizes, "hidden_size"),
        inner=size_in(sizes, "intermediate_size"),
        patch=channels * frames * size_in(sizes, "patch_size") ** 2,
        merged=size_in(sizes, "spatial_merge_size", 2) ** 2,
        out=size_in(sizes, "out_hidden_size"),
        positions=0 if gated else size_in(sizes, "num_position_embeddings"),
        added=len(added),
    )


def tower_merger(config: Mapping[str, Any]) -> int:
    """Count the tower's parameters that process a token instead of each of its patches: the matrices of
    mergers."""
    if (tower := read_tower(config)) is None:
        return 0
    wide = tower.hidden * tower.merged
    return tower_outputs(config) * (wide * wide + wide + wide * tower.out + tower.out)


def tower_attended(config: Mapping[str, Any]) -> int:
    """Return the sum of widths of the layers in which each patch attends to the full picture. Other layers
    use a window."""
    if (tower := read_tower(config)) is None:
        return 0
    full_attention = len(_sizes(config).get("fullatt_block_indexes") or ())
    return (full_attention if tower.gated else tower.depth) * tower.hidden


def _sizes(config: Mapping[str, Any]) -> Mapping[str, Any]:
    sizes = config.get("vision_config")
    if not isinstance(sizes, dict):
        raise ValueError(f"vision_config is {show(sizes)}; must be a mapping of keys")
    return sizes


def _norm(name: str, size: int) -> Iterator[Sized]:
    yield f"{name}.weight", (size,)
    yield f"{name}.bias", (size,)


def _matrix(name: str, width: int, out: int) -> Iterator[Sized]:
    yield f"{name}.weight", (out, width)
    yield f"{name}.bias", (out,)
