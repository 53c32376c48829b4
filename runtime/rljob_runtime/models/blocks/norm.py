"""Root-mean-square normalization as a module."""

import torch
from torch import Tensor, nn

from rljob_runtime.devices.kernels.rms_norm import rms_norm


class Norm(nn.Module):
    """Root-mean-square norm over the last dim."""

    def __init__(self, width: int, epsilon: float, dtype: torch.dtype) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(width, dtype=dtype))
        self.epsilon = epsilon

    def forward(self, x: Tensor) -> Tensor:
        """Return x normalized, in its shape and dtype."""
        return rms_norm(x, self.weight, self.epsilon)
