"""Hold what outlives a run's driver on Ray: reservations, actors, ports, folders, and the driver's saved
state.

It runs in the process above the driver (`run.supervisor`), with whose Ray job everything ends. A driver
calls it through a `Link`. Ray handles are valid in both processes.
"""

import contextlib
import os
import pickle
import time
from collections.abc import Callable, Collection
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from rljob_api.topology.resolved import ResolvedJob
from rljob_runtime.children.owned_folders import OwnedFolder
from rljob_runtime.dock.ports import ReservedPorts
from rljob_runtime.errors import RljobError, WorkerFailed
from rljob_runtime.processes.link import KEEP, dumps
from rljob_runtime.record.folders import Folder, folder_for_all

if TYPE_CHECKING:
    from rljob_runtime.processes.on_ray import Reservation
    from rljob_runtime.processes.reaper import Reaper

NAME_SECONDS = 30.0
"""Time for Ray to release the name of an actor that was ended."""
LOOK_SECONDS = 5.0


class Holder:
    """The supervisor's end of the link. request: the request that a driver runs. job: the job of the run.

    address: that of Ray's cluster; None: a private Ray, started when the first driver requests it. told:
    number of steps that drivers have reported. stops: how often the run was asked to stop. listening:
    whether the current driver handles signals. facts: those of the driver that died last.
    """

    def __init__(self, request: Any, job: ResolvedJob, address: str | None) -> None:
        self._request, self._job, self._address = request, job, address
        self._open = contextlib.ExitStack()
        self._session: tuple[str, str] | None = None
        self._reaper: Reaper | None = None
        self._actors: list[Any] = []
        self._groups: list[Any] = []
        self._kept: dict[str, bytes] = {}
        self.told = 0
        self.listening = False
        self.stops = 0
        self.facts: dict[str, Any] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self._open.close()

    def serve(self, connection: Connection, ended: int) -> None:
        """Answer a driver until it has ended and its last message was read. ended: a file descriptor
        that becomes readable at its end."""
        is_open = True
        while True:
            ready = wait([connection, ended] if is_open else [ended], LOOK_SECONDS)
            if is_open and connection in ready:
                is_open = self._handle_message(connection)
            elif ready:
                return
            else:
                self._watch()

    def _handle_message(self, connection: Connection) -> bool:
        """Carry out the driver's next message. Returns False if there are no more, or if the message
        was cut off."""
        try:
            method, arguments = pickle.loads(connection.recv_bytes())  # noqa: S301 (a private pipe)
        except (EOFError, OSError):
            return False
        if method == KEEP:
            self._keep(*arguments)
        else:
            with contextlib.suppress(OSError):  # it died meanwhile
                connection.send_bytes(dumps(_call(getattr(self, method), *arguments)))
        return True

    def request(self) -> Any:
        """Return the request that a driver runs."""
        return self._request

    def kept(self) -> dict[str, bytes]:
        """Return the values that drivers have stored."""
        return self._kept

    def who_died(self) -> dict[str, Any]:
        """Return facts about the previous driver, for the one that takes over; empty for the first
        driver."""
        return self.facts

    def listens(self) -> int:
        """Record that the driver handles signals from now on. Returns how often the run was asked to
        stop before."""
        self.listening = True
        return self.stops

    def open(self) -> tuple[str, str, dict[str, str]]:
        """Connect to Ray, or start it, on the first call.

        Returns Ray's address, the run's namespace there, and the environment for Ray's authentication.
        """
        from rljob_runtime.processes.session import ray_session

        if self._session is None:
            self._reaper, namespace = self._open.enter_context(
                ray_session(self._job, self._address)
            )
            import ray

            self._session = ray.get_runtime_context().gcs_address, namespace
        authentication = {
            name: value for name, value in os.environ.items() if name.startswith("RAY_AUTH_")
        }
        return *self._session, authentication

    def start(self, *described: Any) -> Any:
        """Start an actor that ends with this process; see `on_ray.start_actor`."""
        from rljob_runtime.processes.on_ray import start_actor

        deadline = time.monotonic() + NAME_SECONDS
        while True:
            try:
                self._actors.append(start_actor(*described))
                return self._actors[-1]
            except ValueError:  # the name of one that is being ended
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.1)

    def reserve(self, bundles: list[dict[str, float]]) -> "Reservation":
        """Reserve devices until this process ends; see `on_ray.reserve`."""
        from rljob_runtime.processes.on_ray import reserve

        self._groups.append(reserve(bundles))
        return self._groups[-1]

    def end_others(self, actors: Collection[Any], groups: Collection[Any]) -> None:
        """End actors and reservations that the current driver does not know, since its predecessor
        created them just before its death."""
        from rljob_runtime.processes.on_ray import end_actor, give_back

        actor_ids = {actor._actor_id for actor in actors}
        group_ids = {group.id for group in groups}
        for actor in [each for each in self._actors if each._actor_id not in actor_ids]:
            end_actor(actor)
        for group in [each for each in self._groups if each.id not in group_ids]:
            give_back(group)
        self._actors = [each for each in self._actors if each._actor_id in actor_ids]
        self._groups = [each for each in self._groups if each.id in group_ids]

    def hold_ports(self, count: int) -> list[int]:
        """Hold free ports, see `HeldPorts`."""
        return [*self._open.enter_context(ReservedPorts(count))]

    def own_folder(self, kind: str) -> Path:
        """Create a folder that is removed with this process."""
        return self._open.enter_context(OwnedFolder(kind)).path

    def folder_for_all(self, path: Path, *, shared: bool) -> Folder:
        """Make a folder available to all nodes; see `folders.folder_for_all`. Ray keeps the contents
        as long as this process lives."""
        return folder_for_all(path, shared=shared)

    def watch(self) -> None:
        """Register new processes as belonging to the run."""
        self._watch()

    def _watch(self) -> None:
        if self._reaper is not None:
            self._reaper.watch_descendants()

    def _keep(self, values: dict[str, bytes], told: int | None) -> None:
        self._kept |= values
        self.told = self.told if told is None else told


def _call(
    work: Callable[..., Any], arguments: tuple[Any, ...], named: dict[str, Any]
) -> tuple[Any, Exception | None]:
    """Return a function's result or its error: rljob's own errors unchanged, others as a WorkerFailed."""
    try:
        return work(*arguments, **named), None
    except RljobError as error:
        return None, error
    except Exception as error:
        return None, WorkerFailed(RuntimeError(f"{type(error).__name__}: {error}"))
