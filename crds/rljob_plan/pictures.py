"""Plan what pictures need: vision towers' weights, the features that they cache, and their time.

Called by `memory`, `performance`, `plan_text` and the runtime, which caches no more features than planned.
Figures assume the largest pictures that prompts may show (`Data.most_pixels`).
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from rljob_api.model.architecture import Shape
from rljob_api.spec.engines import Dtype
from rljob_api.topology.devices import open_prompts
from rljob_api.topology.resolved import ResolvedSpec
from rljob_plan.resharding.widths import ITEM_BYTES

PATCHES = 4
"""Patches of a token."""
PASSES = 2
"""Operations of a weight for each value that it is applied to: a product and a sum."""
BACKWARD = 3
"""Cost of a forward pass with its backward pass, in forward passes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedTower:
    """A vision tower on the devices of a role. shape: of its model. cached_tokens: tokens whose features it
    caches. replicas: those that share a step's prompts out; all ranks of one process its pictures. arrives:
    its weights count with the rollout's."""

    shape: Shape
    dtype: Dtype
    cached_tokens: int
    replicas: int
    arrives: bool = False

    @property
    def bytes(self) -> int:
        """Return the bytes of a device: weights, and cached features."""
        features = feature_bytes(self.cached_tokens, self.shape, self.dtype)
        weights = 0 if self.arrives else self.shape.tower * ITEM_BYTES[self.dtype]
        return weights + features


def feature_bytes(tokens: int, shape: Shape, dtype: Dtype) -> int:
    """Return the bytes of a tower's features for this many tokens of pictures."""
    return tokens * shape.hidden * shape.tower_outputs * ITEM_BYTES[dtype]


def picture_tokens(spec: ResolvedSpec, shape: Shape) -> int:
    """Return the largest number of tokens of the pictures of one prompt."""
    most = spec.batch.max_prompt_length
    return min(most, _tokens(spec.data.most_pixels(most), shape))


def cached_tokens(spec: ResolvedSpec, shape: Shape, *, replicas: int | None = None) -> int:
    """Return the largest number of tokens whose features a tower caches: those of a step's prompts on its
    device, and of the open prompts of a partial rollout. replicas: those that share the prompts out; default:
    those of the update."""
    prompts = spec.batch.global_batch_size + open_prompts(spec)
    groups = -(-prompts // (replicas or spec.update.parallelism.data))
    return groups * picture_tokens(spec, shape)


def towers(
    spec: ResolvedSpec, shape: Shape, others: Mapping[str, Shape] | None = None
) -> dict[str, PlannedTower]:
    """Return the vision towers by role: update, rollout, critic, teacher. others: shapes of the models
    besides the policy.

    A device that generates and trains in one type has one tower for both, `update`. A critic that is the
    policy's model shares it too. If the policy trains its tower, that counts with its weights, and `update`
    is the tower of the reference and of such a critic.
    """
    if spec.model.vision is None:
        return {}
    replicas, cached = spec.update.parallelism.data, cached_tokens(spec, shape)
    policy_tower = PlannedTower(
        shape=shape, dtype=spec.update.dtype, cached_tokens=cached, replicas=replicas
    )
    trains = spec.model.vision == "trained"
    by_role = {"update": policy_tower}
    if trains and not (spec.has_critic or "reference" in spec.algorithm.params.states):
        by_role = {}
    separate = spec.placement.mode == "separated" or spec.update.dtype != spec.rollout.dtype
    if separate or trains:
        replicas = spec.rollout.parallelism.data
        by_role["rollout"] = replace(
            policy_tower, dtype=spec.rollout.dtype, replicas=replicas, arrives=trains
        )
    critic = spec.critic if spec.has_critic else None
    if critic is not None and critic.path is None and critic.dtype == spec.update.dtype:
        critic = None
    for role, model in (("critic", critic), ("teacher", spec.teacher)):
        if model is not None:
            model_shape, replicas = (others or {}).get(role, shape), model.parallelism.data or 1
            cached = cached_tokens(spec, model_shape, replicas=replicas)
            by_role[role] = PlannedTower(
                shape=model_shape, dtype=model.dtype, cached_tokens=cached, replicas=replicas
            )
    return by_role


def prompt_operations(spec: ResolvedSpec, shape: Shape) -> float:
    """Return the operations of a tower on the pictures of one prompt, one of them as large as possible: its
    weights, and attention over full pictures."""
    tokens = picture_tokens(spec, shape)
    largest = spec.data.shown.max_pixels if spec.data.drawn is None else spec.data.drawn.side**2
    patches = PATCHES * tokens
    attended = min(patches, PATCHES * _tokens(largest, shape)) if largest else patches
    weights = patches * (shape.tower - shape.tower_merger) + tokens * shape.tower_merger
    attention = 2 * patches * attended * shape.tower_attended  # scores, and sums of values
    return float(PASSES * (weights + attention))


def generating_operations(spec: ResolvedSpec, shape: Shape) -> float:
    """Return the operations of a step on a device that generates: each picture of its replica's prompts is
    processed once."""
    if spec.model.vision is None:
        return 0.0
    return prompt_operations(spec, shape) * _prompts(spec, spec.rollout.parallelism.data)


def training_operations(
    spec: ResolvedSpec, shape: Shape, others: Mapping[str, Shape] | None = None
) -> float:
    """Return the operations of a step on a device that trains, by each tower without features from
    generation.

    Features count as lost if generation shares prompts out among other replicas. A trained tower processes
    the pictures in each epoch, with a backward pass.
    """
    planned = towers(spec, shape, others)
    has_features = (
        "rollout" not in planned and spec.update.parallelism.data == spec.rollout.parallelism.data
    )
    prompts = _prompts(spec, spec.update.parallelism.data) * spec.batch.epochs
    trains = spec.model.vision == "trained"
    trained = BACKWARD * prompts * prompt_operations(spec, shape) if trains else 0.0
    return trained + sum(
        prompt_operations(spec, tower.shape) * _prompts(spec, tower.replicas)
        for role, tower in planned.items()
        if role != "rollout" and not (role == "update" and has_features)
    )


def _prompts(spec: ResolvedSpec, replicas: int) -> float:
    return spec.batch.global_batch_size / replicas


def _tokens(pixels: int, shape: Shape) -> int:
    return -(-pixels // max(1, shape.token_side**2))
