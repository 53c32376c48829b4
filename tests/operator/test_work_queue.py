"""The queue: one pass a key at a time, nothing lost, failures tried again ever later."""

import asyncio
from contextlib import asynccontextmanager

import pytest
from hypothesis import given
from hypothesis import strategies as st
from virtual_time import VirtualTime, settle

from rljob_operator.errors import Invalid, Temporary
from rljob_operator.watch.pace import LEAST, Pace
from rljob_operator.watch.queue import HEAD_START, Backoff, KeyedQueue, Surroundings


class Count:
    """What the queue reported."""

    def __init__(self):
        self.added = 0
        self.results = []

    def key_added(self):
        self.added += 1

    def pass_done(self, result, seconds):
        self.results.append((result, seconds))


class Passes:
    """The work of a test: notes begin and end of each pass; lasts and fails as told."""

    def __init__(self, time, *, seconds=1.0, errors=()):
        self.time, self.seconds, self.errors = time, seconds, list(errors)
        self.under_way, self.began, self.ended, self.collisions = set(), [], [], 0

    async def __call__(self, key):
        self.collisions += key in self.under_way
        self.under_way.add(key)
        self.began.append((self.time.now, key))
        try:
            await self.time.sleep(self.seconds)
            if self.errors:
                raise self.errors.pop(0)
        finally:
            self.under_way.discard(key)
        self.ended.append((self.time.now, key))


@asynccontextmanager
async def running(passes, time, *, workers=2, count=None, at_once=None):
    surroundings = Surroundings(clock=time.clock, sleep=time.sleep, chance=lambda: 0.5)
    queue = KeyedQueue(
        passes, metrics=count or Count(), pass_limit=at_once, surroundings=surroundings
    )
    task = asyncio.create_task(queue.run(workers))
    await settle()
    try:
        yield queue
    finally:
        queue.stop()
        await time.advance(60)
        await task


async def test_news_go_before_keys_whose_time_has_come():
    time = VirtualTime(0)
    passes = Passes(time)

    async with running(passes, time, workers=1) as queue:
        for key in ("polled", "polled too", "polled with news"):
            queue.add_after(key, 1)
        queue.add("busy")
        await time.advance(1.5)  # the times have come, and one of them has its pass
        for key in ("new", "polled with news"):
            queue.add(key)
        await time.advance(10)

    order = [key for _, key in passes.began]
    assert order == ["busy", "polled", "new", "polled with news", "polled too"]


async def test_new_keys_go_before_others_with_news_which_wait_for_a_thousand_of_them_at_most():
    time = VirtualTime(0)
    passes = Passes(time, seconds=0.001)

    async with running(passes, time, workers=1) as queue:
        queue.add("news")
        for number in range(HEAD_START + 5):
            queue.add(f"new {number}", new=True)
        await time.advance(10)

    order = [key for _, key in passes.began]
    assert order.index("news") == HEAD_START
    assert order[-1] == f"new {HEAD_START + 4}"


async def test_fewer_passes_are_under_way_while_fewer_may_be_and_all_are_done():
    time = VirtualTime(0)
    passes = Passes(time)
    allowed = {0: 2, 2: 1, 4: 3}

    async with running(
        passes, time, workers=3, at_once=lambda: allowed[max(t for t in allowed if t <= time.now)]
    ) as queue:
        for key in "abcdefghi":
            queue.add(key)
        await time.advance(20)

    assert [began for began, _ in passes.began] == [0, 0, 1, 1, 2, 3, 4, 4, 4]


async def test_a_queue_that_stops_lets_nothing_begin_that_waited_for_its_turn():
    time = VirtualTime(0)
    passes = Passes(time, seconds=5)

    async with running(passes, time, workers=3, at_once=lambda: 1) as queue:
        for key in "abc":
            queue.add(key)
        await time.advance(1)

    assert [key for _, key in passes.ended] == ["a"]


async def test_a_key_added_twice_before_its_pass_gets_one_pass():
    time = VirtualTime(0)
    passes = Passes(time)
    count = Count()

    async with running(passes, time, workers=1, count=count) as queue:
        queue.add("other")
        await settle()
        queue.add("a")
        queue.add("a")
        await time.advance(10)

    assert passes.began == [(0, "other"), (1, "a")]
    assert count.added == 2
    assert count.results == [("ok", 1.0), ("ok", 1.0)]


async def test_a_key_added_during_its_pass_is_worked_on_once_more_afterwards():
    time = VirtualTime(0)
    passes = Passes(time)

    async with running(passes, time) as queue:
        queue.add("a")
        await time.advance(0.5)
        queue.add("a")
        queue.add("a")
        await time.advance(10)

    assert passes.began == [(0, "a"), (1, "a")]
    assert passes.collisions == 0


async def test_different_keys_are_worked_on_side_by_side():
    time = VirtualTime(0)
    passes = Passes(time)

    async with running(passes, time, workers=2) as queue:
        for key in ("a", "b", "c"):
            queue.add(key)
        await time.advance(10)

    assert passes.began == [(0, "a"), (0, "b"), (1, "c")]


async def test_of_several_delays_the_earliest_counts():
    time = VirtualTime(0)
    passes = Passes(time)

    async with running(passes, time) as queue:
        queue.add_after("a", 20)
        queue.add_after("a", 5)
        queue.add_after("a", 9)
        await time.advance(40)

    assert passes.began == [(5, "a")]


async def test_a_delay_outlives_a_pass_that_was_asked_for_in_between():
    time = VirtualTime(0)
    passes = Passes(time)

    async with running(passes, time) as queue:
        queue.add_after("a", 10)
        queue.add("a")
        await time.advance(20)

    assert passes.began == [(0, "a"), (10, "a")]


