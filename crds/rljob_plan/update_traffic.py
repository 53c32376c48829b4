"""Bytes that an update rank sends in an optimizer step, by technique and by arithmetic.

Called by `plan` and `performance`: `traffic` of all micro-batches, with gradients and what ZeRO gathers.
"""

from functools import lru_cache

from rljob_api.model.architecture import Shape
from rljob_api.model.layout import Part, layers_alike, stages, stages_apart
from rljob_api.spec.engines import Dtype, Recompute
from rljob_api.spec.lora import Lora
from rljob_api.topology.devices import UpdateDegrees
from rljob_api.topology.resolved import ResolvedSpec
from rljob_plan.gradient_traffic import gradient_traffic
from rljob_plan.resharding.widths import ITEM_BYTES
from rljob_plan.traffic import PassTraffic, Traffic, Work


def plan_traffic(spec: ResolvedSpec, shape: Shape) -> Traffic:
    """Of the stage that sends most, at the longest lengths."""
    return traffic_of(spec, shape, longest_work(spec), recompute=spec.update.recompute)


def traffic_of(spec: ResolvedSpec, shape: Shape, work: Work, *, recompute: Recompute) -> Traffic:
    """Of the stage that sends most, for this work."""
    degrees, dtype, lora = spec.update.parallelism, spec.update.dtype, spec.update.lora
    if lora is None:
        return _kept(shape, degrees, work, dtype, recompute)
    return _fullest_stage(shape, degrees, work, dtype, recompute, lora)


@lru_cache(maxsize=4096)
def _kept(
    shape: Shape, degrees: UpdateDegrees, work: Work, dtype: Dtype, recompute: Recompute
) -> Traffic:
    """A search asks often."""
    return _fullest_stage(shape, degrees, work, dtype, recompute, None)


def _fullest_stage(
    shape: Shape,
    degrees: UpdateDegrees,
    work: Work,
    dtype: Dtype,
    recompute: Recompute,
    lora: Lora | None,
) -> Traffic:
    found = [
        stage_traffic(shape, degrees, work, stage, dtype=dtype, recompute=recompute, lora=lora)
        for stage in stages_apart(shape, degrees.pipeline, degrees.virtual_pipeline)
    ]
    return max(found, key=lambda traffic: traffic.total)


def longest_work(spec: ResolvedSpec) -> Work:
    """A mini-batch whose prompts and responses are all of the longest lengths."""
    batch, data = spec.batch, spec.update.parallelism.data
    inner = batch.samples_per_prompt * (batch.max_response_length - 1)
    prompts, passes = batch.mini_batch_size // data, batch.passes(data)
    return Work(
        tokens=-(-prompts * (batch.max_prompt_length + inner) // passes),
        positions=-(-prompts * (1 + inner) // passes),
        targets=-(-prompts * batch.samples_per_prompt * batch.max_response_length // passes),
        passes=passes,
    )


def stage_traffic(
    shape: Shape,
    degrees: UpdateDegrees,
    work: Work,
    stage: int,
    *,
    dtype: Dtype,
    recompute: Recompute = "none",
    lora: Lora | None = None,
) -> Traffic:
    """Of one rank of a pipeline stage."""
    number = degrees.pipeline * degrees.virtual_pipeline
    held = tuple(range(stage, number, degrees.pipeline))
    cuts = stages(shape.layers, number)
    sizes = PassTraffic(shape, degrees, work, ITEM_BYTES[dtype])
    passed = sizes.told()
    for chunk in held:
        for layer, count in layers_alike(shape, cuts[chunk]).items():
            one = sizes.layer(layer)
            if recompute == "full":
                one += sizes.layer_again(layer)
            passed += one.times(count)
        passed += sizes.first() if chunk == 0 else sizes.to_other_stage()
        passed += sizes.last() if chunk == number - 1 else sizes.to_other_stage()
    part = Part.of_stages(
        shape, held, number, tensor=(0, degrees.tensor), expert=(0, degrees.expert)
    )
    gradients = gradient_traffic(shape, degrees, part, passes=work.passes, dtype=dtype, lora=lora)
    return passed.times(work.passes) + Traffic(data=gradients)
