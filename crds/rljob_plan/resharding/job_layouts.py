"""The reshard of a job. Called by `memory` and `plan`, and by a runtime's devices."""

from functools import lru_cache

from rljob_api.model.architecture import Shape
from rljob_api.topology.devices import RolloutDegrees, UpdateDegrees, update_mesh
from rljob_api.topology.resolved import ResolvedSpec
from rljob_plan.resharding.layouts import rollout_layout, update_layout
from rljob_plan.resharding.resharding_plan import ReshardPlan, make_reshard_plan
from rljob_plan.resharding.widths import FLOAT32_BYTES, ITEM_BYTES, Widths

VLLM_VOCABULARY_STEP = 64
"""To a multiple of it vLLM fills up the rows of embedding and head before it shares them."""


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
        VLLM_VOCABULARY_STEP if spec.rollout.engine == "vllm" else 1,
        spec.accelerator.devices_per_node,
    )


def comes_by_buckets(spec: ResolvedSpec) -> bool:
    """Whether the rollout's weights take room as they come; vLLM takes it for all of them at once."""
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
