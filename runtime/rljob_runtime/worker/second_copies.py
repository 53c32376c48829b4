"""Second copies of trained state that otherwise only one update rank holds (`spec.update.redundancy`).

The device worker calls this after each step, and when a device of its world has died. Each copy has two
slots: one is filled while the other is complete, so that a rank which dies meanwhile leaves an older copy.
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
from rljob_api.topology.second_copies import second_copy_names, second_holders
from rljob_runtime.children.owned_folders import MemoryFolder
from rljob_runtime.devices.members import DefaultGroupMembers
from rljob_runtime.devices.presence import Presence
from rljob_runtime.devices.wire import Pending
from rljob_runtime.devices.world_connections import CONNECTIONS
from rljob_runtime.errors import WorkerError
from rljob_runtime.record.spans import DeviceWork
from rljob_runtime.worker.device_role import DeviceRole
from rljob_runtime.worker.kept_room import FileRoom, HostRoom
from rljob_runtime.worker.kept_state import KeptState, StateParts, copy_to_host, outline_of

LAST_SECONDS = 10.0
"""Deadline for copies in transit when one has failed or another rank has died; later ones are lost."""
SUM_SECONDS = 300.0
"""Deadline for computing a copy's checksums and writing its description."""
DESCRIPTION_FILE = "whole.json"


class SecondCopies:
    """The second copies of a rank. This base class keeps none."""

    def join(self, seconds: float) -> None:
        """Join all ranks that train, which call it together. seconds: deadline of one message."""

    def leave(self) -> None:
        """Leave the group, because one of its ranks has died or the group ends."""

    def keep(self, step: int, live: Callable[[], StateParts]) -> None:
        """Begin to copy the trained state after a step; it may change once this returns, when it is on the
        host.

        The device waits for nothing else. Raises as `settle`.
        """

    def settle(self) -> None:
        """Wait until the last copies are complete, before the next step changes anything.

        Raises WorkerError if one did not arrive, at the latest when a message exceeds the deadline of `join`.
        """

    def take_received(self) -> dict[int, DeviceWork]:
        """Return by rank the work of receiving its last copy, with bytes as tokens; each is returned once."""
        return {}

    def complete_steps(self) -> dict[int, list[int]]:
        """Return the steps of the complete copies in this process, by the rank that they are of."""
        return {}

    def get(self, rank: int, step: int) -> KeptState:
        """Return one of the complete copies."""
        raise KeyError(rank, step)

    def drop(self, *, after: int) -> None:
        """Drop the copies of steps after this one, which are trained again."""

    def close(self) -> None:
        """Release all copies at the end of the run."""


def second_copies(spec: ResolvedSpec, role: DeviceRole, *, run: str) -> SecondCopies:
    """Create the second copies that the job requests. run: unique to the run."""
    rank, kind = role.update_rank, spec.update.redundancy
    if rank is None or kind == "none":
        return SecondCopies()
    parts = second_copy_names(spec)
    if kind == "peer":
        holders = second_holders(role.num_updating, spec.accelerator.devices_per_node)
        return PeerCopies(rank, holders, parts)
    return HostCopies(MemoryFolder(run), rank, parts)


@dataclass(slots=True)
class _CopySlot:
    """One of two slots. state: in its room, None while it is filled."""

    room: HostRoom = field(default_factory=HostRoom)
    state: KeptState | None = None

    @property
    def step(self) -> int:
        """Return the step of the slot's copy, -1 without a complete one."""
        return -1 if self.state is None else self.state.step


class PeerCopies(SecondCopies):
    """Copies in the memory of another rank's process. holders: by rank; every rank sends to its holder.

    The device continues while a copy is sent, each part's bytes once, over a group that nothing else uses.
    Holder and sender both keep the last two: if a copy does not arrive, its rank continues from the previous
    one, and then all others must as well.
    """

    def __init__(self, rank: int, holders: list[int], parts: list[str]) -> None:
        self._rank, self._to, self._parts = rank, holders[rank], parts
        stored_ranks = [other for other, to in enumerate(holders) if rank in (other, to)]
        self._slots_of = {other: [_CopySlot(), _CopySlot()] for other in stored_ranks}
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
        self._await_live()
        if self._presence is not None:
            self._presence.close()
        self._group = self._presence = None

    def keep(self, step: int, live: Callable[[], StateParts]) -> None:
        self.settle()
        slot = self._clear_older(self._rank)
        parts = copy_to_host(_only(live(), self._parts), slot.room)
        self._summed = _in_thread(partial(_sum_up, slot, step, parts))
        # This group, since the copy may still be in transit after `self._group` is replaced.
        group = self._group
        senders = [other for other in self._slots_of if other != self._rank]
        self._underway = {
            _in_thread(partial(_send, self._summed, slot, self._to, group)): self._to,
            **{_in_thread(partial(self._receive, other, group)): other for other in senders},
        }

    def settle(self) -> None:
        if not self._underway:
            return
        assert self._presence is not None, "copies are on their way among ranks that have met"
        works: list[Any] = [_CopyWork(end) for end in self._underway]
        pending = [Pending(torch.empty(0), works)]
        try:
            self._presence.await_all(pending, {*self._underway.values()})
        except Exception as error:
            self._await_live()
            raise WorkerError(
                f"a second copy of what is trained did not come whole: {error}"
            ) from error
        self._underway = {}

    def _await_live(self) -> None:
        """Wait for copies between live ranks. Others are abandoned: gloo keeps messages waiting for an ended
        process."""
        wait([self._summed], SUM_SECONDS)
        if any(not end.done() for end in self._underway) and self._presence is not None:
            lost = {*self._presence.lost()}
            wait([end for end, other in self._underway.items() if other not in lost], LAST_SECONDS)
        if not all(end.done() for end in self._underway):
            self._slots_of[self._rank] = [
                _CopySlot(state=slot.state) for slot in self._slots_of[self._rank]
            ]
        self._underway = {}
        for other, slots in self._slots_of.items():  # replaces slots that a thread may still fill
            self._slots_of[other] = [slot if slot.state else _CopySlot() for slot in slots]

    def complete_steps(self) -> dict[int, list[int]]:
        wait([self._summed], SUM_SECONDS)
        steps_of = {
            rank: [p.step for p in each if p.state] for rank, each in self._slots_of.items()
        }
        return {rank: steps for rank, steps in steps_of.items() if steps}

    def get(self, rank: int, step: int) -> KeptState:
        return next(p.state for p in self._slots_of[rank] if p.state and p.step == step)

    def drop(self, *, after: int) -> None:
        for slot in (slot for slots in self._slots_of.values() for slot in slots):
            if slot.step > after:
                slot.state = None

    def take_received(self) -> dict[int, DeviceWork]:
        taken, self._received = self._received, {}
        return taken

    def _receive(self, other: int, group: ProcessGroup | None) -> None:
        slot, marks = self._clear_older(other), list[float]()

        def mark() -> None:
            marks.append(time.perf_counter())

        slot.state = state = KeptState.receive(other, group=group, room=slot.room, begins=mark)
        mark()
        self._received[other] = DeviceWork(
            seconds=marks[1] - marks[0], tokens=state.num_bytes, passes=1
        )

    def _clear_older(self, rank: int) -> _CopySlot:
        """Return the slot of the older copy, cleared."""
        slot = min(self._slots_of[rank], key=lambda slot: slot.step)
        slot.state = None
        return slot


