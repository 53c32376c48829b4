"""Plan what a job needs without a cluster: devices, sample volumes, resharding and memory.

Called by the CLI's `plan`; `plan_text` and `plan_json` format it. Refuses what does not fit on a device.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from rljob_api.check import annotations
from rljob_api.check.annotations import planned
from rljob_api.check.evaluation_rules import evaluation_notes
from rljob_api.check.layout_rules import (
    group_bytes,
    picture_bytes,
    sample_route_bytes,
    stored_prompts,
)
from rljob_api.check.shape_rules import shape_problems
from rljob_api.model.architecture import Shape, find_shape
from rljob_api.model.volumes import SampleFlow, redundant_bytes
from rljob_api.spec.problems import InvalidJob, Problem
from rljob_api.spec.rljob import RLJob
from rljob_api.spec.section import parse_quantity
from rljob_api.spec.workload import Model
from rljob_api.topology.devices import (
    Mesh,
    Pods,
    Roles,
    pods,
    rollout_mesh,
    update_mesh,
)
from rljob_api.topology.elastic import device_notes
from rljob_api.topology.fewer_replicas import fewest_replicas, with_replicas
from rljob_api.topology.resolved import ResolvedJob, ResolvedSpec, resolve
from rljob_plan.host_memory import HostMemory, plan_host
from rljob_plan.memory import MemoryPlan, plan_memory
from rljob_plan.memory_rules import host_problems, machine_problem, memory_problems
from rljob_plan.resharding.figures import ReshardBytes, bound, count_bytes, fullest
from rljob_plan.resharding.job_layouts import arrives_in_buckets, plan_of_job
from rljob_plan.resharding.widths import ITEM_BYTES
from rljob_plan.traffic import UpdateTraffic
from rljob_plan.update_traffic import plan_traffic

ALLGATHER, SWAP = "allgather", "allgather-swap"
ROW_SCALARS = ("index", "length", "version")


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplePlan:
    """The sample flow of a step. controllers: C. warehouses: S. stored, capacity: bytes that the fullest
    warehouse stores at the longest lengths, and may store."""

    flow: SampleFlow
    states: tuple[str, ...]
    controllers: int
    warehouses: int
    stored: int
    capacity: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ReshardingFigures:
    """Weights in both layouts, bytes. redundant: Eq. 3, over all devices. released: what allgather-swap moves
    to the host, on the fullest device. moved: by the plan of the reshard. bound: most that a device may hold
    with allgather-swap.

    By strategy: retained: update weights that stay on devices that generate, over all of them;
    retained_on_device: the same on the fullest device; peak: weights and buffers on the fullest device that
    trains.
    """

    tensor: int
    expert: int
    redundant: float
    released: int
    moved: ReshardBytes
    bound: int
    retained: dict[str, int]
    retained_on_device: dict[str, int]
    peak: dict[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class FewestReplicas:
    """A step with the fewest replicas that training continues with. prompts, passes: of a mini-batch on the
    fullest replica; all_prompts, all_passes: while all train. device: bytes of the fullest device that
    trains; all_device: while all train; None if the model's shape is unknown."""

    replicas: int
    prompts: int
    all_prompts: int
    passes: int
    all_passes: int
    device: int | None = None
    all_device: int | None = None

    @property
    def slower(self) -> float:
        """Return the factor by which a step's computation on the training devices is longer than with all
        replicas."""
        return self.prompts / self.all_prompts


