"""The operator dies at each await of a pass in turn, and a new one carries the job on to its end.

Whatever the moment: every attempt gets its one driver, no two live at a time, none is forgotten. The
awaits are counted in the source, so that none is left out.
"""

import ast
import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from memory_api import Manifest
from memory_world import KEY, PACKAGE, MemoryKube, World, make_operator
from pauses import Killed, Place

from rljob_operator.decide.draft import rfc3339
from rljob_operator.errors import OperatorError

pytestmark = pytest.mark.xdist_group("killed-at-every-await")

PASSES = 80  # more than any life takes

FILES = (
    "reconcile/reconcile", "reconcile/apply", "reconcile/observe", "driver/progress", "kube/kube_client",
    "driver/ray_jobs",
)  # fmt: skip
NOT_OF_A_PASS = {
    "Kube.close": "when the process ends",
    "Kube.list": "of resync",
    "Kube.replace": "of leases",
    "RayJobs.status": "for programs that ask for no more",
    "RayJobs.delete": "for programs that tidy up",
}
CONFIG = f"/api/v1/namespaces/team/configmaps/{KEY.name}-rljob"
OWNED = {"metadata": {"ownerReferences": []}}
NEVER_SUSPENDED = {"Kube._timed: async with asyncio.timeout(self._timeout_seconds)"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Life:
    """How the world treats a job. happens: called before each pass. drivers: how each one ends."""

    happens: Callable[[World], None]
    drivers: list[str]
    spec: Manifest = field(default_factory=dict)
    lose_answers: int = 0


def ends_well(world: World) -> None:
    world.ray.report = {"progress": {"step": 3, "totalSteps": 4}}
    for driver in world.ray.drivers:
        if driver.asked > 2 and driver.lives:
            driver.status = "SUCCEEDED"


def fails_once(world: World) -> None:
    first = world.ray.drivers[:1]
    if first and first[0].asked > 2 and first[0].lives:
        first[0].status = "FAILED"
    if len(world.ray.drivers) > 1:
        ends_well(world)


def is_suspended_once(world: World) -> None:
    """Meanwhile somebody else's ConfigMap takes the place of its own, and goes once the job has said so."""
    drivers, objects = world.ray.drivers, world.api.objects
    refused = any(event["reason"] == "Refused" for event in world.api.stored("Event"))
    if refused and "ownerReferences" not in objects.get(CONFIG, OWNED)["metadata"]:
        objects.pop(CONFIG)
    if len(drivers) > 1:
        ends_well(world)
    elif drivers and drivers[0].lives and drivers[0].asked > 2:
        world.set(suspend=True)
    elif world.phase == "Suspended":
        world.set(suspend=False)
        objects.pop(CONFIG)
        foreign = {"name": CONFIG.rpartition("/")[2], "namespace": "team"}
        world.api.write(CONFIG, {"apiVersion": "v1", "kind": "ConfigMap", "metadata": foreign})


def loses_its_head(world: World) -> None:
    first = world.ray.drivers[:1]
    if first and first[0].asked > 2 and first[0].lives:
        world.ray.end_head(first[0].cluster)
        world.api.objects.pop(f"/apis/ray.io/v1/namespaces/team/rayclusters/{first[0].cluster}")
    if len(world.ray.drivers) > 1:
        ends_well(world)


def hangs_once(world: World) -> None:
    if len(world.ray.drivers) > 1:
        ends_well(world)


def is_scaled_once(world: World) -> None:
    first = world.ray.drivers[:1]
    ready = 2 if world.ray.scaled[1:] else 1
    rollout = {"wanted": ready, "ready": ready, "hosts": []}
    world.ray.report = {"progress": {"step": 3, "totalSteps": 4}, "rollout": rollout}
    if ready == 2 and first[0].asked > 6 and first[0].lives:
        first[0].status = "SUCCEEDED"
    elif first and first[0].asked > 2 and first[0].lives:
        world.set(placement=SEPARATED | {"rolloutDevices": 2})


def has_a_chip_that_warns(world: World) -> None:
    """The third time that it is told to, the driver saves."""
    world.chips(unhealthy="Ascend910-3")
    if world.ray.asked_to_save > 2:
        ends_well(world)
        saved = {"step": 3, "path": "/c", "time": rfc3339(world.now)}
        world.ray.report = world.ray.report | {"checkpoint": saved}
    else:
        world.ray.report = {"progress": {"step": 3, "totalSteps": 4}}


def is_evicted_once(world: World) -> None:
    """By Kueue, which admits it once its priority class is there and it was suspended in between, and
    then again."""
    if any(event["reason"] == "NoPriorityClass" for event in world.api.stored("Event")):
        world.make_of_cluster("WorkloadPriorityClass", "workloadpriorityclasses", "high", value=7)
    world.make_of_cluster(
        "ResourceFlavor", "resourceflavors", "npu", spec={"nodeLabels": {"npu": "910b"}}
    )
    drivers, workload = world.ray.drivers, world.workload()
    if len(drivers) > 1:
        ends_well(world)
    if world.phase == "Suspended":
        world.set(suspend=False)
    if workload is None:
        return
    if "Suspended" not in world.phases:
        world.set(suspend=True)
        return
    if drivers and drivers[0].lives and drivers[0].asked > 2:
        world.kueue_says(Evicted="True")
    elif "admission" not in workload.get("status", {}):
        world.kueue_says(QuotaReserved="True", Admitted="True", Evicted="False")


SEPARATED = {"mode": "separated", "updateDevices": 1, "rolloutDevices": 1}
LIVES = {
    "ends well and is deleted": Life(
        happens=ends_well, drivers=["SUCCEEDED"], spec={"ttlSecondsAfterFinished": 5}
    ),
    "keeps no cluster": Life(
        happens=ends_well, drivers=["SUCCEEDED"], spec={"cleanupPolicy": "DeleteCluster"}
    ),
    "fails once": Life(happens=fails_once, drivers=["FAILED", "SUCCEEDED"], lose_answers=1),
    "is suspended once": Life(happens=is_suspended_once, drivers=["STOPPED", "SUCCEEDED"]),
    "is scaled once": Life(
        happens=is_scaled_once, drivers=["SUCCEEDED"], spec={"placement": SEPARATED}
    ),
    "loses its head": Life(happens=loses_its_head, drivers=["FAILED", "SUCCEEDED"]),
    "hangs once": Life(
        happens=hangs_once, drivers=["FAILED", "SUCCEEDED"], spec={"progressDeadlineSeconds": 30}
    ),
    "has a chip that warns": Life(happens=has_a_chip_that_warns, drivers=["SUCCEEDED"]),
    "is evicted once": Life(
        happens=is_evicted_once,
        drivers=["STOPPED", "SUCCEEDED"],
        spec={"scheduling": {"scheduler": "kueue", "queue": "q", "priorityClass": "high"}},
    ),
}


@dataclass(frozen=True, slots=True)
class Moment:
    """A world before a pass, and what the operator knew then. common: no life differs yet."""

    world: World
    tokens: dict[str, str]
    common: bool


@dataclass(frozen=True, slots=True)
class Lived:
    """A life to its end. at: the pause to die at. deaths: how often the operator died."""

    world: World
    at: int | None
    deaths: int
    moments: list[Moment]

    def __str__(self) -> str:
        drivers = [f"{driver.submission} {driver.status}" for driver in self.world.ray.drivers]
        return f"died at pause {self.at}: {drivers}, {self.world.phases}"


async def live(life: Life, kube: MemoryKube, begin: Moment, at: int | None) -> Lived:
    """Pass after pass; an operator that dies in one is followed by another."""
    world, moments, deaths = begin.world.copy(at), [], 0
    kube.door.api = world.api
    operator = make_operator(world, kube, begin.tokens)
    for _ in range(PASSES):
        common = not any(driver.asked > 2 for driver in world.ray.drivers)
        moments.append(Moment(world.copy(None), dict(operator._tokens), common))
        world.goes_on()
        life.happens(world)
        if world.job is None or world.phases[-4:] == ["Succeeded"] * 4:
            break
        operator.cache, operator.faults = world.cache(), world.faults
        try:
            await operator(KEY)
        except Killed:
            deaths += 1
            world.pauses.born_again()
            operator = make_operator(world, kube, {})
        except OperatorError:
            pass  # the queue tries again
    return Lived(world, at, deaths, moments)


async def all_deaths(life: Life, kube: MemoryKube, *, skip_common: bool) -> list[Lived]:
    """A life in peace, then one for each death in it."""
    spec = {"steps": 4, "accelerator": {"nodes": 1, "devicesPerNode": 1}} | life.spec
    birth = Moment(World(spec, lose_answers=life.lose_answers), {}, common=True)
    peace = await live(life, kube, birth, None)
    lives = [peace]
    for pause in deadly(peace):
        moment = [m for m in peace.moments if m.world.pauses.count <= pause][-1]
        if not (skip_common and moment.common):
            lives.append(await live(life, kube, moment, pause))
    return lives


def deadly(peace: Lived) -> list[int]:
    """Pauses worth dying at: before and after each write, and once at each way to wait for a read.

    Dying at a read leaves the same world as dying at the pause after it.
    """
    found, ways = [], set()
    for number, (way, writes) in enumerate(peace.world.pauses.seen):
        if writes or way not in ways:
            found.append(number)
        ways.add(way)
    return found


@pytest.fixture(scope="module")
def lived() -> dict[str, list[Lived]]:
    """Every life with all its deaths; lives begin alike, so only in the first one dies there too."""

    async def all_lives() -> dict[str, list[Lived]]:
        kube, first = MemoryKube(), next(iter(LIVES))
        return {
            name: await all_deaths(life, kube, skip_common=name != first)
            for name, life in LIVES.items()
        }

    return asyncio.run(all_lives())


@pytest.mark.parametrize("name", LIVES)
def test_a_job_survives_the_operators_death_at_any_await(lived, name):
    peace, *others = lived[name]

    assert peace.deaths == 0
    assert {one.deaths for one in others} == {1}
    for one in (peace, *others):
        drivers = one.world.ray.drivers
        assert [driver.status for driver in drivers] == LIVES[name].drivers, one
        assert len({driver.submission for driver in drivers}) == len(drivers), one
        assert one.world.most_live == 1, one
        assert "Succeeded" in one.world.phases, one
        hung = {drivers[0].cluster} if name == "hangs once" else set()
        assert {*one.world.ray.asked_for_stacks} == hung, one
        assert (one.world.job is None) == ("ttlSecondsAfterFinished" in LIVES[name].spec), one


def test_every_await_that_a_pass_can_reach_was_died_at(lived):
    worlds = [one.world for deaths in lived.values() for one in deaths]
    places = {place for world in worlds for way, _ in world.pauses.seen for place in way}
    awaits = {found for file in FILES for found in awaits_of(PACKAGE / f"{file}.py")}

    missed = {a.name for a in awaits if not any(a.holds(place) for place in places)}

    assert len(awaits) > 30
    assert missed == NEVER_SUSPENDED


@dataclass(frozen=True, slots=True)
class Await:
    """One await, async with or async for. inner: the awaits inside it, which are others."""

    file: str
    name: str
    span: tuple[int, int, int, int]
    inner: tuple[tuple[int, int, int, int], ...]

    def holds(self, place: Place) -> bool:
        file, *rest = place
        span = (rest[0], rest[2], rest[1], rest[3])
        return (
            file == self.file
            and _within(span, self.span)
            and not any(_within(span, inner) for inner in self.inner)
        )


def awaits_of(file: Path) -> list[Await]:
    """The awaits of a file's functions, those of NOT_OF_A_PASS left out."""
    found: list[Await] = []

    def visit(node: ast.AST, function: str) -> None:
        for child in ast.iter_child_nodes(node):
            name = getattr(child, "name", None) if isinstance(child, SCOPES) else None
            inside = ".".join(filter(None, (function, name)))
            if inside in NOT_OF_A_PASS:
                continue
            if isinstance(child, WAITS):
                inner = [span_of(n) for n in ast.walk(child) if isinstance(n, WAITS) and n != child]
                text = ast.unparse(child).partition(":\n")[0]
                found.append(Await(file.name, f"{inside}: {text}", span_of(child), tuple(inner)))
            visit(child, inside)

    visit(ast.parse(file.read_text()), "")
    return found


SCOPES = (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
WAITS = (ast.Await, ast.AsyncWith, ast.AsyncFor)


def span_of(node: Any) -> tuple[int, int, int, int]:
    return node.lineno, node.col_offset, node.end_lineno, node.end_col_offset


def _within(one: tuple[int, int, int, int], other: tuple[int, int, int, int]) -> bool:
    return other[:2] <= one[:2] and one[2:] <= other[2:]
