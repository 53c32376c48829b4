"""Bytes that an update rank sends in an optimizer step, by technique and by arithmetic.

Called by `plan` and `performance`: `traffic` of all micro-batches, with gradients and what ZeRO gathers.
"""

from rljob_api.architecture import Shape
from rljob_api.engines import Dtype, Recompute, UpdateParallelism
from rljob_api.gradient_traffic import gradient_traffic
from rljob_api.layout import Part, stages
from rljob_api.resharding.widths import ITEM_BYTES
from rljob_api.rljob import RLJobSpec
from rljob_api.traffic import PassTraffic, Traffic, Work


def plan_traffic(spec: RLJobSpec, shape: Shape) -> Traffic:
    """Of the stage that sends most, at the longest lengths. spec: resolved."""
    degrees, work = spec.update.parallelism, longest_work(spec)
    found = [
        stage_traffic(
            shape, degrees, work, stage, dtype=spec.update.dtype, recompute=spec.update.recompute
        )
        for stage in range(degrees.pipeline)
    ]
    return max(found, key=lambda traffic: traffic.total)


def longest_work(spec: RLJobSpec) -> Work:
    """A mini-batch whose prompts and responses are all of the longest lengths. spec: resolved."""
    batch, data = spec.batch, spec.update.parallelism.data
    assert data and batch.mini_batch_size, "resolve() fills them"
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
    degrees: UpdateParallelism,
    work: Work,
    stage: int,
    *,
    dtype: Dtype,
    recompute: Recompute = "none",
) -> Traffic:
    """Of one rank of a pipeline stage. degrees: with `data` filled in."""
    number = degrees.pipeline * degrees.virtual_pipeline
    held = tuple(range(stage, number, degrees.pipeline))
    cuts = stages(shape.layers, number)
    sizes = PassTraffic(shape, degrees, work, ITEM_BYTES[dtype])
    passed = sizes.told()
    for chunk in held:
        for layer in cuts[chunk]:
            passed += sizes.layer(layer)
            if recompute == "full":
                passed += sizes.layer_again(layer)
        passed += sizes.first() if chunk == 0 else sizes.to_other_stage()
        passed += sizes.last() if chunk == number - 1 else sizes.to_other_stage()
    every_pass = {name: number * work.passes for name, number in passed.parts().items()}
    part = Part.of_stages(
        shape, held, number, tensor=(0, degrees.tensor), expert=(0, degrees.expert)
    )
    gradients = gradient_traffic(shape, degrees, part, passes=work.passes, dtype=dtype)
    return Traffic(**every_pass) + Traffic(data=gradients)
