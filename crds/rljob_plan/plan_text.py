"""Format a plan as plain text for the terminal. Called by the CLI's `plan`."""

from collections.abc import Iterator

from rljob_api.check.annotations import PREFIX
from rljob_api.model.architecture import Shape
from rljob_api.model.volumes import GB, MB, dispatch_seconds
from rljob_api.topology.devices import Mesh
from rljob_plan.host_memory import HostMemory
from rljob_plan.machines import rates_of
from rljob_plan.memory import MemoryPlan, Phase
from rljob_plan.pictures import (
    feature_bytes,
    generating_operations,
    picture_tokens,
    towers,
    training_operations,
)
from rljob_plan.plan import FewestReplicas, JobPlan, ReshardingFigures
from rljob_plan.resharding.figures import ReshardBytes
from rljob_plan.traffic import UpdateTraffic

LABEL_WIDTH = 22


def plan_text(plan: JobPlan) -> str:
    """Return the plan in aligned lines. The caller prints problems."""
    spec = plan.job.spec
    lines = [
        f"{plan.job.metadata.name}: {spec.algorithm.name}, {spec.steps} step{'s' * (spec.steps > 1)}"
    ]
    lines += _section("Devices", _devices(plan))
    lines += _section("Transfer dock, samples of a step", _samples(plan))
    if plan.resharding:
        strategy = spec.resharding.strategy
        lines += _section(f"Resharding ({strategy})", _resharding(plan.resharding))
    if plan.traffic and plan.traffic.total:
        title = "Update, what a rank sends in an optimizer step of the longest lengths"
        lines += _section(title, _traffic(plan.traffic))
    if plan.fewest:
        lines += _section("With the fewest replicas (elastic.update)", _fewest(plan.fewest))
    if plan.memory:
        lines += [
            "",
            "Memory of the fullest device at the longest lengths (GB)",
            *_memory(plan.memory),
            *(_host(plan.host) if plan.host and plan.host.total else ()),
            *(_copied(plan.memory.copied, spec.update.redundancy) if plan.memory.copied else ()),
        ]
    lines += ["", *(f"note: {note}" for note in plan.notes)] if plan.notes else []
    return "\n".join(lines)


def _section(title: str, rows: Iterator[tuple[str, str]]) -> list[str]:
    return ["", title, *(f"  {label:<{LABEL_WIDTH}}{text}" for label, text in rows)]


def _devices(plan: JobPlan) -> Iterator[tuple[str, str]]:
    spec, shape = plan.job.spec, plan.shape
    accelerator = spec.accelerator
    if shape:
        total = shape.total()
        experts = f", of them {total.experts:,} in experts" if total.experts else ""
        yield (
            "model",
            f"{spec.model.builtin or spec.model.path}: {total.total:,} parameters{experts}",
        )
        if shape.tower:
            yield "vision tower", f"{shape.tower:,} parameters, {_tower(plan, shape)}"
    each = f"{accelerator.nodes} × {accelerator.devices_per_node} {accelerator.type}"
    yield "devices", f"{each}, {spec.placement.mode}"
    yield from _mesh("update", plan.update, spec.update.parallelism.expert)
    yield from _mesh("rollout", plan.rollout, spec.rollout.parallelism.expert)
    count = plan.pods
    spare = f"; {count.spare} worker, {count.spare} warehouse spare" if count.spare else ""
    yield "pods", f"{count.head} head, {count.worker} worker, {count.warehouse} warehouse{spare}"


def _mesh(role: str, mesh: Mesh, expert: int) -> Iterator[tuple[str, str]]:
    axes = [(name, degree) for name, degree in mesh.axes if degree > 1] or [("data", 1)]
    product = " × ".join(f"{name} {degree}" for name, degree in axes)
    yield (
        f"{role} ranks",
        f"{mesh.size} = {product}" + (f", experts over {expert}" if expert > 1 else ""),
    )
    if mesh.size > 1:
        groups = [f"{name} {_ranks(mesh.group(name, 0))}" for name, _ in axes]
        yield "  groups of rank 0", "; ".join(groups)


