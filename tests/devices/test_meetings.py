"""Processes that meet: one that waits for another, who is gone, does not wait for long."""

import time

import pytest

from rljob_runtime.devices.sync_group import Meeting, assemble, attend
from rljob_runtime.errors import WorkerError


def test_a_meeting_whose_keeper_is_gone_is_not_waited_for() -> None:
    meeting = Meeting("127.0.0.1")
    address = meeting.address
    del meeting
    began = time.monotonic()

    with pytest.raises(RuntimeError, match=r"the process that keeps .* is gone"):
        attend(address, seconds=300.0)

    assert time.monotonic() - began < 100


def test_who_does_not_come_is_waited_for_no_longer_than_asked() -> None:
    meeting = Meeting("127.0.0.1")
    first = attend(meeting.address, seconds=60.0)
    other = attend(meeting.address, seconds=60.0)

    other.set("assembled/1", "")
    assemble(first, 0, 2, seconds=60.0)
    with pytest.raises(WorkerError, match=r"rank 2 of 3 is gone: it did not come within 0\.2 s"):
        assemble(first, 0, 3, seconds=0.2)
