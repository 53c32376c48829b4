"""A rank that waits hears what its wait would not tell: who is gone, and who does not go on."""

import os
import socket
import threading
import time
from typing import Any, cast

import pytest
import torch
import torch.distributed as dist
from forked_ranks import RanksFailed, on_ranks

from rljob_runtime.devices.members import DefaultGroupMembers
from rljob_runtime.devices.presence import MOST_BYTES, Presence
from rljob_runtime.devices.wire import Pending
from rljob_runtime.errors import WorkerError

kept: list[Presence] = []
"""As a worker's process keeps it."""


class Endless:
    """Of a collective whose others do not come, and whose connections say nothing."""

    def wait(self) -> None:
        threading.Event().wait()


class Failed:
    def wait(self) -> None:
        raise RuntimeError("Connection closed by peer")


def pending(work: Any) -> Pending:
    return Pending(torch.empty(0), [cast(dist.Work, work)])


def taken(host: str, port: int) -> socket.socket:
    """The port of a process that has ended, once its system lets go of it."""
    deadline = time.monotonic() + 20
    while True:
        try:
            return socket.create_server((host, port))
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.1)


def met() -> Presence:
    """Once all ranks have one."""
    presence = DefaultGroupMembers().presence(f"reshard rank {dist.get_rank()}")
    kept.append(presence)
    dist.barrier()
    return presence


def test_who_waits_for_a_rank_whose_death_no_connection_tells_finds_it_gone() -> None:
    def wait(rank: int) -> str:
        presence = met()
        if rank == 1:
            os._exit(3)
        try:
            presence.await_all([pending(Endless())], [1])
        except WorkerError as error:
            return str(error)
        return "waited"

    with pytest.raises(RanksFailed) as failed:
        on_ranks(2, lambda rank: pytest.fail(wait(rank)), seconds=60, grace_seconds=40)

    assert "Failed: reshard rank 0: rank 1 is gone" in failed.value.reasons[0]


def test_a_port_that_another_process_takes_is_not_its_rank() -> None:
    def wait(rank: int) -> str:
        presence = met()
        if rank == 1:
            os._exit(3)
        other = presence._addresses[1]
        assert presence.lost() == [1]
        with (
            taken(other.host, other.port),
            pytest.raises(WorkerError, match="reshard rank 0: rank 1 is gone"),
        ):
            presence.await_all([pending(Endless())], [1])
        return "heard"

    with pytest.raises(RanksFailed) as failed:
        on_ranks(2, lambda rank: pytest.fail(wait(rank)), seconds=60, grace_seconds=40)

    assert "Failed: heard" in failed.value.reasons[0]


def test_who_gave_up_and_left_is_not_taken_for_the_one_that_is_gone() -> None:
    def wait(rank: int) -> str:
        presence = met()
        if rank == 1:
            presence.announce_failure("rank 2 is gone")
            presence.close()
            dist.barrier()
            return ""
        dist.barrier()
        if rank == 2:
            threading.Event().wait(0.5)
            presence.close()
            return ""
        return presence.give_up(RuntimeError("Connection closed by peer"))

    assert on_ranks(3, wait)[0] == "rank 2 is gone; Connection closed by peer"


def test_who_waits_for_others_hears_why_a_rank_does_not_go_on() -> None:
    def wait(rank: int) -> str:
        presence = met()
        if rank == 0:
            presence.announce_failure("rank 7 is gone; Connection closed by peer")
            return ""
        with pytest.raises(WorkerError) as told:
            presence.await_all([pending(Endless())], [2 if rank == 1 else 1])
        return str(told.value)

    answers = on_ranks(3, wait)

    text = "rank 0 gave up: rank 7 is gone; Connection closed by peer"
    assert answers[1:] == [f"reshard rank {rank}: {text}" for rank in (1, 2)]


def test_what_a_wait_raises_is_raised() -> None:
    def wait(rank: int) -> str:
        with pytest.raises(RuntimeError) as failed:
            met().await_all([pending(Failed())], [1 - rank])
        return str(failed.value)

    assert on_ranks(2, wait) == ["Connection closed by peer"] * 2


class Noting:
    """Notes the thread that waits for it."""

    def __init__(self) -> None:
        self.threads: list[threading.Thread] = []

    def wait(self) -> None:
        self.threads.append(threading.current_thread())


def test_one_thread_waits_for_all_and_another_where_it_does_not_come_back() -> None:
    def wait(rank: int) -> tuple[int, int]:
        presence, noting = met(), Noting()
        for _ in range(20):
            presence.await_all([pending(noting)], [1 - rank])
        before = len(set(noting.threads))
        presence._begin([pending(Endless())])
        for _ in range(20):
            presence.await_all([pending(noting)], [1 - rank])
        presence.close()
        noting.threads[-1].join(10)
        assert not noting.threads[-1].is_alive()
        return before, len(set(noting.threads))

    assert on_ranks(2, wait) == [(1, 2)] * 2


def test_strangers_are_not_heard() -> None:
    def wait(rank: int) -> int:
        presence = met()
        host, port = presence._socket.getsockname()
        for said in (b"", b"x" * 40, b"y" * 2 * MOST_BYTES):
            with socket.create_connection((host, port)) as link:
                link.sendall(said)
        values = torch.ones(1, dtype=torch.int64)
        work = dist.all_reduce(values, async_op=True)
        presence.await_all([Pending(values, [work])], [1 - rank])
        assert presence._failure_text == ""
        return int(values)

    assert on_ranks(2, wait) == [2, 2]


def test_a_long_error_is_cut_and_a_second_one_changes_nothing() -> None:
    def wait(rank: int) -> int:
        presence = met()
        if rank == 0:
            presence.announce_failure("é" * MOST_BYTES)
            presence.announce_failure("another")
            return 0
        with pytest.raises(WorkerError) as told:
            presence.await_all([pending(Endless())], [0])
        with pytest.raises(WorkerError) as again:
            presence.await_all([pending(Endless())], [0])
        assert str(again.value) == str(told.value)
        return len(str(told.value).encode())

    assert MOST_BYTES // 2 < on_ranks(2, wait)[1] < MOST_BYTES + 100
