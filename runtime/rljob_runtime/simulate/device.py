"""The stand-in for a device worker: the same calls and reports, with the planner's seconds in place of work.

It claims rows of the dock's ledgers as the states of `worker` do: a replica's share, in order, as rows
arrive.
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
from rljob_runtime.simulate.dock import SimulatedClaim
from rljob_runtime.simulate.virtual_clock import Work
from rljob_runtime.simulate.world import SimulatedWorld
from rljob_runtime.worker.device_role import DeviceRole

MAX_WRITES = 16
"""Maximum number of writes of a replica's samples, and of claims of its share, if other stages overlap. What
is written in between is visible slightly later, and large jobs simulate faster."""
WRITTEN = {
    "reference": "reference_logprobs",
    "teacher": "teacher_logprobs",
    "values": "values",
    "reward-model": "model_score",
}
"""The column that each state of inference writes."""


@dataclass(slots=True)
class Course:
    """A state's work on a batch.

    first: when it had its first rows, unix seconds. waited: seconds for rows since then. worked: seconds of
    its own work. claims: acknowledged when all work is done. groups: seconds of a pass over each, in the
    share's order.
    """

    first: float | None = None
    waited: float = 0.0
    worked: float = 0.0
    tokens: int = 0
    passes: int = 0
    claims: list[SimulatedClaim] = field(default_factory=list)
    groups: list[float] = field(default_factory=list)

    def span(self, time_s: float) -> StageSpan:
        """Return the span from the first rows until time_s, unix seconds."""
        own_work = None
        if self.worked:
            own_work = DeviceWork(
                seconds=self.worked, tokens=self.tokens, passes=max(1, self.passes)
            )
        first = time_s if self.first is None else self.first
        return StageSpan(start=first, end=time_s, waited=self.waited, device_work=own_work)


class SimulatedDevice:
    """A simulated device in its role."""

    def __init__(self, world: SimulatedWorld, role: DeviceRole) -> None:
        self._world, self._role = world, role
        self._version = 0
        self._traffic: dict[str, DockTraffic] = {}
        self._critic: Course | None = None

    def address(self) -> str:
        """Return a placeholder, to which no other process connects."""
        return f"node-{self._role.node}"

    def open_world(self, *present: str) -> str:
        """Return an empty address, since simulated devices have no rendezvous."""
        return ""

    def prepare(
        self, meeting: str | None, role: DeviceRole, meet_seconds: float | None = None
    ) -> DevicePlace:
        """Take a new role, in no virtual time."""
        self._role = role
        return DevicePlace(device=role.rank, host=self.address(), address=self.address())

    def open_sync(self) -> tuple[str, bool]:
        """Return an empty address of a weight sync."""
        return "", True

    def leave_sync(self) -> None:
        """Do nothing, since no weights are sent."""

    def join_sync(self, address: str, rank: int, size: int) -> None:
        """Do nothing, since no weights are sent."""

    def generate(self, batch: BatchName, share: tuple[int, int]) -> Work:
        """Generate the replica's share: its first device claims it, and writes samples as they end.

        All devices that hold a model together end together.
        """
        world, degrees = self._world, self._world.spec.rollout.parallelism
        began, report, own_work = world.clock.unix_seconds(), dict[str, Any](), None
        rollout_rank = self._role.rank
        if self._role.update_rank is None:
            rollout_rank -= world.spec.roles.update
        if rollout_rank % degrees.replica_devices == 0:
            claimed = yield from self._claim("generate", batch, share=Share(*share))
            if claimed.count:  # otherwise there are fewer held-out prompts than replicas
                report, own_work = yield from self._generate(batch, claimed)
        size = min(degrees.model_devices, share[1] * degrees.replica_devices)
        yield world.meet(("generate", batch, rollout_rank // degrees.model_devices), size)
        span = StageSpan(start=began, end=world.clock.unix_seconds(), device_work=own_work)
        return GenerateReport(**report, span=span)

    def infer(self, state: str, batch: BatchName, groups: range | None = None) -> Work:
        """Score the replica's share as its responses arrive."""
        world, course = self._world, Course()
        replica, replicas, leads, size = self._replica(state)

        def score(claimed: SimulatedClaim) -> Work:
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
        """Read the critic's share of this device's replica; `update` trains it."""
        course = Course()
        yield from self._train("critic", batch, course)
        self._critic = course
        return course.span(self._world.clock.unix_seconds())

    def update(self, batch: BatchName) -> Work:
        """Run all mini-batches and epochs of a step. All devices that train end together."""
        world, course = self._world, Course()
        yield from self._train("update", batch, course)
        step_seconds = yield world.meet(
            ("update", batch), self._role.num_updating, self._later_step_seconds(course)
        )
        steps = world.spec.batch.global_batch_size // world.spec.batch.mini_batch_size
        steps *= world.spec.batch.epochs
        longest = np.max(np.array(step_seconds), axis=0)
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
        """Send the update layout's weights to the rollout layout.

        The fixed time of a step, which belongs to no stage, passes first.
        """
        yield self._world.costs.fixed_seconds
        began = self._world.clock.unix_seconds()
        yield self._world.costs.reshard_seconds
        self._version = version
        span = StageSpan(start=began, end=self._world.clock.unix_seconds())
        return SyncReport(checksum="", span=span, rests=self._rests)

    def send(self, version: int) -> Work:
        """Send this device's weights to devices that continue generating."""
        began = self._world.clock.unix_seconds()
        yield self._world.costs.reshard_seconds
        return SyncReport(
            checksum="", span=StageSpan(start=began, end=self._world.clock.unix_seconds())
        )

    def switch(self, version: int) -> SyncReport:
        """Generate with the weights that were sent."""
        self._version, time_s = version, self._world.clock.unix_seconds()
        return SyncReport(checksum="", span=StageSpan(start=time_s, end=time_s))

    def save(self, folder: Path) -> Work:
        """Take the time of a checkpoint without writing one."""
        yield self._world.costs.save_seconds
        return Folder(folder)

    def load(self, checkpoint: Folder, step: int) -> Work:
        """Take the time of a checkpoint without reading one."""
        yield self._world.costs.save_seconds

    def close_copies(self) -> None:
        """Do nothing, since there are no second copies."""

    def traces(self) -> list[Any]:
        """Return no profiles, since none are recorded."""
        return []

    def traffic(self) -> dict[str, DockTraffic]:
        """Return what each state moved through the dock since the last call."""
        taken, self._traffic = self._traffic, {}
        return taken

    def peaks(self) -> dict[str, int]:
        """Return the planner's peak memory."""
        return {"total": self._world.peak_bytes}

    @property
    def _rests(self) -> bool:
        spec = self._world.spec
        colocated = spec.placement.mode == "colocated"
        return colocated and spec.resharding.strategy == "allgather-swap"

    def _replica(self, state: str) -> tuple[int, int, bool, int]:
        """Return this device's replica of a state's model.

        These are the number of the replica, the number of replicas, whether this device leads its replica,
        and the replica's devices.
        """
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
        coordinates, replicas = mesh.coordinates(rank), dict(mesh.axes)["data"]
        leads = not any(number for axis, number in coordinates.items() if axis != "data")
        return coordinates["data"], replicas, leads, mesh.size // replicas

    def _claim(
        self, state: str, batch: BatchName, **request: Any
    ) -> Generator[Any, Any, SimulatedClaim]:
        """Wait for rows, and read them."""
        world, before = self._world, self._world.clock.seconds
        owner = f"device-{self._role.rank}"
        claimed: SimulatedClaim
        claimed, waits = yield world.dock.claim(state, str(batch), owner=owner, **request)
        waited = world.clock.seconds - before
        traffic = self._traffic.setdefault(state, DockTraffic())
        traffic.wait_seconds += waited
        traffic.count_waits(waits)
        moving = world.moving_seconds(claimed, claimed.lengths)
        traffic.transfer_seconds += moving
        yield moving
        return claimed

    def _generate(
        self, batch: BatchName, claimed: SimulatedClaim
    ) -> Generator[Any, Any, tuple[dict[str, Any], DeviceWork]]:
        """Generate the samples of the claim, from the first to the last."""
        world = self._world
        draws, (_, samples) = world.draws_of(batch), world.sizes(batch)
        prompts = draws.prompts_G[claimed.index_n]
        responses = draws.responses_GN[claimed.index_n, claimed.sample_n]
        end_seconds = ends(world.costs.decoding, prompts, responses, samples)
        order, version, elapsed = np.argsort(end_seconds, kind="stable"), self._version, 0.0
        num_writes = min(MAX_WRITES if world.streams else 1, len(order))
        for indices in np.array_split(order, num_writes):
            yield float(end_seconds[indices[-1]]) - elapsed
            elapsed = float(end_seconds[indices[-1]])
            columns = dict.fromkeys(world.dock.graph.state("generate").writes, responses[indices])
            world.dock.write("generate", claimed, columns, which=indices, version=version)
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
        return report, DeviceWork(seconds=elapsed, tokens=tokens, passes=int(responses.max()))

    def _read(
        self,
        state: str,
        batch: BatchName,
        course: Course,
        work: Callable[[SimulatedClaim], Work],
        *,
        share: Share,
        count: int,
        min_version: int | None = None,
    ) -> Work:
        """Work on a share of `count` groups as they arrive.

        A pass begins once its micro-batches are complete. If no other stage waits for the results meanwhile,
        all groups are claimed in one request.
        """
        world, (_, samples) = self._world, self._world.sizes(batch)
        micro, gathered, missing = world.spec.batch.micro_batch_size, list[SimulatedClaim](), 0
        groups_per_claim = -(-count // (MAX_WRITES * micro)) * micro if world.streams else count
        while count > 0:
            missing, asked_seconds = missing or min(count, groups_per_claim), world.clock.seconds
            claimed = yield from self._claim(
                state, batch, share=share, limit=missing * samples, min_version=min_version
            )
            if course.first is not None:
                course.waited += world.clock.seconds - asked_seconds
            groups = len(np.unique(claimed.index_n))
            count, missing = count - groups, missing - groups
            gathered.append(claimed)
            if missing:
                continue
            if course.first is None:
                course.first = world.clock.unix_seconds()
            for claimed_rows in gathered:
                yield from work(claimed_rows)
            gathered.clear()

    def _pass(
        self, state: str, claimed: SimulatedClaim, course: Course, *, first: int | None = None
    ) -> Generator[Any, Any, tuple[Array, Array, Array]]:
        """Run a pass over claimed groups; returns lengths of their responses, and seconds and tokens by
        group."""
        lengths, costs = claimed.lengths["response"], self._world.costs
        begins = np.flatnonzero(np.diff(claimed.index_n, prepend=-1))
        prompts_G = claimed.prompt_n[begins]
        tokens_G = prompts_G + np.add.reduceat(lengths, begins)
        attended_n = lengths * (claimed.prompt_n + lengths / 2)
        attended_G = prompts_G**2 / 2 + np.add.reduceat(attended_n, begins)
        flops_G = costs.token_flops * tokens_G + costs.seen_flops * attended_G
        share_of_pass = 1 / self._world.spec.batch.micro_batch_size
        passes = costs.states[state]
        seconds_G = np.array(
            [
                passes.seconds(flops, tokens, share_of_pass)
                for flops, tokens in zip(flops_G.tolist(), tokens_G.tolist(), strict=True)
            ]
        )
        pass_seconds = float(seconds_G[: len(seconds_G) if first is None else max(first, 0)].sum())
        course.worked += float(seconds_G.sum())
        course.tokens += int((claimed.prompt_n + lengths).sum())
        course.passes += -(-len(begins) // self._world.spec.batch.micro_batch_size)
        yield pass_seconds
        return lengths, seconds_G, tokens_G

    def _train(self, state: str, batch: BatchName, course: Course) -> Work:
        """Read the share while the first mini-batch's gradient accumulates."""
        spec = self._world.spec
        replica, replicas, leads, _ = self._replica(state)
        balanced = spec.update.balance == "length"
        mini = share_of_mini_batches((replica, replicas), spec.batch, balanced=balanced)

        def train(claimed: SimulatedClaim) -> Work:
            remaining = mini[0] - len(course.groups)
            _, seconds_G, _ = yield from self._pass(state, claimed, course, first=remaining)
            course.groups += seconds_G.tolist()
            course.claims.append(claimed)
            self._moved(state, claimed, written=0, read=tuple(claimed.lengths))

        if leads:
            window = spec.batch.mini_batch_size if balanced else 0
            share, oldest = Share(replica, replicas, window), batch.step - 1 - most_stale(spec)
            yield from self._read(
                state, batch, course, train, share=share, count=sum(mini), min_version=oldest
            )

    def _later_step_seconds(self, course: Course) -> list[float]:
        """Return the seconds of each optimizer step after the share was read: 0 for the first one."""
        spec = self._world.spec
        replica, replicas, _, _ = self._replica("update")
        mini = share_of_mini_batches(
            (replica, replicas), spec.batch, balanced=spec.update.balance == "length"
        )
        bounds = np.cumsum([0, *mini]).tolist()
        step_seconds = [sum(course.groups[a:b]) for a, b in pairwise(bounds)]
        seconds = step_seconds * spec.batch.epochs
        seconds[0] = 0.0
        return seconds

    def _moved(
        self, state: str, claimed: SimulatedClaim, *, written: int, read: Sequence[str]
    ) -> None:
        """Count what a state read and wrote."""
        traffic = self._traffic.setdefault(state, DockTraffic())
        traffic.rows += claimed.count
        traffic.bytes_written += 4 * written
        for name in read:
            traffic.rows_read[name] += claimed.count
            traffic.bytes_read[name] += 4 * int(claimed.lengths[name].sum())
