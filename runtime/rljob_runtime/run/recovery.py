"""Devices that die are replaced while the others live, and training goes on with the step that was cut.

Called by `loop` when a call has failed, and between two steps for devices that are slow, which are ended and
then are as those that died. A process that died is started again in its place. Devices that
generate alone come with the weights of the next sync. A device that trains takes weights and optimizer from
one that holds the same, or that keeps a second copy, over groups that all its world makes anew; where none
does, all of them take the last checkpoint, or begin again.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from rljob_api.spec.engines import UpdateParallelism
from rljob_api.topology.devices import keeps_engine
from rljob_api.topology.second_copies import copied_parts, second_holders
from rljob_runtime.errors import CUT_OFF, DeadlineError, WorkerError, describe
from rljob_runtime.processes.actors.feeder import PromptFeeder
from rljob_runtime.processes.actors.reward_worker import RewardWorker
from rljob_runtime.processes.calls import answers, ended_of
from rljob_runtime.processes.clock import monotonic, sleep, unix_seconds
from rljob_runtime.processes.dead_devices import the_dead
from rljob_runtime.processes.device_roles import among, prepare
from rljob_runtime.processes.placement import Member
from rljob_runtime.processes.workers import Call
from rljob_runtime.record.event_types import RecoveryEvent, ResizeEvent
from rljob_runtime.run.driver import Driver
from rljob_runtime.run.left_out import Back, tell_waits
from rljob_runtime.run.shard_holders import Alike, alike, sources
from rljob_runtime.run.stages import BatchCalls
from rljob_runtime.run.stragglers import LeaveSlow
from rljob_runtime.run.succession import Taken

DRIVER = "driver"
Source = Literal["peers", "copies", "checkpoint", "beginning", "none"]
MOST_WITHOUT_STEP = 3
"""Recoveries in which no step was finished: the next death ends the run."""
NOTICE_SECONDS = 60.0
"""How long the death of somebody who was cut off is waited for: Ray takes half a minute to miss a node."""
MEET_SECONDS = 60.0
"""How long a device waits for the others of its new groups: nobody tells it of one that dies on its way
there, and until it gives up it hears of no next recovery."""
REBUILT_ENGINES = ("torch",)
"""Rollout engines that a process can make a second time. Others are kept; one that colocated devices share
ends with any of them, and all begin anew."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Dead:
    """Who has died. others: `feeder`, `reward-0`, `driver`. seen: what told of it. since: unix seconds. slow:
    they live, and are ended once what they hold is held elsewhere. back: nobody has; devices that were left
    out are there again."""

    members: Sequence[Member]
    others: Sequence[str]
    seen: str
    since: float
    slow: bool = False
    back: bool = False


