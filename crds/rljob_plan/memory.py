"""Bytes that one device and its host hold in every phase of a step, by arithmetic.

Called by `plan`. Figures are for the fullest device of each role, with all lengths the longest: the tensors
of this project's engines, without what allocators and collectives keep beside them.
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
from rljob_api.topology.second_copies import copies_kept
from rljob_plan.activations import Activations
from rljob_plan.pictures import towers
from rljob_plan.resharding.figures import fullest, most_sent, streamed
from rljob_plan.resharding.job_layouts import comes_by_buckets, plan_of_job
from rljob_plan.resharding.widths import ITEM_BYTES
from rljob_plan.shards import UpdateShard, rollout_weights, update_activations

SECOND_COPIES = "second copies"

SENT_LAST = "weights sent last"
"""Of a device, with resharding.deltas: what both ends keep of the last version."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Phase:
    """What a device holds in one phase. parts: name → bytes on the device."""

    name: str
    role: str
    parts: dict[str, int]
    host: int = 0

    @property
    def device(self) -> int:
        """Bytes on the device."""
        return sum(self.parts.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class KvCache:
    """Cache of one rollout device. token: bytes of one; longest: tokens of the longest sequence. wanted:
    sequences that the job wants at a time; tokens: that have room, at most for `wanted`."""

    token: int
    longest: int
    wanted: int
    tokens: int

    @property
    def sequence(self) -> int:
        """Bytes of the longest sequence."""
        return self.token * self.longest

    @property
    def room(self) -> int:
        """Longest sequences that have room; where a group's prompt lies once, there are more."""
        return self.tokens // self.longest

    @property
    def bytes(self) -> int:
        """Of the whole cache."""
        return self.token * self.tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """Phases of a step. limit: bytes of a device, None without limit. resting: name → bytes of a device
    that lie on its host whenever they are not on it. copied: bytes of a device that second copies are made of
    after each step; 0 without. arriving: bytes that the host keeps of weights that come
    to a device while it generates; 0 where none do."""

    limit: int | None
    update_weights: int
    rollout_weights: int
    kv_cache: KvCache
    phases: tuple[Phase, ...]
    resting: dict[str, int]
    copied: int
    arriving: int


def plan_memory(
    spec: ResolvedSpec,
    shape: Shape,
    others: Mapping[str, Shape] | None = None,
    *,
    with_reshard: bool = True,
) -> Memory:
    """Memory of each phase. others: shapes of the models beside the policy, by name; one that
    is missing counts with the policy's shape. with_reshard: plan the reshard, whose phase is left out
    otherwise: it takes longer than all else."""
    held = _Held.of(spec, shape, others or {})
    limit = parse_quantity(spec.accelerator.memory) if spec.accelerator.memory else None
    resharding = _resharding(spec, shape, held.swapped) if with_reshard else {}
    cache = _kv_cache(
        spec, shape, taken=fullest_with_cache(held.phases(0, resharding)), limit=limit
    )
    return Memory(
        limit=limit,
        update_weights=held.policy.weights,
        rollout_weights=held.rollout,
        kv_cache=cache,
        phases=held.phases(cache.bytes, resharding),
        resting=held.on_host,
        copied=held.alone if held.copies else 0,
        arriving=_arriving(spec, shape),
    )


def least_to_train(spec: ResolvedSpec, shape: Shape) -> int:
    """Bytes of the fullest device that trains, whatever else the job keeps there: of its pass, and of the
    optimizer's step where the state comes from the host."""
    shard, passing = UpdateShard.of(spec, shape), update_activations(spec, shape)
    always = shard.weights + sum({**shard.lasting, "gradients": shard.gradients}.values())
    stepping = shard.optimizer if shard.rests else 0
    return always + max(passing.kept + passing.temporary, stepping)


def least_to_generate(spec: ResolvedSpec, shape: Shape) -> int:
    """Likewise of a device that generates one sequence."""
    return rollout_weights(spec, shape) + _kv_cache(spec, shape, taken=0, limit=None).sequence


@dataclass(frozen=True, slots=True, kw_only=True)
class _Held:
    """What devices hold, in bytes. policy and passing, critic and valuing: what is trained, and what passes
    through it. frozen: weights of models that only score, by name. rollout: the generating engine's weights.
    swapped: what trains leaves the device while it generates. stays: what generates does not, while it
    trains. keeps_cache: the KV cache stays where it does not; vLLM sleeps meanwhile. copies: second ones, of
    what devices alone hold. towers: that see pictures, by role."""

    policy: UpdateShard
    passing: Activations
    critic: UpdateShard | None
    valuing: Activations | None
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
    def of(cls, spec: ResolvedSpec, shape: Shape, others: Mapping[str, Shape]) -> "_Held":
        colocated = spec.placement.mode == "colocated"
        swapped = colocated and spec.resharding.strategy == "allgather-swap"
        judge = spec.of_critic() if spec.has_critic else None
        valued = others.get("critic", shape).scorer()
        return cls(
            policy=UpdateShard.of(spec, shape),
            passing=update_activations(spec, shape),
            critic=UpdateShard.of(judge, valued) if judge else None,
            valuing=update_activations(judge, valued) if judge else None,
            frozen={
                name: _frozen_weights(spec, model, own)
                for name, (model, own) in frozen_models(spec, shape, others).items()
            },
            has_reference="reference" in spec.algorithm.params.states
            and spec.update.lora is None,  # with adapters, it is the policy without them
            rollout=rollout_weights(spec, shape),
            colocated=colocated,
            swapped=swapped,
            stays=colocated and (not swapped or _keeps_weights(spec)),
            keeps_cache=colocated and not swapped and spec.rollout.engine != "vllm",
            copies=copies_kept(spec),
            towers={role: tower.bytes for role, tower in towers(spec, shape, others).items()},
        )

    @property
    def always(self) -> dict[str, int]:
        """On a device that trains, in every phase."""
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
        """On a device that trains, while it does not generate."""
        return {"update weights": self.policy.weights, **self.always}

    @property
    def serving(self) -> dict[str, int]:
        """On a device that generates."""
        parts = {"rollout weights": self.rollout}
        if "rollout" in self.towers:
            parts["rollout's tower"] = self.towers["rollout"]
        return parts

    @property
    def beside_generation(self) -> dict[str, int]:
        """Of training, on a device that generates."""
        if not self.colocated:
            return {}
        return self.always if self.swapped else self.training

    def beside_training(self, cache: int) -> dict[str, int]:
        """Of generation, on a device that trains. cache: bytes of the KV cache."""
        if not self.stays:
            return {}
        return {**self.serving, **self.kept_cache(cache)}

    def kept_cache(self, cache: int) -> dict[str, int]:
        """Of a device that does not generate just now. cache: bytes."""
        return {"KV cache": cache} if self.keeps_cache else {}

    @property
    def on_host(self) -> dict[str, int]:
        """Host memory that is kept for them, wherever they are."""
        parts: dict[str, int] = {}
        if self.swapped:
            parts["update weights"] = self.policy.weights
            if self.has_reference:
                parts["reference"] = self.policy.weights
        if self.policy.rests:
            parts["optimizer"] = self.policy.optimizer
        if self.critic is not None and self.critic.rests:
            parts["critic's optimizer"] = self.critic.optimizer
        if self.copies:
            parts[SECOND_COPIES] = self.copies * self.alone
        return parts

    @property
    def alone(self) -> int:
        """What no other device has of what is trained."""
        return self.policy.alone + (self.critic.alone if self.critic is not None else 0)

    def phases(self, cache: int, resharding: Mapping[str, dict[str, int]]) -> tuple[Phase, ...]:
        """resharding: by role."""
        resting = sum(self.on_host.values())

        def on_update(name: str, parts: dict[str, int], host: int = resting) -> Phase:
            return Phase(name=name, role="update", parts=parts, host=host)

        sent_last = {
            role: {SENT_LAST: parts[SENT_LAST]}
            for role, parts in resharding.items()
            if SENT_LAST in parts
        }
        generating = {**self.serving, "KV cache": cache, **self.beside_generation}
        generating |= sent_last.get("rollout", {})
        host = resting if self.colocated else 0
        training = {**self.training, **sent_last.get("update", {})}
        kept = self.beside_training(cache)
        working = _working(self.policy, self.passing)
        if self.critic is not None:  # its step waits for the policy's
            working["critic gradients"] = self.critic.gradients
        phases = [
            Phase(name="generate", role="rollout", parts=generating, host=host),
            on_update("update", {**training, **working, **kept}),
        ]
        if parts := resharding.get("update"):
            phases.append(on_update("reshard", {**parts, **self.always, **self.kept_cache(cache)}))
        if parts := resharding.get("rollout"):
            phases.append(
                Phase(name="arrival", role="rollout", parts={**parts, "KV cache": cache}, host=0)
            )
        if self.critic is not None and self.valuing is not None:
            teaching = _working(self.critic, self.valuing)
            phases.append(on_update("critic", {**training, **teaching, **kept}))
        if self.swapped and self.has_reference:
            inferring = {"reference": self.policy.weights, "temporary": self.passing.temporary}
            phases.append(on_update("reference", {**training, **inferring}))
        if self.policy.rests:
            optimizer = self.policy.optimizer
            stepping = {"optimizer": optimizer, "gradients": self.policy.gradients}
            phases.append(on_update("step", {**training, **stepping, **kept}, resting - optimizer))
        return tuple(phases)


def fullest_with_cache(phases: Iterable[Phase]) -> int:
    """Bytes of the fullest phase of those in which the device holds the KV cache."""
    return max(phase.device for phase in phases if "KV cache" in phase.parts)


def _working(shard: UpdateShard, passing: Activations) -> dict[str, int]:
    """Beside weights and optimizer, in a training pass."""
    return {
        "gradients": shard.gradients,
        "activations": passing.kept,
        "temporary": passing.temporary,
    }


def frozen_models(
    spec: ResolvedSpec, shape: Shape, others: Mapping[str, Shape]
) -> dict[str, tuple[RewardModel | Teacher, Shape]]:
    """Models that only score, beside the reference, with their shapes."""
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
    """Bytes of the fullest update rank."""
    own = {"parallelism": model.parallelism, "dtype": model.dtype, "lora": None}
    update = spec.update.model_copy(update=own)
    return UpdateShard.of(spec.model_copy(update={"update": update}), shape).weights


def _keeps_weights(spec: ResolvedSpec) -> bool:
    """Whether the rollout engine cannot let go of them: vLLM on CPU."""
    return spec.rollout.engine == "vllm" and spec.accelerator.type == "emulated"


def _resharding(spec: ResolvedSpec, shape: Shape, swapped: bool) -> dict[str, dict[str, int]]:
    """Weights of both layouts, and what is on its way between them, when that is most; of a device that
    trains, and of a separate one that takes slices."""
    plan, apart = plan_of_job(spec, shape), spec.placement.mode == "separated"
    if spec.resharding.strategy == "stream":
        joined = spec.update.parallelism.shared
        peaks = {"update": streamed(plan, joined=joined, sent=apart)}
    else:
        swaps = swapped and comes_by_buckets(spec)
        peaks = {"update": fullest(plan, plan.update.devices, swaps=swaps)}
        if apart:
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
    """A device's slices, or where it gets whole tensors all of them, in the narrower type of both sides."""
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
    wanted = min(spec.rollout.max_sequences, samples)
    tokens = wanted * longest
    if spec.rollout.kv_cache_memory is not None:
        tokens = min(tokens, parse_quantity(spec.rollout.kv_cache_memory) // token)
    elif limit is not None:
        tokens = max(0, min(wanted, (limit - taken) // (token * longest))) * longest
    return KvCache(token=token, longest=longest, wanted=wanted, tokens=tokens)
