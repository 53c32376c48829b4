"""Plan the reshard of a job. Called by `memory` and `plan`, and by a runtime's devices."""

from functools import lru_cache

from rljob_api.model.architecture import Shape
from rljob_api.topology.devices import RolloutDegrees, UpdateDegrees, update_mesh
from rljob_api.topology.resolved import ResolvedSpec
from rljob_plan.resharding.layouts import rollout_layout, update_layout
from rljob_plan.resharding.resharding_plan import ReshardPlan, make_reshard_plan
from rljob_plan.resharding.widths import FLOAT32_BYTES, ITEM_BYTES, Widths

VLLM_VOCABULARY_STEP = 64
"""vLLM pads the rows of embedding and head to a multiple of this before it shards them."""


def plan_of_job(spec: ResolvedSpec, shape: Shape) -> ReshardPlan:
    """Return the plan from training to generation. spec: resolved, with degrees that the model can have.

    Devices are numbered consecutively; if roles are separated, one role follows the other. ZeRO 3 shares rows
    of main weights, which are float32.
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
        VLLM_VOCABULARY_STEP if spec.rollout.engine == "vllm" else 1,
        spec.accelerator.devices_per_node,
    )


def arrives_in_buckets(spec: ResolvedSpec) -> bool:
    """Return whether the rollout's weights are allocated as buckets arrive; vLLM allocates all of them
    together."""
    return spec.rollout.engine != "vllm"


@lru_cache(maxsize=2)
def _plan(
    shape: Shape,
    update: UpdateDegrees,
    rollout: RolloutDegrees,
    widths: Widths,
    first_device: int,
    vocabulary_step: int,
    node_devices: int,
) -> ReshardPlan:
    return make_reshard_plan(
        update_layout(shape, update),
        rollout_layout(shape, rollout, first_device=first_device, vocabulary_step=vocabulary_step),
        widths,
        node_devices=node_devices,
    )
