"""AdamW's moments of each weight's gradients: their mean and their mean square.

AdamW creates them, as wide as the stepped weights or in 8 bits (`update.optimizer.momentsDtype`).
"""

import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from rljob_runtime.update.float8 import BLOCK, Float8, float8_bytes

CHUNK_ITEMS = (1 << 20) // BLOCK * BLOCK
"""Number of 8-bit moments that are in float32 at a time during a step."""


@dataclass(frozen=True, slots=True)
class StepChunk:
    """Weights that are stepped together; moments are changed in place."""

    weights: list[Tensor]
    gradients: list[Tensor]
    first: list[Tensor]
    second: list[Tensor]


class Moments(Protocol):
    """The moments of all weights by name, initially zero."""

    def chunks(
        self, weights: Mapping[str, Tensor], gradients: Mapping[str, Tensor], *, step: int
    ) -> Iterator[StepChunk]:
        """Yield some of the weights with their moments; a chunk's moments are stored when the next is
        requested."""
        ...

    def state_dict(self) -> dict[str, Tensor]:
        """Return the live tensors by name."""
        ...


class WideMoments:
    """`Moments` in the dtype of the stepped weights."""

    def __init__(self, weights: Mapping[str, Tensor]) -> None:
        self._first = {name: torch.zeros_like(weight) for name, weight in weights.items()}
        self._second = {name: torch.zeros_like(weight) for name, weight in weights.items()}

    def chunks(
        self, weights: Mapping[str, Tensor], gradients: Mapping[str, Tensor], *, step: int
    ) -> Iterator[StepChunk]:
        """Yield all weights in one chunk."""
        yield StepChunk(
            list(weights.values()),
            [gradients[name] for name in weights],
            [self._first[name] for name in weights],
            [self._second[name] for name in weights],
        )

    def state_dict(self) -> dict[str, Tensor]:
        """Return the moments as `exp_avg.<name>` and `exp_avg_sq.<name>`."""
        return {
            **{f"exp_avg.{name}": moment for name, moment in self._first.items()},
            **{f"exp_avg_sq.{name}": moment for name, moment in self._second.items()},
        }


class Float8Moments:
    """`Moments` in 8 bits.

    Random numbers for rounding follow from the weight's name and the step, so that ranks with the same
    weight, and resumed runs, round alike.
    """

    def __init__(self, weights: Mapping[str, Tensor]) -> None:
        self._first = {name: Float8.zeros_like(weight) for name, weight in weights.items()}
        self._second = {name: Float8.zeros_like(weight) for name, weight in weights.items()}

    def chunks(
        self, weights: Mapping[str, Tensor], gradients: Mapping[str, Tensor], *, step: int
    ) -> Iterator[StepChunk]:
        """Yield CHUNK_ITEMS items of a weight at a time."""
        for name, weight in weights.items():
            random = torch.Generator(weight.device)
            # 32 bits, as the CPU's generator forgets all above them.
            random.manual_seed(zlib.crc32(f"{name} {step}".encode()))
            flat, gradient = weight.view(-1), gradients[name].reshape(-1)
            for items in _chunks_of(flat):
                first = self._first[name].read(items)
                second = self._second[name].read(items).square_()
                yield StepChunk([flat[items]], [gradient[items]], [first], [second])
                self._first[name].write(items, first, random)
                self._second[name].write_root(items, second, random)

    def state_dict(self) -> dict[str, Tensor]:
        """Return `exp_avg.<name>` and `exp_avg_sq.<name>` (its root), and their scales with `_scale` in the
        names."""
        moments = {"exp_avg": self._first, "exp_avg_sq": self._second}
        named = [(kind, f"{kind}.{n}", m) for kind, by in moments.items() for n, m in by.items()]
        codes = {name: moment.codes for _, name, moment in named}
        return codes | {scales_name(name, kind): moment.scales for kind, name, moment in named}


def moments_bytes(items: int, item_bytes: int, *, float8: bool) -> int:
    """Return the bytes of one weight's moments. item_bytes: of a stepped item."""
    return 2 * (float8_bytes(items) if float8 else items * item_bytes)


def scales_name(name: str, kind: str) -> str:
    """Return the name in a state of the scales of an 8-bit moment.

    kind: `exp_avg` or `exp_avg_sq`; other kinds have no scales.
    """
    share, separator, parameter = name.partition(f"{kind}.")
    return f"{share}{kind}_scale.{parameter}" if separator else f"{name}_scale"


def moment_values(state: Mapping[str, Tensor], name: str, kind: str) -> Tensor:
    """Return a state's tensor, in float32 if it is an 8-bit moment: for a mean square, the root."""
    scales = state.get(scales_name(name, kind))
    if scales is None:
        return state[name]
    moment = Float8(state[name], scales)
    return moment.read(slice(0, moment.codes.numel())).view(moment.codes.shape)


def moment_in_float8(name: str, kind: str, values: Tensor) -> dict[str, Tensor]:
    """Return codes and scales by their names in a state: the inverse of `moment_values`.

    Blocks that begin elsewhere than before have other scales and round stochastically; the random numbers
    follow from the name.
    """
    moment, flat = Float8.zeros_like(values), values.reshape(-1)
    random = torch.Generator().manual_seed(zlib.crc32(name.encode()))
    for items in _chunks_of(flat):
        if kind == "exp_avg_sq":
            moment.write_root(items, flat[items].square(), random)
        else:
            moment.write(items, flat[items], random)
    return {name: moment.codes, scales_name(name, kind): moment.scales}


def _chunks_of(flat: Tensor) -> Iterator[slice]:
    """Yield slices of CHUNK_ITEMS items; the last may have fewer."""
    for start in range(0, len(flat), CHUNK_ITEMS):
        yield slice(start, min(start + CHUNK_ITEMS, len(flat)))