@dataclass(frozen=True, slots=True, kw_only=True)
class JobPlan:
    """Figures of a job before it runs. shape, and what needs it: None if unknown. others: shapes of the
    models besides the policy. fewest: with `elastic.update`. problems: why it cannot run. notes: what a user
    may not expect, or could not be computed."""

    job: ResolvedJob
    roles: Roles
    pods: Pods
    update: Mesh
    rollout: Mesh
    samples: SamplePlan
    shape: Shape | None = None
    others: Mapping[str, Shape] = field(default_factory=dict)
    resharding: ReshardingFigures | None = None
    traffic: UpdateTraffic | None = None
    memory: MemoryPlan | None = None
    host: HostMemory | None = None
    fewest: FewestReplicas | None = None
    problems: list[Problem] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def make_plan(job: RLJob, *, base_dir: Path) -> JobPlan:
    """Plan a job. job: passed the rules. base_dir: folder of the job's file."""
    resolved = resolve(job)
    spec = resolved.spec
    parts: dict[str, Any] = {"notes": [*device_notes(job.spec), *evaluation_notes(job.spec)]}
    parts["fewest"] = fewest = plan_fewest(spec)
    if spec.has_pairs:
        text = "spec.data.preferences: the reference computes each pair in the first epoch alone; "
        parts["notes"].append(f"{text}later steps have no inference")
    try:
        shape = find_shape(spec.model, base_dir=base_dir)
    except InvalidJob as invalid:
        shape = None
        parts["problems"] = invalid.problems
    else:
        if shape is None:
            text = f"{spec.model.path}: a model of unknown shape; no resharding and memory; its weights go "
            text += "as a stream"
            parts["notes"].append(text)
    if shape is not None:
        others, unread = other_shapes(spec, base_dir=base_dir)
        parts["others"] = others
        parts["notes"] += unread
        parts["problems"] = problems = shape_problems(spec, shape, others)
        if not problems:
            parts["memory"] = memory = plan_memory(spec, shape, others)
            parts["host"] = host = plan_host(spec, memory)
            parts["problems"] = memory_problems(spec, memory) + host_problems(spec, host)
            if fewest is not None:
                memory_with_fewest = plan_memory(
                    with_replicas(spec, fewest.replicas), shape, others
                )
                parts["fewest"] = replace(
                    fewest,
                    device=_training_device(memory_with_fewest),
                    all_device=_training_device(memory),
                )
            parts["resharding"] = plan_resharding(spec, shape)
            parts["traffic"] = plan_traffic(spec, shape)
    return JobPlan(
        job=resolved,
        roles=spec.roles,
        pods=pods(spec),
        update=update_mesh(spec.update.parallelism),
        rollout=rollout_mesh(spec.rollout.parallelism),
        samples=plan_samples(resolved, shape),
        shape=shape,
        **parts,
    )


