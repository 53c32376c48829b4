"""Replace devices that die while the others live, and continue training with the interrupted step.

`loop` calls it when a call has failed, and between two steps for slow devices, which are ended and then
treated as dead ones. A process that died is restarted in its place. Devices that only generate get the
weights of the next sync. A device that trains takes weights and optimizer from one with the same shard, or
with a second copy of it. They are sent over process groups that all its world creates anew. If no device has
them, all of them load the last checkpoint, or start from the beginning.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from rljob_api.spec.engines import UpdateParallelism
from rljob_api.topology.devices import keeps_engine
from rljob_api.topology.second_copies import second_copy_names, second_holders
from rljob_runtime.errors import CUT_OFF, DeadlineError, WorkerError, describe
from rljob_runtime.processes.actors.feeder import PromptFeeder
from rljob_runtime.processes.actors.reward_worker import RewardWorker
from rljob_runtime.processes.calls import answers, ended_of
from rljob_runtime.processes.clock import monotonic, sleep, unix_seconds
from rljob_runtime.processes.dead_devices import find_dead
from rljob_runtime.processes.device_roles import prepare, role_among
from rljob_runtime.processes.placement import Member
from rljob_runtime.processes.workers import Call
from rljob_runtime.record.event_types import RecoveryEvent, ResizeEvent
from rljob_runtime.run.driver import Driver
from rljob_runtime.run.left_out import DevicesReturned, warn_of_missing_nodes
from rljob_runtime.run.shard_holders import ShardHolders, plan_transfers, shard_holders
from rljob_runtime.run.stages import BatchCalls
from rljob_runtime.run.stragglers import LeaveSlow
from rljob_runtime.run.succession import Takeover

DRIVER = "driver"
Source = Literal["peers", "copies", "checkpoint", "beginning", "none"]
MOST_WITHOUT_STEP = 3
"""Recoveries without a finished step between them: the next death ends the run."""
NOTICE_SECONDS = 60.0
"""How long the death of a process whose connection broke is awaited: Ray takes half a minute to miss a
node."""
MEET_SECONDS = 60.0
"""How long a device waits for the others of its new groups. It is not notified if one dies on its way there,
and until it gives up it cannot take part in another recovery."""
REBUILT_ENGINES = ("torch",)
"""Rollout engines that a process can create a second time. Others are kept; one that colocated devices share
ends with any of them, and all start again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecoveryCause:
    """Why a recovery is needed, and which processes it replaces.

    others: dead processes without a device: `feeder`, `reward-0`, `driver`. description: the error that
    revealed it. since: Unix seconds. slow: the members live, and are ended once their state exists elsewhere.
    returned: no process is dead; devices that were left out are back.
    """

    members: Sequence[Member]
    others: Sequence[str]
    description: str
    since: float
    slow: bool = False
    returned: bool = False


