"""What stands for a device worker: the same calls and reports, with the planner's seconds in place of work.

It claims rows of the dock's ledgers as the states of `worker` do: a replica's share, in order, as they come.
"""

# n rows of a claim, G groups of it

from collections import Counter
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from rljob_api.topology.devices import most_stale, update_mesh
from rljob_api.topology.elastic import DevicePlace
from rljob_api.topology.fewer_replicas import share_of_mini_batches
from rljob_runtime.dock.growing import Array
from rljob_runtime.dock.rows import Share
from rljob_runtime.dock.stats import DockTraffic
from rljob_runtime.record.event_types import PassTimes
from rljob_runtime.record.folders import Folder
from rljob_runtime.record.reports import GenerateReport, SyncReport, UpdateReport
from rljob_runtime.record.spans import DeviceWork, StageSpan
from rljob_runtime.samples.batches import BatchName
from rljob_runtime.simulate.decoding import ends
from rljob_runtime.simulate.dock import Claimed
from rljob_runtime.simulate.virtual_clock import Work
from rljob_runtime.simulate.world import World
from rljob_runtime.worker.device_role import DeviceRole

PARTS = 16
"""In which a replica writes its samples at most, and takes its share, where others wait meanwhile: what is
written in between is seen a little later, and large jobs take less time."""
WRITTEN = {
    "reference": "reference_logprobs",
    "teacher": "teacher_logprobs",
    "values": "values",
    "reward-model": "model_score",
}
"""Column of each state of inference."""


@dataclass(slots=True)
class Course:
    """A state's work on a batch. first: when it had its first rows, unix seconds. waited: for rows since
    then. worked: seconds of its own. claims: that are acknowledged once all is done. groups: seconds of a
    pass over each, in the share's order."""

    first: float | None = None
    waited: float = 0.0
    worked: float = 0.0
    tokens: int = 0
    passes: int = 0
    claims: list[Claimed] = field(default_factory=list)
    groups: list[float] = field(default_factory=list)

    def span(self, now: float) -> StageSpan:
        """Until now."""
        own = None
        if self.worked:
            own = DeviceWork(seconds=self.worked, tokens=self.tokens, passes=max(1, self.passes))
        first = now if self.first is None else self.first
        return StageSpan(start=first, end=now, waited=self.waited, device_work=own)


