"""Rules on devices: which role owns them, degrees of parallelism, shares of the batch, room in the dock.

Pure functions from a spec to problems, called by `load` after those of `rules`.
"""

import math
from collections.abc import Iterator

from rljob_api.check.rules import Rule, divisors, use_one_of
from rljob_api.model.architecture import Shape
from rljob_api.model.volumes import BYTES_PER_ITEM
from rljob_api.spec.engines import UpdateParallelism
from rljob_api.spec.environment import OUTCOME_BYTES
from rljob_api.spec.problems import Problem
from rljob_api.spec.rljob import RLJobSpec
from rljob_api.spec.section import parse_quantity
from rljob_api.topology.devices import (
    UpdateDegrees,
    expert_degrees,
    most_ahead,
    num_nodes,
    num_warehouses,
    open_prompts,
    pods,
    roles,
    rollout_replicas,
    total_devices,
    update_replicas,
)
from rljob_api.topology.second_copies import unique_states

REPLICAS = "spec.dock.replicas"


def placement_rule(spec: RLJobSpec) -> Iterator[Problem]:
    """Allow numbers of devices only if roles are separated, and require some for a role that is left open."""
    placement, total = spec.placement, total_devices(spec.placement, spec.accelerator)
    devices_by_field = {
        "updateDevices": placement.update_devices,
        "rolloutDevices": placement.rollout_devices,
    }
    named = {name: value for name, value in devices_by_field.items() if value is not None}
    if placement.mode == "colocated":
        for name in named:
            yield Problem(
                f"spec.placement.{name}",
                "has no use with mode colocated, where every device does both; leave it out or set "
                "mode: separated",
            )
        return
    if not named:
        yield Problem(
            "spec.placement",
            "separated needs updateDevices or rolloutDevices, to know which devices do what",
        )
    for name, value in named.items():
        if len(named) == 1 and value >= total:
            yield Problem(
                f"spec.placement.{name}",
                f"is {value}, which leaves none of {_devices(spec)} to the other role; lower it",
            )


def update_degrees_rule(spec: RLJobSpec) -> Iterator[Problem]:
    """Require that data × tensor × pipeline × context is the number of devices that train."""
    degrees, path = spec.update.parallelism, "spec.update.parallelism"
    names = ("data", "tensor", "pipeline", "context")
    yield from _product(spec, path, names, devices=roles(spec.placement, spec.accelerator).update)
    if degrees.virtual_pipeline > 1 and degrees.pipeline == 1:
        yield Problem(
            f"{path}.virtualPipeline",
            f"is {degrees.virtual_pipeline}, but pipeline is 1; raise pipeline or leave it out",
        )
    for name, degree in (("pipeline", degrees.pipeline), ("expert", degrees.expert)):
        if degrees.zero == 3 and degree > 1:
            yield Problem(
                f"{path}.zero",
                f"is 3, which shares whole layers over data × context and does not go with {name} "
                f"{degree}; use 0, 1 or 2, or {name}: 1",
            )
    replicas = update_replicas(degrees, roles(spec.placement, spec.accelerator).update)
    if replicas and (replicas * degrees.context) % degrees.expert:
        yield Problem(
            f"{path}.expert",
            f"{degrees.expert} does not divide data × context, {replicas} × {degrees.context}; "
            f"{use_one_of(divisors(replicas * degrees.context), degrees.expert)}",
        )


def rollout_degrees_rule(spec: RLJobSpec) -> Iterator[Problem]:
    """Require that data × tensor × pipeline is the number of devices that generate."""
    degrees, path = spec.rollout.parallelism, "spec.rollout.parallelism"
    devices = roles(spec.placement, spec.accelerator).rollout
    yield from _product(spec, path, ("data", "tensor", "pipeline"), devices=devices)
    replicas = rollout_replicas(degrees, devices)
    if not replicas:
        return
    ranks, expert, tensor = replicas * degrees.tensor, degrees.expert, degrees.tensor
    legal = divisors(ranks)
    if spec.rollout.engine == "torch":
        legal = expert_degrees(data=replicas, tensor=tensor)
    if ranks % expert:
        wrong = f"{expert} does not divide data × tensor, {replicas} × {tensor}"
        yield Problem(f"{path}.expert", f"{wrong}; {use_one_of(legal, expert)}")
    elif expert not in legal:
        wrong = f"{expert} neither divides tensor {tensor} nor is a multiple of it"
        yield Problem(f"{path}.expert", f"{wrong}; {use_one_of(legal, expert)}")


