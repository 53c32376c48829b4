"""Compute the bytes that an update rank sends in an optimizer step, by technique.

Called by `plan` and `performance`. It adds up the `traffic` of all micro-batches, gradients and what ZeRO
gathers.
"""

from functools import lru_cache

from rljob_api.model.architecture import Shape
from rljob_api.model.layout import RankShard, layers_alike, stages, stages_apart
from rljob_api.spec.engines import Dtype, Recompute
from rljob_api.spec.lora import Lora
from rljob_api.topology.devices import UpdateDegrees
from rljob_api.topology.resolved import ResolvedSpec
from rljob_plan.gradient_traffic import gradient_traffic
from rljob_plan.resharding.widths import ITEM_BYTES
from rljob_plan.traffic import PassTraffic, UpdateTraffic, UpdateWork


def plan_traffic(spec: ResolvedSpec, shape: Shape) -> UpdateTraffic:
    """Return the traffic of the stage that sends most, at the longest lengths."""
    return traffic_of(spec, shape, longest_work(spec), recompute=spec.update.recompute)


def traffic_of(
    spec: ResolvedSpec, shape: Shape, work: UpdateWork, *, recompute: Recompute
) -> UpdateTraffic:
    """Return the traffic of the stage that sends most, for this work."""
    degrees, dtype, lora = spec.update.parallelism, spec.update.dtype, spec.update.lora
    if lora is None:
        return _cached_traffic(shape, degrees, work, dtype, recompute)
    return _fullest_stage(shape, degrees, work, dtype, recompute, lora)


@lru_cache(maxsize=4096)
def _cached_traffic(
    shape: Shape, degrees: UpdateDegrees, work: UpdateWork, dtype: Dtype, recompute: Recompute
) -> UpdateTraffic:
    """Return the traffic from a cache, since a search requests it often."""
    return _fullest_stage(shape, degrees, work, dtype, recompute, None)


def _fullest_stage(
    shape: Shape,
    degrees: UpdateDegrees,
    work: UpdateWork,
    dtype: Dtype,
    recompute: Recompute,
    lora: Lora | None,
) -> UpdateTraffic:
    by_stage = [
        stage_traffic(shape, degrees, work, stage, dtype=dtype, recompute=recompute, lora=lora)
        for stage in stages_apart(shape, degrees.pipeline, degrees.virtual_pipeline)
    ]
    return max(by_stage, key=lambda traffic: traffic.total)


def longest_work(spec: ResolvedSpec) -> UpdateWork:
    """Return the work of a mini-batch whose prompts and responses are all of the longest lengths."""
    batch, data = spec.batch, spec.update.parallelism.data
    inner = batch.samples_per_prompt * (batch.max_response_length - 1)
    prompts, passes = batch.mini_batch_size // data, batch.passes(data)
    return UpdateWork(
        tokens=-(-prompts * (batch.max_prompt_length + inner) // passes),
        positions=-(-prompts * (1 + inner) // passes),
        targets=-(-prompts * batch.samples_per_prompt * batch.max_response_length // passes),
        passes=passes,
    )


def stage_traffic(
    shape: Shape,
    degrees: UpdateDegrees,
    work: UpdateWork,
    stage: int,
    *,
    dtype: Dtype,
    recompute: Recompute = "none",
    lora: Lora | None = None,
) -> UpdateTraffic:
    """Return the traffic of one rank of a pipeline stage."""
    number = degrees.pipeline * degrees.virtual_pipeline
    chunks = tuple(range(stage, number, degrees.pipeline))
    cuts = stages(shape.layers, number)
    sizes = PassTraffic(shape, degrees, work, ITEM_BYTES[dtype])
    passed = sizes.pipeline_sums()
    for chunk in chunks:
        for layer, count in layers_alike(shape, cuts[chunk]).items():
            layer_traffic = sizes.layer(layer)
            if recompute == "full":
                layer_traffic += sizes.layer_again(layer)
            passed += layer_traffic.times(count)
        passed += sizes.first() if chunk == 0 else sizes.to_other_stage()
        passed += sizes.last() if chunk == number - 1 else sizes.to_other_stage()
    shard = RankShard.of_stages(
        shape, chunks, number, tensor=(0, degrees.tensor), expert=(0, degrees.expert)
    )
    gradients = gradient_traffic(shape, degrees, shard, passes=work.passes, dtype=dtype, lora=lora)
    return passed.times(work.passes) + UpdateTraffic(data=gradients)
