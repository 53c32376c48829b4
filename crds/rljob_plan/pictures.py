"""What pictures take: vision towers' weights, the features that they keep, and their time, by arithmetic.

Called by `memory`, `performance`, `plan_text` and the runtime, which keeps no more features than are planned.
Figures are of the largest pictures that prompts may show (`Data.most_pixels`).
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from rljob_api.model.architecture import Shape
from rljob_api.spec.engines import Dtype
from rljob_api.topology.devices import open_prompts
from rljob_api.topology.resolved import ResolvedSpec
from rljob_plan.resharding.widths import ITEM_BYTES

PATCHES = 4
"""Of a token."""
PASSES = 2
"""Operations of a weight for each value that it meets: a product and a sum."""
BACKWARD = 3
"""Times the work of a forward pass that one with its backward pass has."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedTower:
    """Of the devices of a role. shape: of the model that it belongs to. kept: tokens whose features it keeps.
    replicas: that share a step's prompts out; all ranks of one see its pictures. arrives: its weights count
    with the rollout's."""

    shape: Shape
    dtype: Dtype
    kept: int
    replicas: int
    arrives: bool = False

    @property
    def bytes(self) -> int:
        """Of a device: weights, and features that are kept."""
        features = feature_bytes(self.kept, self.shape, self.dtype)
        weights = 0 if self.arrives else self.shape.tower * ITEM_BYTES[self.dtype]
        return weights + features


def feature_bytes(tokens: int, shape: Shape, dtype: Dtype) -> int:
    """Of what a tower makes of so many tokens of pictures."""
    return tokens * shape.hidden * shape.tower_outputs * ITEM_BYTES[dtype]


def picture_tokens(spec: ResolvedSpec, shape: Shape) -> int:
    """Tokens of the pictures of one prompt, at most."""
    most = spec.batch.max_prompt_length
    return min(most, _tokens(spec.data.most_pixels(most), shape))


def kept_tokens(spec: ResolvedSpec, shape: Shape, *, replicas: int | None = None) -> int:
    """Tokens whose features a tower keeps, at most: of a step's prompts on its device, and of those that a
    partial rollout has open beside them. replicas: that share these out; default: those of the update."""
    prompts = spec.batch.global_batch_size + open_prompts(spec)
    groups = -(-prompts // (replicas or spec.update.parallelism.data))
    return groups * picture_tokens(spec, shape)


def towers(
    spec: ResolvedSpec, shape: Shape, others: Mapping[str, Shape] | None = None
) -> dict[str, PlannedTower]:
    """By role: update, rollout, critic, teacher; a device that generates and trains in one type has one for
    both, `update`'s, and so has a critic that is the policy's model. Where the policy trains its own, that
    counts with its weights: `update`'s is the reference's and such a critic's. others: shapes of the models
    beside the policy."""
    if spec.model.vision is None:
        return {}
    replicas, kept = spec.update.parallelism.data, kept_tokens(spec, shape)
    own = PlannedTower(shape=shape, dtype=spec.update.dtype, kept=kept, replicas=replicas)
    trains = spec.model.vision == "trained"
    found = {"update": own}
    if trains and not (spec.has_critic or "reference" in spec.algorithm.params.states):
        found = {}
    apart = spec.placement.mode == "separated" or spec.update.dtype != spec.rollout.dtype
    if apart or trains:
        replicas = spec.rollout.parallelism.data
        found["rollout"] = replace(own, dtype=spec.rollout.dtype, replicas=replicas, arrives=trains)
    critic = spec.critic if spec.has_critic else None
    if critic is not None and critic.path is None and critic.dtype == spec.update.dtype:
        critic = None
    for role, model in (("critic", critic), ("teacher", spec.teacher)):
        if model is not None:
            seen, replicas = (others or {}).get(role, shape), model.parallelism.data or 1
            kept = kept_tokens(spec, seen, replicas=replicas)
            found[role] = PlannedTower(shape=seen, dtype=model.dtype, kept=kept, replicas=replicas)
    return found


def prompt_operations(spec: ResolvedSpec, shape: Shape) -> float:
    """Of a tower that sees the pictures of one prompt, one of them as large as may be: its weights, and
    attention where it is over all of a picture."""
    tokens = picture_tokens(spec, shape)
    largest = spec.data.shown.max_pixels if spec.data.drawn is None else spec.data.drawn.side**2
    patches = PATCHES * tokens
    seen = min(patches, PATCHES * _tokens(largest, shape)) if largest else patches
    weights = patches * (shape.tower - shape.tower_merger) + tokens * shape.tower_merger
    attention = 2 * patches * seen * shape.tower_attended  # scores, and sums of values
    return float(PASSES * (weights + attention))


def generating_operations(spec: ResolvedSpec, shape: Shape) -> float:
    """Of a step, of a device that generates: each picture of its replica's prompts is seen once."""
    if spec.model.vision is None:
        return 0.0
    return prompt_operations(spec, shape) * _prompts(spec, spec.rollout.parallelism.data)


def training_operations(
    spec: ResolvedSpec, shape: Shape, others: Mapping[str, Shape] | None = None
) -> float:
    """Of a step, of a device that trains: likewise, by each tower that has not seen them for generation. One
    that has is taken to know none where generation shares prompts out among other replicas. One that is
    trained sees them in each epoch, with a backward pass."""
    made = towers(spec, shape, others)
    known = "rollout" not in made and spec.update.parallelism.data == spec.rollout.parallelism.data
    prompts = _prompts(spec, spec.update.parallelism.data) * spec.batch.epochs
    trains = spec.model.vision == "trained"
    own = BACKWARD * prompts * prompt_operations(spec, shape) if trains else 0.0
    return own + sum(
        prompt_operations(spec, tower.shape) * _prompts(spec, tower.replicas)
        for role, tower in made.items()
        if role != "rollout" and not (role == "update" and known)
    )


def _prompts(spec: ResolvedSpec, replicas: int) -> float:
    return spec.batch.global_batch_size / replicas


def _tokens(pixels: int, shape: Shape) -> int:
    return -(-pixels // max(1, shape.token_side**2))
