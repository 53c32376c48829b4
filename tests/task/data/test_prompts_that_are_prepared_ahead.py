"""Prompts that are prepared while devices work on the ones before: the same, whoever makes them and when."""

import threading
from collections.abc import Sequence
from typing import Any

import pytest

from rljob_runtime.task.data.training_prompts import TrainingPrompts

SECONDS = 30.0


class Source:
    """Makes a prompt's name of its position, and notes the threads; fails at the positions of `broken`."""

    def __init__(self, *broken: int) -> None:
        self.made: list[tuple[int, bool]] = []
        self._broken = broken

    def train_at(self, positions: Sequence[int], *, step: int | None = None) -> list[Any]:
        for position in positions:
            if position in self._broken:
                raise ValueError(f"picture of {position}")
            self.made.append((position, threading.current_thread() is threading.main_thread()))
        return [(position, step) for position in positions]


def prompts(source: Any, *, ahead: bool = True, end: int = 10) -> Any:
    return TrainingPrompts(source, ahead=ahead, end=end, timeout_seconds=SECONDS)


def test_what_was_prepared_is_made_once_and_in_a_thread_of_its_own() -> None:
    source = Source()
    asked = prompts(source)

    first = asked.at(range(3))
    asked.prepare(3, 3)
    second = asked.at([5, 3, 7])

    assert [*first, *second] == [(place, None) for place in (0, 1, 2, 5, 3, 7)]
    own = dict(source.made)
    assert len(source.made) == 7 and [place for place, main in own.items() if not main] == [3, 4, 5]


def test_nothing_is_prepared_behind_the_last_prompt_of_the_run_or_where_nobody_wants_it() -> None:
    source = Source()
    for asked in (prompts(source, end=4), prompts(source, ahead=False)):
        asked.prepare(4, 3)
        assert asked.at([0]) == [(0, None)]

    assert source.made == [(0, True)] * 2


def test_prompts_of_a_step_that_chooses_its_own_level_are_made_when_it_asks() -> None:
    source = Source()
    asked = prompts(source)
    asked.prepare(0, 2)

    assert asked.at([1], step=9) == [(1, 9)]
    assert asked.at([1]) == [(1, None)]


def test_a_picture_that_cannot_be_read_is_told_when_its_prompt_is_asked_and_not_before() -> None:
    asked = prompts(Source(4))
    asked.prepare(3, 2)

    assert asked.at([3]) == [(3, None)]
    asked.prepare(4, 1)
    with pytest.raises(ValueError, match="picture of 4"):
        asked.at([4])
