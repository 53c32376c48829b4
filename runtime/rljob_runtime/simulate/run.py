"""One simulated run of a job, from its workers to the last event. The CLI calls this."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from rljob_api.spec.problems import InvalidJob, Problem
from rljob_api.spec.section import parse_quantity
from rljob_api.topology.resolved import ResolvedJob, ResolvedSpec
from rljob_runtime.dock.address import DockAddress
from rljob_runtime.errors import RljobError, describe
from rljob_runtime.processes.actors.device_worker import DeviceWorker
from rljob_runtime.processes.actors.dock_worker import ControllerActor, WarehouseActor
from rljob_runtime.processes.actors.feeder import PromptFeeder
from rljob_runtime.processes.actors.reward_worker import RewardWorker
from rljob_runtime.processes.clock import on_clock
from rljob_runtime.processes.placement import place_workers
from rljob_runtime.processes.workers import Workers
from rljob_runtime.record.checkpoint import CheckpointStore
from rljob_runtime.record.event_types import Rows, RunFinishedEvent
from rljob_runtime.record.events import EventLog, Subscriber
from rljob_runtime.record.folders import Folder
from rljob_runtime.record.remote import EVENTS_NAME
from rljob_runtime.record.run_facts import run_facts
from rljob_runtime.run.driver import Driver
from rljob_runtime.run.loop import run_steps
from rljob_runtime.run.row_watch import RowCourse
from rljob_runtime.run.run_request import course_digest, spec_digest
from rljob_runtime.run.scale_requests import ScaleRequests
from rljob_runtime.samples.flow import state_graph
from rljob_runtime.simulate.costs import Costs
from rljob_runtime.simulate.device import SimulatedDevice
from rljob_runtime.simulate.dock import SimulatedDock
from rljob_runtime.simulate.draws import Draws, Lengths
from rljob_runtime.simulate.others import (
    SimulatedController,
    SimulatedFeeder,
    SimulatedRewards,
    SimulatedWarehouse,
)
from rljob_runtime.simulate.virtual_clock import VirtualClock
from rljob_runtime.simulate.workers import SimulatedWorkers
from rljob_runtime.simulate.world import SimulatedWorld

BEGINS = 1_767_225_600.0
"""Start time of simulated runs, unix seconds: 2026-01-01."""


def simulate(
    job: ResolvedJob,
    *,
    costs: Costs,
    lengths: Lengths,
    seed: int,
    folder: Path,
    peak_bytes: int = 0,
    subscriber: Subscriber = lambda _: None,
    around: Callable[[Workers], Workers] = lambda workers: workers,
) -> SimulatedWorld:
    """Run the job in virtual time; its events are written to `folder`, as a run's are.

    around: wraps the workers that the driver calls. Raises InvalidJob for jobs that cannot be simulated, and
    RljobError if the run ends with it.
    """
    refuse_unknown(job.spec)
    clock = VirtualClock(BEGINS)
    world = _world(job, clock, costs, lengths, seed, peak_bytes)
    log = EventLog(folder / EVENTS_NAME, clock=clock.unix_seconds)
    log.subscribe(subscriber)
    with on_clock(clock):
        driver: Driver | None = None
        status, message = "failed", ""
        log.write(replace(run_facts(job, None), seed=seed))
        try:
            driver = _driver(world, log, folder, around)
            run_steps(driver)
            status = "succeeded"
        except RljobError as error:
            message = describe(error)
            raise
        finally:
            log.write(
                RunFinishedEvent(
                    status=status,
                    exit_code=int(status != "succeeded"),
                    message=message,
                    seconds=clock.seconds,
                    step=driver.step if driver else 0,
                    checkpoint="",
                    next=[],
                )
            )
            log.close()
    return world


def with_steps(job: ResolvedJob, steps: int) -> ResolvedJob:
    """Return the job with this number of steps."""
    return job.model_copy(update={"spec": job.spec.model_copy(update={"steps": steps})})


def refuse_unknown(spec: ResolvedSpec) -> None:
    """Raise InvalidJob for features that the simulation has no model of."""
    unknown = {
        "spec.flow.partialRollout": spec.flow.partial_rollout is not None,
        "spec.algorithm.params.dynamicSampling": bool(
            getattr(spec.algorithm.params, "dynamic_sampling", None)
        ),
        "spec.data.preferences": spec.has_pairs,
        "spec.data.difficultyFilter": spec.data.difficulty_filter is not None,
        "spec.tools": spec.has_turns,
    }
    problems = [
        Problem(path, "rljob simulate does not know how long this takes; leave it out")
        for path, is_used in unknown.items()
        if is_used
    ]
    if problems:
        raise InvalidJob(problems)


def _world(
    job: ResolvedJob,
    clock: VirtualClock,
    costs: Costs,
    lengths: Lengths,
    seed: int,
    peak_bytes: int,
) -> SimulatedWorld:
    spec = job.spec
    return SimulatedWorld(
        job=job,
        clock=clock,
        dock=SimulatedDock(
            clock,
            state_graph(spec),
            warehouses=spec.dock.warehouses,
            lease_seconds=spec.dock.lease_seconds,
            capacity_bytes=parse_quantity(spec.dock.capacity),
        ),
        costs=costs,
        draws=Draws(
            lengths,
            costs.rewards,
            seed=seed,
            prompt=spec.batch.max_prompt_length,
            response=spec.batch.max_response_length,
        ),
        peak_bytes=peak_bytes,
    )


def stand_ins(world: SimulatedWorld) -> dict[type, Callable[..., object]]:
    """Return the stand-in for each class of workers, created with the arguments of the class.

    A device's role and threads are its last arguments.
    """
    return {
        DeviceWorker: lambda *arguments: SimulatedDevice(world, arguments[-2]),
        PromptFeeder: lambda *_: SimulatedFeeder(world),
        RewardWorker: lambda *_: SimulatedRewards(world),
        WarehouseActor: lambda *, index, **_: SimulatedWarehouse(world.dock, index),
        ControllerActor: lambda *, state, **_: SimulatedController(world.dock, state),
    }


def _driver(
    world: SimulatedWorld, log: EventLog, folder: Path, around: Callable[[Workers], Workers]
) -> Driver:
    """Create the run's own driver, on workers that `place_workers` has started."""
    job = world.job
    actors = place_workers(
        job,
        around(SimulatedWorkers(world.clock, stand_ins(world))),
        models={"policy": Folder(folder)},
        logprob_dir=None,
        base_dir=folder,
        dock_directory=folder,
        run=DockAddress(token="", warehouses=(), controllers={}),
        num_threads=1,
    )
    return Driver(
        job=job,
        actors=actors,
        log=log,
        store=CheckpointStore(folder=folder / "checkpoints", keep=job.spec.checkpoint.keep),
        shared=True,
        spec_digest=spec_digest(job),
        course_digest=course_digest(job),
        stop=lambda: False,
        requests=ScaleRequests(job),
        joined=lambda: None,
        watch=SimulatedWatch(world),
    )


class SimulatedWatch:
    """Polls the dock at intervals, as `RowWatch` does."""

    def __init__(self, world: SimulatedWorld) -> None:
        self._world, self._course = world, RowCourse()
        world.clock.after(self._course.pause, self._poll)

    def take(self) -> Rows | None:
        """Return the row counts recorded since the last call."""
        return self._course.take()

    def _poll(self) -> None:
        world = self._world
        self._course.add(world.clock.unix_seconds(), world.dock.counts())
        world.clock.after(self._course.pause, self._poll)
