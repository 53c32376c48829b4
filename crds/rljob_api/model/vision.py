"""Vision-language models by their config.json: which of it is of the decoder, and what tensors the tower has.

Called by `architecture`, and by the runtime where it reads the same file.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import prod
from typing import Any

from rljob_api.model.config_sizes import size_in
from rljob_api.spec.messages import show

VISION = ("qwen2_5_vl", "qwen3_vl")
"""The families, by their model_type."""
TOWER = "visual."
"""Of all names of a tower's tensors."""
Sized = tuple[str, tuple[int, ...]]


def language_part(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """A configuration with the sizes of its decoder on top: those of a vision-language model are in
    `text_config`, or, in older files, there already. Others are as they are."""
    family = config.get("model_type")
    text = config.get("text_config") if family in VISION else None
    if not isinstance(text, dict):
        return config
    tied = bool(config.get("tie_word_embeddings", False))
    if (
        family == "qwen2_5_vl"
    ):  # transformers reads it in both places, and of qwen3_vl outside alone
        tied = tied or bool(text.get("tie_word_embeddings", False))
    own = {key: config[key] for key in ("architectures", "model_type") if key in config}
    return {**config, **text, **own, "tie_word_embeddings": tied}


def token_side(config: Mapping[str, Any]) -> int:
    """Pixels of the side of a picture's token; 0 of another model. Raises ValueError."""
    if config.get("model_type") not in VISION:
        return 0
    sizes = _sizes(config)
    return size_in(sizes, "patch_size") * size_in(sizes, "spatial_merge_size", 2)


def tower_outputs(config: Mapping[str, Any]) -> int:
    """Of each token of a picture: in place of its embedding, and behind some of the first layers."""
    if config.get("model_type") not in VISION:
        return 1
    return 1 + len(_sizes(config).get("deepstack_visual_indexes") or ())


@dataclass(frozen=True, slots=True, kw_only=True)
class Tower:
    """Sizes of a vision tower. gated: of Qwen2.5-VL, whose feed-forwards have a gate and whose norms no
    bias. patch: values of one. merged: patches that become one token, out: its width. positions: learned
    ones, 0 for none. added: mergers of blocks in between, which the decoder's first layers get."""

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
        """Of all tensors."""
        return sum(prod(size) for _, size in self.tensors())

    def tensors(self) -> Iterator[Sized]:
        """By transformers' names under `TOWER`, with their shapes; a patch's convolution as a matrix."""
        wide = self.hidden * self.merged
        yield TOWER + "patch_embed.proj.weight", (self.hidden, self.patch)
        for name, size in self._around(wide):
            yield TOWER + name, size
        for number in range(self.depth):
            for name, size in self._block(f"blocks.{number}"):
                yield TOWER + name, size

    def _around(self, wide: int) -> Iterator[Sized]:
        """What is of no block, beside the patches' matrix. wide: of the patches that become one token."""
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
            found = list(_norm(f"{name}.{norm}", self.hidden))
            yield from found[:1] if self.gated else found
        yield from _matrix(f"{name}.attn.qkv", self.hidden, 3 * self.hidden)
        yield from _matrix(f"{name}.attn.proj", self.hidden, self.hidden)
        *wide, last = (
            ("gate_proj", "up_proj", "down_proj") if self.gated else ("linear_fc1", "linear_fc2")
        )
        for part in wide:
            yield from _matrix(f"{name}.mlp.{part}", self.hidden, self.inner)
        yield from _matrix(f"{name}.mlp.{last}", self.inner, self.hidden)


def read_tower(config: Mapping[str, Any]) -> Tower | None:
    """Of a vision-language model; None of another model. Raises ValueError for a size that is missing, or
    none that a model has."""
    family = config.get("model_type")
    if family not in VISION:
        return None
    sizes, gated = _sizes(config), family == "qwen2_5_vl"
    channels = size_in(sizes, "in_channels", size_in(sizes, "in_chans", 3))
    added = [] if gated else sizes.get("deepstack_visual_indexes")
    if not isinstance(added, list):
        raise ValueError(f"deepstack_visual_indexes is {show(added)}; must be a list")
    frames = size_in(sizes, "temporal_patch_size", 2)
    return Tower(
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
    """Of a tower's parameters, those that a token meets, and not each of its patches: matrices of the
    mergers."""
    if (tower := read_tower(config)) is None:
        return 0
    wide = tower.hidden * tower.merged
    return tower_outputs(config) * (wide * wide + wide + wide * tower.out + tower.out)


def tower_attended(config: Mapping[str, Any]) -> int:
    """Widths, added up, of the layers in which each patch sees all of its picture; others see a window."""
    if (tower := read_tower(config)) is None:
        return 0
    whole = len(_sizes(config).get("fullatt_block_indexes") or ())
    return (whole if tower.gated else tower.depth) * tower.hidden


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
