"""ZeRO 3 by PyTorch's FSDP2: ranks share weights, gradients and optimizer, block by block.

Called where a model is put on ranks, and by the optimizer, which steps the shards with our own AdamW. torch's
module takes seconds to import, so that is done when weights are sharded.
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
    """Each rank keeps its rows of every parameter; a block's are gathered when it runs and dropped after.

    blocks: parts of the model that are gathered one at a time; what is in none of them is gathered for
    the whole pass. forward: the method that engines call, followed by a backward pass or called without
    gradients. dtype: of what is gathered and computed, where it is not the rows'; gradients are added up in
    the rows'. Gradients are sums over the ranks, not means. All ranks run equally many passes.
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
    entered = getattr(model, forward)

    def enter(*arguments: Any, **named: Any) -> Any:
        found = entered(*arguments, **named)
        if not torch.is_grad_enabled():
            model.reshard()  # type: ignore[operator]  # no backward pass will, and a step would be missed
        return found

    setattr(model, forward, enter)


def weight_shards(parameters: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """This rank's rows of each parameter by name, the live tensors, which an optimizer may step."""
    return {name: held_rows(parameter) for name, parameter in parameters.items()}


def held_rows(weight: Tensor) -> Tensor:
    """This rank's rows of a parameter, the live tensor; of one that is not shared, all of them."""
    local = getattr(weight, "to_local", None)
    return weight if local is None else local().detach()


def first_row(weight: Any) -> int:
    """Number of the first of `held_rows`: ranks have equally many, but for the last ones."""
    mesh = getattr(weight, "device_mesh", None)
    return (
        0
        if mesh is None
        else min(-(-len(weight) // mesh.size()) * mesh.get_local_rank(), len(weight))
    )


def take_gradients(parameters: Mapping[str, Tensor], shards: Mapping[str, Tensor]) -> None:
    """Give each shard the gradient of its rows; 0 where the parameter was not used."""
    for name, parameter in parameters.items():
        gradient = parameter.grad
        shards[name].grad = zeros_like(shards[name]) if gradient is None else held_rows(gradient)


def whole_weight(weight: Any, *, at: Callable[[Tensor], Tensor] = lambda rows: rows) -> Tensor:
    """All rows of a parameter, on all ranks that share it: a gather. Other tensors as they are. at: where
    the values of this rank's rows are now."""
    rows = at(held_rows(weight)).to(weight.device)
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
    whole: Tensor = shared.full_tensor().detach()
    return whole


def fully_sharded_bytes(
    parameters: int, ranks: int, *, passes: int, item_bytes: int, kept: int = 0
) -> int:
    """Bytes that a rank sends in an optimizer step: each pass gathers the weights forward and again
    backward, and scatters the gradients. parameters: items; each one's dim 0 is a multiple of the ranks.
    kept: those in no block, which are gathered once a pass."""
    part, again = parameters // ranks * item_bytes, (parameters - kept) // ranks * item_bytes
    gathers = gather_bytes(part, ranks) + gather_bytes(again, ranks)
    return passes * (gathers + scatter_sum_bytes(part, ranks))
