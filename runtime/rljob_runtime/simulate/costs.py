"""The costs of a simulated run as numbers: by the planner's arithmetic, unless replaced.

The states of `device` compute from them the seconds of their work on samples. Each cost is a field, so that
measured rates can replace any of them (`dataclasses.replace`).
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from rljob_api.check.shape_rules import shape_problems
from rljob_api.model.architecture import Shape, find_shape
from rljob_api.model.layout import stages
from rljob_api.spec.engines import Recompute, UpdateParallelism
from rljob_api.spec.problems import InvalidJob, Problem
from rljob_api.spec.rljob import RLJob
from rljob_api.topology.resolved import ResolvedJob, ResolvedSpec, resolve
from rljob_plan.decoding import active_parameters, attention_flops, combine_seconds
from rljob_plan.engines import planned_engine
from rljob_plan.machines import MachineRates, RateShares, rates_of
from rljob_plan.memory import frozen_models, plan_memory
from rljob_plan.performance import (
    BACKWARD,
    TrainingStep,
    optimizer_seconds,
    sent_seconds,
    swap_seconds,
    training_of,
    weights_seconds,
)
from rljob_plan.plan import other_shapes
from rljob_plan.resharding.widths import ITEM_BYTES
from rljob_plan.shards import rollout_shard
from rljob_runtime.dock.growing import Array


@dataclass(frozen=True, slots=True, kw_only=True)
class Decoding:
    """Costs of one replica that generates.

    prompt_seconds: of a prompt's token. A pass over all sequences takes pass_seconds, and sequence_seconds of
    each. Reading the weights takes weights_seconds, or product_seconds of each sequence if that is longer.
    context_seconds: of each token that a sequence attends to. room: concurrent sequences.
    """

    prompt_seconds: float
    pass_seconds: float
    weights_seconds: float
    product_seconds: float
    sequence_seconds: float
    context_seconds: float
    room: int

    def seconds(self, sequences: Array, contexts: Array, passes: Array) -> Array:
        """Return the seconds of so many passes over so many sequences. contexts: their tokens of context at
        the beginning."""
        seconds_per_pass = np.maximum(self.weights_seconds, sequences * self.product_seconds)
        seconds_per_pass = seconds_per_pass + self.pass_seconds + sequences * self.sequence_seconds
        attended_tokens = passes * contexts + sequences * passes * (passes + 1) / 2
        seconds: Array = passes * seconds_per_pass + self.context_seconds * attended_tokens
        return seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class PassCosts:
    """Costs of one replica of a model that scores, or is trained.

    flop_seconds: of an operation of the policy's forward pass; token_seconds: of sending a packed token;
    pass_seconds: of a micro-batch in addition.
    """

    flop_seconds: float
    token_seconds: float = 0.0
    pass_seconds: float = 0.0

    def seconds(self, flops: float, tokens: float, passes: float) -> float:
        """Return the seconds of micro-batches. flops: operations of the policy's forward pass."""
        return flops * self.flop_seconds + tokens * self.token_seconds + passes * self.pass_seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class Rewards:
    """Distribution of rewards and of their durations.

    A reward's seconds are log-normal: mean_seconds, and sigma, the deviation of their logarithm. at_a_time:
    rewards scored concurrently. share: mean share of samples that pass; spread: its deviation between
    prompts.
    """

    mean_seconds: float = 0.002
    sigma: float = 0.5
    at_a_time: int = 1
    share: float = 0.5
    spread: float = 0.25


@dataclass(frozen=True, slots=True, kw_only=True)
class Costs:
    """Costs of one job.

    token_flops, seen_flops: of a packed token in the policy's forward pass, and of a pair of tokens of which
    one attends to the other. states: of inference and training. optimizer_seconds: of an optimizer step,
    including its communication. reshard_seconds: of sending the weights to the rollout. dispatch_bytes:
    bandwidth of a warehouse per second. fixed_seconds: of a step, in addition to all else. save_seconds: of a
    checkpoint.
    """

    token_flops: float
    seen_flops: float
    decoding: Decoding
    states: Mapping[str, PassCosts]
    optimizer_seconds: float
    reshard_seconds: float
    dispatch_bytes: float
    fixed_seconds: float = 0.0
    save_seconds: float = 0.0
    rewards: Rewards = field(default_factory=Rewards)


def planned(
    job: RLJob, *, base_dir: Path, rates: Iterable[str] = ()
) -> tuple[ResolvedJob, Costs, int]:
    """Return the resolved job, its costs by the planner's arithmetic, and a device's peak bytes.

    rates: replace those of the table, see `rates_of`. Raises InvalidJob if the model's shape is unknown or
    forbids the job.
    """
    machine = rates_of(job.spec.accelerator.type, rates)
    shape = find_shape(job.spec.model, base_dir=base_dir)
    if shape is None:
        message = f"{job.spec.model.path} is a model of unknown shape, whose time cannot be predicted; use a "
        message += "family that docs/models.md lists"
        raise InvalidJob([Problem("spec.model.path", message)])
    resolved = resolve(job)
    others, _ = other_shapes(resolved.spec, base_dir=base_dir)
    if problems := shape_problems(resolved.spec, shape, others):
        raise InvalidJob(problems)
    memory = plan_memory(resolved.spec, shape, others, with_reshard=False)
    costs = planned_costs(resolved.spec, shape, machine, others=others)
    return resolved, costs, max(phase.device for phase in memory.phases)


