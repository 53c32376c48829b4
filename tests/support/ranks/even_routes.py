"""Routers that send every expert as many tokens as every other, as plans take it."""

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor, nn

from rljob_runtime.models.blocks.router import Router, Routes


def spread_evenly(model: nn.Module) -> None:
    """Make all routers of the model so; the weights of what they choose are their own."""
    for router in model.modules():
        if isinstance(router, Router):
            router.forward = _evenly(router.forward, router.experts.count)  # type: ignore[method-assign]


def _evenly(forward: Callable[..., Routes], count: int) -> Callable[..., Routes]:
    def route(x_UH: Tensor, replayed_UK: Tensor | None = None) -> Routes:
        routes = forward(x_UH, replayed_UK)
        copies = torch.arange(routes.experts_UK.numel()).view_as(routes.experts_UK)
        return replace(routes, experts_UK=copies % count)

    return route
