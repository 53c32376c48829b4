"""Changes worth trying for each part of a step, with the estimated time of a step. Pure; called by `advice`.

An estimate is the measured step times the ratio of two model steps (`step_model`), with and without the
change.
"""

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from rljob_api.spec.engines import MAX_STALENESS
from rljob_api.spec.section import parse_quantity
from rljob_api.topology.resolved import ResolvedJob
from rljob_runtime.report.analysis.pass_cost import fixed_seconds
from rljob_runtime.report.analysis.step_figures import TAIL_SHARE, StepFigures
from rljob_runtime.report.analysis.step_model import StepWork

Price = Literal["nothing", "staleness", "devices", "learning"]
GROWTH = 4
"""Factor by which a larger micro-batch, or a service's concurrency, is proposed."""
WORTH_A_TRY = 0.1
"""Smallest share of a step that a change of unknown cost must save."""
OVERLAPPING = (
    "the measured step, scaled by a model of it in which its states, with their own times, {}"
)
STREAMS = "take samples as they come"
AHEAD = {"mode": "async", "maxStaleness": 1}
AT_ONCE = "work at the same time, on different steps"
OLDER = "samples are drawn by weights one version older than those that they train"
BOTH_LAYOUTS = "devices hold the weights of both layouts: `rljob plan` tells how much"
MORE_MEMORY = "activations take more memory: `rljob plan` tells how much"


@dataclass(frozen=True, slots=True, kw_only=True)
class Advice:
    """A change that is worth trying.

    change: of the job, as YAML to be merged into it. seconds: of a step after it; None if unknown. how: how
    it was estimated. price: what the change costs, described in `note`.
    """

    part: str
    change: Mapping[str, Any]
    seconds: float | None
    how: str
    price: Price = "nothing"
    note: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepContext:
    """The typical step of a run, and its job."""

    figures: StepFigures
    job: ResolvedJob
    work: StepWork

    def after(self, **changes: Any) -> float:
        """Estimate the seconds of a step with changed work."""
        return self.figures.seconds * replace(self.work, **changes).seconds() / self.work.seconds()


def _no_advice(_: StepContext) -> Iterator[Advice]:
    yield from ()


def _overlap(context: StepContext, step_part: str) -> Iterator[Advice]:
    """Run stages at the same time, or generate ahead of the update."""
    work, size = context.work, context.job.spec.batch.micro_batch_size
    if work.mode == "sync":
        yield Advice(
            part=step_part,
            change={"spec": {"flow": {"mode": "streaming"}}},
            seconds=context.after(mode="streaming"),
            how=OVERLAPPING.format(STREAMS),
        )
    if work.mode != "async" and work.parts == 1 and size is not None:
        yield from _in_smaller_passes(context, step_part, size)
    if work.mode != "async" and work.separated:
        yield Advice(
            part=step_part,
            change={"spec": {"flow": AHEAD}},
            seconds=context.after(mode="async"),
            how=OVERLAPPING.format(AT_ONCE),
            price="staleness",
            note=OLDER,
        )


