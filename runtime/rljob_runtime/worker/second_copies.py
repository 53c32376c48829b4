"""Second copies of what update ranks alone hold of what is trained (`spec.update.redundancy`).

Called by the device worker after each step, and when a device of its world has died. Each copy has two
places, of which one is filled while the other is whole: whoever dies meanwhile leaves an older one.
"""

import json
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, wait
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import ProcessGroup

from rljob_api.topology.resolved import ResolvedSpec
from rljob_api.topology.second_copies import copied_parts, second_holders
from rljob_runtime.children.owned_folders import MemoryFolder
from rljob_runtime.devices.members import DefaultGroupMembers
from rljob_runtime.devices.presence import Presence
from rljob_runtime.devices.wire import Pending
from rljob_runtime.devices.world_connections import CONNECTIONS
from rljob_runtime.errors import WorkerError
from rljob_runtime.record.spans import DeviceWork
from rljob_runtime.worker.device_role import DeviceRole
from rljob_runtime.worker.kept_room import FileRoom, Room
from rljob_runtime.worker.kept_state import KeptState, Parts, copied, outline_of

LAST_SECONDS = 10.0
"""For copies that are on their way when one has failed or another rank has died; later ones are lost."""
SUM_SECONDS = 300.0
"""For the bits of a copy to be added up, and its description to be written, where it lies."""
WHOLE = "whole.json"


class SecondCopies:
    """Those of a rank. This one keeps none."""

    def join(self, seconds: float) -> None:
        """All ranks that train are there; all call it together. seconds: of one message."""

    def leave(self) -> None:
        """One of them has died, or the group ends."""

    def keep(self, step: int, live: Callable[[], Parts]) -> None:
        """Begin to keep what is trained here after a step; it may change once this returns, when it is on the
        host: the device waits for no more. Raises as `settle`."""

    def settle(self) -> None:
        """Wait until the last copies are whole, before the next step changes anything. Raises WorkerError
        where one did not come, at the latest when a message took longer than `join` was told."""

    def take_received(self) -> dict[int, DeviceWork]:
        """By rank, what it took to receive its last copy, bytes as tokens; once each."""
        return {}

    def held(self) -> dict[int, list[int]]:
        """Steps of the whole copies that this process can give, by the rank that they are of."""
        return {}

    def get(self, rank: int, step: int) -> KeptState:
        """One of them."""
        raise KeyError(rank, step)

    def drop(self, *, after: int) -> None:
        """Those of steps after this one: they are trained again."""

    def close(self) -> None:
        """The run has ended."""


def second_copies(spec: ResolvedSpec, role: DeviceRole, *, run: str) -> SecondCopies:
    """As the job asks for them. run: what no other run has."""
    rank, kind = role.update_rank, spec.update.redundancy
    if rank is None or kind == "none":
        return SecondCopies()
    parts = copied_parts(spec)
    if kind == "peer":
        holders = second_holders(role.num_updating, spec.accelerator.devices_per_node)
        return PeerCopies(rank, holders, parts)
    return HostCopies(MemoryFolder(run), rank, parts)


@dataclass(slots=True)
class _Place:
    """One of two. state: in its room, None while it is filled."""

    room: Room = field(default_factory=Room)
    state: KeptState | None = None

    @property
    def step(self) -> int:
        return -1 if self.state is None else self.state.step


class PeerCopies(SecondCopies):
    """In the memory of another rank's process. holders: by rank; every rank sends to its own.

    The device goes on while a copy of what it had is sent, the parts' bytes once, over a group that nothing
    else uses. The holder keeps the last two, and so does the sender: whose copy does not arrive goes on
    from the one before, and then all others have to.
    """

    def __init__(self, rank: int, holders: list[int], parts: list[str]) -> None:
        self._rank, self._to, self._parts = rank, holders[rank], parts
        kept = [other for other, to in enumerate(holders) if rank in (other, to)]
        self._of = {other: [_Place(), _Place()] for other in kept}
        self._group: ProcessGroup | None = None
        self._presence: Presence | None = None
        self._summed: Future[None] = _done()
        self._underway: dict[Future[None], int] = {}
        self._received: dict[int, DeviceWork] = {}

    def join(self, seconds: float) -> None:
        with CONNECTIONS.tracking_groups():
            group = dist.new_group(backend="gloo", timeout=timedelta(seconds=seconds))
        assert isinstance(group, ProcessGroup), "all ranks that train are in it"
        self._group = group
        self._presence = DefaultGroupMembers().presence(
            f"second copies of update rank {self._rank}"
        )

    def leave(self) -> None:
        self._let_end()
        if self._presence is not None:
            self._presence.close()
        self._group = self._presence = None

    def keep(self, step: int, live: Callable[[], Parts]) -> None:
        self.settle()
        place = self._emptied(self._rank)
        parts = copied(_only(live(), self._parts), place.room)
        self._summed = _beside(partial(_sum_up, place, step, parts))
        group = self._group  # not that of later, as this may still be on its way then
        others = [other for other in self._of if other != self._rank]
        self._underway = {
            _beside(partial(_send, self._summed, place, self._to, group)): self._to,
            **{_beside(partial(self._receive, other, group)): other for other in others},
        }

    def settle(self) -> None:
        if not self._underway:
            return
        assert self._presence is not None, "copies are on their way among ranks that have met"
        works: list[Any] = [_Waited(end) for end in self._underway]
        pending = [Pending(torch.empty(0), works)]
        try:
            self._presence.await_all(pending, {*self._underway.values()})
        except Exception as error:
            self._let_end()
            raise WorkerError(
                f"a second copy of what is trained did not come whole: {error}"
            ) from error
        self._underway = {}

    def _let_end(self) -> None:
        """What is on its way between live ranks. The rest is left to itself: gloo lets messages wait for a
        process that has ended."""
        wait([self._summed], SUM_SECONDS)
        if any(not end.done() for end in self._underway) and self._presence is not None:
            lost = {*self._presence.lost()}
            wait([end for end, other in self._underway.items() if other not in lost], LAST_SECONDS)
        if not all(end.done() for end in self._underway):
            self._of[self._rank] = [_Place(state=place.state) for place in self._of[self._rank]]
        self._underway = {}
        for other, places in self._of.items():  # one that is being filled is nobody else's any more
            self._of[other] = [place if place.state else _Place() for place in places]

    def held(self) -> dict[int, list[int]]:
        wait([self._summed], SUM_SECONDS)
        found = {of: [p.step for p in each if p.state] for of, each in self._of.items()}
        return {of: steps for of, steps in found.items() if steps}

    def get(self, rank: int, step: int) -> KeptState:
        return next(p.state for p in self._of[rank] if p.state and p.step == step)

    def drop(self, *, after: int) -> None:
        for place in (place for places in self._of.values() for place in places):
            if place.step > after:
                place.state = None

    def take_received(self) -> dict[int, DeviceWork]:
        taken, self._received = self._received, {}
        return taken

    def _receive(self, other: int, group: ProcessGroup | None) -> None:
        place, marks = self._emptied(other), list[float]()

        def mark() -> None:
            marks.append(time.perf_counter())

        place.state = came = KeptState.receive(other, group=group, room=place.room, begins=mark)
        mark()
        self._received[other] = DeviceWork(
            seconds=marks[1] - marks[0], tokens=came.num_bytes, passes=1
        )

    def _emptied(self, rank: int) -> _Place:
        """The place of the older copy."""
        place = min(self._of[rank], key=lambda place: place.step)
        place.state = None
        return place