class SimulatedDevice:
    """A device in its role."""

    def __init__(self, world: World, role: DeviceRole) -> None:
        self._world, self._role = world, role
        self._version = 0
        self._traffic: dict[str, DockTraffic] = {}
        self._critic: Course | None = None

    def address(self) -> str:
        """Nobody connects."""
        return f"node-{self._role.node}"

    def open_world(self, *present: str) -> str:
        """As the device worker's."""
        return ""

    def prepare(
        self, meeting: str | None, role: DeviceRole, meet_seconds: float | None = None
    ) -> DevicePlace:
        """Takes no time."""
        self._role = role
        return DevicePlace(device=role.rank, host=self.address(), address=self.address())

    def open_sync(self) -> tuple[str, bool]:
        """As the device worker's."""
        return "", True

    def leave_sync(self) -> None:
        """As the device worker's."""

    def join_sync(self, address: str, rank: int, size: int) -> None:
        """As the device worker's."""

    def generate(self, batch: BatchName, share: tuple[int, int]) -> Work:
        """The replica's share: its first device claims it, and writes samples as they end. All devices that
        hold a model together end together."""
        world, degrees = self._world, self._world.spec.rollout.parallelism
        began, report, own = world.clock.unix_seconds(), dict[str, Any](), None
        place = self._role.rank
        if self._role.update_rank is None:
            place -= world.spec.roles.update
        if place % degrees.replica_devices == 0:
            claimed = yield from self._claim("generate", batch, share=Share(*share))
            if claimed.count:  # else there are fewer held-out prompts than replicas
                report, own = yield from self._generate(batch, claimed)
        size = min(degrees.model_devices, share[1] * degrees.replica_devices)
        yield world.meet(("generate", batch, place // degrees.model_devices), size)
        span = StageSpan(start=began, end=world.clock.unix_seconds(), device_work=own)
        return GenerateReport(**report, span=span)

    def infer(self, state: str, batch: BatchName, groups: range | None = None) -> Work:
        """The replica's share, as its responses come."""
        world, course = self._world, Course()
        replica, replicas, leads, size = self._replica(state)

        def score(claimed: Claimed) -> Work:
            lengths, _, _ = yield from self._pass(state, claimed, course)
            scored = np.ones_like(lengths) if state == "reward-model" else lengths
            world.dock.write(state, claimed, {WRITTEN[state]: scored})
            self._moved(state, claimed, written=int(scored.sum()), read=("prompt", "response"))

        if leads:
            share = Share(replica, replicas)
            count = len(range(replica, world.sizes(batch)[0], replicas))
            yield from self._read(state, batch, course, score, share=share, count=count)
        yield world.meet((state, batch, replica), size)
        return course.span(world.clock.unix_seconds())

    def critic(self, batch: BatchName) -> Work:
        """Read the critic's share of this device's replica; `update` moves it."""
        course = Course()
        yield from self._train("critic", batch, course)
        self._critic = course
        return course.span(self._world.clock.unix_seconds())

    def update(self, batch: BatchName) -> Work:
        """All mini-batches and epochs of a step. All devices that train end together."""
        world, course = self._world, Course()
        yield from self._train("update", batch, course)
        rest = yield world.meet(("update", batch), self._role.num_updating, self._rest(course))
        steps = world.spec.batch.global_batch_size // world.spec.batch.mini_batch_size
        steps *= world.spec.batch.epochs
        longest = np.max(np.array(rest), axis=0)
        yield float(longest.sum()) + steps * world.costs.optimizer_seconds
        of_critic = self._critic.claims if self._critic is not None else []
        self._critic = None
        for state, claims in (("critic", of_critic), ("update", course.claims)):
            for claimed in claims:
                world.dock.write(state, claimed, {})
        ages = Counter[int]()
        for claimed in course.claims:
            ages.update((batch.step - 1 - claimed.version_n).tolist())
        return UpdateReport(
            metrics={},
            rows_by_age=ages,
            tokens=course.tokens,
            passes=PassTimes(),
            span=course.span(world.clock.unix_seconds()),
        )

    def sync(self, version: int) -> Work:
        """Weights of the update layout to the rollout layout. What a step takes beside its stages passes
        before."""
        yield self._world.costs.fixed_seconds
        began = self._world.clock.unix_seconds()
        yield self._world.costs.reshard_seconds
        self._version = version
        span = StageSpan(start=began, end=self._world.clock.unix_seconds())
        return SyncReport(checksum="", span=span, rests=self._rests)

    def send(self, version: int) -> Work:
        """Give devices that go on generating this device's weights."""
        began = self._world.clock.unix_seconds()
        yield self._world.costs.reshard_seconds
        return SyncReport(
            checksum="", span=StageSpan(start=began, end=self._world.clock.unix_seconds())
        )

    def switch(self, version: int) -> SyncReport:
        """Generate with the weights that were sent."""
        self._version, now = version, self._world.clock.unix_seconds()
        return SyncReport(checksum="", span=StageSpan(start=now, end=now))

    def save(self, folder: Path) -> Work:
        """Takes the time of a checkpoint, and writes none."""
        yield self._world.costs.save_seconds
        return Folder(folder)

    def load(self, checkpoint: Folder, step: int) -> Work:
        """Likewise."""
        yield self._world.costs.save_seconds

    def close_copies(self) -> None:
        """There are none."""

    def traces(self) -> list[Any]:
        """There are none."""
        return []

    def traffic(self) -> dict[str, DockTraffic]:
        """What each state moved through the dock since the last call."""
        taken, self._traffic = self._traffic, {}
        return taken

    def peaks(self) -> dict[str, int]:
        """As the planner counts them."""
        return {"total": self._world.peak_bytes}

    @property
    def _rests(self) -> bool:
        spec = self._world.spec
        together = spec.placement.mode == "colocated"
        return together and spec.resharding.strategy == "allgather-swap"

    def _replica(self, state: str) -> tuple[int, int, bool, int]:
        """Of the model of a state that is on this device: number of the replica, their number, whether this
        device speaks for its own, and its devices."""
        spec, rank = self._world.spec, self._role.update_rank
        assert rank is not None, f"device {self._role.rank} does not train"
        models = {
            "values": spec.critic,
            "critic": spec.critic,
            "reward-model": spec.reward_model,
            "teacher": spec.teacher,
        }
        model = models.get(state) or spec.update
        mesh = update_mesh(model.parallelism)  # type: ignore[arg-type]  # degrees are resolved
        place, replicas = mesh.coordinates(rank), dict(mesh.axes)["data"]
        leads = not any(number for axis, number in place.items() if axis != "data")
        return place["data"], replicas, leads, mesh.size // replicas

    def _claim(self, state: str, batch: BatchName, **asked: Any) -> Generator[Any, Any, Claimed]:
        """Wait for rows, and read them."""
        world, before = self._world, self._world.clock.seconds
        owner = f"device-{self._role.rank}"
        claimed: Claimed
        claimed, waits = yield world.dock.claim(state, str(batch), owner=owner, **asked)
        waited = world.clock.seconds - before
        traffic = self._traffic.setdefault(state, DockTraffic())
        traffic.wait_seconds += waited
        traffic.count_waits(waits)
        moving = world.moving_seconds(claimed, claimed.lengths)
        traffic.transfer_seconds += moving
        yield moving
        return claimed

    def _generate(
        self, batch: BatchName, claimed: Claimed
    ) -> Generator[Any, Any, tuple[dict[str, Any], DeviceWork]]:
        """Samples of the claim, from the first to the last."""
        world = self._world
        drawn, (_, samples) = world.drawn(batch), world.sizes(batch)
        prompts = drawn.prompts_G[claimed.index_n]
        responses = drawn.responses_GN[claimed.index_n, claimed.sample_n]
        took = ends(world.costs.decoding, prompts, responses, samples)
        order, version, passed = np.argsort(took, kind="stable"), self._version, 0.0
        parts = min(PARTS if world.streams else 1, len(order))
        for part in np.array_split(order, parts):
            yield float(took[part[-1]]) - passed
            passed = float(took[part[-1]])
            columns = dict.fromkeys(world.dock.graph.state("generate").writes, responses[part])
            world.dock.write("generate", claimed, columns, which=part, version=version)
        tokens = int(responses.sum())
        self._moved("generate", claimed, written=2 * tokens, read=("prompt",))
        longest = world.spec.batch.max_response_length
        report = {
            "samples": claimed.count,
            "prompt_tokens": int(prompts.sum()),
            "response_tokens": tokens,
            "sample_tokens": tokens,
            "lengths": Counter(responses.tolist()),
            "clipped": int((responses == longest).sum()),
        }
        return report, DeviceWork(seconds=passed, tokens=tokens, passes=int(responses.max()))

    def _read(
        self,
        state: str,
        batch: BatchName,
        course: Course,
        work: Callable[[Claimed], Work],
        *,
        share: Share,
        count: int,
        min_version: int | None = None,
    ) -> Work:
        """Work on a share of so many groups, as they come. A pass begins once its micro-batches are whole;
        without anybody who waits for the results meanwhile, all are claimed at once."""
        world, (_, samples) = self._world, self._world.sizes(batch)
        micro, gathered, missing = world.spec.batch.micro_batch_size, list[Claimed](), 0
        at_once = -(-count // (PARTS * micro)) * micro if world.streams else count
        while count > 0:
            missing, asked = missing or min(count, at_once), world.clock.seconds
            claimed = yield from self._claim(
                state, batch, share=share, limit=missing * samples, min_version=min_version
            )
            if course.first is not None:
                course.waited += world.clock.seconds - asked
            groups = len(np.unique(claimed.index_n))
            count, missing = count - groups, missing - groups
            gathered.append(claimed)
            if missing:
                continue
            if course.first is None:
                course.first = world.clock.unix_seconds()
            for each in gathered:
                yield from work(each)
            gathered.clear()

    def _pass(
        self, state: str, claimed: Claimed, course: Course, *, first: int | None = None
    ) -> Generator[Any, Any, tuple[Array, Array, Array]]:
        """Pass over claimed groups. Returns lengths of their responses, and seconds by group."""
        lengths, costs = claimed.lengths["response"], self._world.costs
        begins = np.flatnonzero(np.diff(claimed.index_n, prepend=-1))
        prompts_G = claimed.prompt_n[begins]
        tokens_G = prompts_G + np.add.reduceat(lengths, begins)
        seen_n = lengths * (claimed.prompt_n + lengths / 2)
        seen_G = prompts_G**2 / 2 + np.add.reduceat(seen_n, begins)
        flops_G = costs.token_flops * tokens_G + costs.seen_flops * seen_G
        each = 1 / self._world.spec.batch.micro_batch_size
        passes = costs.states[state]
        seconds_G = np.array(
            [
                passes.seconds(flops, tokens, each)
                for flops, tokens in zip(flops_G.tolist(), tokens_G.tolist(), strict=True)
            ]
        )
        now = float(seconds_G[: len(seconds_G) if first is None else max(first, 0)].sum())
        course.worked += float(seconds_G.sum())
        course.tokens += int((claimed.prompt_n + lengths).sum())
        course.passes += -(-len(begins) // self._world.spec.batch.micro_batch_size)
        yield now
        return lengths, seconds_G, tokens_G

    def _train(self, state: str, batch: BatchName, course: Course) -> Work:
        """Read the share; the first mini-batch's gradient grows meanwhile."""
        spec = self._world.spec
        replica, replicas, leads, _ = self._replica(state)
        balanced = spec.update.balance == "length"
        mini = share_of_mini_batches((replica, replicas), spec.batch, balanced=balanced)

        def train(claimed: Claimed) -> Work:
            left = mini[0] - len(course.groups)
            _, seconds_G, _ = yield from self._pass(state, claimed, course, first=left)
            course.groups += seconds_G.tolist()
            course.claims.append(claimed)
            self._moved(state, claimed, written=0, read=tuple(claimed.lengths))

        if leads:
            window = spec.batch.mini_batch_size if balanced else 0
            share, oldest = Share(replica, replicas, window), batch.step - 1 - most_stale(spec)
            yield from self._read(
                state, batch, course, train, share=share, count=sum(mini), min_version=oldest
            )

    def _rest(self, course: Course) -> list[float]:
        """Seconds of each optimizer step that are left once the share was read: all but the first one's."""
        spec = self._world.spec
        replica, replicas, _, _ = self._replica("update")
        mini = share_of_mini_batches(
            (replica, replicas), spec.batch, balanced=spec.update.balance == "length"
        )
        bounds = np.cumsum([0, *mini]).tolist()
        each = [sum(course.groups[a:b]) for a, b in pairwise(bounds)]
        found = each * spec.batch.epochs
        found[0] = 0.0
        return found

    def _moved(self, state: str, claimed: Claimed, *, written: int, read: Sequence[str]) -> None:
        """Count what a state read and wrote."""
        traffic = self._traffic.setdefault(state, DockTraffic())
        traffic.rows += claimed.count
        traffic.bytes_written += 4 * written
        for name in read:
            traffic.rows_read[name] += claimed.count
            traffic.bytes_read[name] += 4 * int(claimed.lengths[name].sum())