def _ranks(ranks: list[int]) -> str:
    shown = [str(rank) for rank in ranks]
    return ",".join(shown if len(shown) <= 4 else [*shown[:2], "…", shown[-1]])


def _samples(plan: JobPlan) -> Iterator[tuple[str, str]]:
    samples, stated = plan.samples, plan.job.metadata.annotations
    flow = samples.flow
    origin = "; annotations" if any(key.startswith(PREFIX) for key in stated) else ""
    yield "states", f"{', '.join(samples.states)} ({samples.controllers} controllers)"
    yield (
        "sizes",
        f"G {flow.global_batch_size}, N {flow.samples_per_prompt}, PL {flow.max_prompt_length}, "
        f"SL {flow.max_response_length}, n {flow.response_items}, M {flow.scalars}{origin}",
    )
    total = flow.total_gb()
    each = flow.per_warehouse_gb(warehouses=samples.warehouses, controllers=samples.controllers)
    yield "update's request", f"{_number(flow.stage_gb())} GB (Eq. 1)"
    yield "one central buffer", f"{_number(total)} GB (Eq. 2): {_times(total)}"
    yield (
        "each warehouse",
        f"{_number(each)} GB (Eq. 4), {samples.warehouses} in all: {_times(each)}",
    )
    if flow.picture_bytes:
        step = flow.picture_bytes * flow.global_batch_size
        yield (
            "  of it pictures",
            f"{_number(step / GB)} GB each time that prompts go, once a group, at most "
            f"{_number(flow.picture_bytes / MB)} MB a prompt{_as_features(plan)}",
        )
    if flow.route_bytes:
        step = flow.route_bytes * flow.samples_per_prompt * flow.global_batch_size
        yield (
            "  of it routes",
            f"{_number(step / GB)} GB, once written and once read, at most "
            f"{_number(flow.route_bytes / MB)} MB a sample",
        )
    twice = plan.job.spec.dock.replicas == 2
    copies = ", and as much of another's rows" if twice else ""
    yield (
        "  keeps at most",
        f"{_number(samples.stored / GB)} of {_number(samples.capacity / GB)} GB{copies}",
    )


def _tower(plan: JobPlan, shape: Shape) -> str:
    spec, others = plan.job.spec, plan.others
    if spec.model.vision is None:
        return "on no device: rows show no pictures"
    planned = towers(spec, shape, others)
    where = "devices of each role" if "rollout" in planned else "devices that train or generate"
    teacher = ", and the teacher's" if "teacher" in planned else ""
    passes = (
        "seen in each epoch, and once beside" if spec.model.vision == "trained" else "seen once"
    )
    machine, shares = rates_of(spec.accelerator.type)
    works = generating_operations(spec, shape), training_operations(spec, shape, others)
    generating, training = (work / (machine.flops * shares.products) for work in works)
    return (
        f"{spec.model.vision}, on {where}{teacher}; {picture_tokens(spec, shape)} tokens of pictures a "
        f"prompt, {passes} on each: {_number(sum(works) / 1e12)} TFLOP a step, {_number(generating)} s in "
        f"generation and {_number(training)} s in training"
    )


def _as_features(plan: JobPlan) -> str:
    if plan.shape is None:
        return ""
    spec = plan.job.spec
    features = feature_bytes(picture_tokens(spec, plan.shape), plan.shape, spec.update.dtype)
    return f"; a tower's features, which stay on devices, {_number(features / MB)} MB"


def _times(volume_gb: float) -> str:
    slow = dispatch_seconds(volume_gb, megabytes_per_second=100)
    fast = dispatch_seconds(volume_gb, megabytes_per_second=1024)
    return f"{_number(slow)} s at 100 MB/s, {_number(fast)} s at 1 GB/s"


