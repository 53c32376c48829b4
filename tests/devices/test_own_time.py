"""What a device computes by itself in passes: what it waits for in collectives is left out."""

from dataclasses import dataclass

import pytest

from rljob_runtime.devices.collective_notes import GroupNotes
from rljob_runtime.devices.own_time import MOST_PASSES, OWN_TIME, PassTimer


@dataclass
class Hand:
    """A clock that goes on when it is told to."""

    seconds_now: float = 0.0

    def mark(self) -> float:
        return self.seconds_now

    def seconds(self, since: float, until: float) -> float:
        return until - since

    def go(self, seconds: float) -> None:
        self.seconds_now += seconds


@pytest.fixture
def hand() -> Hand:
    OWN_TIME.clock = clock = Hand()
    return clock


def test_waits_for_collectives_are_no_own_time_within_passes_and_outside(hand: Hand) -> None:
    group, passes = GroupNotes("pair", rank=0, size=2), PassTimer()
    for seconds in (1.0, 2.0):
        with passes.timed_pass(100):
            hand.go(seconds)
            with group.blocking("all_reduce"):
                hand.go(10)
        with group.blocking("all_reduce"):
            hand.go(100)

    assert (passes.seconds(), passes.tokens, passes.count) == (3.0, 200, 2)


def test_two_messages_that_are_waited_for_at_once_count_once(hand: Hand) -> None:
    group, passes = GroupNotes("ring", rank=0, size=2), PassTimer()
    with passes.timed_pass(1):
        hand.go(1)
        with group.wait(group.begin("send")), group.wait(group.begin("receive")):
            hand.go(10)

    assert passes.seconds() == 1.0


def test_a_pass_over_no_tokens_and_one_that_fails_count_in_nothing(hand: Hand) -> None:
    passes = PassTimer()
    with passes.timed_pass(0):
        hand.go(5)
    with pytest.raises(RuntimeError), passes.timed_pass(7):
        raise RuntimeError("a peer is gone")

    assert (passes.seconds(), passes.tokens, passes.count) == (0, 0, 0)
    with passes.timed_pass(7):
        hand.go(2)
    assert passes.seconds() == 2


def test_of_many_passes_the_first_ones_are_timed(hand: Hand) -> None:
    passes = PassTimer()
    for _ in range(MOST_PASSES + 5):
        with passes.timed_pass(3):
            hand.go(1)

    assert (passes.seconds(), passes.tokens) == (MOST_PASSES, 3 * MOST_PASSES)