async def test_failures_are_tried_again_ever_later_and_success_forgets_them():
    time = VirtualTime(0)
    passes = Passes(time, seconds=0, errors=[ValueError("x")] * 3)
    count = Count()

    async with running(passes, time, count=count) as queue:
        queue.add("a")
        await time.advance(1.5)
        passes.errors = [ValueError("x")]
        queue.add("a")
        await time.advance(0.3)

    starts = [round(at, 6) for at, _ in passes.began]
    assert starts == [0, 0.2, 0.6, 1.4, 1.5, 1.7]
    assert [result for result, _ in count.results] == ["error"] * 3 + ["ok", "error", "ok"]


async def test_a_temporary_error_says_how_long_to_wait_at_least():
    time = VirtualTime(0)
    passes = Passes(time, seconds=0, errors=[Temporary("busy", retry_after=7), Invalid("no")])
    count = Count()

    async with running(passes, time, count=count) as queue:
        queue.add("a")
        await time.advance(30)

    assert [at for at, _ in passes.began] == pytest.approx([0, 7, 7.4])
    assert [result for result, _ in count.results] == ["retry", "error", "ok"]


async def test_stopping_lets_a_pass_end_and_begins_no_other():
    time = VirtualTime(0)
    passes = Passes(time, seconds=10)
    surroundings = Surroundings(clock=time.clock, sleep=time.sleep)
    queue = KeyedQueue(passes, metrics=Count(), surroundings=surroundings)
    task = asyncio.create_task(queue.run(1, grace_seconds=20))
    queue.add("a")
    queue.add("b")
    await time.advance(1)

    queue.stop()
    await time.advance(8)
    still_runs = not task.done()
    await time.advance(2)

    assert still_runs
    assert task.done()
    assert passes.ended == [(10, "a")]


async def test_a_pass_that_outlasts_the_grace_is_cancelled():
    time = VirtualTime(0)
    passes = Passes(time, seconds=1000)
    surroundings = Surroundings(clock=time.clock, sleep=time.sleep)
    queue = KeyedQueue(passes, metrics=Count(), surroundings=surroundings)
    task = asyncio.create_task(queue.run(1, grace_seconds=20))
    queue.add("a")
    await time.advance(1)

    queue.stop()
    await time.advance(20)

    assert task.done()
    assert passes.under_way == set()
    assert passes.ended == []


async def test_depth_and_ages_tell_what_waits_and_what_runs():
    time = VirtualTime(0)

    async with running(Passes(time, seconds=10), time, workers=1) as queue:
        empty = (queue.depth(), queue.oldest_age(), queue.longest_running())
        queue.add("a")
        await time.advance(1)
        queue.add("b")
        queue.add_after("c", 100)
        await time.advance(3)
        busy = (queue.depth(), queue.oldest_age(), queue.longest_running())

    assert empty == (0, 0, 0)
    assert busy == (1, 4, 4)


def test_backoff_doubles_up_to_its_limit_and_jitters_around_it():
    backoff = Backoff()

    assert [backoff.seconds(n, 0.5) for n in (1, 2, 3)] == pytest.approx([0.2, 0.4, 0.8])
    assert backoff.seconds(1000, 0.5) == 60
    assert backoff.seconds(1, 0.0) == pytest.approx(0.16)
    assert backoff.seconds(1, 1.0) == pytest.approx(0.24)


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("add"), st.integers(0, 3)),
        st.tuples(st.just("after"), st.integers(0, 3), st.floats(0, 20)),
        st.tuples(st.just("pass"), st.floats(0, 3)),
    ),
    max_size=25,
)


@given(steps=STEPS, workers=st.integers(1, 3), seconds=st.floats(0, 2), errors=st.integers(0, 3))
def test_no_key_is_lost_and_none_has_two_workers(steps, workers, seconds, errors):
    async def play():
        time = VirtualTime(0)
        passes = Passes(time, seconds=seconds, errors=[ValueError("x")] * errors)
        asked = {}
        async with running(passes, time, workers=workers) as queue:
            for name, *step in steps:
                if name == "pass":
                    await time.advance(step[0])
                    continue
                key, wait = step[0], step[1] if name == "after" else 0.0
                asked[key] = max(asked.get(key, 0.0), time.now)
                queue.add_after(key, wait)
            await time.advance(300)
            left = queue.depth()
        return passes, asked, left

    passes, asked, left = asyncio.run(play())

    assert left == 0
    assert passes.collisions == 0
    last_ended = {key: at for at, key in passes.ended}
    assert last_ended.keys() == asked.keys()
    for key, at in asked.items():
        assert max(began for began, of in passes.began if of == key) >= at


def test_half_as_many_passes_may_be_under_way_where_calls_take_twice_as_long():
    told = []

    class Told:
        def kube_call(self, *call):
            told.append(call)

    pace = Pace(8, Told())
    at_once = []
    for seconds in (0.001, 0.05, 0.1, 60.0, 0.001):
        for _ in range(200):
            pace.kube_call("apply", "2xx", seconds)
            pace.kube_call("list", "2xx", 30.0)
        at_once.append(pace.pass_limit())

    assert at_once == [8, 4, 2, LEAST, 8]
    assert told[:2] == [("apply", "2xx", 0.001), ("list", "2xx", 30.0)]


def test_a_single_worker_stays_one_under_load():
    class Untold:
        def kube_call(self, *call):
            pass

    pace = Pace(1, Untold())
    for _ in range(200):
        pace.kube_call("apply", "2xx", 1.0)

    assert pace.pass_limit() == 1
