"""What a worker's span tells: from its first samples on, and what it waited for more."""

import time
from collections.abc import Iterator

from rljob_runtime.record.spans import BatchTimer

PAUSE = 0.05


def slowly(parts: int) -> Iterator[int]:
    for part in range(parts):
        time.sleep(PAUSE)
        yield part


def test_a_span_begins_with_the_first_samples_and_tells_what_was_waited_for_the_others() -> None:
    asked, work = time.time(), BatchTimer()

    for _ in work.each(slowly(3)):
        time.sleep(PAUSE)
    span = work.span()

    assert span.start >= asked + PAUSE
    assert span.seconds >= 5 * PAUSE
    assert 2 * PAUSE <= span.waited <= span.seconds - 3 * PAUSE


def test_waiting_counts_only_once_there_was_work() -> None:
    work = BatchTimer()

    with work.waiting():
        time.sleep(PAUSE)
    work.begin()
    before = work.span().waited
    with work.waiting():
        time.sleep(PAUSE)

    assert before == 0
    assert work.span().waited >= PAUSE


def test_a_worker_without_samples_has_an_empty_span() -> None:
    span = BatchTimer().span()

    assert (span.seconds, span.waited) == (0, 0)