def _in_smaller_passes(context: StepContext, step_part: str, size: int) -> Iterator[Advice]:
    """Stream to an update that starts with some of the samples. size: prompts of its single pass."""
    parts, fixed = (
        next((n for n in (4, 2, 3) if size % n == 0), 1),
        fixed_seconds(context.figures.passes),
    )
    longer = context.work.update + context.figures.num_passes * (parts - 1) * (fixed or 0.0)
    seconds = context.after(mode="streaming", parts=parts, update=longer)
    how = OVERLAPPING.format(f"{STREAMS}, the update in {parts} passes")
    if fixed is None and seconds > (1 - WORTH_A_TRY) * context.figures.seconds:
        return
    yield Advice(
        part=step_part,
        change={
            "spec": {"flow": {"mode": "streaming"}, "batch": {"microBatchSize": size // parts}}
        },
        seconds=seconds,
        how=how if fixed is not None else f"{how}, which cost nothing by themselves",
    )


def _separate_devices(context: StepContext, step_part: str) -> Iterator[Advice]:
    """Generate ahead of the update, on as many additional devices."""
    spec = context.job.spec
    if context.work.separated:
        return
    devices = spec.roles.rollout
    roles = {"mode": "separated", "updateDevices": devices, "rolloutDevices": devices}
    change: dict[str, Any] = {"placement": roles, "flow": AHEAD}
    if spec.resharding.strategy == "allgather-swap":  # which needs devices that train and generate
        change["resharding"] = {"strategy": "allgather"}
    yield Advice(
        part=step_part,
        change={"spec": change},
        seconds=context.after(mode="async", separated=True),
        how=OVERLAPPING.format(AT_ONCE),
        price="devices",
        note=f"takes {devices} more devices, which generate; {OLDER}",
    )


def _inference(context: StepContext) -> Iterator[Advice]:
    yield from _overlap(context, "inference")
    yield from _separate_devices(context, "inference")
    params, work = context.job.spec.algorithm.params, context.work
    without = params.model_copy(update={"kl_coefficient": 0.0})
    if "reference" not in params.states or "reference" in without.states:
        return
    changed: dict[str, Any] = {"klCoefficient": 0}
    if params.kl_target is not None:
        changed["klTarget"] = None
    yield Advice(
        part="inference",
        change={"spec": {"algorithm": {"params": changed}}},
        seconds=context.after(
            inference=work.inference - context.figures.busy.get("reference", 0.0)
        ),
        how="a step without the reference, which the KL term alone needs",
        price="learning",
        note="nothing holds the policy near the model that it began as",
    )


def _reward(context: StepContext) -> Iterator[Advice]:
    yield from _overlap(context, "reward")
    yield from _separate_devices(context, "reward")
    rewards, samples = context.job.spec.rewards, context.job.spec.batch.samples_per_prompt
    services = [service for r in rewards if (service := r.http or r.judge) is not None]
    if not services or not context.work.reward:
        return
    most = max(
        service.concurrency for service in services
    )  # number of processes that send requests
    raised = min(samples, GROWTH * most)
    if raised <= most:
        return
    changed = [
        reward.model_dump(mode="json", by_alias=True, exclude_none=True) for reward in rewards
    ]
    for service in (
        reward[kind] for reward in changed for kind in ("http", "judge") if kind in reward
    ):
        service["concurrency"] = raised
    before, after = -(-samples // most), -(-samples // raised)
    yield Advice(
        part="reward",
        change={"spec": {"rewards": changed}},
        seconds=context.after(reward=context.work.reward * after / before),
        how=f"a prompt's {samples} samples are asked for in {after} rounds instead of {before}, as long each",
        note="the service has to answer as many requests at the same time",
    )


def _tail(context: StepContext) -> Iterator[Advice]:
    spec, lengths, work = context.job.spec, context.figures.lengths, context.work
    if spec.flow.partial_rollout is not None or "p80" not in lengths or not work.generate:
        return
    longest = spec.batch.max_response_length
    budget = max(math.ceil(lengths["p80"]), -(-longest // (MAX_STALENESS - 1)), 1)
    late = TAIL_SHARE * (lengths["max"] - lengths["p80"]) / 2
    denser = late / max(lengths["mean"] - late, 1.0)  # relative increase of concurrent sequences
    begun = max(work.generate - context.figures.tail, 0.0)
    remaining = min(begun * (1 + denser * _batch_dependent_share(context, begun)), work.generate)
    yield Advice(
        part="tail",
        change={"spec": {"flow": {"partialRollout": {"budgetTokens": budget}}}},
        seconds=context.after(generate=remaining, half_seconds=min(work.half_seconds, remaining)),
        how=f"generation without its tail, whose tokens, about {late:.0f} of {lengths['mean']:.0f} a sample, "
        "go beside those before it and make each of their steps as much longer as the tail's few are shorter",
        price="staleness",
        note="the longest samples go on in the next step, with newer weights",
    )


def _batch_dependent_share(context: StepContext, begun: float) -> float:
    """Share of a decoding step's time that depends on the number of sequences.

    Derived from how much shorter the tail's steps are, which decode few sequences. begun: seconds before the
    tail.
    """
    lengths = context.figures.lengths
    tail_step_seconds = context.figures.tail / max(lengths["max"] - lengths["p80"], 1.0)
    full_step_seconds = begun / max(lengths["p80"], 1.0)
    return (
        min(max(1 - tail_step_seconds / full_step_seconds, 0.0), 1.0) if full_step_seconds else 1.0
    )


def _generate(context: StepContext) -> Iterator[Advice]:
    yield from _overlap(context, "generate")
    yield from _separate_devices(context, "generate")
    spec, work = context.job.spec, context.work
    replicas, devices = spec.rollout.parallelism.data, spec.placement.rollout_devices
    samples = spec.batch.global_batch_size * spec.batch.samples_per_prompt // replicas
    if spec.rollout.max_sequences < samples:
        yield Advice(
            part="generate",
            change={"spec": {"rollout": {"maxSequences": samples}}},
            seconds=None,
            how=f"not estimated; a replica has {samples} samples, {spec.rollout.max_sequences} at a time",
            note="the KV cache takes more memory: `rljob plan` tells how much",
        )
    if work.separated and devices:
        placement = {"placement": {"rolloutDevices": 2 * devices}}
        yield Advice(
            part="generate",
            change={"spec": placement | {"rollout": {"parallelism": {"data": 2 * replicas}}}},
            seconds=context.after(generate=work.generate / 2, half_seconds=work.half_seconds / 2),
            how="each replica generates half of the samples, in half of the time",
            price="devices",
            note=f"takes {devices} more devices",
        )


def _update(context: StepContext) -> Iterator[Advice]:
    spec, work = context.job.spec, context.work
    if spec.update.recompute == "full":
        yield Advice(
            part="update",
            change={"spec": {"update": {"recompute": "none"}}},
            seconds=context.after(update=work.update * 3 / 4),
            how="the update without its second forward pass, a quarter of its computing",
            note=MORE_MEMORY,
        )
    yield from _larger_passes(context)
    if spec.batch.epochs > 1:
        fewer = spec.batch.epochs // 2
        streamed = work.first * spec.batch.epochs / fewer
        yield Advice(
            part="update",
            change={"spec": {"batch": {"epochs": fewer}}},
            seconds=context.after(update=work.update * fewer / spec.batch.epochs, first=streamed),
            how=f"the update goes over the samples {fewer} instead of {spec.batch.epochs} times",
            price="learning",
            note="samples are used less often, so more steps may be needed",
        )
    yield from _overlap(context, "update")


def _larger_passes(context: StepContext) -> Iterator[Advice]:
    """Process more prompts, or tokens, in a pass."""
    batch, figures, work = context.job.spec.batch, context.figures, context.work
    share = batch.mini_batch_size // context.job.spec.update.parallelism.data
    if batch.micro_batch_tokens:
        sizes, fewer = {"microBatchTokens": GROWTH * batch.micro_batch_tokens}, 1 / GROWTH
    elif batch.micro_batch_size < share:
        most = min(share, GROWTH * batch.micro_batch_size)
        size = max(n for n in range(1, most + 1) if share % n == 0)
        sizes, fewer = {"microBatchSize": size}, batch.micro_batch_size / size
    else:
        return
    spared, fixed = figures.num_passes * (1 - fewer), fixed_seconds(figures.passes)
    after, how = (
        None,
        "not estimated: passes of nearly one size do not tell what each costs by itself",
    )
    if fixed is not None:
        quicker = max(work.update - spared * fixed, work.update * fewer)
        after = context.after(update=quicker, parts=max(round(work.parts * fewer), 1))
        how = (
            f"{spared:.0f} passes less in a step, each of which takes {1000 * fixed:.0f} ms whatever its "
            "tokens, by a line through the run's own passes"
        )
    change = {"spec": {"batch": sizes}}
    yield Advice(part="update", change=change, seconds=after, how=how, note=MORE_MEMORY)


def _reshard(context: StepContext) -> Iterator[Advice]:
    spec, work, parts = context.job.spec, context.work, context.figures.reshard
    strategy = spec.resharding.strategy
    if not work.separated:
        yield from _rollout_layout(context)
    if strategy == "allgather-swap" and parts:
        exposed_back = parts.get("back_seconds", 0.0) * (1 - parts.get("overlap", 1.0))
        spared = parts.get("swap_waited_seconds", 0.0) + exposed_back
        yield Advice(
            part="reshard",
            change={"spec": {"resharding": {"strategy": "allgather"}}},
            seconds=context.after(sync=max(work.sync - spared, 0.0)),
            how="the reshard without its waits for copies to and from the host",
            note=BOTH_LAYOUTS,
        )
    yield from _overlap(context, "reshard")


def _rollout_layout(context: StepContext) -> Iterator[Advice]:
    """Train in the layout of the rollout, if the exchanges that this saves take noticeable time."""
    gathered = context.figures.reshard.get("gather_seconds")
    if gathered is not None and gathered < WORTH_A_TRY * context.figures.seconds:
        return
    update, rollout = context.job.spec.update.parallelism, context.job.spec.rollout.parallelism
    shared, replica_devices = update.tensor * update.pipeline, rollout.replica_devices
    if shared <= replica_devices or shared % replica_devices:
        return
    data = update.data * shared // replica_devices
    degrees = {"data": data, "tensor": rollout.tensor, "pipeline": rollout.pipeline}
    change: dict[str, Any] = {"update": {"parallelism": degrees}}
    batch = context.job.spec.batch
    prompts, size = batch.mini_batch_size // data, batch.micro_batch_size
    if prompts and prompts % size:  # a rank has fewer than it had in one pass
        change["batch"] = {"microBatchSize": math.gcd(prompts, size)}
    spared = "exchanges" if gathered is None else f"exchanges, {gathered:.2g} s"
    times = shared // replica_devices
    yield Advice(
        part="reshard",
        change={"spec": change},
        seconds=None,
        how=f"not estimated: the reshard is without its {spared}; the update sums gradients of {times} times "
        "as many weights in place of activations, and this run does not tell how long that takes",
        note=f"devices hold {times} times as much of model, gradients and optimizer: `rljob plan` tells how "
        "much",
    )


def _dock(context: StepContext) -> Iterator[Advice]:
    capacity = 2 * parse_quantity(context.job.spec.dock.capacity)
    yield Advice(
        part="dock",
        change={"spec": {"dock": {"capacity": f"{capacity // 2**20}Mi"}}},
        seconds=context.figures.seconds - context.figures.blame["dock"],
        how="the step without the waits for room in a warehouse",
        note="each warehouse takes so much memory of its node",
    )


REMEDIES: Mapping[str, Callable[[StepContext], Iterator[Advice]]] = {
    "generate": _generate,
    "tail": _tail,
    "inference": _inference,
    "reward": _reward,
    "update": _update,
    "reshard": _reshard,
    "dock": _dock,
    "other": _no_advice,
}
