"""Format a plan as JSON for programs. Called by the CLI's `plan --json`; the keys are part of the API."""

from typing import Any

from rljob_api.model.architecture import Shape
from rljob_api.model.volumes import GB, dispatch_seconds
from rljob_api.topology.devices import Mesh
from rljob_plan.host_memory import HostMemory
from rljob_plan.memory import MemoryPlan
from rljob_plan.plan import FewestReplicas, JobPlan, ReshardingFigures
from rljob_plan.resharding.figures import ReshardBytes
from rljob_plan.traffic import UpdateTraffic


def plan_json(plan: JobPlan) -> dict[str, Any]:
    """Return the plan as JSON. Keys with GB count 1024³ bytes; a figure that is unknown is null."""
    flow, samples = plan.samples.flow, plan.samples
    total = flow.total_gb()
    each = flow.per_warehouse_gb(warehouses=samples.warehouses, controllers=samples.controllers)
    spec = plan.job.spec
    return {
        "name": plan.job.metadata.name,
        "devices": {
            "nodes": spec.accelerator.nodes,
            "perNode": spec.accelerator.devices_per_node,
            "update": plan.roles.update,
            "rollout": plan.roles.rollout,
        },
        "pods": {
            "head": plan.pods.head,
            "worker": plan.pods.worker,
            "warehouse": plan.pods.warehouse,
            "spare": plan.pods.spare,
        },
        "update": _layout_json(plan.update, spec.update.parallelism.expert),
        "rollout": _layout_json(plan.rollout, spec.rollout.parallelism.expert),
        "dock": {
            "states": list(samples.states),
            "controllers": samples.controllers,
            "warehouses": samples.warehouses,
            "replicas": spec.dock.replicas,
            "heldGB": samples.stored / GB,
            "capacityGB": samples.capacity / GB,
        },
        "sampleVolume": {
            "responseItems": flow.response_items,
            "scalars": flow.scalars,
            "picturesGB": flow.global_batch_size * flow.picture_bytes / GB,
            "routesGB": flow.global_batch_size * flow.samples_per_prompt * flow.route_bytes / GB,
            "updateGB": flow.stage_gb(),
            "totalGB": total,
            "perWarehouseGB": each,
        },
        "dispatchSeconds": {
            "at100MBps": dispatch_seconds(total, megabytes_per_second=100),
            "at1GBps": dispatch_seconds(total, megabytes_per_second=1024),
            "perWarehouseAt100MBps": dispatch_seconds(each, megabytes_per_second=100),
            "perWarehouseAt1GBps": dispatch_seconds(each, megabytes_per_second=1024),
        },
        "model": _model_json(plan.shape),
        "resharding": _resharding_json(plan.resharding, str(spec.resharding.strategy)),
        "updateTraffic": _traffic_json(plan.traffic),
        "memory": _memory_json(plan.memory),
        "host": _host_json(plan.host),
        "fewestReplicas": _fewest_json(plan.fewest),
        "copiedGBPerDevice": plan.memory.copied / GB if plan.memory else None,
        "problems": [
            {"path": problem.path, "message": problem.message} for problem in plan.problems
        ],
        "notes": plan.notes,
    }


def _fewest_json(fewest: FewestReplicas | None) -> dict[str, Any] | None:
    """Return a step with the fewest replicas; null without elastic.update."""
    if fewest is None:
        return None
    return {
        "replicas": fewest.replicas,
        "promptsOfMiniBatch": fewest.prompts,
        "passesOfMiniBatch": fewest.passes,
        "timesAsLong": fewest.slower,
        "deviceGB": None if fewest.device is None else fewest.device / GB,
    }


def _layout_json(mesh: Mesh, expert: int) -> dict[str, Any]:
    return {"ranks": mesh.size, "mesh": dict(mesh.axes), "expert": expert}


def _model_json(shape: Shape | None) -> dict[str, Any] | None:
    if shape is None:
        return None
    total = shape.total()
    return {
        "family": shape.family,
        "parameters": total.total,
        "expertParameters": total.experts,
        "layers": shape.layers,
        "towerParameters": shape.tower,
    }


def _resharding_json(resharding: ReshardingFigures | None, strategy: str) -> dict[str, Any]:
    """Return the figures of the reshard; they are null if the model is unknown."""
    figures: dict[str, Any] = dict.fromkeys(
        (
            "tensorGB",
            "expertGB",
            "redundantGB",
            "releasedGBPerDevice",
            "keptGB",
            "keptGBPerDevice",
            "peakGBPerDevice",
            "boundGBPerDevice",
            "plan",
        )
    )
    if resharding is not None:
        figures = {
            "tensorGB": resharding.tensor / GB,
            "expertGB": resharding.expert / GB,
            "redundantGB": resharding.redundant / GB,
            "releasedGBPerDevice": resharding.released / GB,
            "keptGB": {name: size / GB for name, size in resharding.retained.items()},
            "keptGBPerDevice": {
                name: size / GB for name, size in resharding.retained_on_device.items()
            },
            "peakGBPerDevice": {name: size / GB for name, size in resharding.peak.items()},
            "boundGBPerDevice": resharding.bound / GB,
            "plan": _moved_json(resharding.moved),
        }
    return {"strategy": strategy, **figures}


def _moved_json(moved: ReshardBytes) -> dict[str, Any]:
    return {
        "movedGB": moved.moved / GB,
        "lowerBoundGB": moved.lower_bound / GB,
        "receivedGBPerDevice": moved.received / GB,
        "betweenNodesGB": None if moved.between_nodes is None else moved.between_nodes / GB,
        "buckets": moved.buckets,
        "largestBucketGB": moved.largest_bucket / GB,
        "largestStepGB": moved.largest_step / GB,
    }


def _traffic_json(traffic: UpdateTraffic | None) -> dict[str, float] | None:
    """Return what a rank sends in an optimizer step, at the longest lengths."""
    if traffic is None:
        return None
    return {f"{technique}GB": number / GB for technique, number in traffic.parts().items()}


def _memory_json(memory: MemoryPlan | None) -> dict[str, Any] | None:
    if memory is None:
        return None
    cache = memory.kv_cache
    return {
        "limitGB": None if memory.limit is None else memory.limit / GB,
        "phases": [
            {
                "phase": phase.name,
                "role": phase.role,
                "deviceGB": phase.device / GB,
                "hostGB": phase.host / GB,
                "parts": {name: size / GB for name, size in phase.parts.items()},
            }
            for phase in memory.phases
        ],
        "kvCache": {
            "memoryGB": cache.bytes / GB,
            "sequenceGB": cache.sequence / GB,
            "wantedSequences": cache.requested,
            "fittingSequences": cache.room,
        },
    }


def _host_json(host: HostMemory | None) -> dict[str, Any] | None:
    """Return the memory of the fullest node's host."""
    if host is None:
        return None
    return {
        "devices": host.devices,
        "memoryGB": host.total / GB,
        "parts": {name: size / GB for name, size in host.parts.items()},
        "limitGB": None if host.limit is None else host.limit / GB,
    }