def rollout_share_rule(spec: RLJobSpec) -> Iterator[Problem]:
    """Require that every rollout replica gets the same number of prompts."""
    devices = roles(spec.placement, spec.accelerator).rollout
    replicas = rollout_replicas(spec.rollout.parallelism, devices)
    prompts = spec.batch.global_batch_size
    if replicas and prompts % replicas:
        legal = [number * (devices // replicas) for number in divisors(prompts)]
        separated = spec.placement.mode == "separated"
        other = (
            f", or for placement.rolloutDevices {use_one_of(legal, devices)}" if separated else ""
        )
        yield Problem(
            "spec.batch.globalBatchSize",
            f"{prompts} prompts cannot be shared evenly by {replicas} rollout replicas "
            f"(spec.rollout.parallelism.data on {devices} devices); "
            f"{_multiples(_step_multiple(spec), prompts)}{other}",
        )


def update_share_rule(spec: RLJobSpec) -> Iterator[Problem]:
    """Require that every update replica gets the same number of complete micro-batches."""
    batch = spec.batch
    devices = roles(spec.placement, spec.accelerator).update
    replicas = update_replicas(spec.update.parallelism, devices)
    if not replicas:
        return
    mini, complete = batch.mini_batch_size or batch.global_batch_size, _mini_batch_multiple(spec)
    legal = [number for number in divisors(batch.global_batch_size) if number % complete == 0]
    if batch.mini_batch_size and legal:
        advice = use_one_of(legal, mini)
    else:
        advice = _multiples(_step_multiple(spec), mini)
    name = "miniBatchSize" if batch.mini_batch_size else "globalBatchSize"
    if mini % replicas:
        yield Problem(
            f"spec.batch.{name}",
            f"{mini} prompts cannot be shared evenly by {replicas} update replicas "
            f"(spec.update.parallelism.data on {devices} devices); {advice}",
        )
    elif batch.micro_batch_size and (mini // replicas) % batch.micro_batch_size:
        yield Problem(
            "spec.batch.microBatchSize",
            f"{batch.micro_batch_size} does not divide a rank's {mini // replicas} prompts "
            f"({name} {mini} / {replicas} update replicas); "
            f"{use_one_of(divisors(mini // replicas), batch.micro_batch_size)}",
        )


def capacity_rule(spec: RLJobSpec) -> Iterator[Problem]:
    """Require that the dock holds a full step, the steps that are generated ahead of it, and the open
    prompts."""
    yield from capacity_problems(spec, route_bytes=0)


def capacity_problems(spec: RLJobSpec, *, route_bytes: int) -> Iterator[Problem]:
    """Yield the dock's capacity problems if each sample has this many bytes of routes."""
    warehouses, steps = num_warehouses(spec), 1 + most_ahead(spec)
    prompts, going_on = stored_prompts(spec), open_prompts(spec)
    each = group_bytes(spec) + spec.batch.samples_per_prompt * route_bytes
    stored, capacity = prompts * each, parse_quantity(spec.dock.capacity)
    needed = -(-stored * 4 // 3)  # new rows and the columns written to them leave a quarter free
    period = "a step" if steps == 1 else f"{steps} steps"
    period += " and those that go on" if going_on else ""
    if needed > capacity:
        yield Problem(
            "spec.dock.capacity",
            f"is {spec.dock.capacity}, but each of {warehouses} warehouses keeps up to {prompts} "
            f"prompts of {period}, {-(-stored // 2**20)}Mi at the longest lengths, in three quarters of it; "
            f"use at least {-(-needed // 2**20)}Mi, or more warehouses",
        )


def replicas_rule(spec: RLJobSpec) -> Iterator[Problem]:
    """Require that the two warehouses of a row do not fail together. The second one of a row is the next
    warehouse."""
    if spec.dock.replicas == 1:
        return
    warehouses, nodes = num_warehouses(spec), pods(spec).warehouse
    if warehouses < 2:
        yield Problem(
            REPLICAS,
            "is 2, but there is 1 warehouse; use dock.warehouses: 2 or more, or replicas: 1",
        )
    elif warehouses % nodes:
        fewer = warehouses // nodes * nodes
        yield Problem(
            REPLICAS,
            f"is 2, but {warehouses} warehouses on {nodes} nodes leave room on some, where both of a "
            f"row's could meet; use dock.warehouses: {fewer} or {fewer + nodes}, or replicas: 1",
        )
    elif spec.accelerator.type != "emulated":
        yield from copies_on_one_node(spec)


def copies_on_one_node(spec: RLJobSpec) -> Iterator[Problem]:
    """Refuse both copies of a row on one node, which takes all its pods along when it fails. The operator
    applies this to every job, including emulated devices. `load` applies it to jobs that cannot run on one
    machine."""
    warehouses, nodes = num_warehouses(spec), pods(spec).warehouse
    if spec.dock.replicas == 2 and nodes < 2:
        yield Problem(
            REPLICAS,
            f"is 2, but all {warehouses} warehouses are on one node and go with it; use 2 nodes or "
            "more, or replicas: 1",
        )


def redundancy_rule(spec: RLJobSpec) -> Iterator[Problem]:
    """Require state that only one rank holds, and another host for its second copy."""
    kind, path = spec.update.redundancy, "spec.update.redundancy"
    ranks = roles(spec.placement, spec.accelerator).update
    if kind == "none" or not all(data for _, data in _trained(spec, ranks)):
        return
    if not any(unique_states(_known(degrees, data)) for degrees, data in _trained(spec, ranks)):
        degrees, data = _trained(spec, ranks)[0]
        yield Problem(
            path,
            f"is {kind}, but with data {data}, context {degrees.context} and zero 0 no device holds anything "
            "alone: others give its state to whoever replaces it; use none, or zero: 1, 2 or 3",
        )
    elif kind == "peer" and ranks == 1:
        yield Problem(
            path,
            "is peer, but one device trains, and no other has room for its copy; use host, or more devices "
            "that train",
        )


def _trained(spec: RLJobSpec, ranks: int) -> list[tuple[UpdateParallelism, int | None]]:
    """Return the degrees of each trained model, with its replicas."""
    layouts = [spec.update.parallelism]
    if spec.has_critic:
        layouts.append(spec.critic.parallelism if spec.critic else UpdateParallelism())
    return [(degrees, update_replicas(degrees, ranks)) for degrees in layouts]


def _known(degrees: UpdateParallelism, data: int | None) -> UpdateDegrees:
    return UpdateDegrees.model_validate({**dict(degrees), "data": data})


def stored_prompts(spec: RLJobSpec) -> int:
    """Return the largest number of prompts that a warehouse stores: those of a step, those generated ahead of
    it, and the open ones. Open ones count twice while they move to the next step."""
    warehouses, steps = num_warehouses(spec), 1 + most_ahead(spec)
    step, going_on = spec.batch.global_batch_size, open_prompts(spec)
    candidates = (
        2 * step if spec.algorithm.params.refills else 0
    )  # candidates, and those that are left over
    return (
        steps * -(-step // warehouses)
        + 2 * -(-going_on // warehouses)
        + -(-candidates // warehouses)
    )


def group_bytes(spec: RLJobSpec) -> int:
    """Return the bytes in the dock of one prompt and its samples, all of the longest lengths."""
    batch, params = spec.batch, spec.algorithm.params
    columns = len(params.response_columns) + spec.has_turns  # the mask
    columns += spec.flow.partial_rollout is not None  # versions
    sample = columns * batch.max_response_length + len(params.scalars)
    if spec.has_outcomes:
        sample += OUTCOME_BYTES // BYTES_PER_ITEM
    items = batch.max_prompt_length + batch.samples_per_prompt * sample
    return BYTES_PER_ITEM * items + picture_bytes(spec)


def sample_route_bytes(spec: RLJobSpec, shape: Shape | None) -> int:
    """Return the bytes in the dock of the routes of one sample of the longest lengths; 0 without replay."""
    if shape is None or not spec.update.router_replay:
        return 0
    return shape.route_bytes * (spec.batch.max_prompt_length + spec.batch.max_response_length)


def picture_bytes(spec: RLJobSpec) -> int:
    """Return the largest number of bytes in the dock of the pictures of one prompt: 8 bits for each of three
    colours."""
    if spec.model.vision is None:
        return 0
    return 3 * spec.data.most_pixels(spec.batch.max_prompt_length)


def _product(
    spec: RLJobSpec, path: str, names: tuple[str, ...], *, devices: int
) -> Iterator[Problem]:
    training = path.startswith("spec.update")
    degrees = spec.update.parallelism if training else spec.rollout.parallelism
    values = {name: getattr(degrees, name) for name in names}
    product = math.prod(value or 1 for value in values.values())
    shown = " × ".join(f"{name} {value}" for name, value in values.items() if value)
    whose = f"{devices} devices that {'train' if training else 'generate'}"
    if spec.placement.mode == "colocated":
        whose = _devices(spec)
    if devices < 1:
        return
    if values["data"] is None and devices % product:
        legal = {
            name: use_one_of(divisors(devices // (product // value)), value).removeprefix("use ")
            for name, value in values.items()
            if value and value > 1 and devices % (product // value) == 0
        }
        advice = ", or ".join(f"{name} {numbers}" for name, numbers in legal.items())
        remedy = f"use {advice}" if legal else f"use degrees whose product divides {devices}"
        yield Problem(path, f"{shown} is {product}, which does not divide {whose}; {remedy}")
    elif values["data"] is not None and product != devices:
        left, remainder = divmod(devices * values["data"], product)
        remedy = f"use data: {left}, or leave data out"
        if remainder:
            remedy = f"use degrees whose product is {devices}"
        yield Problem(path, f"{shown} is {product}, but there are {whose}; {remedy}")


def deltas_rule(spec: RLJobSpec) -> Iterator[Problem]:
    """Require separated devices and a plan for deltas, and a type in which most items stay the same."""
    if not spec.resharding.deltas:
        return
    path = "spec.resharding.deltas"
    if spec.placement.mode != "separated":
        yield Problem(
            path,
            "is true with placement.mode colocated, whose devices have both versions in their own memory; "
            "leave it out, or set spec.placement.mode: separated",
        )
    if spec.resharding.strategy == "stream":
        yield Problem(
            path, "is true with resharding.strategy stream, which keeps nothing; use allgather"
        )
    if "bfloat16" not in (spec.update.dtype, spec.rollout.dtype):
        yield Problem(
            path,
            f"is true with update.dtype {spec.update.dtype} and rollout.dtype {spec.rollout.dtype}, in which "
            "nearly all items change in a step; set one of them to bfloat16",
        )


def _devices(spec: RLJobSpec) -> str:
    placement, accelerator = spec.placement, spec.accelerator
    return (
        f"{total_devices(placement, accelerator)} devices (spec.accelerator: nodes "
        f"{num_nodes(placement, accelerator)} × devicesPerNode {accelerator.devices_per_node})"
    )


def _step_multiple(spec: RLJobSpec) -> int:
    """Return a number that globalBatchSize must be a multiple of: prompts that rollout replicas share evenly,
    in complete mini-batches. Only roles whose section could be read count."""
    rollout, mini = getattr(spec, "rollout", None), spec.batch.mini_batch_size
    devices, least = roles(spec.placement, spec.accelerator), _mini_batch_multiple(spec)
    generating = rollout_replicas(rollout.parallelism, devices.rollout) if rollout else None
    return math.lcm(generating or 1, mini if mini and mini % least == 0 else least)


def _mini_batch_multiple(spec: RLJobSpec) -> int:
    """Return the number of prompts that update replicas share in complete micro-batches."""
    update, devices = getattr(spec, "update", None), roles(spec.placement, spec.accelerator)
    training = update_replicas(update.parallelism, devices.update) if update else None
    return (training or 1) * (spec.batch.micro_batch_size or 1)


def _multiples(factor: int, near: int) -> str:
    below = near // factor * factor
    return f"use {below} or {below + factor}" if below else f"use {factor}"


LAYOUT_RULES: tuple[Rule, ...] = (
    placement_rule,
    update_degrees_rule,
    rollout_degrees_rule,
    rollout_share_rule,
    update_share_rule,
    capacity_rule,
    replicas_rule,
    redundancy_rule,
    deltas_rule,
)
