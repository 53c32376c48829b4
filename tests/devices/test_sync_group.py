"""Groups for weights that are made anew: members come and go, and a missing one ends in an error."""

import os
import threading
from collections.abc import Callable
from itertools import islice
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from forked_ranks import RanksFailed, on_ranks

from rljob_runtime.devices import sync_group
from rljob_runtime.devices.meetings import Rendezvous
from rljob_runtime.devices.sync_group import SyncGroup
from rljob_runtime.errors import WorkerError


def together(*tasks: Callable[[], object]) -> list[object]:
    """Results of the tasks, each run in a thread of its own; errors are results."""
    results: list[object] = [None] * len(tasks)

    def work(index: int) -> None:
        try:
            results[index] = tasks[index]()
        except (RuntimeError, WorkerError) as error:
            results[index] = error

    threads = [threading.Thread(target=work, args=(index,)) for index in range(len(tasks))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    return results


kept: list[object] = []
"""As a worker's process keeps its group and its meeting."""


def joined(rank: int, size: int) -> SyncGroup:
    """A forked rank's membership, whose meeting is a rank's that does not die."""
    addresses: list[str] = [""] * size
    kept.append(Rendezvous("127.0.0.1"))
    dist.all_gather_object(addresses, kept[0].address)  # type: ignore[attr-defined]
    group = SyncGroup(addresses[1], rank=rank, size=size, name=f"device {rank}")
    kept.append(group)
    return group


def meet(size: int, meeting: Rendezvous | None = None) -> list[SyncGroup]:
    """meeting: which the test keeps, where members use it later."""
    meeting = meeting or Rendezvous("127.0.0.1")
    groups = together(
        *(lambda r=rank: SyncGroup(meeting.address, rank=r, size=size) for rank in range(size))
    )
    assert all(isinstance(group, SyncGroup) for group in groups), groups
    return groups  # type: ignore[return-value]


def test_the_source_reaches_whoever_is_in_the_group_now() -> None:
    weights = torch.arange(6.0).reshape(2, 3) / 7

    for size in (2, 4, 3):
        copies = [weights.clone(), *(torch.zeros(2, 3) for _ in range(size - 1))]
        groups = meet(size)
        together(*(lambda g=g, c=c: g.broadcast(c) for g, c in zip(groups, copies, strict=True)))

        assert all(torch.equal(copy, weights) for copy in copies)


def test_a_member_that_does_not_come_is_an_error_after_the_deadline(monkeypatch) -> None:
    monkeypatch.setattr(sync_group, "MEET_SECONDS", 1.0)
    meeting = Rendezvous("127.0.0.1")

    results = together(
        *(lambda r=rank: SyncGroup(meeting.address, rank=r, size=3) for rank in range(2))
    )

    assert all("rank 2 of 3 is gone" in str(result) for result in results), results


@pytest.mark.parametrize("silent", [1, 2])
def test_a_member_that_hangs_is_an_error_after_the_deadline(monkeypatch, silent: int) -> None:
    monkeypatch.setattr(sync_group, "TRANSFER_SECONDS", 1.0)
    groups = meet(3)

    results = together(
        *(
            lambda g=g: g.broadcast(torch.zeros(1 << 20))
            for rank, g in enumerate(groups)
            if rank != silent
        )
    )

    assert isinstance(results[0], WorkerError)


def test_a_member_leaves_what_the_others_no_longer_take() -> None:
    """They live, and one of them gave up: what the source sent them stays on its way."""

    def member(rank: int) -> None:
        addresses: list[str] = [""] * 3
        kept.append(meeting := Rendezvous("127.0.0.1"))
        dist.all_gather_object(addresses, meeting.address)
        group = SyncGroup(addresses[0], rank=rank, size=3)
        if rank == 0:
            with pytest.raises(WorkerError, match="no room"):
                group.broadcast(torch.zeros(1 << 22))
            group.close()
        else:
            kept.append(group)
        if rank == 1:
            with pytest.raises(WorkerError), group.reporting_errors("taking it"):
                raise WorkerError("no room")

    on_ranks(3, member)  # within a minute, of the five that a broadcast may take


@pytest.mark.parametrize("lost", [0, 2, 4], ids=["source", "in the middle", "last"])
def test_whoever_dies_is_named_by_all_members_with_what_they_exchanged(
    lost: int, tmp_path: Path
) -> None:
    """Five members: in gloo's ring and tree some wait for neighbours that live and have given up."""

    def member(rank: int) -> str:
        group = joined(rank, 5)
        for step in range(3):
            group.broadcast(torch.full((3,), float(step)), f"step {step}")
        if rank == lost:
            os._exit(3)
        with pytest.raises(WorkerError) as failed:
            for step in range(3, 1000):
                group.agree(description=f"step {step}")
        (tmp_path / f"said-{rank}").write_text(str(failed.value))
        return str(failed.value)

    with pytest.raises(RanksFailed) as failed:
        on_ranks(5, member, seconds=60, grace_seconds=40)

    assert set(failed.value.reasons) == {lost}
    for rank in {0, 1, 2, 3, 4} - {lost}:
        said = (tmp_path / f"said-{rank}").read_text()
        assert f"device {lost} is gone" in said, said
        assert "step 3" in said, said


def test_members_hear_why_one_of_them_does_not_go_on() -> None:
    def member(rank: int) -> str:
        group = joined(rank, 4)
        if rank == 2:
            with pytest.raises(MemoryError), group.reporting_errors("step 0"):
                raise MemoryError("no room")
            return ""
        with pytest.raises(WorkerError) as failed:
            for step in range(1000):
                group.agree(description=f"step {step}")
        return str(failed.value)

    answers = on_ranks(4, member, seconds=60)

    for said in (answers[0], answers[1], answers[3]):
        assert "device 2 gave up: MemoryError: no room" in said, said


def test_who_left_a_group_keeps_no_socket_of_it() -> None:
    groups = meet(2)
    before = groups[0]._presence._lost_ranks()

    groups[1].close()

    assert (before, groups[0]._presence.lost()) == ([], [1])


def test_a_problem_of_one_member_is_known_to_all() -> None:
    meeting = Rendezvous("127.0.0.1")
    groups = meet(3, meeting)

    whole = together(*(group.agree for group in groups))
    told = together(groups[0].agree, lambda: groups[1].agree("names are missing"), groups[2].agree)

    assert whole == ["", "", ""]
    assert told == ["names are missing"] * 3


def test_members_hear_each_version_that_the_source_announces_while_they_want_to() -> None:
    meeting = Rendezvous("127.0.0.1")
    source, member = meet(2, meeting)

    def tell() -> None:
        for version in (4, 5, 9):
            source.announce(version)

    heard, _ = together(lambda: list(islice(member.announcements(lambda: True), 3)), tell)

    assert heard == [4, 5, 9]
    assert list(member.announcements(lambda: False)) == []


def test_who_listens_hears_that_the_source_is_gone() -> None:
    meetings = [Rendezvous("127.0.0.1")]
    source, member = meet(2, meetings[0])
    heard = member.announcements(lambda: True)
    source.announce(1)
    assert next(heard) == 1

    meetings.clear()

    with pytest.raises(WorkerError, match=r"weights on member 1: member 0, .* is gone: .*closed"):
        next(heard)
