"""Sides of a comparison, each in a process of its own, that take turns at the same work.

Called by benchmarks of engines: one machine's mood is then every side's, and no side sees another's memory.
"""

import multiprocessing
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

Do = Callable[[Any, int], float]
"""Do a piece of work once, in this turn (0 is the warm-up); returns what the benchmark asks of it."""
Make = Callable[[], Do]
"""Called once in the side's process; has to be importable there."""


@dataclass(frozen=True, slots=True)
class Turn:
    """One side did one work once."""

    side: str
    work: Any
    answer: float
    seconds: float


def take_turns(
    sides: Mapping[str, Make], works: Sequence[Any], *, threads: int, repetitions: int
) -> Iterator[Turn]:
    """Every work by every side, `repetitions` times after one that only warms up."""
    context = multiprocessing.get_context("spawn")
    pipes: dict[str, Connection] = {}
    for side, make in sides.items():
        pipes[side], far_end = context.Pipe()
        context.Process(target=_serve, args=(make, threads, far_end), daemon=True).start()
        far_end.close()  # a side that dies then ends the benchmark
        pipes[side].recv()
    for turn in range(repetitions + 1):
        for work in works:
            for side, pipe in pipes.items():
                pipe.send((work, turn))
                answer, seconds = pipe.recv()
                if turn:
                    yield Turn(side, work, answer, seconds)
    for pipe in pipes.values():
        pipe.send(None)


def _serve(make: Make, threads: int, calls: Connection) -> None:
    import torch

    torch.set_num_threads(threads)
    do = make()
    calls.send(None)
    while (call := calls.recv()) is not None:
        started = time.perf_counter()
        answer = do(*call)
        calls.send((answer, time.perf_counter() - started))
