"""Ranks that wait for one that does not come: who is missing is found from outside, and where it stands.

The rank that does not come holds the switchboard, and asks all others while they wait for it.
"""

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from forked_ranks import on_ranks

from rljob_runtime.devices.collective_notes import NOTES
from rljob_runtime.devices.collectives import sum_over_ranks
from rljob_runtime.devices.wire import start_receive, start_send
from rljob_runtime.dock.address import DockAddress
from rljob_runtime.processes.hangs.reporter import start_reporter
from rljob_runtime.run.hangs.switchboard import KnownProcess, Switchboard
from rljob_runtime.run.hangs.verdict import judge

NUMBERS = 1024


def names(size: int) -> list[str]:
    return [f"device-{rank}" for rank in range(size)]


@contextmanager
def all_reported(rank: int) -> Iterator[Switchboard | None]:
    """Every rank has a reporter; the last one holds the switchboard."""
    board = (
        Switchboard(token="token", host="127.0.0.1") if rank == dist.get_world_size() - 1 else None
    )
    place = board.__enter__().address if board else None
    places: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(places, place)
    run = DockAddress(token="token", warehouses=(), controllers={}, switchboard=places[-1])
    start_reporter(
        f"device-{rank}", run, lambda: {"world": [0, 1, 2, 3], "collectives": NOTES.as_json()}
    )
    try:
        yield board
    finally:
        dist.barrier()
        if board:
            board.__exit__()


def asked_until(
    board: Switchboard, size: int, come: Callable[[dict[str, KnownProcess]], bool] = lambda _: True
) -> dict[str, KnownProcess]:
    """Answers of all once they are as expected; the test's own deadline ends it otherwise."""
    while not (all_answered(found := board.ask(seconds=5.0), size) and come(found)):
        pass
    return found


def all_answered(heard: dict[str, KnownProcess], size: int) -> bool:
    return all(name in heard and heard[name].report is not None for name in names(size))


def stop(pid: int) -> None:
    """It has stopped when this returns; the signal alone may come later."""
    os.kill(pid, signal.SIGSTOP)
    while Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "T":
        pass


def waits(heard: dict[str, KnownProcess], name: str) -> list[dict[str, Any]]:
    report = heard[name].report if name in heard else None
    groups = report.get("collectives", []) if report else []
    return [note for group in groups for note in group["waits"]]


def numbers(heard: dict[str, KnownProcess], name: str) -> list[int]:
    return [note["number"] for note in waits(heard, name)]


def test_a_rank_that_does_not_come_is_named_with_its_stack_and_the_others_collective() -> None:
    def dawdles(rank: int) -> Any:
        with all_reported(rank) as board:
            values = torch.ones(NUMBERS)
            sum_over_ranks(values, dist.group.WORLD)
            found = None
            if board:
                heard = asked_until(
                    board,
                    3,
                    lambda heard: all(numbers(heard, name) == [2] for name in names(2)),
                )
                verdict = judge(
                    heard, names(3), {}, time_s=max(one.last_message_s for one in heard.values())
                )
                first = heard["device-0"].report or {}
                found = verdict, waits(heard, "device-1"), first["stacks"]
            sum_over_ranks(values, dist.group.WORLD)
            return found

    verdict, (note,), stack = on_ranks(3, dawdles)[-1]

    (line,) = [line for line in verdict.waiting if line.startswith("device-0")]
    assert "all_reduce sum, number 2 of group" in line
    assert "device-2 has not come (its last there is number 1, all_reduce sum, ended" in line
    assert "device-1 has not come" not in line
    assert (note["dtype"], note["shape"], note["bytes"]) == ("float32", [NUMBERS], 4 * NUMBERS)
    assert "sum_over_ranks (" in stack
    assert [missing.process for missing in verdict.missing] == ["device-2"]
    assert "is in ask (run/hangs/switchboard.py" in verdict.missing[0].why


def test_a_message_that_nobody_sends_names_its_sender() -> None:
    def keeps_it(rank: int) -> Any:
        with all_reported(rank) as board:
            found, values = None, torch.ones(NUMBERS)
            if board:
                heard = asked_until(board, 2, lambda heard: bool(waits(heard, "device-0")))
                found = judge(heard, names(2), {}, time_s=0.0)
                start_send(values, 0, dist.group.WORLD).wait()
            else:
                start_receive(values, 1, dist.group.WORLD).wait()
            return found

    verdict = on_ranks(2, keeps_it)[-1]

    (line,) = verdict.waiting
    assert "receive, number 1 of group" in line
    assert "device-1 has not come (it has entered none there)" in line
    assert [missing.process for missing in verdict.missing] == ["device-1"]


def test_a_frozen_process_is_told_as_silent_and_others_answer_at_once() -> None:
    def freezes(rank: int) -> Any:
        with all_reported(rank) as board:
            found = None
            if board:
                both = asked_until(board, 3)
                stop(both["device-1"].pid)
                heard = board.ask(seconds=1.0)
                os.kill(both["device-1"].pid, signal.SIGCONT)
                found = (
                    heard,
                    judge(heard, names(3), {}, time_s=heard["device-1"].last_message_s + 7),
                )
            return found

    heard, verdict = on_ranks(3, freezes)[-1]

    assert heard["device-1"].report is None
    assert heard["device-1"].gone_s is None
    assert heard["device-0"].report is not None
    silent = {missing.process: missing.why for missing in verdict.missing}["device-1"]
    assert silent.startswith("does not answer, silent since")
    assert silent.endswith("(7 s)")
