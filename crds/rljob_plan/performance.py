"""Estimate the seconds of a step of a job on given devices, part by part.

Called by the search of layouts, and by `benchmarks/plan/performance.py`, which calibrates it on reported
runs. All samples have the longest lengths. Rates are a machine's (`machines`), times the shares of them that
are reached. What no rate explains is `RateShares.fixed_seconds`.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from rljob_api.check.layout_rules import picture_bytes, sample_route_bytes
from rljob_api.model.architecture import Shape
from rljob_api.model.volumes import GB, SampleFlow
from rljob_api.spec.engines import Recompute
from rljob_api.topology.devices import UpdateDegrees, update_mesh, used_devices
from rljob_api.topology.resolved import ResolvedSpec
from rljob_api.topology.second_copies import unique_states
from rljob_plan.collectives import step_collectives
from rljob_plan.decoding import decode_seconds, forward_flops, sample_flops
from rljob_plan.engines import planned_engine
from rljob_plan.machines import MachineRates, RateShares
from rljob_plan.memory import frozen_models
from rljob_plan.pictures import generating_operations, training_operations
from rljob_plan.resharding.widths import ITEM_BYTES
from rljob_plan.shards import GRADIENT_BYTES, UpdateShard, rollout_shard, update_shard
from rljob_plan.traffic import UpdateWork
from rljob_plan.update_traffic import longest_work, traffic_of

DAY = 86_400.0
BACKWARD = 2
"""Cost of a backward pass, in forward passes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingStep:
    """Work of an update replica in a training step. work: of an optimizer step. steps: optimizer steps.
    flops: of a forward pass over all of it, for the full replica."""

    work: UpdateWork
    steps: int
    flops: float

    @property
    def passes(self) -> int:
        """Return the micro-batches of a training step."""
        return self.work.passes * self.steps


def step_parts(
    spec: ResolvedSpec,
    shape: Shape,
    machine: MachineRates,
    shares: RateShares,
    *,
    packed: bool = True,
    recompute: float | None = None,
    room: int | None = None,
    others: Mapping[str, Shape] | None = None,
) -> dict[str, float]:
    """Return the seconds of each part of a step. Their sum is its time; `hidden` is negative and counts what
    overlaps.

    packed: a prompt is computed once for its samples, in the job's micro-batches; otherwise each sample is a
    micro-batch with its prompt. recompute: share of layers whose forward pass is run again in the backward
    pass; default: from the spec. room: sequences that a rollout replica has memory for; default: all. others:
    shapes of the models besides the policy.
    """
    parts = training_parts(
        spec, shape, machine, shares, packed=packed, recompute=recompute, others=others
    )
    parts |= generating_parts(spec, shape, machine, shares, room=room, packed=packed)
    tower_operations = training_operations(spec, shape, others)
    parts["pictures again"] = tower_operations / (machine.flops * shares.products)
    parts["reshard"] = swap_seconds(spec, shape, machine)
    parts["reshard"] += weights_seconds(spec, shape, machine, shares)
    parts["dispatch"] = _dispatch_bytes(spec, shape) / machine.dispatch_bytes
    parts["copies"] = _copying_seconds(spec, shape, machine, parts, others or {})
    parts["fixed"] = shares.fixed_seconds
    parts["hidden"] = 0.0 - hidden_seconds(spec, parts, room=room)
    parts["failures"] = failure_seconds(spec, machine, sum(parts.values()))
    return {name: parts[name] for name in PARTS}


PARTS = (
    "pictures", "prompts", "decoding", "pictures again", "inference", "update", "communication", "bubbles",
    "optimizer", "copies", "reshard", "dispatch", "fixed", "hidden", "failures",
)  # fmt: skip
"""Parts of a step, in its order."""
GENERATION = ("pictures", "prompts", "decoding")
TRAINING = ("pictures again", "inference", "update", "communication", "bubbles", "optimizer")


