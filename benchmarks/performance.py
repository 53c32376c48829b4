"""What the paper's runs should take, by arithmetic: calibrated on two of them, compared with the others.

Nothing is measured. A step's time is a sum of matrix products, memory reads of decoding, bytes over links,
pipeline bubbles, swaps and the dock's dispatch, from the job's plan, with the inputs that `ASCEND` and
`STATED` name, and two numbers that are solved for: the time a decoding step spends on each layer beside
reading memory, and a fixed time of each step. The paper draws its throughput of Qwen2.5-7B and 32B
(Fig. 7) without figures; `ROWS` are those that MindSpeed RL's documentation gives
(docs/zh/algorithms/grpo.md, layouts from its configs/), tokens counted at the longest lengths.
"""

import argparse
from dataclasses import dataclass, replace
from pathlib import Path

from figures import Figures

from rljob_api.architecture import Shape, find_shape
from rljob_api.base import parse_quantity
from rljob_api.load import load_job
from rljob_api.memory import ITEM_BYTES, plan_memory, rollout_shard, update_shard
from rljob_api.rljob import RLJobSpec
from rljob_api.topology import resolve
from rljob_api.traffic import Work, stage_traffic
from rljob_api.volumes import GB, SampleFlow, tokens_per_second

PAPER = Path(__file__).resolve().parent.parent / "examples" / "paper"


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """A device and its links, a second."""

    flops: float
    memory_bytes: float
    link_bytes: float
    swap_bytes: float
    dispatch_bytes: float