def _resharding(resharding: ReshardingFigures) -> Iterator[tuple[str, str]]:
    experts = f", experts {_number(resharding.expert / GB)} GB" if resharding.expert else ""
    yield "weights", f"matrices {_number(resharding.tensor / GB)} GB{experts}"
    retained = _number(resharding.retained["allgather"] / GB)
    one = _number(resharding.retained_on_device["allgather"] / GB)
    yield (
        "redundant",
        f"{_number(resharding.redundant / GB)} GB without swap (Eq. 3), {retained} GB by these layouts, "
        f"{one} GB on a device; with allgather-swap none",
    )
    yield "allgather-swap", f"releases {_number(resharding.released / GB)} GB on each device"
    moved = resharding.moved
    yield "moved", _moved(moved)
    yield (
        "buckets",
        f"{moved.buckets}, at most {_number(moved.largest_bucket / GB)} GB on a device; largest step "
        f"{_number(moved.largest_step / GB)} GB",
    )
    peaks = [f"{_number(size / GB)} GB with {name}" for name, size in resharding.peak.items()]
    yield "peak of a device", f"{', '.join(peaks)} (weights of both layouts, buffers)"
    bound = _number(resharding.bound / GB)
    yield "  with a swap at most", f"{bound} GB: the larger layout's weights and two buckets"


def _moved(moved: ReshardBytes) -> str:
    if not moved.moved:
        return "nothing: every device has the weights that it needs"
    between = moved.between_nodes
    links = f", {_number(between / GB)} GB of it between nodes" if between else ""
    return (
        f"{_number(moved.moved / GB)} GB of at least {_number(moved.lower_bound / GB)} GB{links}; "
        f"{_number(moved.received / GB)} GB to the device that lacks most"
    )


def _traffic(traffic: UpdateTraffic) -> Iterator[tuple[str, str]]:
    for technique, number in traffic.parts().items():
        if number:
            yield technique, f"{_number(number / GB)} GB"


def _fewest(fewest: FewestReplicas) -> Iterator[tuple[str, str]]:
    yield (
        f"{fewest.replicas} train",
        f"{fewest.prompts} prompts of a mini-batch each instead of {fewest.all_prompts}, in {fewest.passes} "
        f"micro-batches instead of {fewest.all_passes}",
    )
    yield "time", f"update and inference take {_number(fewest.slower)} times as long"
    if fewest.device is not None and fewest.all_device is not None:
        yield (
            "fullest device",
            f"{_number(fewest.device / GB)} GB, {_number(fewest.all_device / GB)} GB while all train: "
            "micro-batches stay as large",
        )


def _memory(memory: MemoryPlan) -> Iterator[str]:
    for phase in memory.phases:
        yield f"  {phase.name:<10}{phase.device / GB:>10.3f}  {_parts(phase)}"
    limit = "no limit" if memory.limit is None else f"limit {_number(memory.limit / GB)} GB"
    cache = memory.kv_cache
    yield (
        f"  {limit}; KV cache for {cache.room} of {cache.requested} sequences of the longest "
        f"lengths, {_number(cache.sequence / GB)} GB each"
    )


def _host(host: HostMemory) -> Iterator[str]:
    parts = " + ".join(f"{name} {_number(size / GB)}" for name, size in host.parts.items())
    limit = "" if host.limit is None else f" of {_number(host.limit / GB)}"
    devices = f"{host.devices} device{'s' * (host.devices > 1)}"
    yield f"  host of a node, for its {devices}: {_number(host.total / GB)}{limit} GB ({parts})"


def _copied(copied: int, redundancy: str) -> Iterator[str]:
    size = copied / GB
    where = "to its host"
    if redundancy == "peer":
        where += f" and from there to another device's, beside what follows: {_times(size)}"
    yield f"  second copies of what a device alone holds: {_number(size)} GB a step {where}"


def _parts(phase: Phase) -> str:
    parts = " + ".join(f"{name} {_number(size / GB)}" for name, size in phase.parts.items() if size)
    return f"{parts}; host {_number(phase.host / GB)}" if phase.host else parts


def _number(value: float) -> str:
    """Format a number with three digits, without exponent."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}" if value >= 0.001 else f"{value:.6f}"
