"""Weights received one at a time: names, shapes and dtypes known in advance, and checks on arrival.

The rollout engines that copy each tensor as it arrives and the weight sync call this.
"""

import json
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from rljob_runtime.models.weights import check_weights


@dataclass(frozen=True, slots=True, kw_only=True)
class AnnouncedWeights:
    """Weights by Hugging Face name that can be iterated once.

    outlines: all of them by name, of which only shapes and dtypes matter.
    """

    outlines: Mapping[str, Tensor]
    weights: Iterable[tuple[str, Tensor]]

    def __iter__(self) -> Iterator[tuple[str, Tensor]]:
        return iter(self.weights)


def checked_weights(
    weights: Iterable[tuple[str, Tensor]], shapes: Mapping[str, torch.Size], *, where: str
) -> Iterator[tuple[str, Tensor]]:
    """Yield the weights without gradient, each after its name and shape are checked.

    Raises WeightsError as `check_weights`: before the first one if all are known, `AnnouncedWeights` or in a
    collection; else at the first that is wrong, or at the end if some are missing.
    """
    if isinstance(weights, AnnouncedWeights):
        check_weights(weights.outlines, shapes, where=where)
    elif isinstance(weights, Collection):
        check_weights(dict(weights), shapes, where=where)
    received: dict[str, Tensor] = {}
    for name, tensor in weights:
        received[name] = tensor.detach().to("meta")
        if name not in shapes or tensor.shape != shapes[name]:
            check_weights(
                received, {known: shapes[known] for known in received.keys() & shapes}, where=where
            )
        yield name, tensor.detach()
    check_weights(received, shapes, where=where)


def pack_outlines(outlines: Mapping[str, Tensor]) -> bytes:
    """Return names, shapes and dtypes as JSON, in order."""
    lines = [
        (name, list(outline.shape), str(outline.dtype).removeprefix("torch."))
        for name, outline in outlines.items()
    ]
    return json.dumps(lines).encode()


def unpack_outlines(content: bytes) -> dict[str, Tensor]:
    """Return the input of `pack_outlines` as tensors without memory."""
    return {
        name: torch.empty(shape, dtype=getattr(torch, dtype), device="meta")
        for name, shape, dtype in json.loads(content)
    }
