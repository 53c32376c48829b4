"""What AdamW remembers of each weight's gradients: their mean and their mean square.

Made by AdamW: as wide as what is stepped, or in 8 bits (`update.optimizer.momentsDtype`).
"""

import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from rljob_runtime.update.float8 import BLOCK, Float8, float8_bytes

AT_ONCE = (1 << 20) // BLOCK * BLOCK
"""Moments in 8 bits that are wide at a time, for a step."""


@dataclass(frozen=True, slots=True)
class Part:
    """What is stepped at once; moments are changed in place."""

    weights: list[Tensor]
    gradients: list[Tensor]
    first: list[Tensor]
    second: list[Tensor]


class Moments(Protocol):
    """Of all weights by name, zero when made."""

    def parts(
        self, weights: Mapping[str, Tensor], gradients: Mapping[str, Tensor], *, step: int
    ) -> Iterator[Part]:
        """Some of the weights with their moments; those of a part are kept when the next is asked for."""
        ...

    def state_dict(self) -> dict[str, Tensor]:
        """Live tensors by name."""
        ...


class WideMoments:
    """`Moments` of the type of what is stepped."""

    def __init__(self, weights: Mapping[str, Tensor]) -> None:
        self._first = {name: torch.zeros_like(weight) for name, weight in weights.items()}
        self._second = {name: torch.zeros_like(weight) for name, weight in weights.items()}

    def parts(
        self, weights: Mapping[str, Tensor], gradients: Mapping[str, Tensor], *, step: int
    ) -> Iterator[Part]:
        """All at once."""
        yield Part(
            list(weights.values()),
            [gradients[name] for name in weights],
            [self._first[name] for name in weights],
            [self._second[name] for name in weights],
        )

    def state_dict(self) -> dict[str, Tensor]:
        """`exp_avg.<name>` and `exp_avg_sq.<name>`."""
        return {
            **{f"exp_avg.{name}": moment for name, moment in self._first.items()},
            **{f"exp_avg_sq.{name}": moment for name, moment in self._second.items()},
        }


class Float8Moments:
    """`Moments` in 8 bits. What is drawn for rounding follows from the weight's name and the step, so that
    ranks which hold the same weight, and resumed runs, round alike."""

    def __init__(self, weights: Mapping[str, Tensor]) -> None:
        self._first = {name: Float8.zeros_like(weight) for name, weight in weights.items()}
        self._second = {name: Float8.zeros_like(weight) for name, weight in weights.items()}

    def parts(
        self, weights: Mapping[str, Tensor], gradients: Mapping[str, Tensor], *, step: int
    ) -> Iterator[Part]:
        """AT_ONCE items of a weight."""
        for name, weight in weights.items():
            random = torch.Generator(weight.device)
            # 32 bits, as the CPU's generator forgets all above them.
            random.manual_seed(zlib.crc32(f"{name} {step}".encode()))
            flat, gradient = weight.view(-1), gradients[name].reshape(-1)
            for items in _parts_of(flat):
                first = self._first[name].read(items)
                second = self._second[name].read(items).square_()
                yield Part([flat[items]], [gradient[items]], [first], [second])
                self._first[name].write(items, first, random)
                self._second[name].write_root(items, second, random)

    def state_dict(self) -> dict[str, Tensor]:
        """`exp_avg.<name>`, `exp_avg_sq.<name>` (its root), and with `_scale` in their names the scales."""
        held = {"exp_avg": self._first, "exp_avg_sq": self._second}
        named = [(kind, f"{kind}.{n}", m) for kind, by in held.items() for n, m in by.items()]
        codes = {name: moment.codes for _, name, moment in named}
        return codes | {scales_name(name, kind): moment.scales for kind, name, moment in named}


def moments_bytes(items: int, item_bytes: int, *, float8: bool) -> int:
    """Of one weight. item_bytes: of what is stepped."""
    return 2 * (float8_bytes(items) if float8 else items * item_bytes)


def scales_name(name: str, kind: str) -> str:
    """In a state, the name of the scales of a moment in 8 bits. kind: `exp_avg` or `exp_avg_sq`; others have
    none."""
    share, found, parameter = name.partition(f"{kind}.")
    return f"{share}{kind}_scale.{parameter}" if found else f"{name}_scale"


def moment_values(state: Mapping[str, Tensor], name: str, kind: str) -> Tensor:
    """A state's tensor, and of a moment in 8 bits what it holds, in float32: of a mean square the root."""
    scales = state.get(scales_name(name, kind))
    if scales is None:
        return state[name]
    held = Float8(state[name], scales)
    return held.read(slice(0, held.codes.numel())).view(held.codes.shape)


def moment_in_float8(name: str, kind: str, values: Tensor) -> dict[str, Tensor]:
    """The inverse: codes and scales by their names in a state. Blocks that begin elsewhere than they did have
    other scales, and round by chance; what is drawn follows from the name."""
    held, flat = Float8.zeros_like(values), values.reshape(-1)
    random = torch.Generator().manual_seed(zlib.crc32(name.encode()))
    for items in _parts_of(flat):
        if kind == "exp_avg_sq":
            held.write_root(items, flat[items].square(), random)
        else:
            held.write(items, flat[items], random)
    return {name: held.codes, scales_name(name, kind): held.scales}


def _parts_of(flat: Tensor) -> Iterator[slice]:
    """Of AT_ONCE items, the last one of fewer."""
    for start in range(0, len(flat), AT_ONCE):
        yield slice(start, min(start + AT_ONCE, len(flat)))
