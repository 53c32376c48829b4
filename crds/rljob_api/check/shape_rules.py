"""Rules on how a model can be cut: its heads, layers and experts against the degrees.

Called by `plan` and the CLI once the model's shape is known. Layers need not divide evenly: the first stages
take one more, as DeepSeek-R1's 61 layers on 6 stages do in the paper.
"""

from collections.abc import Iterator, Mapping

from rljob_api.check.layout_rules import capacity_problems, sample_route_bytes
from rljob_api.check.lora_rules import lora_shape_problems
from rljob_api.check.rules import VLLM_CPU_HEADS, divisors, use_one_of
from rljob_api.check.vision_rules import SEEING_ROLLOUTS, SEEING_UPDATES
from rljob_api.model.architecture import Shape
from rljob_api.spec.critic import Critic
from rljob_api.spec.engines import RolloutParallelism, UpdateParallelism
from rljob_api.spec.problems import Problem
from rljob_api.spec.reward_services import RewardModel
from rljob_api.spec.rljob import RLJobSpec
from rljob_api.spec.teacher import Teacher


def shape_problems(
    spec: RLJobSpec, shape: Shape, others: Mapping[str, Shape] | None = None
) -> list[Problem]:
    """Return degrees that do not divide the model. spec: passed the rules. others: shapes of the models
    besides the policy, by name; a missing one counts with the policy's shape."""
    update, rollout = spec.update.parallelism, spec.rollout.parallelism
    return [
        *_degrees(update, "spec.update.parallelism", shape),
        *_update(update, "spec.update.parallelism", shape),
        *_degrees(rollout, "spec.rollout.parallelism", shape),
        *_expert_features(rollout, "spec.rollout.parallelism", shape),
        *_vocabulary(spec, shape),
        *lora_shape_problems(spec, shape),
        *_other_models(spec, shape, others or {}),
        *_rounded_experts(spec, shape),
        *_heads_on_cpu(spec, shape),
        *_vision(spec, shape, others or {}),
        *_replayed(spec, shape),
    ]


def _replayed(spec: RLJobSpec, shape: Shape) -> Iterator[Problem]:
    """Require a model with experts for replayed routes, and room for the routes in the dock."""
    if not spec.update.router_replay:
        return
    if shape.experts is None:
        yield Problem(
            "spec.update.routerReplay",
            f"is true, but the model ({shape.family}) has no experts; leave it out",
        )
    elif not [*capacity_problems(spec, route_bytes=0)]:
        yield from capacity_problems(spec, route_bytes=sample_route_bytes(spec, shape))


def _vision(spec: RLJobSpec, shape: Shape, others: Mapping[str, Shape]) -> Iterator[Problem]:
    """Require engines that support vision towers if the model has one, and a tower if rows show pictures."""
    if spec.model.vision is not None and not shape.tower:
        yield Problem(
            "spec.model.vision",
            f"is {spec.model.vision}, but the model ({shape.family}) has no vision tower; name a Qwen2.5-VL "
            "or Qwen3-VL in spec.model.path, or leave it out",
        )
    for path, engine, seeing in (
        ("spec.update.engine", spec.update.engine, SEEING_UPDATES),
        ("spec.rollout.engine", spec.rollout.engine, SEEING_ROLLOUTS),
    ):
        if shape.tower and engine not in seeing:
            yield Problem(
                path,
                f"is {engine}, which has no models with a vision tower ({shape.family}); use "
                f"{' or '.join(seeing)}",
            )
    for name, is_used in (("critic", spec.has_critic), ("teacher", spec.teacher is not None)):
        if spec.model.vision is not None and is_used:
            yield from _sees_alike(shape, others.get(name, shape), f"spec.{name}.path")


def _sees_alike(shape: Shape, other: Shape, path: str) -> Iterator[Problem]:
    """Require that a model that reads the policy's token ids replaces the same ones by pictures."""
    remedy = f"name a model of the policy's family ({shape.family})"
    if not other.tower:
        yield Problem(
            path, f"has no vision tower ({other.family}), and rows show pictures; {remedy}"
        )
    elif other.token_side != shape.token_side:
        yield Problem(
            path,
            f"sees tokens of {other.token_side} × {other.token_side} pixels, and the policy of "
            f"{shape.token_side} × {shape.token_side}; {remedy}",
        )


def _rounded_experts(spec: RLJobSpec, shape: Shape) -> Iterator[Problem]:
    rollout = spec.rollout
    if rollout.engine == "vllm" and rollout.quantization != "none" and shape.experts is not None:
        yield Problem(
            "spec.rollout.quantization",
            f"is {rollout.quantization}, which engine: vllm has for dense models, and this one has "
            f"{shape.experts.count} experts; use none, or rollout.engine: torch",
        )


def _heads_on_cpu(spec: RLJobSpec, shape: Shape) -> Iterator[Problem]:
    known = shape.latent is not None or shape.head_dim in VLLM_CPU_HEADS
    if spec.rollout.engine == "vllm" and spec.accelerator.type == "emulated" and not known:
        yield Problem(
            "spec.rollout.engine",
            f"is vllm, whose attention on CPU has heads of {', '.join(map(str, VLLM_CPU_HEADS))} features, "
            f"and the model's have {shape.head_dim}; use torch",
        )


