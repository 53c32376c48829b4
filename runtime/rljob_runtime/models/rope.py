"""Rotary position embedding of a config.json: how fast each pair of a head turns.

The families read and write it, and the decoders use its frequencies. `blocks.rotary` has the rotation.
"""

import math
from dataclasses import dataclass
from typing import Literal, cast, get_args

import torch
from torch import Tensor

from rljob_runtime.errors import ConfigError
from rljob_runtime.models.config import Config, UnsupportedArchitecture

Scaling = Literal["default", "linear", "dynamic", "llama3", "yarn"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Rope:
    """Settings of rotary position embedding. factor and the fields after it apply to the scaled kinds only.

    llama3: low_frequency_factor, high_frequency_factor. yarn: turns over the original length above which a
    pair keeps its speed (fast_turns) and below which it is slowed by the full factor (slow_turns). magnitude:
    of the rotated vectors; score_scale: DeepSeek's `mscale_all_dim`. sections: if positions have three axes,
    how many pairs turn by each; pairs of an axis are contiguous, or interleaved (Qwen2-VL, arXiv:2409.12191,
    §2.1; Qwen3-VL).
    """

    kind: Scaling = "default"
    theta: float = 10000.0
    factor: float = 1.0
    original_length: int = 8192
    low_frequency_factor: float = 1.0
    high_frequency_factor: float = 4.0
    fast_turns: float = 32.0
    slow_turns: float = 1.0
    whole_pairs: bool = True
    magnitude: float = 1.0
    score_scale: float = 0.0
    sections: tuple[int, ...] | None = None
    interleaved_sections: bool = False


def read_rope(config: Config) -> Rope:
    """Read the rope of either spelling: `rope_parameters` (transformers 5) or `rope_scaling` with theta."""
    key = "rope_parameters" if config.get("rope_parameters") else "rope_scaling"
    entry = Config(config.name, config.mapping(key))
    kind = entry.get("rope_type") or entry.get("type") or "default"
    if kind == "mrope":  # in older files, a default rope whose positions have axes
        kind = "default"
    if kind not in get_args(Scaling):
        listed = ", ".join(get_args(Scaling))
        raise UnsupportedArchitecture(f"rope_type={kind} is not one of {listed} ({config.name})")
    for source in (entry, config):
        source.require("partial_rotary_factor", 1.0)
    length = config.integer("max_position_embeddings", 2048)
    original = entry.integer("original_max_position_embeddings", length)
    original = config.integer("original_max_position_embeddings", original)
    factor = entry.number("factor", length / original if kind == "yarn" else 1.0)
    return Rope(
        kind=cast(Scaling, kind),
        theta=entry.number("rope_theta", config.number("rope_theta", 10000.0)),
        factor=factor,
        original_length=original,
        low_frequency_factor=entry.number("low_freq_factor", 1.0),
        high_frequency_factor=entry.number("high_freq_factor", 4.0),
        fast_turns=entry.number("beta_fast", 32.0) or 32.0,
        slow_turns=entry.number("beta_slow", 1.0) or 1.0,
        whole_pairs=entry.flag("truncate", True),
        magnitude=_magnitude(entry, factor) if kind == "yarn" else 1.0,
        score_scale=entry.number("mscale_all_dim", 0.0) if kind != "default" else 0.0,
    )


def read_sections(config: Config, *, default: list[int], width: int) -> tuple[int, ...]:
    """Return the pairs per axis of a rope whose positions have three axes. width: of the rotated values.

    Raises ConfigError if they do not add up to half of it.
    """
    key = "rope_parameters" if config.get("rope_parameters") else "rope_scaling"
    sections = Config(config.name, config.mapping(key)).integers("mrope_section") or default
    if len(sections) != 3 or min(sections) < 0 or sum(sections) != width // 2:
        raise ConfigError(
            f"mrope_section={sections} in config.json is not three numbers of pairs that add up to "
            f"{width // 2}, half of head_dim={width}"
        )
    return tuple(sections)


def axes_of_pairs(rope: Rope) -> list[int]:
    """Return the axis of a position that each pair turns by; the rope has sections."""
    assert rope.sections is not None, "positions have one axis"
    time, height, width = rope.sections
    if not rope.interleaved_sections:
        return [0] * time + [1] * height + [2] * width
    axes = [0] * (time + height + width)
    for axis in (1, 2):
        axis_pairs = slice(axis, 3 * rope.sections[axis], 3)
        axes[axis_pairs] = [axis] * len(axes[axis_pairs])
    return axes


def write_rope(rope: Rope) -> dict[str, object]:
    """Return the entry `rope_parameters` of a config.json."""
    entry: dict[str, object] = {"rope_type": rope.kind, "rope_theta": rope.theta}
    if rope.kind != "default":
        entry["factor"] = rope.factor
    if rope.kind in ("llama3", "yarn"):
        entry["original_max_position_embeddings"] = rope.original_length
    if rope.kind == "llama3":
        entry["low_freq_factor"] = rope.low_frequency_factor
        entry["high_freq_factor"] = rope.high_frequency_factor
    if rope.kind == "yarn":
        entry |= {
            "beta_fast": rope.fast_turns,
            "beta_slow": rope.slow_turns,
            "truncate": rope.whole_pairs,
            "attention_factor": rope.magnitude,
        }
    if rope.score_scale:
        entry["mscale_all_dim"] = rope.score_scale
    return entry


def inverse_frequencies(width: int, rope: Rope) -> Tensor:
    """Return the rotation per position of each pair of a head, float32 [width / 2], radians.

    The dynamic kind turns like the default one up to the model's longest position; decoders refuse longer
    sequences, whose speed would depend on their length.
    """
    exponents = torch.arange(0, width, 2, dtype=torch.int64).float() / width
    plain = 1.0 / (rope.theta**exponents)
    if rope.kind == "linear":
        return plain / rope.factor
    if rope.kind == "llama3":
        return _llama3(plain, rope)
    if rope.kind == "yarn":
        unscaled = _yarn_unscaled(width, rope)
        return plain / rope.factor * (1 - unscaled) + plain * unscaled
    return plain


def score_factor(rope: Rope) -> float:
    """Return the factor of attention scores in addition to 1 / sqrt(head width), in DeepSeek's models."""
    return _logarithmic(rope.factor, rope.score_scale) ** 2 if rope.score_scale else 1.0


def _magnitude(entry: Config, factor: float) -> float:
    """Return YaRN's attention factor (arXiv:2309.00071, §3.4); with both of DeepSeek's mscales, their
    quotient."""
    if entry.get("attention_factor") is not None:
        return entry.number("attention_factor", 1.0)
    rotated, scores = entry.number("mscale", 0.0), entry.number("mscale_all_dim", 0.0)
    if rotated and scores:
        return _logarithmic(factor, rotated) / _logarithmic(factor, scores)
    return _logarithmic(factor, 1.0)


def _logarithmic(factor: float, weight: float) -> float:
    return 1.0 if factor <= 1 else 0.1 * weight * math.log(factor) + 1.0


def _llama3(plain: Tensor, rope: Rope) -> Tensor:
    """Stretch long wavelengths and blend those in between (Llama 3.1 model card)."""
    wavelength = 2 * math.pi / plain
    low = rope.original_length / rope.low_frequency_factor
    high = rope.original_length / rope.high_frequency_factor
    blend = (rope.original_length / wavelength - rope.low_frequency_factor) / (
        rope.high_frequency_factor - rope.low_frequency_factor
    )
    blended = (1 - blend) * plain / rope.factor + blend * plain
    stretched = torch.where(wavelength > low, plain / rope.factor, plain)
    between = (wavelength <= low) & (wavelength >= high)
    return torch.where(between, blended, stretched)


def _yarn_unscaled(width: int, rope: Rope) -> Tensor:
    """Return the share of its unscaled speed that each pair keeps, 0 to 1 (YaRN, §3.2): a ramp over the
    pairs."""

    def pair(turns: float) -> float:
        """Return the fractional index of the pair that makes this many turns over the original length."""
        wavelength = rope.original_length / (2 * math.pi * turns)
        return width * math.log(wavelength) / (2 * math.log(rope.theta))

    first, last = pair(rope.fast_turns), pair(rope.slow_turns)
    if rope.whole_pairs:
        first, last = math.floor(first), math.ceil(last)
    first, last = max(first, 0), min(last, width - 1)
    ramp = (torch.arange(width // 2).float() - first) / ((last - first) or 0.001)
    return 1 - ramp.clamp(0, 1)