def planned_costs(
    spec: ResolvedSpec,
    shape: Shape,
    rates: tuple[MachineRates, RateShares],
    *,
    others: Mapping[str, Shape] | None = None,
) -> Costs:
    """Compute costs by the planner's arithmetic, as `performance` sums up a step.

    others: shapes of the models other than the policy.
    """
    machine, shares = rates
    work = training_of(spec, shape, packed=True)
    fixed, a_token = _sent(spec, shape, machine, shares, work)
    optimizer = optimizer_seconds(spec, shape, machine, shares) + fixed
    states = _states(spec, shape, machine, shares, others or {}, a_token)
    if spec.has_critic:
        critic_shape = (others or {}).get("critic", shape).scorer()
        optimizer += optimizer_seconds(spec.of_critic(), critic_shape, machine, shares)
    return Costs(
        token_flops=2.0 * active_parameters(shape),
        seen_flops=attention_flops(shape),
        decoding=_decoding(spec, shape, machine, shares, others or {}),
        states=states,
        optimizer_seconds=optimizer,
        reshard_seconds=swap_seconds(spec, shape, machine)
        + weights_seconds(spec, shape, machine, shares),
        dispatch_bytes=machine.dispatch_bytes,
        fixed_seconds=shares.fixed_seconds,
        save_seconds=shape.total().total * 14 / len_hosts(spec) / machine.swap_bytes,
    )


def len_hosts(spec: ResolvedSpec) -> int:
    """Return the number of nodes with devices that train."""
    return max(1, spec.roles.update // spec.accelerator.devices_per_node)


def _states(
    spec: ResolvedSpec,
    shape: Shape,
    machine: MachineRates,
    shares: RateShares,
    others: Mapping[str, Shape],
    a_token: float,
) -> dict[str, PassCosts]:
    degrees = spec.update.parallelism
    flop = 1 / (machine.flops * shares.products * _replica(degrees))
    local_layers = -(-shape.layers // degrees.pipeline)
    pass_seconds = local_layers * shares.pass_seconds / (1 + BACKWARD)
    again = 1 + BACKWARD + float(spec.update.recompute == "full")
    passes = training_of(spec, shape, packed=True).work.passes
    waits = 1 + (degrees.pipeline - 1) / (degrees.virtual_pipeline * passes)
    slower = planned_engine(spec.update.engine).slower
    states = {
        "reference": PassCosts(
            flop_seconds=flop, token_seconds=a_token / 3, pass_seconds=pass_seconds
        ),
        "update": PassCosts(
            flop_seconds=flop * again * slower * waits,
            token_seconds=a_token,
            pass_seconds=pass_seconds * again * slower * waits,
        ),
    }
    alone = {
        name: (_replica(model.parallelism), model_shape)
        for name, (model, model_shape) in frozen_models(spec, shape, others).items()
    }
    if spec.has_critic:
        judge, model_shape = spec.of_critic(), others.get("critic", shape).scorer()
        alone["values"] = alone["critic"] = (_replica(judge.update.parallelism), model_shape)
    for name, (ranks, model_shape) in alone.items():
        larger = active_parameters(model_shape) / active_parameters(shape)
        more = again if name == "critic" else 1.0
        states[name] = PassCosts(
            flop_seconds=larger * more / (machine.flops * shares.products * ranks)
        )
    return states


def _replica(degrees: UpdateParallelism) -> int:
    """Return the devices of one replica."""
    return degrees.tensor * degrees.pipeline * degrees.context


def _sent(
    spec: ResolvedSpec, shape: Shape, machine: MachineRates, shares: RateShares, work: TrainingStep
) -> tuple[float, float]:
    """Return the seconds of an optimizer step's fixed communication, and those of each packed token."""
    again: Recompute = "full" if spec.update.recompute == "full" else "none"
    one_step = replace(work, steps=1)
    without_tokens = replace(one_step, work=replace(work.work, tokens=0, positions=0, targets=0))
    all_seconds = sent_seconds(spec, shape, one_step, machine, shares, again)
    fixed = sent_seconds(spec, shape, without_tokens, machine, shares, again)
    return fixed, (all_seconds - fixed) / max(1, work.work.tokens * work.work.passes)


def _decoding(
    spec: ResolvedSpec,
    shape: Shape,
    machine: MachineRates,
    shares: RateShares,
    others: Mapping[str, Shape],
) -> Decoding:
    """Return the costs of generation, as `decoding` sums them up."""
    degrees, reads = spec.rollout.parallelism, machine.memory_bytes * shares.reads
    item = ITEM_BYTES[spec.rollout.dtype]
    layers = len(stages(shape.layers, degrees.pipeline)[0])
    decoder = replace(shape, trains_tower=False)
    rate = machine.flops * shares.products
    fixed_seconds, with_one = (combine_seconds(spec, shape, n, machine, shares) for n in (0, 1))
    cache = plan_memory(spec, shape, dict(others), with_reshard=False).kv_cache
    product = 2.0 * active_parameters(shape) / (degrees.tensor * degrees.pipeline * rate)
    return Decoding(
        prompt_seconds=2.0 * active_parameters(shape) / (rate * degrees.tensor),
        pass_seconds=shares.layer_seconds * shape.layers + fixed_seconds,
        weights_seconds=degrees.pipeline * rollout_shard(spec, decoder).total * item / reads,
        product_seconds=degrees.pipeline * product,
        sequence_seconds=with_one - fixed_seconds,
        context_seconds=degrees.pipeline * layers * shape.kv_items(degrees.tensor) * item / reads,
        room=max(1, min(spec.rollout.max_sequences, cache.room or cache.requested)),
    )