def training_parts(
    spec: ResolvedSpec,
    shape: Shape,
    machine: MachineRates,
    shares: RateShares,
    *,
    packed: bool = True,
    recompute: float | None = None,
    others: Mapping[str, Shape] | None = None,
) -> dict[str, float]:
    """Return the seconds of each part on the devices that train."""
    degrees = spec.update.parallelism
    if recompute is None:
        recompute = float(spec.update.recompute == "full")
    step = training_of(spec, shape, packed=packed)
    rate = machine.flops * shares.products * degrees.tensor * degrees.pipeline * degrees.context
    forward = step.flops / rate
    local_layers = -(-shape.layers // degrees.pipeline)
    overhead = step.passes * local_layers * shares.pass_seconds / (1 + BACKWARD)
    update = (forward + overhead) * (1 + BACKWARD + recompute)
    update *= planned_engine(spec.update.engine).slower
    again: Recompute = "full" if recompute else "none"
    sent = sent_seconds(spec, shape, step, machine, shares, again)
    inference = (
        forward + overhead + sent / 3 if "reference" in spec.algorithm.params.states else 0.0
    )
    parts = {"inference": inference + _frozen_seconds(spec, shape, machine, shares, others or {})}
    optimizer = optimizer_seconds(spec, shape, machine, shares) * step.steps
    if spec.has_critic:
        critic_spec, critic_shape = spec.of_critic(), (others or {}).get("critic", shape).scorer()
        critic = _forward_seconds(critic_spec, critic_shape, machine, shares)
        more = BACKWARD + (critic_spec.update.recompute == "full")
        parts["inference"] += critic
        update += critic * spec.batch.epochs * (1 + more)
        optimizer += optimizer_seconds(critic_spec, critic_shape, machine, shares) * step.steps
    waits = (degrees.pipeline - 1) / (degrees.virtual_pipeline * step.work.passes)
    return parts | {
        "update": update,
        "communication": sent,
        "bubbles": update * waits,
        "optimizer": optimizer,
    }


def generating_parts(
    spec: ResolvedSpec,
    shape: Shape,
    machine: MachineRates,
    shares: RateShares,
    *,
    room: int | None = None,
    packed: bool = True,
) -> dict[str, float]:
    """Return the seconds of each part on the devices that generate."""
    if spec.has_pairs:
        return dict.fromkeys(GENERATION, 0.0)
    degrees, batch = spec.rollout.parallelism, spec.batch
    prompts = batch.global_batch_size * (1 if packed else batch.samples_per_prompt)
    flops = (
        prompts
        * batch.max_prompt_length
        * forward_flops(shape, batch.max_prompt_length if packed else _length(spec))
    )
    # Stages of a pipeline take turns, so they do not shorten the time.
    ranks = degrees.data * degrees.tensor
    tower_operations = generating_operations(spec, shape)
    return {
        "pictures": tower_operations / (machine.flops * shares.products),
        "prompts": flops / (machine.flops * shares.products * ranks),
        "decoding": decode_seconds(spec, shape, machine, shares, room=room),
    }


def constant_seconds(
    spec: ResolvedSpec, shape: Shape, rates: tuple[MachineRates, RateShares]
) -> float:
    """Return the seconds of parts that no degree changes."""
    machine, shares = rates
    return _dispatch_bytes(spec, shape) / machine.dispatch_bytes + shares.fixed_seconds


def swap_seconds(spec: ResolvedSpec, shape: Shape, machine: MachineRates) -> float:
    """Return the seconds to move the update's weights to the host and back, if they are swapped."""
    colocated = spec.placement.mode == "colocated"
    if not colocated or spec.resharding.strategy != "allgather-swap" or spec.has_pairs:
        return 0.0
    return 2 * UpdateShard.of(spec, shape).weights / machine.swap_bytes


def weights_seconds(
    spec: ResolvedSpec, shape: Shape, machine: MachineRates, shares: RateShares
) -> float:
    """Return the seconds in which a device receives rollout weights from others.

    The share that it already has counts as if slices were placed at random; nothing moves if both layouts cut
    alike. A stream delivers full tensors to each device.
    """
    update, rollout = spec.update.parallelism, spec.rollout.parallelism
    full = shape.total().total + shape.tower * shape.trains_tower
    local = update_shard(spec, shape).total
    required, colocated = rollout_shard(spec, shape).total, spec.placement.mode == "colocated"
    axes = ("tensor", "pipeline", "expert")
    alike = all(getattr(update, name) == getattr(rollout, name) for name in axes)
    if update.zero == 3:
        local, alike = local // (update.data * update.context), False
    if spec.resharding.strategy == "stream":
        required, alike = full, False
    missing = 1.0 - local / full if colocated else 1.0
    if (colocated and alike) or spec.has_pairs:
        missing = 0.0
    item = min(ITEM_BYTES[spec.update.dtype], ITEM_BYTES[spec.rollout.dtype])
    devices = used_devices(spec.placement, spec.accelerator)
    link = machine.link(devices, per_node=spec.accelerator.devices_per_node)
    return required * item * missing / (link * shares.links)


def _copying_seconds(
    spec: ResolvedSpec,
    shape: Shape,
    machine: MachineRates,
    parts: Mapping[str, float],
    others: Mapping[str, Shape],
) -> float:
    """Return the seconds of second copies: to the host after the optimizer's steps, and to a peer over the
    hosts' network. The peer's copy counts as far as it takes longer than the work before the next update."""
    if spec.update.redundancy == "none":
        return 0.0
    copied = UpdateShard.of(spec, shape).unique
    if spec.has_critic:
        critic_spec = spec.of_critic()
        copied += UpdateShard.of(critic_spec, others.get("critic", shape).scorer()).unique
    to_host = copied / machine.swap_bytes
    if spec.update.redundancy == "host":
        return to_host
    overlapped = sum(parts[name] for name in (*GENERATION, "inference", "reshard", "dispatch"))
    return to_host + max(0.0, copied / machine.dispatch_bytes - overlapped)


def failure_seconds(spec: ResolvedSpec, machine: MachineRates, seconds: float) -> float:
    """Return what failing devices cost a step of this length on average. It is the recovery, half of the
    interrupted step, and half of the steps between checkpoints if no other device holds what a failed
    training device held. A device fails with its pod, which `host` copies do not outlive."""
    if not machine.failures_per_day:
        return 0.0
    layouts = [spec.update.parallelism]
    if spec.has_critic:
        layouts.append(spec.of_critic().update.parallelism)
    lost = spec.update.redundancy != "peer" and any(map(unique_states, layouts))
    repeated = (spec.checkpoint.every or spec.steps) / 2 * seconds * lost
    each = machine.recovery_seconds + seconds / 2
    training, devices = spec.roles.update, used_devices(spec.placement, spec.accelerator)
    return machine.failures_per_day / DAY * seconds * (devices * each + training * repeated)


def hidden_seconds(
    spec: ResolvedSpec, parts: Mapping[str, float], *, room: int | None = None
) -> float:
    """Return the seconds in which separated devices overlap. With `async` it is the full shorter side. With
    `streaming` it is the training of all sequences but those that a replica generates last."""
    if spec.placement.mode == "colocated" or spec.flow.mode == "sync":
        return 0.0
    shorter_side = min(sum(parts[name] for name in side) for side in (GENERATION, TRAINING))
    if spec.flow.mode == "async":
        return shorter_side
    turns = decoding_turns(spec, room=room)
    return shorter_side * (turns - 1) / turns


def decoding_turns(spec: ResolvedSpec, *, room: int | None = None) -> int:
    """Return how often a replica starts as many sequences as it has room for."""
    batch, data = spec.batch, spec.rollout.parallelism.data
    sequences = batch.global_batch_size * batch.samples_per_prompt // data
    at_a_time = min(sequences, spec.rollout.max_sequences, room or sequences)
    return -(-sequences // at_a_time)


def training_of(spec: ResolvedSpec, shape: Shape, *, packed: bool) -> TrainingStep:
    """Return the work of a replica in a training step. packed: a prompt is computed once for its samples."""
    batch, data = spec.batch, spec.update.parallelism.data
    steps = batch.global_batch_size // batch.mini_batch_size * batch.epochs
    prompts = batch.mini_batch_size // data * steps
    if packed:
        flops = prompts * sample_flops(shape, batch)
        return TrainingStep(work=longest_work(spec), steps=steps, flops=flops)
    work = UpdateWork(
        tokens=_length(spec),
        positions=batch.max_response_length,
        targets=batch.max_response_length,
        passes=batch.mini_batch_size // data * batch.samples_per_prompt,
    )
    flops = work.passes * steps * work.tokens * forward_flops(shape, work.tokens)
    return TrainingStep(work=work, steps=steps, flops=flops)


def sent_seconds(
    spec: ResolvedSpec,
    shape: Shape,
    step: TrainingStep,
    machine: MachineRates,
    shares: RateShares,
    recompute: Recompute,
) -> float:
    """Return the seconds in which a rank sends its traffic of a training step."""
    degrees, passes = spec.update.parallelism, step.work.passes
    traffic = traffic_of(spec, shape, step.work, recompute=recompute).parts()
    collectives = step_collectives(shape, degrees, passes=passes, recompute=recompute)
    reach = _reach(degrees)
    moving = sum(
        sent / machine.link(reach[name], per_node=spec.accelerator.devices_per_node)
        for name, sent in traffic.items()
    )
    per_optimizer_step = moving / shares.links + collectives * machine.latency_seconds
    return per_optimizer_step * step.steps


def _reach(degrees: UpdateDegrees) -> dict[str, int]:
    """Return for each technique how many consecutive ranks its groups span, in the order of `update_mesh`.
    Experts span context and data."""
    context_span = degrees.tensor * degrees.context
    return {
        "tensor": degrees.tensor,
        "context": context_span,
        "expert": degrees.tensor * degrees.expert,
        "data": context_span * degrees.data,
        "pipeline": context_span * degrees.data * degrees.pipeline,
    }


def optimizer_seconds(
    spec: ResolvedSpec, shape: Shape, machine: MachineRates, shares: RateShares
) -> float:
    """Return the seconds of the optimizer. AdamW reads gradients, and reads and writes its state and the
    weights (memory-bound: arXiv:1910.02054, §7). With an offload its state comes from the host and goes back.
    """
    shard = UpdateShard.of(spec, shape)
    touched = 2 * shard.optimizer
    touched += shard.stepped * (GRADIENT_BYTES + 2 * ITEM_BYTES[spec.update.dtype])
    moved = 2 * shard.optimizer / machine.swap_bytes if shard.offloaded else 0.0
    return touched / (machine.memory_bytes * shares.reads) + moved


def _frozen_seconds(
    spec: ResolvedSpec,
    shape: Shape,
    machine: MachineRates,
    shares: RateShares,
    others: Mapping[str, Shape],
) -> float:
    """Return the seconds of forward passes of models that only score, without the reference."""
    total = 0.0
    for model, model_shape in frozen_models(spec, shape, others).values():
        update = spec.update.model_copy(update={"parallelism": model.parallelism})
        total += _forward_seconds(
            spec.model_copy(update={"update": update}), model_shape, machine, shares
        )
    return total


def _forward_seconds(
    spec: ResolvedSpec, shape: Shape, machine: MachineRates, shares: RateShares
) -> float:
    """Return the seconds of one forward pass over a step's samples."""
    ranks = update_mesh(spec.update.parallelism).size
    flops = spec.batch.global_batch_size * sample_flops(shape, spec.batch)
    return flops / (machine.flops * shares.products * ranks)


def _length(spec: ResolvedSpec) -> int:
    return spec.batch.max_prompt_length + spec.batch.max_response_length


def _dispatch_bytes(spec: ResolvedSpec, shape: Shape) -> float:
    """Return eq. 4 for the paper's columns: n = 5, M = 3, 5 controllers."""
    batch = spec.batch
    flow = SampleFlow(
        global_batch_size=batch.global_batch_size,
        samples_per_prompt=batch.samples_per_prompt,
        max_prompt_length=batch.max_prompt_length,
        max_response_length=batch.max_response_length,
        response_items=5,
        scalars=3,
        picture_bytes=picture_bytes(spec),
        route_bytes=sample_route_bytes(spec, shape),
    )
    return GB * flow.per_warehouse_gb(warehouses=spec.dock.warehouses, controllers=5)