@dataclass(slots=True)
class Recovery:
    """The recoveries of one driver. attempts: since a step was finished. reported_steps: number of steps that
    were reported then. phase_seconds: seconds of the current recovery's phases. takeover: from a driver that
    died, until its death is reported."""

    driver: Driver
    attempts: int = 0
    reported_steps: int = -1
    phase_seconds: dict[str, float] = field(default_factory=dict)
    takeover: Takeover | None = None

    @contextmanager
    def timed(self, phase: str) -> Iterator[None]:
        """Add the duration of the body to this phase of the recovery."""
        start = monotonic()
        yield
        self.phase_seconds[phase] = self.phase_seconds.get(phase, 0.0) + monotonic() - start

    def cause_of_error(self, error: WorkerError) -> RecoveryCause:
        """Find the processes whose death caused the error. Raises the error if none died, or if too many died
        without a step between."""
        driver, since = self.driver, unix_seconds()
        if isinstance(error, DeadlineError):
            raise error
        self.phase_seconds = {}
        with self.timed("look"):
            members, others = self._await_deaths(error)
        if driver.num_reported_steps != self.reported_steps:
            self.attempts, self.reported_steps = 0, driver.num_reported_steps
        self.attempts += 1
        if not (members or others) or self.attempts > MOST_WITHOUT_STEP:
            raise error
        if self.takeover is not None:
            others, since = [DRIVER, *others], self.takeover.since
        return RecoveryCause(
            members=self._with_engine_peers(members),
            others=others,
            description=describe(error),
            since=since,
        )

    def cause_of_takeover(self, takeover: Takeover) -> RecoveryCause:
        """Return the death of the driver before this one, with all processes that died while no driver
        watched."""
        self.phase_seconds, self.takeover = {"start": unix_seconds() - takeover.since}, takeover
        with self.timed("look"):
            members, others = find_dead(self.driver.actors)
        return RecoveryCause(
            members=members,
            others=[DRIVER, *others],
            description=takeover.description,
            since=takeover.since,
        )

    def cause_of_slow(self, request: LeaveSlow) -> RecoveryCause:
        """Return the replacement of slow devices. Where another node can take the place of theirs, all
        devices of that node are replaced."""
        actors, since = self.driver.actors, unix_seconds()
        self.phase_seconds = {}
        with self.timed("look"):
            nodes = {member.role.node for member in request.members}
            moved = {node for node in nodes if actors.pool.workers.move(node)}
        left = [m for m in actors.members if m in request.members or m.role.node in moved]
        return RecoveryCause(
            members=left, others=[], description=str(request), since=since, slow=True
        )

    def cause_of_return(self, request: DevicesReturned) -> RecoveryCause:
        """Return the recovery that takes back devices that were left out; it replaces none."""
        self.phase_seconds = {}
        return RecoveryCause(
            members=[], others=[], description=str(request), since=unix_seconds(), returned=True
        )

    def _await_deaths(self, error: WorkerError) -> tuple[list[Member], list[str]]:
        """Find the dead. If a connection broke, wait until a death shows: that of a node takes a while."""
        actors, deadline = self.driver.actors, monotonic() + NOTICE_SECONDS
        while True:
            dead = find_dead(actors)
            keeps_waiting = CUT_OFF.search(describe(error)) and monotonic() < deadline
            if any(dead) or not keeps_waiting or self.driver.stop():
                return dead
            self.driver.progress_count += 1
            sleep(0.2)

    def replace_others(self, cause: RecoveryCause) -> None:
        """Replace the processes without a device. They have no state that a restarted batch needs."""
        actors = self.driver.actors
        # Before other processes start there: a process ends with its reservation.
        actors.pool.renew({member.role.node for member in cause.members})
        self._restart_others(cause, {*cause.others, *self._without_reservation()})

    def _restart_others(self, cause: RecoveryCause, names: Collection[str]) -> None:
        """Restart the feeder and the reward worker if they are named."""
        actors = self.driver.actors
        dead_nodes = {member.role.node for member in [*cause.members, *actors.left_out]}
        if "feeder" in names:
            actors.pool.workers.end(actors.feeder)
            actors.feeder = actors.begin(PromptFeeder, dead_nodes)
        if any(name.startswith("reward") for name in names):
            actors.pool.workers.end(actors.rewards[0])
            actors.rewards = [actors.begin(RewardWorker, dead_nodes)]

    def _without_reservation(self) -> list[str]:
        """Return the names of processes on a node whose loss showed only after they started. The node's
        reservation is given up, so they would wait forever."""
        actors = self.driver.actors
        has_reservation = actors.pool.workers.has_reservation
        return [name for name, worker in actors.others.items() if not has_reservation(worker)]

    def replace(self, cause: RecoveryCause, interrupted: BatchCalls | None) -> int:
        """Start other devices in place of the dead ones, and return the step that all devices are at. A sync
        must follow. interrupted: the batch of the next step, which was dropped."""
        driver, step_before = self.driver, self.driver.step
        if self.takeover is not None:
            stuck = self._end_stuck(cause.members)
            cause = replace(cause, members=self._with_engine_peers([*cause.members, *stuck]))
            driver.store.recover()  # no process writes a checkpoint any more
        hosts = sorted({member.place.host for member in cause.members})
        driver.num_recoveries += 1
        if cause.slow:
            self._end_slow(cause.members)
        generated, start = len(driver.actors.rollout_members()), monotonic()
        with self.timed("start"):
            away = driver.lost_rollouts.replace(cause.members, meet_seconds=MEET_SECONDS)
        step, source = self._replace_training(cause, interrupted, since=start)
        self._restart_others(cause, self._without_reservation())
        with self.timed("meet"):
            driver.actors.meet()
        driver.joined()
        driver.elastic.publish()
        if step < step_before:  # these steps are reported again
            driver.log.already_written.clear()
        missing = [member.role.rank for member in [*driver.actors.left_out, *away]]
        if cause.returned or driver.actors.left_out:
            driver.left_out.report(step, seconds=unix_seconds() - cause.since)
        if cause.returned:
            return step
        if self.takeover is not None:
            self.takeover.write_missing_events(driver)
        driver.log.write(
            RecoveryEvent(
                devices=[member.role.rank for member in cause.members],
                roles=[self._role(member) for member in cause.members],
                others=[*cause.others],
                hosts=hosts,
                step=step,
                source=source,
                rolled_back_to=step if step < step_before else None,
                seconds=unix_seconds() - cause.since,
                parts=self.phase_seconds,
                message=cause.description,
                slow=cause.slow,
                left_out=[m.role.rank for m in cause.members if m.role.rank in missing],
            )
        )
        if away:
            driver.report_resize(
                ResizeEvent(
                    from_=generated,
                    to=len(driver.actors.rollout_members()),
                    step=step,
                    waited_seconds=0.0,
                    stopped_seconds=unix_seconds() - cause.since,
                    lost=[member.role.rank for member in away],
                )
            )
        self.takeover = None
        driver.stragglers.mark_replaced(step, [member.role.rank for member in cause.members])
        return step

    def _end_stuck(self, dead: Sequence[Member]) -> list[Member]:
        """End devices whose work does not end, and return them. The previous driver died before it started
        the other devices that they wait for."""
        alive = [m for m in self.driver.actors.members if m not in dead]
        members_by_call = {member.worker.address(): member for member in alive}
        pending, seconds = [*members_by_call], self.driver.job.spec.flow.stage_timeout_seconds
        with self.timed("look"):
            while pending:
                ended, pending = ended_of(pending, seconds=seconds)
                if not ended:
                    break
                seconds, self.driver.progress_count = MEET_SECONDS, self.driver.progress_count + 1
        return self._end_workers([members_by_call[call] for call in pending])

    def _end_workers(self, members: list[Member]) -> list[Member]:
        for member in members:
            self.driver.actors.pool.workers.end(member.worker)
        return members

    def _end_slow(self, slow: Sequence[Member]) -> None:
        """End slow devices between two steps, after a checkpoint if no other device has their state."""
        driver = self.driver
        members = driver.actors.update_members()
        living = {rank for rank, m in enumerate(members) if m not in slow}
        recoverable = self._recoverable(self._shard_holders(len(members)), living, moved=True)
        if not recoverable and not driver.store.path(driver.step).exists():
            with self.timed("keep"):
                driver.save()
        self._end_workers([*slow])

    def _role(self, member: Member) -> str:
        if self.driver.job.spec.placement.mode == "colocated":
            return "device"
        return "rollout" if member.role.update_rank is None else "update"

    def _with_engine_peers(self, dead: Sequence[Member]) -> Sequence[Member]:
        """Return the dead devices, with all that share an engine with them: these end with them."""
        return self.driver.actors.update_members() if dead and self._share_engine else dead

    @property
    def _share_engine(self) -> bool:
        """Whether colocated devices share one engine that a process can create only once."""
        spec = self.driver.job.spec
        separate = spec.placement.mode == "separated" or "generate" not in spec.states
        return not (separate or spec.rollout.engine in REBUILT_ENGINES or keeps_engine(spec))

    def _replace_training(
        self, cause: RecoveryCause, interrupted: BatchCalls | None, *, since: float
    ) -> tuple[int, Source]:
        """Replace the dead devices that train. The others continue in new groups with the state that they
        kept, and with devices that were left out and are back. since: when the recovery started, monotonic
        seconds."""
        driver = self.driver
        lost = [member for member in cause.members if member.role.update_rank is not None]
        if not (lost or cause.returned):
            # the update may have had all of its rows before another process died
            trained = interrupted is not None and driver.stages.trained_on(interrupted)
            step = driver.step + trained
            if self.takeover is None or self._all_at_step(step):
                return step, "none"
            if self._share_engine:
                lost = driver.actors.update_members()
        steps_kept = self._release_groups(lost)
        if driver.left_out.possible:
            with self.timed("place"):
                driver.left_out.replace_lost(lost)
                driver.left_out.await_members(lost, living=len(steps_kept), since=since)
        else:
            for member in lost:
                self._restart(member)
        members = driver.actors.update_members()
        device_numbers = [member.role.rank for member in members]
        for member in members:
            member.role = role_among(member.role, device_numbers)
        self._prepare_members(members)
        step_by_rank = {
            rank: steps_kept[number]
            for rank, number in enumerate(device_numbers)
            if number in steps_kept
        }
        with self.timed("state"):
            return self._restore_state(members, step_by_rank)

    def _release_groups(self, lost: Sequence[Member]) -> dict[int, int | None]:
        """Let the living devices leave their groups. Returns, by device number, the step that each one's
        state is at."""
        members = self.driver.actors.update_members()
        living = {rank: m for rank, m in enumerate(members) if m not in lost}
        with self.timed("keep"):
            recoverable = self._recoverable(self._shard_holders(len(members)), {*living})
            calls = [member.worker.let_go(recoverable) for member in living.values()]
            steps = self._results(calls)
        return {m.role.rank: step for m, step in zip(living.values(), steps, strict=True)}

    def _restore_state(
        self, members: Sequence[Member], step_by_rank: Mapping[int, int | None]
    ) -> tuple[int, Source]:
        """Bring all devices to one step: the latest that all of them can reach, or that of the last
        checkpoint. step_by_rank: the step that the state of each living device is at."""
        driver = self.driver
        copies = dict(enumerate(self._results([m.worker.copies() for m in members])))
        copied, reachable = second_copy_names(driver.job.spec), self._reachable_steps()
        holders = self._shard_holders(len(members))
        if plan := plan_transfers(
            holders, step_by_rank, copies, copied=copied, reachable=reachable
        ):
            step, transfers = plan
            calls = [member.worker.take_up(step, transfers) for member in members]
            driver.stages.wait("recovery", calls, interruptible=False)
            if step < driver.step:
                driver.step_back()
            return step, "copies" if any(transfer.copied for transfer in transfers) else "peers"
        self._results([member.worker.drop_copies() for member in members])
        step = driver.go_back()
        return step, "checkpoint" if step else "beginning"

    def _all_at_step(self, step: int) -> bool:
        """Return whether all devices that train are at this step, and in their groups. They are not if a
        driver died during a recovery."""
        return {*self._results([w.after() for w in self.driver.actors.updating()])} == {step}

    def _results(self, calls: Sequence[Call]) -> list[Any]:
        seconds = self.driver.job.spec.flow.stage_timeout_seconds
        return answers("device worker", calls, seconds=seconds)

    def _shard_holders(self, ranks: int) -> ShardHolders:
        """Return which of `ranks` update ranks hold the same shards of each trained model."""
        spec = self.driver.job.spec
        layouts: dict[str, UpdateParallelism] = {"policy": spec.update.parallelism}
        if spec.critic:
            layouts["critic"] = spec.critic.parallelism
        return shard_holders(layouts, ranks)

    def _recoverable(self, holders: ShardHolders, living: set[int], *, moved: bool = False) -> bool:
        """Return whether every shard of the trained state may still exist, so that it is worth keeping.
        moved: lost ranks may be restarted on other machines."""
        spec = self.driver.job.spec
        kind, copied = spec.update.redundancy, second_copy_names(spec)
        second_copy_of = second_holders(spec.roles.update, spec.accelerator.devices_per_node)
        return all(
            peers & living
            or (
                shard in copied
                and ((kind == "host" and not moved) or second_copy_of[rank] in living)
            )
            for shard, ranks in holders.items()
            for rank, peers in enumerate(ranks)
        )

    def _reachable_steps(self) -> set[int]:
        """Return the steps that the run can continue from: it has their batches, or can step back."""
        step = self.driver.step
        return {step, step + 1} | ({step - 1} if self.driver.can_step_back else set())

    def _restart(self, member: Member) -> None:
        pool = self.driver.actors.pool
        pool.workers.end(member.worker)
        member.worker = pool.hire(member.role)

    def _prepare_members(self, members: Sequence[Member]) -> None:
        with self.timed("start"):
            workers, roles = [m.worker for m in members], [m.role for m in members]
            calls = prepare(workers, roles, meet_seconds=MEET_SECONDS)
            warn_of_missing_nodes(members, calls, pool=self.driver.actors.pool, log=self.driver.log)
            for member, device_place in zip(members, answers("device worker", calls), strict=True):
                member.place = device_place
