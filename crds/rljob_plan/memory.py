"""Compute the bytes that one device and its host hold in every phase of a step.

Called by `plan`. Figures are for the fullest device of each role, with all lengths the longest. They count
the tensors of this project's engines, without the buffers of allocators and collectives.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from rljob_api.model.architecture import Shape
from rljob_api.model.layout import stages
from rljob_api.spec.reward_services import RewardModel
from rljob_api.spec.section import parse_quantity
from rljob_api.spec.teacher import Teacher
from rljob_api.topology.devices import updates_in_flight
from rljob_api.topology.resolved import ResolvedSpec
from rljob_api.topology.second_copies import copies_per_host
from rljob_plan.activations import Activations
from rljob_plan.pictures import towers
from rljob_plan.resharding.figures import fullest, most_sent, streamed
from rljob_plan.resharding.job_layouts import arrives_in_buckets, plan_of_job
from rljob_plan.resharding.widths import ITEM_BYTES
from rljob_plan.shards import UpdateShard, rollout_weights, update_activations

SECOND_COPIES = "second copies"

SENT_LAST = "weights sent last"
"""Name of the weights of the last version that both ends keep with resharding.deltas."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Phase:
    """Memory of a device in one phase. parts: name → bytes on the device."""

    name: str
    role: str
    parts: dict[str, int]
    host: int = 0

    @property
    def device(self) -> int:
        """Return the bytes on the device."""
        return sum(self.parts.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class KvCache:
    """KV cache of one rollout device. token: bytes of one token. longest: tokens of the longest sequence.
    requested: sequences that the job generates at a time. tokens: tokens that fit, at most those of
    `requested` sequences."""

    token: int
    longest: int
    requested: int
    tokens: int

    @property
    def sequence(self) -> int:
        """Return the bytes of the longest sequence."""
        return self.token * self.longest

    @property
    def room(self) -> int:
        """Return how many of the longest sequences fit. More fit if a group's prompt is stored once."""
        return self.tokens // self.longest

    @property
    def bytes(self) -> int:
        """Return the bytes of the full cache."""
        return self.token * self.tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryPlan:
    """Memory of the phases of a step. limit: bytes of a device, None without limit. offloaded: name → bytes
    of a device that are kept on its host while they are not on the device. copied: bytes of a device that are
    copied a second time after each step; 0 without. arriving: bytes on the host for weights that a device
    receives while it generates; 0 without."""

    limit: int | None
    update_weights: int
    rollout_weights: int
    kv_cache: KvCache
    phases: tuple[Phase, ...]
    offloaded: dict[str, int]
    copied: int
    arriving: int


def plan_memory(
    spec: ResolvedSpec,
    shape: Shape,
    others: Mapping[str, Shape] | None = None,
    *,
    with_reshard: bool = True,
) -> MemoryPlan:
    """Return the memory of each phase. others: shapes of the models besides the policy, by name; a missing
    one counts with the policy's shape. with_reshard: plan the reshard, which takes longer than everything
    else; otherwise its phase is left out."""
    device = _DeviceBytes.of(spec, shape, others or {})
    limit = parse_quantity(spec.accelerator.memory) if spec.accelerator.memory else None
    resharding = _resharding(spec, shape, device.swapped) if with_reshard else {}
    cache = _kv_cache(
        spec, shape, taken=fullest_with_cache(device.phases(0, resharding)), limit=limit
    )
    return MemoryPlan(
        limit=limit,
        update_weights=device.policy.weights,
        rollout_weights=device.rollout,
        kv_cache=cache,
        phases=device.phases(cache.bytes, resharding),
        offloaded=device.on_host,
        copied=device.unique if device.copies else 0,
        arriving=_arriving(spec, shape),
    )


def least_to_train(spec: ResolvedSpec, shape: Shape) -> int:
    """Return the bytes of the fullest device that trains, without anything else that the job keeps there. Its
    pass counts, and the optimizer's step if the state comes from the host."""
    shard, activations = UpdateShard.of(spec, shape), update_activations(spec, shape)
    always = shard.weights + sum({**shard.lasting, "gradients": shard.gradients}.values())
    stepping = shard.optimizer if shard.offloaded else 0
    return always + max(activations.retained + activations.temporary, stepping)


def least_to_generate(spec: ResolvedSpec, shape: Shape) -> int:
    """Return the bytes of the fullest device that generates one sequence, without anything else on it."""
    return rollout_weights(spec, shape) + _kv_cache(spec, shape, taken=0, limit=None).sequence


@dataclass(frozen=True, slots=True, kw_only=True)
class _DeviceBytes:
    """Bytes of what devices hold. policy, critic: trained shards; policy_activations, critic_activations: of
    their passes. frozen: weights of models that only score, by name. rollout: weights of the generating
    engine. swapped: trained weights leave the device while it generates. stays: rollout weights stay on the
    device while it trains. keeps_cache: the KV cache stays on the device; vLLM sleeps instead. copies: second
    copies of what devices alone hold. towers: vision towers, by role."""

    policy: UpdateShard
    policy_activations: Activations
    critic: UpdateShard | None
    critic_activations: Activations | None
    frozen: dict[str, int]
    has_reference: bool
    rollout: int
    colocated: bool
    swapped: bool
    stays: bool
    keeps_cache: bool
    copies: int
    towers: dict[str, int]

    @classmethod
    def of(cls, spec: ResolvedSpec, shape: Shape, others: Mapping[str, Shape]) -> "_DeviceBytes":
        """Return the bytes for a job. others: shapes of the models besides the policy, by name."""
        colocated = spec.placement.mode == "colocated"
        swapped = colocated and spec.resharding.strategy == "allgather-swap"
        critic_spec = spec.of_critic() if spec.has_critic else None
        critic_shape = others.get("critic", shape).scorer()
        return cls(
            policy=UpdateShard.of(spec, shape),
            policy_activations=update_activations(spec, shape),
            critic=UpdateShard.of(critic_spec, critic_shape) if critic_spec else None,
            critic_activations=update_activations(critic_spec, critic_shape)
            if critic_spec
            else None,
            frozen={
                name: _frozen_weights(spec, model, model_shape)
                for name, (model, model_shape) in frozen_models(spec, shape, others).items()
            },
            has_reference="reference" in spec.algorithm.params.states
            and spec.update.lora is None,  # with adapters, it is the policy without them
            rollout=rollout_weights(spec, shape),
            colocated=colocated,
            swapped=swapped,
            stays=colocated and (not swapped or _keeps_weights(spec)),
            keeps_cache=colocated and not swapped and spec.rollout.engine != "vllm",
            copies=copies_per_host(spec),
            towers={role: tower.bytes for role, tower in towers(spec, shape, others).items()},
        )

    @property
    def always(self) -> dict[str, int]:
        """Return what a device that trains holds in every phase."""
        parts = self.policy.lasting
        if self.has_reference and not self.swapped:
            parts["reference"] = self.policy.weights
        parts |= self.frozen
        if "update" in self.towers:
            parts["vision tower"] = self.towers["update"]
        for role in ("critic", "teacher"):
            if role in self.towers:
                parts[f"{role}'s tower"] = self.towers[role]
        if self.critic is not None:
            parts["critic"] = self.critic.weights + sum(self.critic.lasting.values())
        return parts

    @property
    def training(self) -> dict[str, int]:
        """Return what a device that trains holds while it does not generate."""
        return {"update weights": self.policy.weights, **self.always}

    @property
    def serving(self) -> dict[str, int]:
        """Return what a device that generates holds."""
        parts = {"rollout weights": self.rollout}
        if "rollout" in self.towers:
            parts["rollout's tower"] = self.towers["rollout"]
        return parts

    @property
    def training_while_generating(self) -> dict[str, int]:
        """Return the training state on a device that generates."""
        if not self.colocated:
            return {}
        return self.always if self.swapped else self.training

    def serving_while_training(self, cache: int) -> dict[str, int]:
        """Return the generation state on a device that trains. cache: bytes of the KV cache."""
        if not self.stays:
            return {}
        return {**self.serving, **self.retained_cache(cache)}

    def retained_cache(self, cache: int) -> dict[str, int]:
        """Return the cache of a device that does not generate at the moment. cache: bytes."""
        return {"KV cache": cache} if self.keeps_cache else {}

    @property
    def on_host(self) -> dict[str, int]:
        """Return the host memory that is reserved for these states, wherever they currently are."""
        parts: dict[str, int] = {}
        if self.swapped:
            parts["update weights"] = self.policy.weights
            if self.has_reference:
                parts["reference"] = self.policy.weights
        if self.policy.offloaded:
            parts["optimizer"] = self.policy.optimizer
        if self.critic is not None and self.critic.offloaded:
            parts["critic's optimizer"] = self.critic.optimizer
        if self.copies:
            parts[SECOND_COPIES] = self.copies * self.unique
        return parts

    @property
    def unique(self) -> int:
        """Return the trained bytes that no other device holds."""
        return self.policy.unique + (self.critic.unique if self.critic is not None else 0)

    def phases(self, cache: int, resharding: Mapping[str, dict[str, int]]) -> tuple[Phase, ...]:
        """Return the phases of a step. cache: bytes of the KV cache. resharding: parts of the reshard, by
        role."""
        resting = sum(self.on_host.values())

        def on_update(name: str, parts: dict[str, int], host: int = resting) -> Phase:
            """Return a phase of the devices that train."""
            return Phase(name=name, role="update", parts=parts, host=host)

        sent_last = {
            role: {SENT_LAST: parts[SENT_LAST]}
            for role, parts in resharding.items()
            if SENT_LAST in parts
        }
        generating = {**self.serving, "KV cache": cache, **self.training_while_generating}
        generating |= sent_last.get("rollout", {})
        host = resting if self.colocated else 0
        training = {**self.training, **sent_last.get("update", {})}
        retained = self.serving_while_training(cache)
        policy_work = _working(self.policy, self.policy_activations)
        if self.critic is not None:  # its step waits for the policy's
            policy_work["critic gradients"] = self.critic.gradients
        phases = [
            Phase(name="generate", role="rollout", parts=generating, host=host),
            on_update("update", {**training, **policy_work, **retained}),
        ]
        if parts := resharding.get("update"):
            phases.append(
                on_update("reshard", {**parts, **self.always, **self.retained_cache(cache)})
            )
        if parts := resharding.get("rollout"):
            phases.append(
                Phase(name="arrival", role="rollout", parts={**parts, "KV cache": cache}, host=0)
            )
        if self.critic is not None and self.critic_activations is not None:
            critic_work = _working(self.critic, self.critic_activations)
            phases.append(on_update("critic", {**training, **critic_work, **retained}))
        if self.swapped and self.has_reference:
            reference_work = {
                "reference": self.policy.weights,
                "temporary": self.policy_activations.temporary,
            }
            phases.append(on_update("reference", {**training, **reference_work}))
        if self.policy.offloaded:
            optimizer = self.policy.optimizer
            optimizer_work = {"optimizer": optimizer, "gradients": self.policy.gradients}
            phases.append(
                on_update("step", {**training, **optimizer_work, **retained}, resting - optimizer)
            )
        return tuple(phases)


def fullest_with_cache(phases: Iterable[Phase]) -> int:
    """Bytes of the fullest phase of those in which the device holds the KV cache."""
    return max(phase.device for phase in phases if "KV cache" in phase.parts)


def _working(shard: UpdateShard, activations: Activations) -> dict[str, int]:
    """Return what a training pass needs besides weights and optimizer."""
    return {
        "gradients": shard.gradients,
        "activations": activations.retained,
        "temporary": activations.temporary,
    }


def frozen_models(
    spec: ResolvedSpec, shape: Shape, others: Mapping[str, Shape]
) -> dict[str, tuple[RewardModel | Teacher, Shape]]:
    """Return the models that only score, without the reference, with their shapes."""
    shape = replace(shape, trains_tower=False)
    models: dict[str, RewardModel | Teacher | None] = {
        "reward-model": spec.reward_model,
        "teacher": spec.teacher,
    }
    return {
        name: (model, others.get(name, shape.scorer() if name == "reward-model" else shape))
        for name, model in models.items()
        if model is not None
    }


def _frozen_weights(spec: ResolvedSpec, model: RewardModel | Teacher, shape: Shape) -> int:
    """Return the bytes of the model's weights on the fullest update rank."""
    changes = {"parallelism": model.parallelism, "dtype": model.dtype, "lora": None}
    update = spec.update.model_copy(update=changes)
    return UpdateShard.of(spec.model_copy(update={"update": update}), shape).weights


def _keeps_weights(spec: ResolvedSpec) -> bool:
    """Return whether the rollout engine cannot free its weights: vLLM on CPU."""
    return spec.rollout.engine == "vllm" and spec.accelerator.type == "emulated"


def _resharding(spec: ResolvedSpec, shape: Shape, swapped: bool) -> dict[str, dict[str, int]]:
    """Return the weights of both layouts and the buffers in transit at their peak, by role: of a device that
    trains, and of a separate device that receives slices."""
    plan, separated = plan_of_job(spec, shape), spec.placement.mode == "separated"
    if spec.resharding.strategy == "stream":
        joined = spec.update.parallelism.shared
        peaks = {"update": streamed(plan, joined=joined, sent=separated)}
    else:
        swaps = swapped and arrives_in_buckets(spec)
        peaks = {"update": fullest(plan, plan.update.devices, swaps=swaps)}
        if separated:
            peaks["rollout"] = fullest(plan, plan.rollout.devices, swaps=False)
    parts = {
        role: {
            "update weights": peak.update,
            "rollout weights": peak.rollout,
            "buffers": peak.buffers,
        }
        for role, peak in peaks.items()
    }
    if spec.resharding.deltas:
        for role, devices in (("update", plan.update.devices), ("rollout", plan.rollout.devices)):
            parts[role][SENT_LAST] = most_sent(plan, devices)
    return parts


def _arriving(spec: ResolvedSpec, shape: Shape) -> int:
    """Return the bytes of a device's slices in the narrower type of both sides. A stream delivers full
    tensors, so all weights count."""
    if not updates_in_flight(spec):
        return 0
    if spec.resharding.strategy != "stream":
        return rollout_weights(spec, shape)
    item = min(ITEM_BYTES[spec.update.dtype], ITEM_BYTES[spec.rollout.dtype])
    return shape.total().total * item


def _kv_cache(spec: ResolvedSpec, shape: Shape, *, taken: int, limit: int | None) -> KvCache:
    batch, degrees = spec.batch, spec.rollout.parallelism
    layers = len(stages(shape.layers, degrees.pipeline)[0])
    token = layers * shape.kv_items(degrees.tensor) * ITEM_BYTES[spec.rollout.dtype]
    longest = batch.max_prompt_length + batch.max_response_length
    samples = batch.global_batch_size * batch.samples_per_prompt // degrees.data
    requested = min(spec.rollout.max_sequences, samples)
    tokens = requested * longest
    if spec.rollout.kv_cache_memory is not None:
        tokens = min(tokens, parse_quantity(spec.rollout.kv_cache_memory) // token)
    elif limit is not None:
        tokens = max(0, min(requested, (limit - taken) // (token * longest))) * longest
    return KvCache(token=token, longest=longest, requested=requested, tokens=tokens)
