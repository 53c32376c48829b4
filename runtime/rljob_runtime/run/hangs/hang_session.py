"""Investigate the hangs of one run, from before its first process to after its last. Called by `launch`."""

import contextlib
from collections.abc import Iterator
from pathlib import Path

from rljob_api.topology.resolved import ResolvedJob
from rljob_runtime.dock.address import DockAddress
from rljob_runtime.processes.device_roles import device_roles
from rljob_runtime.processes.placement import Actors
from rljob_runtime.record.events import EventLog
from rljob_runtime.run.driver import Driver
from rljob_runtime.run.hangs.dump import Hangs
from rljob_runtime.run.hangs.request import answering_requests
from rljob_runtime.run.hangs.stacks_requests import StacksRequests
from rljob_runtime.run.hangs.switchboard import Switchboard
from rljob_runtime.samples.flow import state_graph


@contextlib.contextmanager
def watching_hangs(
    job: ResolvedJob,
    *,
    host: str,
    board: tuple[str, int],
    folder: Path,
    log: EventLog,
    requests: StacksRequests,
) -> Iterator[Hangs]:
    """Investigate hangs within the body. host: where workers reach this process. board: the run's token, and
    the port where they reach it. folder: the run's. requests: for stacks."""
    token, port = board
    with Switchboard(token=token, host=host, port=port) as switchboard:
        ranks = [role.rank for role in device_roles(job)]
        hangs = Hangs(
            folder=folder,
            events=log,
            switchboard=switchboard,
            run=DockAddress(
                token=token, warehouses=(), controllers={}, switchboard=switchboard.address
            ),
            expected=lambda: process_names(job, ranks),
        )
        requests.dump = hangs.dump
        try:
            with answering_requests(folder, hangs.dump):
                yield hangs
        finally:
            requests.dump = None


def follow(hangs: Hangs, job: ResolvedJob, actors: Actors, driver: Driver) -> None:
    """Use the run's processes and step from now on, once all of them exist. Devices may join and leave."""
    hangs.dock = lambda: actors.dock
    hangs.step = lambda: driver.step
    hangs.expected = lambda: process_names(job, [member.role.rank for member in actors.members])


def process_names(job: ResolvedJob, ranks: list[int]) -> list[str]:
    """Return the names by which a run's processes identify themselves. ranks: numbers of the devices."""
    warehouses = job.spec.dock.warehouses
    return [
        *(f"device-{rank}" for rank in ranks),
        "feeder",
        *(["reward-0"] if job.spec.rewards else []),
        *(f"warehouse-{index}" for index in range(warehouses)),
        *(f"controller-{state}" for state in state_graph(job.spec).names),
    ]
