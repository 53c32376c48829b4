"""Processes that meet: they wait for nobody who is gone, and read nothing that a stranger wrote."""

import pickle
import secrets
import time
from datetime import timedelta
from typing import Any

import psutil
import pytest
import torch.distributed as dist
from forked_ranks import RanksFailed, on_ranks

from rljob_runtime.devices.meetings import (
    Rendezvous,
    Signer,
    assemble,
    host_and_port,
    join_rendezvous,
)
from rljob_runtime.devices.members import DefaultGroupMembers
from rljob_runtime.devices.world_connections import CONNECTIONS
from rljob_runtime.errors import WorkerError


def test_a_meeting_whose_keeper_is_gone_is_not_waited_for() -> None:
    meeting = Rendezvous("127.0.0.1")
    address = meeting.address
    del meeting
    began = time.monotonic()

    with pytest.raises(RuntimeError, match=r"the process that keeps .* is gone"):
        join_rendezvous(address, seconds=300.0)

    assert time.monotonic() - began < 100


def test_who_does_not_come_is_waited_for_no_longer_than_asked() -> None:
    meeting = Rendezvous("127.0.0.1")
    first = join_rendezvous(meeting.address, seconds=60.0)
    other = join_rendezvous(meeting.address, seconds=60.0)

    other.store.set("assembled/1", "")
    assemble(first.store, 0, 2, seconds=60.0)
    with pytest.raises(WorkerError, match=r"rank 2 of 3 is gone: it did not come within 0\.2 s"):
        assemble(first.store, 0, 3, seconds=0.2)


def stranger_at(meeting: Rendezvous) -> dist.TCPStore:  # type: ignore[name-defined]
    """Who found the port alone."""
    host, _, port = host_and_port(meeting.address).rpartition(":")
    limit = timedelta(seconds=20)
    return dist.TCPStore(host, int(port), is_master=False, timeout=limit)  # type: ignore[attr-defined]


def listening() -> set[tuple[str, int]]:
    """Where this process does."""
    own = psutil.Process().net_connections("tcp")
    return {(each.laddr.ip, each.laddr.port) for each in own if each.status == psutil.CONN_LISTEN}


def test_a_meeting_listens_at_its_own_address_alone() -> None:
    before = listening()

    meeting = Rendezvous("127.0.0.1")

    ((host, port),) = listening() - before
    assert (host, host_and_port(meeting.address)) == ("127.0.0.1", f"127.0.0.1:{port}")


def test_what_a_stranger_wrote_at_a_meeting_is_not_read() -> None:
    meeting = Rendezvous("127.0.0.1")
    met, stranger = join_rendezvous(meeting.address, seconds=20), stranger_at(meeting)
    met.set("own", "said by a member")
    signed = stranger.get("own")

    for planted in (
        "",
        "no JSON",
        "[1, 2]",
        "[" * 5000,
        Signer(secrets.token_hex(16)).sign("a lie", "planted"),
        signed,
    ):
        stranger.set("planted", planted)
        with pytest.raises(WorkerError, match="planted: what was said has not the meeting's"):
            met.get("planted")
    assert met.get("own") == "said by a member"


class Code:
    """Runs where it is unpickled."""

    def __reduce__(self) -> tuple[Any, ...]:
        return (open, ("/proc/none/unpickled",))


def test_a_stranger_in_a_world_runs_no_code_in_its_processes() -> None:
    def told(rank: int) -> list[str]:
        CONNECTIONS.signer = Signer("of the meeting" if rank == 0 else "none")
        return DefaultGroupMembers().share(
            "a text" if rank == 0 else pickle.dumps(Code(), 0).decode()
        )

    with pytest.raises(RanksFailed) as failed:
        on_ranks(2, told)

    assert "WorkerError: shared/1/1: what was said has not the meeting's" in failed.value.reasons[0]
