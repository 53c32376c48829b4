"""Rules on training with fewer replicas (`elastic.update`): each replica must hold everything.

Pure functions from a spec to problems, called by `load`.
"""

from collections.abc import Iterator

from rljob_api.check.rules import Rule
from rljob_api.spec.engines import UpdateParallelism
from rljob_api.spec.problems import Problem
from rljob_api.spec.rljob import RLJobSpec
from rljob_api.topology.devices import roles, update_replicas
from rljob_api.topology.fewer_replicas import fewest_replicas

PATH = "spec.elastic.update"
CUT = ("tensor", "pipeline", "context", "expert")
REMEDY = f"or leave {PATH} out"


def elastic_update_rule(spec: RLJobSpec) -> Iterator[Problem]:
    """Require devices that only train, on the engine `torch`, each a full replica, and a minimum that
    exists."""
    fewest = fewest_replicas(spec)
    if fewest is None:
        return
    if spec.placement.mode != "separated":
        yield Problem(
            PATH,
            f"is set, but with placement {spec.placement.mode} a device that is missed generates, too; use "
            f"placement.mode: separated, {REMEDY}",
        )
    if spec.update.engine != "torch":
        yield Problem(
            PATH,
            f"is set, but the engine {spec.update.engine} trains with the replicas that it was made for; use "
            f"update.engine: torch, {REMEDY}",
        )
    for path, degrees in _layouts(spec):
        yield from _full_replicas(path, degrees)
    replicas = update_replicas(
        spec.update.parallelism, roles(spec.placement, spec.accelerator).update
    )
    if replicas and fewest > replicas:
        yield Problem(
            f"{PATH}.minReplicas",
            f"is {fewest}, more than the {replicas} replicas that train (spec.update.parallelism.data); use "
            f"1 to {replicas}",
        )


def _full_replicas(path: str, degrees: UpdateParallelism) -> Iterator[Problem]:
    """Refuse layouts in which a device holds only a shard, since others cannot train without it."""
    if degrees.zero:
        yield Problem(
            f"{path}.zero",
            f"is {degrees.zero}, which shares out over the replicas what {PATH} needs on each of them; use "
            f"0, {REMEDY}",
        )
    for name in CUT:
        if (degree := getattr(degrees, name)) > 1:
            yield Problem(
                f"{path}.{name}",
                f"is {degree}, but {PATH} leaves out single devices, each of which holds all of the model; "
                f"use 1, {REMEDY}",
            )


def _layouts(spec: RLJobSpec) -> Iterator[tuple[str, UpdateParallelism]]:
    """Yield the layouts of all models on the devices that train."""
    yield "spec.update.parallelism", spec.update.parallelism
    if spec.critic is not None:
        yield "spec.critic.parallelism", spec.critic.parallelism
    if spec.teacher is not None:
        yield "spec.teacher.parallelism", spec.teacher.parallelism
    for index, reward in enumerate(spec.rewards):
        if reward.model is not None:
            yield f"spec.rewards[{index}].model.parallelism", reward.model.parallelism


ELASTIC_RULES: tuple[Rule, ...] = (elastic_update_rule,)