class HostCopies(SecondCopies):
    """Copies in files of the machine's memory, where a replacement process finds them."""

    def __init__(self, folder: MemoryFolder, rank: int, parts: list[str]) -> None:
        self._folder, self._rank, self._parts = folder, rank, parts
        self._slots: dict[Path, _CopySlot] = {}
        self._completed: Future[None] = _done()
        for number in range(2):
            slot_folder = folder.path / f"{rank}-{number}"
            slot_folder.mkdir(exist_ok=True)
            room = FileRoom(slot_folder)
            self._slots[slot_folder] = _CopySlot(room, _read(slot_folder, room))

    def keep(self, step: int, live: Callable[[], StateParts]) -> None:
        self.settle()
        folder, slot = min(self._slots.items(), key=lambda each: each[1].step)
        self._forget(folder, slot)
        parts = copy_to_host(_only(live(), self._parts), slot.room)
        self._completed = _in_thread(
            partial(_sum_up, slot, step, parts, file=folder / DESCRIPTION_FILE)
        )

    def settle(self) -> None:
        try:
            self._completed.result(SUM_SECONDS)
        except (OSError, TimeoutError) as error:
            raise WorkerError(
                f"a second copy of what is trained did not come whole in {self._folder.path}: {error}"
            ) from error

    def complete_steps(self) -> dict[int, list[int]]:
        self.settle()
        steps = [slot.step for slot in self._slots.values() if slot.state]
        return {self._rank: steps} if steps else {}

    def get(self, rank: int, step: int) -> KeptState:
        assert rank == self._rank, f"rank {self._rank} has no copy of rank {rank}"
        return next(p.state for p in self._slots.values() if p.state and p.step == step)

    def drop(self, *, after: int) -> None:
        self.settle()
        for folder, slot in self._slots.items():
            if slot.step > after:
                self._forget(folder, slot)

    def close(self) -> None:
        wait([self._completed], SUM_SECONDS)
        self._slots = {}
        self._folder.close()

    def _forget(self, folder: Path, slot: _CopySlot) -> None:
        slot.state = None
        (folder / DESCRIPTION_FILE).unlink(missing_ok=True)


class _CopyWork:
    """A copy in transit, in the form that `Pending` waits for."""

    def __init__(self, end: Future[None]) -> None:
        self.wait, self.is_completed = end.result, end.done


def _sum_up(slot: _CopySlot, step: int, parts: StateParts, *, file: Path | None = None) -> None:
    """Complete a copy on the host. file: describes it to a later process."""
    state = KeptState.summed(step, parts)
    if file is not None:
        draft = file.with_name("draft.json")
        description = {"step": step, "outline": outline_of(parts), "sums": dict(state.sums)}
        draft.write_text(json.dumps(description))
        draft.rename(file)  # atomic: the file is complete or absent
    slot.state = state


def _send(summed: Future[None], slot: _CopySlot, rank: int, group: ProcessGroup | None) -> None:
    """Send a copy once it is complete."""
    summed.result(SUM_SECONDS)
    assert slot.state is not None, "nobody empties a place that is sent"
    slot.state.send(rank, group=group)


def _done() -> Future[None]:
    end: Future[None] = Future()
    end.set_result(None)
    return end


def _in_thread(move: Callable[[], None]) -> Future[None]:
    """Run a copy in a daemon thread, which does not delay the end of the process."""
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


def _only(live: StateParts, parts: list[str]) -> StateParts:
    return {part_name: live[part_name] for part_name in parts}


def _read(folder: Path, room: HostRoom) -> KeptState | None:
    """Return the complete copy that another process left in the folder, if any."""
    file = folder / DESCRIPTION_FILE
    if not file.exists():
        return None
    description = json.loads(file.read_text())
    return KeptState(description["step"], room.of(description["outline"]), description["sums"])
