"""The reshard of a job. Called by `memory` and `plan`, and by a runtime's devices."""

from functools import lru_cache

from rljob_api.model.architecture import Shape
from rljob_api.topology.devices import RolloutDegrees, UpdateDegrees, update_mesh
from rljob_api.topology.resolved import ResolvedSpec
from rljob_plan.resharding.layouts import rollout_layout, update_layout
from rljob_plan.resharding.resharding_plan import ReshardPlan, make_reshard_plan
from rljob_plan.resharding.widths import FLOAT32_BYTES, ITEM_BYTES, Widths


def plan_of_job(spec: ResolvedSpec, shape: Shape) -> ReshardPlan:
    """From training to generating. spec: resolved, with degrees that the model can have.

    Devices are numbered through; those of separated roles one role after the other. ZeRO 3 shares rows of
    main weights, which are float32.
    """
    update = spec.update.parallelism
    colocated = spec.placement.mode == "colocated"
    return _plan(
        shape,
        update,
        spec.rollout.parallelism,
        Widths(
            update=FLOAT32_BYTES if update.zero == 3 else ITEM_BYTES[spec.update.dtype],
            rollout=ITEM_BYTES[spec.rollout.dtype],
            int8=spec.rollout.quantization == "int8",
        ),
        0 if colocated else update_mesh(update).size,
        spec.accelerator.devices_per_node,
    )


@lru_cache(maxsize=2)
def _plan(
    shape: Shape,
    update: UpdateDegrees,
    rollout: RolloutDegrees,
    widths: Widths,
    first_device: int,
    node_devices: int,
) -> ReshardPlan:
    return make_reshard_plan(
        update_layout(shape, update),
        rollout_layout(shape, rollout, first_device=first_device),
        widths,
        node_devices=node_devices,
    )