def _other_models(spec: RLJobSpec, shape: Shape, others: Mapping[str, Shape]) -> Iterator[Problem]:
    """Check the layouts of the critic, the reward model and the teacher."""
    paths = {"critic": "spec.critic", "teacher": "spec.teacher"}
    models: dict[str, Critic | RewardModel | Teacher | None] = {
        "critic": spec.critic,
        "teacher": spec.teacher,
        "reward-model": spec.reward_model,
    }
    for i, reward in enumerate(spec.rewards):
        if reward.model is not None:
            paths["reward-model"] = f"spec.rewards[{i}].model"
    for name, model in models.items():
        if model is not None:
            path, model_shape = f"{paths[name]}.parallelism", others.get(name, shape)
            yield from _degrees(model.parallelism, path, model_shape)
            yield from _update(model.parallelism, path, model_shape)


def _degrees(
    degrees: UpdateParallelism | RolloutParallelism, path: str, shape: Shape
) -> Iterator[Problem]:
    tensor, expert = degrees.tensor, degrees.expert
    yield from _divides(f"{path}.tensor", tensor, shape.heads, "attention heads")
    yield from _divides(f"{path}.tensor", tensor, shape.intermediate, "intermediate features")
    if shape.latent is None and shape.kv_heads % tensor and tensor % shape.kv_heads:
        legal = [
            d for d in divisors(shape.heads) if not (d % shape.kv_heads and shape.kv_heads % d)
        ]
        yield Problem(
            f"{path}.tensor",
            f"{tensor} neither divides the model's {shape.kv_heads} key heads nor repeats each "
            f"equally often; {use_one_of(legal, tensor)}",
        )
    if shape.experts is not None:
        yield from _divides(f"{path}.expert", expert, shape.experts.count, "experts")
    elif expert > 1:
        yield Problem(f"{path}.expert", f"is {expert}, but the model has no experts; leave it out")
    if degrees.pipeline > shape.layers:
        yield Problem(
            f"{path}.pipeline",
            f"is {degrees.pipeline}, more than the model's {shape.layers} layers; lower it",
        )


def _update(degrees: UpdateParallelism, path: str, shape: Shape) -> Iterator[Problem]:
    chunks = degrees.pipeline * degrees.virtual_pipeline
    if degrees.virtual_pipeline > 1 and chunks > shape.layers:
        yield Problem(
            f"{path}.virtualPipeline",
            f"{degrees.virtual_pipeline} × pipeline {degrees.pipeline} is {chunks} chunks, more than "
            f"the model's {shape.layers} layers; lower it",
        )
    if degrees.zero == 3 and shape.latent is None and degrees.tensor > shape.kv_heads:
        yield Problem(
            f"{path}.zero",
            f"is 3, which does not go with tensor {degrees.tensor}, more than the model's "
            f"{shape.kv_heads} key heads; use 0, 1 or 2, or tensor: {shape.kv_heads} or less",
        )
    both = degrees.tensor * degrees.context
    if degrees.context_algorithm == "ulysses" and degrees.context > 1 and shape.heads % both:
        yield Problem(
            f"{path}.context",
            f"{degrees.context} × tensor {degrees.tensor} does not divide the model's {shape.heads} "
            "attention heads, which Ulysses shares out; lower it or set contextAlgorithm: ring",
        )
    elif degrees.context_algorithm == "ulysses" and shape.latent is None:
        yield from _context_key_heads(degrees, path, shape)


def _expert_features(degrees: RolloutParallelism, path: str, shape: Shape) -> Iterator[Problem]:
    """Require that tensor ranks can share the features of the shared experts, and of all experts if expert is
    1."""
    experts = shape.experts
    if experts is None:
        return
    widths = [experts.shared_intermediate] if experts.shared_intermediate else []
    narrowest = min(
        [*widths, experts.intermediate] if degrees.expert == 1 else widths, default=None
    )
    if narrowest is not None and degrees.tensor > narrowest:
        yield Problem(
            f"{path}.tensor",
            f"is {degrees.tensor}, more than the {narrowest} features of an expert that the devices "
            "share; lower it",
        )


def _context_key_heads(degrees: UpdateParallelism, path: str, shape: Shape) -> Iterator[Problem]:
    """Require that Ulysses can split the key heads of a tensor rank over context ranks, or repeat them."""
    local_heads, context = max(1, shape.kv_heads // degrees.tensor), degrees.context
    if local_heads % context and context % local_heads:
        legal = [
            d
            for d in divisors(max(1, shape.heads // degrees.tensor))
            if not (local_heads % d and d % local_heads)
        ]
        yield Problem(
            f"{path}.context",
            f"{context} neither divides the {local_heads} key heads that tensor {degrees.tensor} leaves each "
            f"device nor repeats each equally often; {use_one_of(legal, context)}, or set "
            "contextAlgorithm: ring",
        )


def _vocabulary(spec: RLJobSpec, shape: Shape) -> Iterator[Problem]:
    if spec.rollout.top_k > shape.vocab:
        yield Problem(
            "spec.rollout.topK",
            f"is {spec.rollout.top_k}, more than the model's {shape.vocab} tokens; use 0 for all",
        )


def _divides(path: str, degree: int, number: int, items: str) -> Iterator[Problem]:
    if number % degree:
        yield Problem(
            path,
            f"{degree} does not divide the model's {number} {items}; "
            f"{use_one_of(divisors(number), degree)}",
        )