class HostCopies(SecondCopies):
    """In files of the machine's memory, where a process that is started in this one's place finds them."""

    def __init__(self, folder: MemoryFolder, rank: int, parts: list[str]) -> None:
        self._folder, self._rank, self._parts = folder, rank, parts
        self._places: dict[Path, _Place] = {}
        self._whole: Future[None] = _done()
        for number in range(2):
            own = folder.path / f"{rank}-{number}"
            own.mkdir(exist_ok=True)
            room = FileRoom(own)
            self._places[own] = _Place(room, _read(own, room))

    def keep(self, step: int, live: Callable[[], Parts]) -> None:
        self.settle()
        folder, place = min(self._places.items(), key=lambda each: each[1].step)
        self._forget(folder, place)
        parts = copied(_only(live(), self._parts), place.room)
        self._whole = _beside(partial(_sum_up, place, step, parts, file=folder / WHOLE))

    def settle(self) -> None:
        try:
            self._whole.result(SUM_SECONDS)
        except (OSError, TimeoutError) as error:
            raise WorkerError(
                f"a second copy of what is trained did not come whole in {self._folder.path}: {error}"
            ) from error

    def held(self) -> dict[int, list[int]]:
        self.settle()
        steps = [place.step for place in self._places.values() if place.state]
        return {self._rank: steps} if steps else {}

    def get(self, rank: int, step: int) -> KeptState:
        assert rank == self._rank, f"rank {self._rank} has no copy of rank {rank}"
        return next(p.state for p in self._places.values() if p.state and p.step == step)

    def drop(self, *, after: int) -> None:
        self.settle()
        for folder, place in self._places.items():
            if place.step > after:
                self._forget(folder, place)

    def close(self) -> None:
        wait([self._whole], SUM_SECONDS)
        self._places = {}
        self._folder.close()

    def _forget(self, folder: Path, place: _Place) -> None:
        place.state = None
        (folder / WHOLE).unlink(missing_ok=True)


class _Waited:
    """A copy on its way, as `Pending` waits for works."""

    def __init__(self, end: Future[None]) -> None:
        self.wait, self.is_completed = end.result, end.done


def _sum_up(place: _Place, step: int, parts: Parts, *, file: Path | None = None) -> None:
    """Make a copy on the host a whole one. file: says so, to whoever comes after this process."""
    kept = KeptState.summed(step, parts)
    if file is not None:
        draft = file.with_name("draft.json")
        told = {"step": step, "outline": outline_of(parts), "sums": dict(kept.sums)}
        draft.write_text(json.dumps(told))
        draft.rename(file)  # all of it is there, or nothing
    place.state = kept


def _send(summed: Future[None], place: _Place, rank: int, group: ProcessGroup | None) -> None:
    """A copy, once it is whole."""
    summed.result(SUM_SECONDS)
    assert place.state is not None, "nobody empties a place that is sent"
    place.state.send(rank, group=group)


def _done() -> Future[None]:
    end: Future[None] = Future()
    end.set_result(None)
    return end


def _beside(move: Callable[[], None]) -> Future[None]:
    """A copy on its way, in a thread that no end of the process waits for."""
    end: Future[None] = Future()

    def run() -> None:
        try:
            move()
        except Exception as error:
            end.set_exception(error)
        else:
            end.set_result(None)

    threading.Thread(target=run, name="second copy", daemon=True).start()
    return end


def _only(live: Parts, parts: list[str]) -> Parts:
    return {part: live[part] for part in parts}


def _read(folder: Path, room: Room) -> KeptState | None:
    """What another process has left there whole."""
    file = folder / WHOLE
    if not file.exists():
        return None
    told = json.loads(file.read_text())
    return KeptState(told["step"], room.of(told["outline"]), told["sums"])
