"""What a job will take: devices, sample volumes, resharding and memory, computed without a cluster.

Called by the CLI's `plan`; `plan_text` and `plan_json` show it. Refuses what does not fit on a device.
"""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rljob_api import annotations
from rljob_api.algorithms import grpo
from rljob_api.annotations import planned
from rljob_api.architecture import Shape, find_shape
from rljob_api.base import parse_quantity
from rljob_api.elastic import device_notes
from rljob_api.layout_rules import group_bytes, held_prompts
from rljob_api.memory import ITEM_BYTES, Memory, Phase, plan_memory, update_shard
from rljob_api.problems import InvalidJob, Problem
from rljob_api.rljob import RLJob, RLJobSpec
from rljob_api.shape_rules import shape_problems
from rljob_api.topology import (
    Mesh,
    Pods,
    Roles,
    num_warehouses,
    pods,
    resolve,
    roles,
    rollout_mesh,
    update_mesh,
)
from rljob_api.traffic import Traffic, plan_traffic
from rljob_api.volumes import GB, MB, SampleFlow, redundant_bytes

ROW_SCALARS = ("index", "length", "version")


@dataclass(frozen=True, slots=True, kw_only=True)
class Samples:
    """The sample flow of a step. controllers: C. warehouses: S. held, capacity: bytes that the fullest
    warehouse keeps at the longest lengths, and may keep."""

    flow: SampleFlow
    states: tuple[str, ...]
    controllers: int
    warehouses: int
    held: int
    capacity: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Resharding:
    """Weights between the layouts, bytes. redundant: Eq. 3, over all devices. released: what
    allgather-swap moves to the host, on the fullest device."""

    tensor: int
    expert: int
    redundant: float
    released: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Everything that is known of a job before it runs. shape and what needs it: None if unknown.

    problems: why it cannot run. notes: what a user may not expect, or could not be computed.
    """

    job: RLJob
    roles: Roles
    pods: Pods
    update: Mesh
    rollout: Mesh
    samples: Samples
    shape: Shape | None = None
    resharding: Resharding | None = None
    traffic: Traffic | None = None
    memory: Memory | None = None
    problems: list[Problem] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def make_plan(job: RLJob, *, base_dir: Path) -> Plan:
    """Plan a job. job: passed the rules. base_dir: folder of the job's file."""
    resolved = resolve(job)
    spec = resolved.spec
    parts: dict[str, Any] = {"notes": [*device_notes(job.spec)]}
    try:
        shape = find_shape(spec.model, base_dir=base_dir)
    except InvalidJob as invalid:
        shape = None
        parts["problems"] = invalid.problems
    else:
        if shape is None:
            text = f"{spec.model.path}: a model of unknown shape; no resharding and memory"
            parts["notes"].append(text)
    if shape is not None:
        parts["problems"] = problems = shape_problems(spec, shape)
        if not problems:
            parts["memory"] = memory = plan_memory(spec, shape)
            parts["problems"] = memory_problems(spec, memory)
            parts["resharding"] = plan_resharding(spec, shape)
            parts["traffic"] = plan_traffic(spec, shape)
    return Plan(
        job=resolved,
        roles=roles(spec.placement, spec.accelerator),
        pods=pods(spec),
        update=update_mesh(spec.update.parallelism),
        rollout=rollout_mesh(spec.rollout.parallelism),
        samples=plan_samples(resolved),
        shape=shape,
        **parts,
    )


def model_problems(job: RLJob, *, base_dir: Path) -> list[Problem]:
    """What the model's shape forbids: degrees that do not divide it, too little memory.

    Empty for models of unknown shape. Raises InvalidJob when config.json cannot be read.
    """
    shape = find_shape(job.spec.model, base_dir=base_dir)
    if shape is None:
        return []
    spec = resolve(job).spec
    return shape_problems(spec, shape) or memory_problems(spec, plan_memory(spec, shape))


def plan_samples(job: RLJob) -> Samples:
    """Sizes of the sample flow: those of the job's algorithm, or those that annotations state.

    n counts the columns as long as the response; M the scalar columns and what the dock knows of
    every row (index, length, version).
    """
    spec, stated = job.spec, job.metadata.annotations
    params, batch = spec.algorithm.params, spec.batch
    items = len(grpo.response_columns(params))
    scalars = len(grpo.scalar_columns(params)) + len(ROW_SCALARS)
    states = grpo.states(params)
    flow = SampleFlow(
        global_batch_size=batch.global_batch_size,
        samples_per_prompt=batch.samples_per_prompt,
        max_prompt_length=batch.max_prompt_length,
        max_response_length=batch.max_response_length,
        response_items=planned(stated, annotations.RESPONSE_ITEMS, items),
        scalars=planned(stated, annotations.SCALARS, scalars),
    )
    return Samples(
        flow=flow,
        states=states,
        controllers=planned(stated, annotations.CONTROLLERS, len(states)),
        warehouses=num_warehouses(spec),
        held=held_prompts(spec) * group_bytes(spec),
        capacity=parse_quantity(spec.dock.capacity),
    )


def plan_resharding(spec: RLJobSpec, shape: Shape) -> Resharding:
    """Eq. 3 and Fig. 10: redundant weights, and what allgather-swap releases. spec: resolved.

    Separated devices hold one layout each, so nothing is redundant there.
    """
    whole, item = shape.total(), ITEM_BYTES[spec.update.dtype]
    degrees = spec.rollout.parallelism
    colocated = spec.placement.mode == "colocated"
    redundant = redundant_bytes(
        tensor_bytes=whole.tensor * item,
        expert_bytes=whole.experts * item,
        update_tensor=spec.update.parallelism.tensor,
        rollout_expert=degrees.expert,
        rollout_data=degrees.data or 1,
    )
    return Resharding(
        tensor=whole.tensor * item,
        expert=whole.experts * item,
        redundant=redundant if colocated else 0.0,
        released=update_shard(spec, shape).total * item if colocated else 0,
    )


def memory_problems(spec: RLJobSpec, memory: Memory) -> list[Problem]:
    """Phases that do not fit on a device, and a KV cache without room for one sequence."""
    limit, path = memory.limit, "spec.accelerator.memory"
    if limit is None:
        return []
    problems = [
        Problem(
            path,
            f"is {spec.accelerator.memory}, but {phase.name} needs at least "
            f"{_size(phase.device)} a device ({_parts(phase)}); raise "
            f"spec.{phase.role}.parallelism.tensor or pipeline, {_remedy(phase)}or the memory",
        )
        for phase in memory.phases
        if phase.device > limit
    ]
    if not problems and memory.kv_cache.room == 0:
        room = limit - memory.phases[0].device
        sequence = memory.kv_cache.sequence
        message = f"{spec.accelerator.memory} leaves {_size(room)} a device for the KV cache, but "
        message += f"one sequence of the longest lengths takes {_size(sequence)}; raise "
        message += "spec.rollout.parallelism.tensor or the memory, or shorten spec.batch's lengths"
        problems.append(Problem(path, message))
    return problems


def _remedy(phase: Phase) -> str:
    options = {"update": "spec.update.parallelism.zero, ", "reshard": ""}
    return options.get(phase.name, "set resharding.strategy: allgather-swap, ")


def _parts(phase: Phase) -> str:
    return ", ".join(f"{name} {_size(size)}" for name, size in phase.parts.items() if size)


def _size(size: float) -> str:
    return f"{size / GB:.3g} GB" if size >= GB / 10 else f"{size / MB:.3g} MB"
