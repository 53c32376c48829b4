"""A driver whose own main thread is stuck says so and ends; one that goes on is left alone."""

import itertools
import threading
from collections.abc import Callable

from rljob_runtime.run.hangs.own_loop import stuck_limit, watching_main_loop

SECONDS, LOOK_SECONDS = 0.2, 0.02
PATIENCE_SECONDS = 60


def test_a_loop_that_stands_still_is_told_and_ends_the_process() -> None:
    said, ended = list[str](), threading.Event()
    codes = list[int]()

    def end(code: int) -> None:
        codes.append(code)
        ended.set()

    with watching(lambda: 7, said.append, end):
        assert ended.wait(PATIENCE_SECONDS)

    assert codes == [5]
    (why,) = said
    assert why.startswith("the driver itself did not come further within 0.2 s, in ")


def test_last_words_that_hang_too_do_not_keep_the_process(monkeypatch) -> None:
    monkeypatch.setattr("rljob_runtime.run.hangs.own_loop.LAST_WORDS_SECONDS", 0.1)
    ended, never = threading.Event(), threading.Event()

    with watching(lambda: 7, lambda why: never.wait() and None, lambda code: ended.set()):  # type: ignore[arg-type]
        assert ended.wait(PATIENCE_SECONDS)

    never.set()


def test_a_loop_that_moves_is_left_alone() -> None:
    ended, moves = list[int](), itertools.count()
    looked = threading.Event()

    def move() -> int:
        number = next(moves)
        if number * LOOK_SECONDS > 2 * SECONDS:
            looked.set()
        return number

    with watching(move, lambda why: None, ended.append):
        assert looked.wait(PATIENCE_SECONDS)

    assert ended == []


def test_no_wait_that_has_a_deadline_is_taken_for_a_stuck_driver() -> None:
    assert stuck_limit(60) > 3600 + 600
    assert stuck_limit(86_400) > 86_400 + 600


def watching(moves: Callable[[], int], stuck: Callable[[str], None], end: Callable[[int], None]):
    return watching_main_loop(
        moves, stuck, seconds=SECONDS, code=5, look_seconds=LOOK_SECONDS, end=end
    )