ASCEND = Machine(
    flops=376e12,  # bfloat16, one die of an Ascend 910C (arXiv:2506.12708, §3.2)
    memory_bytes=1.6e12,  # likewise
    link_bytes=196e9,  # to other dies of the super pod, one way, likewise
    swap_bytes=50 * GB,  # host, the paper's setup
    dispatch_bytes=300 * 2**20,  # between servers, the paper's setup
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Shares:
    """What is reached of a machine's rates, and what is solved for.

    products: of flops. reads: of memory. links: of links. layer_seconds: of one decoding step and layer
    beside reads. fixed_seconds: of each training step.
    """

    products: float
    reads: float
    links: float
    layer_seconds: float = 0.0
    fixed_seconds: float = 0.0


STATED = Shares(products=0.45, reads=0.7, links=0.5)


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A reported run. reported: tokens a second and device, Eq. 5. rows: sequences that a rollout replica
    decodes at a time. recompute: share of layers whose forward pass is run again."""

    name: str
    model: str
    batch: tuple[int, int, int, int]
    update: dict[str, int]
    rollout: dict[str, int]
    devices: int
    rows: int
    reported: float
    recompute: float = 0.0


QWEN_7B = Row(
    name="Qwen2.5-7B, 16 dies", model="qwen2.5-7b", batch=(32, 8, 2048, 2048), devices=16, rows=1024,
    update={"tensor": 4, "data": 4}, rollout={"tensor": 4, "data": 4}, reported=220,
)  # fmt: skip
QWEN_32B = Row(
    name="Qwen2.5-32B, 16 dies", model="qwen2.5-32b", batch=(64, 16, 1024, 2048), devices=16, rows=64,
    update={"tensor": 4, "pipeline": 4, "data": 1}, rollout={"tensor": 4, "data": 4}, reported=220,
)  # fmt: skip
DEEPSEEK = Row(
    name="DeepSeek-R1-671B, 384 dies", model="deepseek-r1-671b", batch=(384, 32, 1024, 2048),
    devices=384, rows=64, update={"tensor": 4, "pipeline": 6, "data": 16, "expert": 16},
    rollout={"tensor": 2, "data": 192, "expert": 64}, reported=225, recompute=54 / 61,
)  # fmt: skip
ROWS = [QWEN_7B, QWEN_32B, DEEPSEEK]


def spec_of(row: Row) -> tuple[RLJobSpec, Shape]:
    """The paper's job with the row's batch and layouts. One sample with its prompt a micro-batch."""
    job = load_job(PAPER / f"{row.model}.yaml")
    shape = find_shape(job.spec.model, base_dir=PAPER)
    assert shape is not None, f"{row.model} has a known shape"
    prompts, samples, longest_prompt, longest_response = row.batch
    batch = job.spec.batch.model_copy(
        update={
            "global_batch_size": prompts,
            "mini_batch_size": prompts,
            "samples_per_prompt": samples,
            "max_prompt_length": longest_prompt,
            "max_response_length": longest_response,
            "micro_batch_size": 1,
        }
    )
    update = type(job.spec.update.parallelism).model_validate({**row.update, "zero": 1})
    rollout = type(job.spec.rollout.parallelism).model_validate(row.rollout)
    accelerator = job.spec.accelerator.model_copy(
        update={"nodes": row.devices // 8, "devices_per_node": 8}
    )
    changes = {
        "batch": batch,
        "update": job.spec.update.model_copy(update={"parallelism": update}),
        "rollout": job.spec.rollout.model_copy(
            update={"parallelism": rollout, "max_sequences": row.rows}
        ),
        "accelerator": accelerator,
    }
    job = job.model_copy(update={"spec": job.spec.model_copy(update=changes)})
    return resolve(job).spec, shape


def active_parameters(shape: Shape) -> int:
    """Those that a token meets, without the embedding."""
    experts = shape.experts
    idle = 0
    if experts:
        sparse = sum(experts.in_layer(layer) for layer in range(shape.layers))
        idle = sparse * 3 * shape.hidden * experts.intermediate * (experts.count - experts.chosen)
    return shape.total().total - shape.embedding().total - idle


def forward_flops(shape: Shape, length: int) -> float:
    """Of one token of a causal sequence of this length, on average."""
    width = shape.latent.nope_dim + shape.latent.rope_dim if shape.latent else shape.head_dim
    value = shape.latent.value_dim if shape.latent else shape.head_dim
    attention = shape.layers * shape.heads * (width + value) * length  # half of 2 a product
    return 2.0 * active_parameters(shape) + attention


def decode_seconds(row: Row, spec: RLJobSpec, shape: Shape, shares: Shares) -> float:
    """Steps of the longest response, as often as the sequences do not fit at a time."""
    degrees, item = spec.rollout.parallelism, ITEM_BYTES[spec.rollout.dtype]
    prompts, samples, longest_prompt, longest_response = row.batch
    assert degrees.data is not None, "resolve() fills it"
    sequences = prompts * samples // degrees.data
    at_a_time = min(sequences, row.rows)
    weights = rollout_shard(spec, shape).total * item
    context = longest_prompt + longest_response / 2
    cache = at_a_time * context * shape.layers * shape.kv_items(degrees.tensor) * item
    read = (weights + cache) / (ASCEND.memory_bytes * shares.reads)
    steps = -(-sequences // at_a_time) * longest_response
    return steps * (read + shares.layer_seconds * shape.layers)


def parts_of(row: Row, shares: Shares) -> dict[str, float]:
    """Seconds of each part of a step."""
    spec, shape = spec_of(row)
    prompts, samples, longest_prompt, longest_response = row.batch
    length, degrees = longest_prompt + longest_response, spec.update.parallelism
    sequences = prompts * samples
    rate = row.devices * ASCEND.flops * shares.products
    forward = sequences * length * forward_flops(shape, length) / rate
    assert degrees.data is not None, "resolve() fills it"
    passes = sequences // degrees.data
    update = forward * (3 + row.recompute)
    work = Work(tokens=length, positions=longest_response, targets=longest_response, passes=passes)
    sent = max(
        stage_traffic(shape, degrees, work, stage, dtype="bfloat16").total
        for stage in range(degrees.pipeline)
    )
    links = sent / (ASCEND.link_bytes * shares.links)
    weights = update_shard(spec, shape).total * ITEM_BYTES["bfloat16"]
    flow = SampleFlow(
        global_batch_size=prompts,
        samples_per_prompt=samples,
        max_prompt_length=longest_prompt,
        max_response_length=longest_response,
        response_items=5,
        scalars=3,
    )
    each = flow.per_warehouse_gb(warehouses=max(1, row.devices // 8), controllers=5) * GB
    return {
        "prompts": forward * longest_prompt / length,
        "decoding": decode_seconds(row, spec, shape, shares),
        "reference": forward + links / 3,
        "update": update,
        "communication": links,
        "bubbles": update * (degrees.pipeline - 1) / (degrees.virtual_pipeline * passes),
        "swaps": 2 * weights / ASCEND.swap_bytes,
        "dispatch": each / ASCEND.dispatch_bytes,
        "fixed": shares.fixed_seconds,
    }


def throughput(row: Row, seconds: float) -> float:
    """Eq. 5."""
    prompts, samples, longest_prompt, longest_response = row.batch
    return tokens_per_second(
        global_batch_size=prompts,
        samples_per_prompt=samples,
        max_prompt_length=longest_prompt,
        max_response_length=longest_response,
        num_devices=row.devices,
        seconds=seconds,
    )


def calibrate(first: Row, second: Row, shares: Shares) -> Shares:
    """The two numbers with which both rows come out as reported; each is 0 rather than negative."""

    def left(row: Row, tried: Shares) -> float:
        return throughput(row, 1.0) / row.reported - sum(parts_of(row, tried).values())

    bare = replace(shares, layer_seconds=0.0, fixed_seconds=0.0)
    a_layer = [
        left(row, bare) - left(row, replace(bare, layer_seconds=1e-3)) for row in (first, second)
    ]
    missing = [left(row, bare) for row in (first, second)]
    layer = max(0.0, (missing[1] - missing[0]) / (a_layer[1] - a_layer[0]))
    fixed = max(0.0, missing[0] - layer * a_layer[0])
    return replace(shares, layer_seconds=layer * 1e-3, fixed_seconds=fixed)


def main() -> None:
    """Print the parts of each run and how far off the model is."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="the same: nothing is measured")
    parser.add_argument("--json", type=Path, help="write the figures here")
    arguments = parser.parse_args()
    figures = Figures()
    shares = calibrate(QWEN_7B, QWEN_32B, STATED)
    figures.add("solved: a layer of a decoding step", shares.layer_seconds * 1e3, "ms")
    figures.add("solved: fixed time of a step", shares.fixed_seconds, "s")
    # 384 devices of 128 GB (the paper) are 768 dies; MindSpeed RL's configuration has 384 processes.
    pairs = replace(
        DEEPSEEK, name="DeepSeek-R1-671B, 768 dies, a device two", devices=768,
        update=DEEPSEEK.update | {"data": 32}, rollout=DEEPSEEK.rollout | {"data": 384},
    )  # fmt: skip
    parts: dict[str, dict[str, float]] = {}
    for row, dies in [*((row, 1) for row in ROWS), (pairs, 2)]:
        parts[row.name] = parts_of(row, shares)
        found = throughput(row, sum(parts[row.name].values())) * dies
        figures.add(f"{row.name}: tokens a second and device", found, "tokens/s")
        figures.add(f"{row.name}: reported", row.reported, "tokens/s")
        figures.add(f"{row.name}: off by", 100 * (found / row.reported - 1), "%")
        seconds = sum(parts[row.name].values()) - shares.fixed_seconds
        figures.add(
            f"{row.name}: without the fixed time", throughput(row, seconds) * dies, "tokens/s"
        )
        for name, seconds in parts[row.name].items():
            figures.add(f"  {row.name}: {name}", seconds, "s")
        spec, shape = spec_of(row)
        for phase in plan_memory(spec, shape).phases:
            limit = parse_quantity("64Gi") / GB
            figures.add(f"  {row.name}: memory, {phase.name}", phase.device / GB, "GB", limit)
    if arguments.json:
        figures.write(arguments.json, packages=["rljob"], facts={}, parts=parts)


if __name__ == "__main__":
    main()
