"""What is worth a try for each part of a step, with the time of a step after it. Pure; called by `advice`.

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
"""How many times larger a micro-batch, or a service's concurrency, is proposed."""
WORTH_A_TRY = 0.1
"""Share of a step that a change must spare which costs something that nobody knows."""
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
    """change: of the job, as YAML to be merged into it. seconds: of a step after it; None: not known. how: it
    was estimated. price: what the change asks for beside work, `note` in words."""

    part: str
    change: Mapping[str, Any]
    seconds: float | None
    how: str
    price: Price = "nothing"
    note: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Now:
    """What a run's typical step is."""

    figures: StepFigures
    job: ResolvedJob
    work: StepWork

    def after(self, **changes: Any) -> float:
        """Seconds of a step whose work is changed."""
        return self.figures.seconds * replace(self.work, **changes).seconds() / self.work.seconds()


def _nothing(_: Now) -> Iterator[Advice]:
    yield from ()


def _overlap(now: Now, part: str) -> Iterator[Advice]:
    """Stages at the same time, or generation ahead of the update."""
    work, size = now.work, now.job.spec.batch.micro_batch_size
    if work.mode == "sync":
        yield Advice(
            part=part,
            change={"spec": {"flow": {"mode": "streaming"}}},
            seconds=now.after(mode="streaming"),
            how=OVERLAPPING.format(STREAMS),
        )
    if work.mode != "async" and work.parts == 1 and size is not None:
        yield from _in_smaller_passes(now, part, size)
    if work.mode != "async" and work.separated:
        yield Advice(
            part=part,
            change={"spec": {"flow": AHEAD}},
            seconds=now.after(mode="async"),
            how=OVERLAPPING.format(AT_ONCE),
            price="staleness",
            note=OLDER,
        )


