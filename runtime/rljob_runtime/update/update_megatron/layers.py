"""What Megatron's layers are given in place of their own norms and attention: this project's kernels.

Attention is over packed samples, each prompt computed once for all of its own, on any context ranks; rotation
is by each token's position in its sample. `model` puts them into a layer spec.
"""

# U packed tokens of this context rank, S of one tensor rank, A query heads, N key/value heads of this tensor
# rank, D width of each, H hidden, E experts, K experts of a token

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from rljob_runtime.devices.kernels.rms_norm import rms_norm
from rljob_runtime.devices.kernels.rotary_embedding import rotate
from rljob_runtime.models.blocks.packed_attention import Attend
from rljob_runtime.models.blocks.router import Routes
from rljob_runtime.models.blocks.router_load import RouterLoad
from rljob_runtime.models.packing import Packing


@dataclass(slots=True, kw_only=True)
class Pass:
    """What all layers of a forward and backward pass need beside hidden states. rotation: cos and sin,
    [U, 1, D / 2] each; set with `packing` before a pass begins. load: what routers do is counted there, while
    they compute forward for the first time."""

    attend: Attend
    scale: float
    packing: Packing | None = None
    rotation: tuple[Tensor, Tensor] | None = None
    load: RouterLoad | None = None

    def count(
        self, router: nn.Module, given: tuple[Tensor, ...], found: tuple[Tensor, ...]
    ) -> None:
        """A hook of Megatron's routers: [S, 1, H] → weights and choices, [S, E] each."""
        if self.load is None:
            return
        weights_SE, chosen_SE = found[:2]
        number = len(chosen_SE)
        experts_SK = chosen_SE.nonzero()[:, 1].view(number, -1)
        with torch.no_grad():
            logits = router.gating(given[0])  # type: ignore[operator]
        probabilities_SE = logits.float().flatten(0, -2).softmax(-1)
        self.load.add(
            Routes(
                experts_UK=experts_SK,
                weights_UK=weights_SE.detach().gather(1, experts_SK),
                probabilities_UE=probabilities_SE,
            )
        )


class CoreNorm(nn.Module):
    """Root-mean-square norm. Where tokens are shared among tensor ranks, Megatron adds up what each found."""

    def __init__(
        self, config: object, hidden_size: int, eps: float = 1e-5, **others: object
    ) -> None:
        super().__init__()
        dtype: torch.dtype = config.params_dtype  # type: ignore[attr-defined]
        self.weight = nn.Parameter(torch.empty(hidden_size, dtype=dtype))
        shared = config.sequence_parallel  # type: ignore[attr-defined]
        self.weight.sequence_parallel = shared  # type: ignore[attr-defined]
        self.epsilon = eps

    def forward(self, x: Tensor) -> Tensor:
        """Same shape and dtype as x."""
        return rms_norm(x, self.weight, self.epsilon)


class CoreAttention(nn.Module):
    """Attention of packed tokens. `for_pass` makes the class of one model's."""

    current: Pass

    def __init__(self, config: object, *arguments: object, **others: object) -> None:
        super().__init__()

    @classmethod
    def for_pass(cls, current: Pass) -> type["CoreAttention"]:
        """Megatron makes its layers from classes."""
        return type("CoreAttention", (cls,), {"current": current})

    def forward(
        self, query: Tensor, key: Tensor, value: Tensor, *arguments: object, **others: object
    ) -> Tensor:
        """[U, 1, A, D], [U, 1, N, D] twice → [U, 1, A D]."""
        of = self.current
        assert of.packing is not None and of.rotation is not None, "a layer outside of a pass"
        query_UAD = rotate(query.squeeze(1), *of.rotation)
        key_UND = rotate(key.squeeze(1), *of.rotation)
        mixed_UX = of.attend(query_UAD, key_UND, value.squeeze(1), of.packing, scale=of.scale)
        return mixed_UX[:, None]
