"""The replacement of Megatron Core's experts in its layers: all experts of a rank in two stacks, one product.

Megatron's router chooses, and its dispatcher sends the tokens here, sorted by expert, and back. `layers` uses
this.
"""

# X rows (a token at one of its experts), H hidden, E experts of this rank, I inner width of this rank

import torch
from torch import Tensor, nn

from rljob_runtime.models.blocks.experts import run_sorted


class CoreExperts(nn.Module):
    """The stacks of `StackedExperts`. num_local_experts: of this rank. config: Megatron's."""

    def __init__(self, num_local_experts: int, config: object, *parts: object, **more: object):
        super().__init__()
        settings: dict[str, int] = vars(config)
        inner = settings["moe_ffn_hidden_size"] // settings["expert_tensor_parallel_size"]
        hidden, dtype = settings["hidden_size"], config.params_dtype  # type: ignore[attr-defined]
        gate_up = torch.empty(num_local_experts, 2 * inner, hidden, dtype=dtype)
        self.gate_up_proj = nn.Parameter(gate_up)
        self.down_proj = nn.Parameter(gate_up.new_empty(num_local_experts, hidden, inner))
        for stack in self.parameters():  # whose gradients Megatron adds up over other ranks
            stack.allreduce = settings["expert_model_parallel_size"] == 1  # type: ignore[attr-defined]

    def forward(
        self, x_XH: Tensor, tokens_per_expert_E: Tensor, weights_X: Tensor
    ) -> tuple[Tensor, None]:
        """Map [X, H] to [X, H], weighted, without a bias."""
        ends_E = tokens_per_expert_E.to(x_XH.device).cumsum(0)
        output_XH = run_sorted(x_XH, ends_E, self.gate_up_proj, self.down_proj)
        return (output_XH * weights_X[:, None]).to(x_XH.dtype), None