def _in_smaller_passes(now: Now, part: str, size: int) -> Iterator[Advice]:
    """Streaming to an update that begins with a part of the samples. size: prompts of its one pass."""
    parts, fixed = (
        next((n for n in (4, 2, 3) if size % n == 0), 1),
        fixed_seconds(now.figures.passes),
    )
    longer = now.work.update + now.figures.num_passes * (parts - 1) * (fixed or 0.0)
    seconds = now.after(mode="streaming", parts=parts, update=longer)
    how = OVERLAPPING.format(f"{STREAMS}, the update in {parts} passes")
    if fixed is None and seconds > (1 - WORTH_A_TRY) * now.figures.seconds:
        return
    yield Advice(
        part=part,
        change={
            "spec": {"flow": {"mode": "streaming"}, "batch": {"microBatchSize": size // parts}}
        },
        seconds=seconds,
        how=how if fixed is not None else f"{how}, which cost nothing by themselves",
    )


def _apart(now: Now, part: str) -> Iterator[Advice]:
    """Generation ahead of the update, on as many devices again."""
    spec = now.job.spec
    if now.work.separated:
        return
    devices = spec.roles.rollout
    roles = {"mode": "separated", "updateDevices": devices, "rolloutDevices": devices}
    change: dict[str, Any] = {"placement": roles, "flow": AHEAD}
    if spec.resharding.strategy == "allgather-swap":  # of devices that train and generate
        change["resharding"] = {"strategy": "allgather"}
    yield Advice(
        part=part,
        change={"spec": change},
        seconds=now.after(mode="async", separated=True),
        how=OVERLAPPING.format(AT_ONCE),
        price="devices",
        note=f"takes {devices} more devices, which generate; {OLDER}",
    )


def _inference(now: Now) -> Iterator[Advice]:
    yield from _overlap(now, "inference")
    yield from _apart(now, "inference")
    params, work = now.job.spec.algorithm.params, now.work
    without = params.model_copy(update={"kl_coefficient": 0.0})
    if "reference" not in params.states or "reference" in without.states:
        return
    changed: dict[str, Any] = {"klCoefficient": 0}
    if params.kl_target is not None:
        changed["klTarget"] = None
    yield Advice(
        part="inference",
        change={"spec": {"algorithm": {"params": changed}}},
        seconds=now.after(inference=work.inference - now.figures.busy.get("reference", 0.0)),
        how="a step without the reference, which the KL term alone needs",
        price="learning",
        note="nothing holds the policy near the model that it began as",
    )


def _reward(now: Now) -> Iterator[Advice]:
    yield from _overlap(now, "reward")
    yield from _apart(now, "reward")
    rewards, samples = now.job.spec.rewards, now.job.spec.batch.samples_per_prompt
    services = [service for r in rewards if (service := r.http or r.judge) is not None]
    if not services or not now.work.reward:
        return
    most = max(service.concurrency for service in services)  # as many processes ask
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
        seconds=now.after(reward=now.work.reward * after / before),
        how=f"a prompt's {samples} samples are asked for in {after} rounds instead of {before}, as long each",
        note="the service has to answer as many requests at the same time",
    )


def _tail(now: Now) -> Iterator[Advice]:
    spec, lengths, work = now.job.spec, now.figures.lengths, now.work
    if spec.flow.partial_rollout is not None or "p80" not in lengths or not work.generate:
        return
    longest = spec.batch.max_response_length
    budget = max(math.ceil(lengths["p80"]), -(-longest // (MAX_STALENESS - 1)), 1)
    late = TAIL_SHARE * (lengths["max"] - lengths["p80"]) / 2
    denser = late / max(lengths["mean"] - late, 1.0)  # so many more sequences at a time
    begun = max(work.generate - now.figures.tail, 0.0)
    left = min(begun * (1 + denser * _crowded(now, begun)), work.generate)
    yield Advice(
        part="tail",
        change={"spec": {"flow": {"partialRollout": {"budgetTokens": budget}}}},
        seconds=now.after(generate=left, half=min(work.half, left)),
        how=f"generation without its tail, whose tokens, about {late:.0f} of {lengths['mean']:.0f} a sample, "
        "go beside those before it and make each of their steps as much longer as the tail's few are shorter",
        price="staleness",
        note="the longest samples go on in the next step, with newer weights",
    )


def _crowded(now: Now, begun: float) -> float:
    """Which share of a decoding step's time is for how many sequences decode at a time: as much as the
    tail's steps, with few of them, are shorter. begun: seconds of those before the tail."""
    lengths = now.figures.lengths
    few = now.figures.tail / max(lengths["max"] - lengths["p80"], 1.0)
    many = begun / max(lengths["p80"], 1.0)
    return min(max(1 - few / many, 0.0), 1.0) if many else 1.0


def _generate(now: Now) -> Iterator[Advice]:
    yield from _overlap(now, "generate")
    yield from _apart(now, "generate")
    spec, work = now.job.spec, now.work
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
            seconds=now.after(generate=work.generate / 2, half=work.half / 2),
            how="each replica generates half of the samples, in half of the time",
            price="devices",
            note=f"takes {devices} more devices",
        )


def _update(now: Now) -> Iterator[Advice]:
    spec, work = now.job.spec, now.work
    if spec.update.recompute == "full":
        yield Advice(
            part="update",
            change={"spec": {"update": {"recompute": "none"}}},
            seconds=now.after(update=work.update * 3 / 4),
            how="the update without its second forward pass, a quarter of its computing",
            note=MORE_MEMORY,
        )
    yield from _larger_passes(now)
    if spec.batch.epochs > 1:
        fewer = spec.batch.epochs // 2
        streamed = work.first * spec.batch.epochs / fewer
        yield Advice(
            part="update",
            change={"spec": {"batch": {"epochs": fewer}}},
            seconds=now.after(update=work.update * fewer / spec.batch.epochs, first=streamed),
            how=f"the update goes over the samples {fewer} instead of {spec.batch.epochs} times",
            price="learning",
            note="samples are used less often, so more steps may be needed",
        )
    yield from _overlap(now, "update")


def _larger_passes(now: Now) -> Iterator[Advice]:
    """More prompts, or tokens, in a pass."""
    batch, figures, work = now.job.spec.batch, now.figures, now.work
    share = batch.mini_batch_size // now.job.spec.update.parallelism.data
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
        after = now.after(update=quicker, parts=max(round(work.parts * fewer), 1))
        how = (
            f"{spared:.0f} passes less in a step, each of which takes {1000 * fixed:.0f} ms whatever its "
            "tokens, by a line through the run's own passes"
        )
    change = {"spec": {"batch": sizes}}
    yield Advice(part="update", change=change, seconds=after, how=how, note=MORE_MEMORY)


def _reshard(now: Now) -> Iterator[Advice]:
    spec, work, parts = now.job.spec, now.work, now.figures.reshard
    strategy = spec.resharding.strategy
    if not work.separated:
        yield from _alike(now)
    if strategy == "allgather-swap" and parts:
        way_back = parts.get("back_seconds", 0.0) * (1 - parts.get("overlap", 1.0))
        spared = parts.get("swap_waited_seconds", 0.0) + way_back
        yield Advice(
            part="reshard",
            change={"spec": {"resharding": {"strategy": "allgather"}}},
            seconds=now.after(sync=max(work.sync - spared, 0.0)),
            how="the reshard without its waits for copies to and from the host",
            note=BOTH_LAYOUTS,
        )
    yield from _overlap(now, "reshard")


def _alike(now: Now) -> Iterator[Advice]:
    """Training in the layout that the rollout has, where the exchanges that this spares take their time."""
    gathered = now.figures.reshard.get("gather_seconds")
    if gathered is not None and gathered < WORTH_A_TRY * now.figures.seconds:
        return
    update, rollout = now.job.spec.update.parallelism, now.job.spec.rollout.parallelism
    shared, wanted = update.tensor * update.pipeline, rollout.replica_devices
    if shared <= wanted or shared % wanted:
        return
    data = update.data * shared // wanted
    degrees = {"data": data, "tensor": rollout.tensor, "pipeline": rollout.pipeline}
    change: dict[str, Any] = {"update": {"parallelism": degrees}}
    batch = now.job.spec.batch
    prompts, size = batch.mini_batch_size // data, batch.micro_batch_size
    if prompts and prompts % size:  # a rank has fewer than it had in one pass
        change["batch"] = {"microBatchSize": math.gcd(prompts, size)}
    spared = "exchanges" if gathered is None else f"exchanges, {gathered:.2g} s"
    times = shared // wanted
    yield Advice(
        part="reshard",
        change={"spec": change},
        seconds=None,
        how=f"not estimated: the reshard is without its {spared}; the update sums gradients of {times} times "
        "as many weights in place of activations, and this run does not tell how long that takes",
        note=f"devices hold {times} times as much of model, gradients and optimizer: `rljob plan` tells how "
        "much",
    )


def _dock(now: Now) -> Iterator[Advice]:
    capacity = 2 * parse_quantity(now.job.spec.dock.capacity)
    yield Advice(
        part="dock",
        change={"spec": {"dock": {"capacity": f"{capacity // 2**20}Mi"}}},
        seconds=now.figures.seconds - now.figures.blamed["dock"],
        how="the step without the waits for room in a warehouse",
        note="each warehouse takes so much memory of its node",
    )


REMEDIES: Mapping[str, Callable[[Now], Iterator[Advice]]] = {
    "generate": _generate,
    "tail": _tail,
    "inference": _inference,
    "reward": _reward,
    "update": _update,
    "reshard": _reshard,
    "dock": _dock,
    "other": _nothing,
}
