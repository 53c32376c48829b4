"""Weights on their way, one at a time: what is known of them before they come, and checks as they do.

Called by the rollout engines that copy each tensor as it comes, and by the weight sync.
"""

import json
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from rljob_runtime.models.weights import check_weights


@dataclass(frozen=True, slots=True, kw_only=True)
class Announced:
    """Weights by Hugging Face name that can be gone through once. outlines: all of them by name, of which
    shapes and types alone count."""

    outlines: Mapping[str, Tensor]
    weights: Iterable[tuple[str, Tensor]]

    def __iter__(self) -> Iterator[tuple[str, Tensor]]:
        return iter(self.weights)


def checked(
    weights: Iterable[tuple[str, Tensor]], shapes: Mapping[str, torch.Size], *, where: str
) -> Iterator[tuple[str, Tensor]]:
    """The same without gradient, each once its name and shape are known to be right.

    Raises WeightsError as `check_weights`: before the first where all are known, `Announced` or in a
    collection; else at the first that is wrong, or at the end where some are missing.
    """
    if isinstance(weights, Announced):
        check_weights(weights.outlines, shapes, where=where)
    elif isinstance(weights, Collection):
        check_weights(dict(weights), shapes, where=where)
    came: dict[str, Tensor] = {}
    for name, tensor in weights:
        came[name] = tensor.detach().to("meta")
        if name not in shapes or tensor.shape != shapes[name]:
            check_weights(
                came, {known: shapes[known] for known in came.keys() & shapes}, where=where
            )
        yield name, tensor.detach()
    check_weights(came, shapes, where=where)


def pack_outlines(outlines: Mapping[str, Tensor]) -> bytes:
    """Names, shapes and types as JSON, in order."""
    lines = [
        (name, list(outline.shape), str(outline.dtype).removeprefix("torch."))
        for name, outline in outlines.items()
    ]
    return json.dumps(lines).encode()


def unpack_outlines(content: bytes) -> dict[str, Tensor]:
    """What `pack_outlines` took, as tensors without memory."""
    return {
        name: torch.empty(shape, dtype=getattr(torch, dtype), device="meta")
        for name, shape, dtype in json.loads(content)
    }
