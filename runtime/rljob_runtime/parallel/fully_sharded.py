"""ZeRO 3 by PyTorch's FSDP2: ranks shard weights, gradients and optimizer state, block by block.

Called where a model is distributed over ranks, and by the optimizer, which steps the shards with our own
AdamW. torch's module takes seconds to import, so it is imported when weights are sharded.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn, zeros_like
from torch.distributed import ProcessGroup

from rljob_runtime.parallel.volume import gather_bytes, scatter_sum_bytes


def shard_weights(
    model: nn.Module,
    blocks: Iterable[nn.Module],
    group: ProcessGroup,
    *,
    forward: str = "forward",
    dtype: torch.dtype | None = None,
) -> None:
    """Shard every parameter by rows; a block's parameters are gathered when it runs and freed after it.

    blocks: submodules that are gathered one at a time; parameters outside them stay gathered for the full
    pass. forward: the method that engines call, followed by a backward pass or called without gradients.
    dtype: of gathered weights and of computation, where it differs from the rows'; gradients accumulate in
    the rows' dtype. Gradients are sums over the ranks, not means. All ranks run equally many passes.
    """
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.fsdp import (
        FSDPModule,
        MixedPrecisionPolicy,
        fully_shard,
        register_fsdp_forward_method,
    )

    mesh = DeviceMesh.from_group(group, next(model.parameters()).device.type)
    rows = next(model.parameters()).dtype
    policy = MixedPrecisionPolicy(param_dtype=dtype, reduce_dtype=rows, cast_forward_inputs=False)
    for block in [*blocks, model]:
        sharded = fully_shard(block, mesh=mesh, mp_policy=policy)
        assert isinstance(sharded, FSDPModule)
        sharded.set_gradient_divide_factor(1.0)
        sharded.set_force_sum_reduction_for_comms(True)  # gloo has no sum that scales
    if forward != "forward":
        register_fsdp_forward_method(model, forward)
    original_forward = getattr(model, forward)

    def forward_and_reshard(*arguments: Any, **keywords: Any) -> Any:
        result = original_forward(*arguments, **keywords)
        if not torch.is_grad_enabled():
            model.reshard()  # type: ignore[operator]  # no backward pass will, and the gathered copy would miss a step
        return result

    setattr(model, forward, forward_and_reshard)


def weight_shards(parameters: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return this rank's rows of each parameter by name: the live tensors, which an optimizer may step."""
    return {name: local_rows(parameter) for name, parameter in parameters.items()}


def local_rows(weight: Tensor) -> Tensor:
    """Return this rank's rows of a parameter, the live tensor; of one that is not sharded, all rows."""
    local = getattr(weight, "to_local", None)
    return weight if local is None else local().detach()


def first_row(weight: Any) -> int:
    """Return the index of the first of `local_rows`: ranks have equally many rows, except the last ones."""
    mesh = getattr(weight, "device_mesh", None)
    return (
        0
        if mesh is None
        else min(-(-len(weight) // mesh.size()) * mesh.get_local_rank(), len(weight))
    )


def take_gradients(parameters: Mapping[str, Tensor], shards: Mapping[str, Tensor]) -> None:
    """Set each shard's gradient to that of its rows; 0 where the parameter was not used."""
    for name, parameter in parameters.items():
        gradient = parameter.grad
        shards[name].grad = zeros_like(shards[name]) if gradient is None else local_rows(gradient)


def full_weight(weight: Any, *, at: Callable[[Tensor], Tensor] = lambda rows: rows) -> Tensor:
    """All-gather all rows of a parameter on all ranks that share it; return other tensors unchanged. at:
    returns the current values of this rank's rows."""
    rows = at(local_rows(weight)).to(weight.device)
    if not hasattr(weight, "full_tensor"):
        return rows
    from torch.distributed.tensor import DTensor

    shared = DTensor.from_local(
        rows,
        weight.device_mesh,
        weight.placements,
        shape=weight.shape,
        stride=weight.stride(),
    )
    full: Tensor = shared.full_tensor().detach()
    return full


def fully_sharded_bytes(
    parameters: int, ranks: int, *, passes: int, item_bytes: int, outside_blocks: int = 0
) -> int:
    """Return the bytes that a rank sends in an optimizer step. Each pass gathers the weights forward and
    again backward, and scatters the gradients. parameters: items; dim 0 of each is a multiple of the ranks.
    outside_blocks: items in no block, which are gathered once a pass."""
    shard, regathered = (
        parameters // ranks * item_bytes,
        (parameters - outside_blocks) // ranks * item_bytes,
    )
    gathers = gather_bytes(shard, ranks) + gather_bytes(regathered, ranks)
    return passes * (gathers + scatter_sum_bytes(shard, ranks))