def plan_fewest(spec: ResolvedSpec) -> FewestReplicas | None:
    """Return the sizes of a step with the fewest replicas, or None if it needs all."""
    replicas, all_replicas = fewest_replicas(spec), spec.update.parallelism.data
    if replicas is None:
        return None
    batch = spec.batch
    return FewestReplicas(
        replicas=replicas,
        prompts=-(-batch.mini_batch_size // replicas),
        all_prompts=-(-batch.mini_batch_size // all_replicas),
        passes=batch.passes(replicas),
        all_passes=batch.passes(all_replicas),
    )


def _training_device(memory: MemoryPlan) -> int:
    """Return the bytes of the fullest device that trains."""
    return max(phase.device for phase in memory.phases if phase.role != "rollout")


def model_problems(job: RLJob, *, base_dir: Path) -> list[Problem]:
    """Return what the model's shape forbids: degrees that do not divide it, too little memory.

    Empty for models of unknown shape. Raises InvalidJob if config.json cannot be read.
    """
    shape = find_shape(job.spec.model, base_dir=base_dir)
    if shape is None:
        return []
    spec = resolve(job).spec
    others, _ = other_shapes(spec, base_dir=base_dir)
    if problems := shape_problems(spec, shape, others):
        return problems
    memory = plan_memory(spec, shape, others)
    return memory_problems(spec, memory) + host_problems(spec, plan_host(spec, memory))


def other_shapes(spec: ResolvedSpec, *, base_dir: Path) -> tuple[dict[str, Shape], list[str]]:
    """Return the shapes of the models besides the policy that have a separate directory, by name. Also return
    notes on those that cannot be read here, which count with the policy's shape."""
    paths = {
        "critic": spec.critic.path if spec.critic else None,
        "reward-model": spec.reward_model.path if spec.reward_model else None,
        "teacher": spec.teacher.path if spec.teacher else None,
    }
    shapes, notes = dict[str, Shape](), list[str]()
    for name, path in paths.items():
        if path is None:
            continue
        try:
            shape = find_shape(Model(path=path), base_dir=base_dir)
        except InvalidJob:
            shape = None
        if shape is None:
            notes.append(
                f"{path}: the {name}'s shape cannot be read here; it counts as the policy's"
            )
        else:
            shapes[name] = shape
    return shapes, notes


def machine_problems(job: RLJob, *, base_dir: Path, available: int) -> list[Problem]:
    """Return what this machine's memory forbids if all of the job's devices are emulated on it: more on the
    host than `available` bytes. job: without `model_problems`."""
    shape = find_shape(job.spec.model, base_dir=base_dir)
    if shape is None:
        return []
    spec = resolve(job).spec
    others, _ = other_shapes(spec, base_dir=base_dir)
    return machine_problem(spec, plan_memory(spec, shape, others), available)


def plan_samples(job: ResolvedJob, shape: Shape | None = None) -> SamplePlan:
    """Return the sizes of the sample flow: those of the job's algorithm, or those that annotations set.

    n counts the columns as long as the response. M counts the scalar columns and what the dock stores of
    every row (index, length, version).
    """
    spec, stated = job.spec, job.metadata.annotations
    params, batch = spec.algorithm.params, spec.batch
    items = len(params.response_columns) + spec.has_turns  # the mask
    scalars, routes = len(params.scalars) + len(ROW_SCALARS), sample_route_bytes(spec, shape)
    states = spec.states
    flow = SampleFlow(
        global_batch_size=batch.global_batch_size,
        samples_per_prompt=batch.samples_per_prompt,
        max_prompt_length=batch.max_prompt_length,
        max_response_length=batch.max_response_length,
        response_items=planned(stated, annotations.RESPONSE_ITEMS, items),
        scalars=planned(stated, annotations.SCALARS, scalars),
        picture_bytes=picture_bytes(spec),
        route_bytes=routes,
    )
    return SamplePlan(
        flow=flow,
        states=states,
        controllers=planned(stated, annotations.CONTROLLERS, len(states)),
        warehouses=spec.dock.warehouses,
        stored=stored_prompts(spec) * (group_bytes(spec) + batch.samples_per_prompt * routes),
        capacity=parse_quantity(spec.dock.capacity),
    )


def plan_resharding(spec: ResolvedSpec, shape: Shape) -> ReshardingFigures:
    """Return redundant weights (Eq. 3 and Fig. 10), and what allgather-swap releases.

    Separated devices hold one layout each, so nothing is redundant there.
    """
    parameters, item = shape.total(), ITEM_BYTES[spec.update.dtype]
    degrees = spec.rollout.parallelism
    colocated = spec.placement.mode == "colocated"
    moves = plan_of_job(spec, shape)
    moved, both = count_bytes(moves), fullest(moves, moves.update.devices, swaps=False)
    swaps = colocated and arrives_in_buckets(spec)
    redundant = redundant_bytes(
        tensor_bytes=parameters.tensor * item,
        expert_bytes=parameters.experts * item,
        update_tensor=spec.update.parallelism.tensor,
        rollout_expert=degrees.expert,
        rollout_data=degrees.data,
    )
    return ReshardingFigures(
        tensor=parameters.tensor * item,
        expert=parameters.experts * item,
        redundant=redundant if colocated else 0.0,
        released=both.update if colocated else 0,
        moved=moved,
        bound=bound(moves) if swaps else both.total,
        retained={ALLGATHER: moved.retained if colocated else 0, SWAP: 0},
        retained_on_device={ALLGATHER: both.update if colocated else 0, SWAP: 0},
        peak={
            ALLGATHER: both.total,
            SWAP: fullest(moves, moves.update.devices, swaps=swaps).total,
        },
    )