@dataclass(slots=True)
class Recovery:
    """tried: since a step was finished, of which so many were `told`. parts: seconds of the present one.
    taken: from a driver that died, whose death was not told yet."""

    driver: Driver
    tried: int = 0
    told: int = -1
    parts: dict[str, float] = field(default_factory=dict)
    taken: Taken | None = None

    @contextmanager
    def timed(self, part: str) -> Iterator[None]:
        """A part of what a recovery takes."""
        began = monotonic()
        yield
        self.parts[part] = self.parts.get(part, 0.0) + monotonic() - began

    def dead(self, error: WorkerError) -> Dead:
        """Whose death the error tells of. Raises it where nobody died, or too many did without a step
        between."""
        driver, since = self.driver, unix_seconds()
        if isinstance(error, DeadlineError):
            raise error
        self.parts = {}
        with self.timed("look"):
            members, others = self._dead(error)
        if driver.told != self.told:
            self.tried, self.told = 0, driver.told
        self.tried += 1
        if not (members or others) or self.tried > MOST_WITHOUT_STEP:
            raise error
        if self.taken is not None:
            others, since = [DRIVER, *others], self.taken.since
        return Dead(
            members=self._with_bound(members), others=others, seen=describe(error), since=since
        )

    def driver_died(self, taken: Taken) -> Dead:
        """The driver before this one has, and whoever died when nobody looked."""
        self.parts, self.taken = {"start": unix_seconds() - taken.since}, taken
        with self.timed("look"):
            members, others = the_dead(self.driver.actors)
        return Dead(members=members, others=[DRIVER, *others], seen=taken.seen, since=taken.since)

    def slow(self, found: LeaveSlow) -> Dead:
        """Devices that are to be left, with all others of a node that another one is there for."""
        actors, since = self.driver.actors, unix_seconds()
        self.parts = {}
        with self.timed("look"):
            nodes = {member.role.node for member in found.members}
            moved = {node for node in nodes if actors.pool.workers.move(node)}
        left = [m for m in actors.members if m in found.members or m.role.node in moved]
        return Dead(members=left, others=[], seen=str(found), since=since, slow=True)

    def back(self, found: Back) -> Dead:
        """Nobody: all meet anew, with devices that were left out."""
        self.parts = {}
        return Dead(members=[], others=[], seen=str(found), since=unix_seconds(), back=True)

    def _dead(self, error: WorkerError) -> tuple[list[Member], list[str]]:
        """Those whose death shows, or shows soon where somebody was cut off: a node's takes a while."""
        actors, deadline = self.driver.actors, monotonic() + NOTICE_SECONDS
        while True:
            found = the_dead(actors)
            waits = CUT_OFF.search(describe(error)) and monotonic() < deadline
            if any(found) or not waits or self.driver.stop():
                return found
            self.driver.moves += 1
            sleep(0.2)

    def replace_others(self, dead: Dead) -> None:
        """Processes without a device, which hold nothing that a batch that starts over needs."""
        actors = self.driver.actors
        # Before anybody is begun beside them: who is in a reservation ends with it.
        actors.pool.renew({member.role.node for member in dead.members})
        self._begin_others(dead, {*dead.others, *self._without_reservation()})

    def _begin_others(self, dead: Dead, names: Collection[str]) -> None:
        """Begin the feeder and the reward worker anew, as far as they are named."""
        actors = self.driver.actors
        left = {member.role.node for member in [*dead.members, *actors.left_out]}
        if "feeder" in names:
            actors.pool.workers.end(actors.feeder)
            actors.feeder = actors.begin(PromptFeeder, left)
        if any(name.startswith("reward") for name in names):
            actors.pool.workers.end(actors.rewards[0])
            actors.rewards = [actors.begin(RewardWorker, left)]

    def _without_reservation(self) -> list[str]:
        """Who was begun beside a device on a node whose loss showed only afterwards: with the node's
        reservation given up it would wait for ever."""
        actors = self.driver.actors
        has_reservation = actors.pool.workers.has_reservation
        return [name for name, worker in actors.others.items() if not has_reservation(worker)]

    def replace(self, dead: Dead, cut: BatchCalls | None) -> int:
        """Have other devices in their places; returns the step that all are after. A sync follows. cut: the
        batch of the next step, which was dropped."""
        driver, before = self.driver, self.driver.step
        if self.taken is not None:
            stuck = self._stuck(dead.members)
            dead = replace(dead, members=self._with_bound([*dead.members, *stuck]))
            driver.store.recover()  # nobody writes a checkpoint any more
        hosts = sorted({member.place.host for member in dead.members})
        driver.lives += 1
        if dead.slow:
            self._end(dead.members)
        generated, began = len(driver.actors.rollout_members()), monotonic()
        with self.timed("start"):
            away = driver.lost_rollouts.replace(dead.members, meet_seconds=MEET_SECONDS)
        step, source = self._replace_training(dead, cut, since=began)
        self._begin_others(dead, self._without_reservation())
        with self.timed("meet"):
            driver.actors.meet()
        driver.joined()
        driver.elastic.tell()
        if step < before:  # they are told anew
            driver.log.already_written.clear()
        missing = [member.role.rank for member in [*driver.actors.left_out, *away]]
        if dead.back or driver.actors.left_out:
            driver.left_out.tell(step, seconds=unix_seconds() - dead.since)
        if dead.back:
            return step
        if self.taken is not None:
            self.taken.tell_rest(driver)
        driver.log.write(
            RecoveryEvent(
                devices=[member.role.rank for member in dead.members],
                roles=[self._role(member) for member in dead.members],
                others=[*dead.others],
                hosts=hosts,
                step=step,
                source=source,
                rolled_back_to=step if step < before else None,
                seconds=unix_seconds() - dead.since,
                parts=self.parts,
                message=dead.seen,
                slow=dead.slow,
                left_out=[m.role.rank for m in dead.members if m.role.rank in missing],
            )
        )
        if away:
            driver.tell_resize(
                ResizeEvent(
                    from_=generated,
                    to=len(driver.actors.rollout_members()),
                    step=step,
                    waited_seconds=0.0,
                    stopped_seconds=unix_seconds() - dead.since,
                    lost=[member.role.rank for member in away],
                )
            )
        self.taken = None
        driver.stragglers.have_left(step, [member.role.rank for member in dead.members])
        return step

    def _stuck(self, dead: Sequence[Member]) -> list[Member]:
        """Devices that do not come to an end of what the driver before this one asked, since it died before
        it asked others whom they wait for there. They are ended."""
        waited = [m for m in self.driver.actors.members if m not in dead]
        asked = {member.worker.address(): member for member in waited}
        pending, seconds = [*asked], self.driver.job.spec.flow.stage_timeout_seconds
        with self.timed("look"):
            while pending:
                ended, pending = ended_of(pending, seconds=seconds)
                if not ended:
                    break
                seconds, self.driver.moves = MEET_SECONDS, self.driver.moves + 1
        return self._ended([asked[call] for call in pending])

    def _ended(self, members: list[Member]) -> list[Member]:
        for member in members:
            self.driver.actors.pool.workers.end(member.worker)
        return members

    def _end(self, slow: Sequence[Member]) -> None:
        """End devices between two steps, after a checkpoint where nobody else holds what they do."""
        driver = self.driver
        members = driver.actors.update_members()
        living = {rank for rank, m in enumerate(members) if m not in slow}
        held = self._held(self._alike(len(members)), living, moved=True)
        if not held and not driver.store.path(driver.step).exists():
            with self.timed("keep"):
                driver.save()
        self._ended([*slow])

    def _role(self, member: Member) -> str:
        if self.driver.job.spec.placement.mode == "colocated":
            return "device"
        return "rollout" if member.role.update_rank is None else "update"

    def _with_bound(self, dead: Sequence[Member]) -> Sequence[Member]:
        """With those that end with them."""
        return self.driver.actors.update_members() if dead and self._share_engine else dead

    @property
    def _share_engine(self) -> bool:
        """Whether colocated devices have one between them that a process can make once only."""
        spec = self.driver.job.spec
        alone = spec.placement.mode == "separated" or "generate" not in spec.states
        return not (alone or spec.rollout.engine in REBUILT_ENGINES or keeps_engine(spec))

    def _replace_training(
        self, dead: Dead, cut: BatchCalls | None, *, since: float
    ) -> tuple[int, Source]:
        """Those that have died; the others go on in new groups with what they have kept, and with devices
        that were left out and are there again. since: when the recovery began, monotonic seconds."""
        driver = self.driver
        lost = [member for member in dead.members if member.role.update_rank is not None]
        if not (lost or dead.back):
            # the update may have had all of its rows before somebody else died
            trained = cut is not None and driver.stages.trained_on(cut)
            step = driver.step + trained
            if self.taken is None or self._all_after(step):
                return step, "none"
            if self._share_engine:
                lost = driver.actors.update_members()
        kept = self._let_go(lost)
        if driver.left_out.possible:
            with self.timed("place"):
                driver.left_out.part(lost)
                driver.left_out.come(lost, living=len(kept), since=since)
        else:
            for member in lost:
                self._hire(member)
        members = driver.actors.update_members()
        numbers = [member.role.rank for member in members]
        for member in members:
            member.role = among(member.role, numbers)
        self._prepare(members)
        after = {rank: kept[number] for rank, number in enumerate(numbers) if number in kept}
        with self.timed("state"):
            return self._take_up(members, after)

    def _let_go(self, lost: Sequence[Member]) -> dict[int, int | None]:
        """Of the devices that live, by number: the step that their state is after."""
        members = self.driver.actors.update_members()
        living = {rank: m for rank, m in enumerate(members) if m not in lost}
        with self.timed("keep"):
            held = self._held(self._alike(len(members)), {*living})
            calls = [member.worker.let_go(held) for member in living.values()]
            told = self._answers(calls)
        return {m.role.rank: after for m, after in zip(living.values(), told, strict=True)}

    def _take_up(
        self, members: Sequence[Member], after: Mapping[int, int | None]
    ) -> tuple[int, Source]:
        """Have all be after one step: the latest that they can be after, or that of the last checkpoint.
        after: of those that live, by rank, the step that their state is after."""
        driver = self.driver
        copies = dict(enumerate(self._answers([m.worker.copies() for m in members])))
        copied, known = copied_parts(driver.job.spec), self._known()
        same = self._alike(len(members))
        if found := sources(same, after, copies, copied=copied, known=known):
            step, transfers = found
            calls = [member.worker.take_up(step, transfers) for member in members]
            driver.stages.wait("recovery", calls, interruptible=False)
            if step < driver.step:
                driver.step_back()
            return step, "copies" if any(each.copied for each in transfers) else "peers"
        self._answers([member.worker.drop_copies() for member in members])
        step = driver.go_back()
        return step, "checkpoint" if step else "beginning"

    def _all_after(self, step: int) -> bool:
        """Whether all devices that train are after this step, and in their groups. They are not where a
        driver died in the midst of a recovery."""
        return {*self._answers([w.after() for w in self.driver.actors.updating()])} == {step}

    def _answers(self, calls: Sequence[Call]) -> list[Any]:
        seconds = self.driver.job.spec.flow.stage_timeout_seconds
        return answers("device worker", calls, seconds=seconds)

    def _alike(self, ranks: int) -> Alike:
        """Who holds the same of what is trained, of so many that train."""
        spec = self.driver.job.spec
        layouts: dict[str, UpdateParallelism] = {"policy": spec.update.parallelism}
        if spec.critic:
            layouts["critic"] = spec.critic.parallelism
        return alike(layouts, ranks)

    def _held(self, same: Alike, living: set[int], *, moved: bool = False) -> bool:
        """Whether all that is trained may be somewhere, so that it is worth keeping. moved: lost ranks may
        come again on other machines."""
        spec = self.driver.job.spec
        kind, copied = spec.update.redundancy, copied_parts(spec)
        holders = second_holders(spec.roles.update, spec.accelerator.devices_per_node)
        return all(
            peers & living
            or (part in copied and ((kind == "host" and not moved) or holders[rank] in living))
            for part, ranks in same.items()
            for rank, peers in enumerate(ranks)
        )

    def _known(self) -> set[int]:
        """Steps that the run can go on after: their batches are there, or it can step back."""
        step = self.driver.step
        return {step, step + 1} | ({step - 1} if self.driver.can_step_back else set())

    def _hire(self, member: Member) -> None:
        pool = self.driver.actors.pool
        pool.workers.end(member.worker)
        member.worker = pool.hire(member.role)

    def _prepare(self, members: Sequence[Member]) -> None:
        with self.timed("start"):
            workers, roles = [m.worker for m in members], [m.role for m in members]
            calls = prepare(workers, roles, meet_seconds=MEET_SECONDS)
            tell_waits(members, calls, pool=self.driver.actors.pool, log=self.driver.log)
            for member, place in zip(members, answers("device worker", calls), strict=True):
                member.place = place
