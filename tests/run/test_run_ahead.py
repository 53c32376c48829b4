"""What an asynchronous run begins: never beyond the bound, every batch once, never stuck."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rljob_runtime.run.run_ahead import RunAhead


def fresh(steps: int = 5, max_staleness: int = 1) -> RunAhead:
    return RunAhead(done=0, rollout_version=0, steps=steps, max_staleness=max_staleness)


def begin(run: RunAhead) -> list[tuple[str, int]]:
    """Begin all that may begin, until there is only to wait."""
    begun: list[tuple[str, int]] = []
    while actions := run.next():
        for action in actions:
            run.action_started(action)
            begun.append(action)
    return begun


def test_generation_is_one_version_ahead_and_waits_for_the_weights_there() -> None:
    run = fresh()

    assert begin(run) == [("generate", 1)]
    run.batch_generated(1)
    assert begin(run) == [("generate", 2), ("update", 1)]
    run.batch_generated(2)
    assert begin(run) == []
    run.batch_updated(1)
    assert begin(run) == [("sync", 1), ("generate", 3), ("update", 2)]


def test_new_weights_are_taken_before_anything_else_where_both_sides_are_free() -> None:
    run = RunAhead(done=3, rollout_version=2, steps=9, max_staleness=4, generated_with={4: 2})

    assert begin(run) == [("sync", 3), ("generate", 5), ("update", 4)]


def test_who_generates_keeps_the_old_weights_while_the_bound_allows_it() -> None:
    run = fresh(max_staleness=3)
    begin(run)
    run.batch_generated(1)
    begin(run)
    run.batch_updated(1)

    assert begin(run) == []
    run.batch_generated(2)
    assert begin(run) == [("sync", 1), ("generate", 3), ("update", 2)]


def test_a_batch_that_failed_is_generated_again_before_later_ones_go_on() -> None:
    run = fresh(max_staleness=2)
    begin(run)
    run.batch_generated(1)
    begin(run)
    run.batch_failed(1)

    assert begin(run) == []
    run.batch_generated(2)
    assert begin(run) == [("generate", 1)]
    run.batch_generated(1)
    assert begin(run) == [("generate", 3), ("update", 1)]


def test_a_pause_lets_all_come_to_rest_with_the_newest_weights() -> None:
    run = fresh()
    begin(run)
    run.batch_generated(1)
    begin(run)

    run.paused = True
    run.batch_updated(1)
    assert begin(run) == [] and not run.at_rest
    run.batch_generated(2)
    assert begin(run) == [("sync", 1)] and run.at_rest
    run.paused = False
    assert begin(run) == [("generate", 3), ("update", 2)]


def test_in_flight_weights_are_sent_while_devices_generate_and_the_next_update_waits_for_that() -> (
    None
):
    run = RunAhead(done=0, rollout_version=0, steps=9, max_staleness=3, in_flight=True)
    begin(run)
    run.batch_generated(1)
    assert begin(run) == [("generate", 2), ("update", 1)]
    run.batch_generated(2)
    assert begin(run) == [("generate", 3)]

    run.batch_updated(1)
    assert begin(run) == [("send", 1)]
    run.weights_sent()
    assert begin(run) == [("update", 2)]
    assert run.rollout_version == 0
    run.weights_switched()
    run.batch_generated(3)

    assert run.rollout_version == 1 and run.generated_with == {2: 0, 3: 0}
    assert begin(run) == [("generate", 4)]
    run.batch_updated(2)
    assert begin(run) == [("send", 2)]


def test_a_version_is_not_sent_before_the_one_before_it_is_switched_to() -> None:
    run = RunAhead(done=0, rollout_version=0, steps=9, max_staleness=3, in_flight=True)
    for _ in range(3):
        begin(run)
        run.batch_generated(run.generating)
    begin(run)
    run.batch_updated(1)
    assert begin(run) == [("send", 1)]
    run.weights_sent()
    assert begin(run) == [("update", 2)]

    run.batch_updated(2)

    assert begin(run) == [("update", 3)]
    run.weights_switched()
    assert begin(run) == []
    run.batch_updated(3)
    assert begin(run) == [("send", 3)]


def test_devices_that_generate_nothing_take_new_weights_at_once_in_flight_or_not() -> None:
    run = RunAhead(
        done=3, rollout_version=2, steps=9, max_staleness=4, generated_with={4: 2}, in_flight=True
    )

    assert begin(run) == [("sync", 3), ("generate", 5), ("update", 4)]


@given(
    data=st.data(),
    steps=st.integers(1, 8),
    bound=st.integers(1, 4),
    resumed_at=st.integers(0, 3),
    failures=st.integers(0, 6),
    in_flight=st.booleans(),
)
def test_every_history_ends_with_each_batch_used_once_within_the_bound(
    data: st.DataObject, steps: int, bound: int, resumed_at: int, failures: int, in_flight: bool
) -> None:
    done = min(resumed_at, steps)
    run = RunAhead(
        done=done, rollout_version=done, steps=steps, max_staleness=bound, in_flight=in_flight
    )
    weights_of: dict[int, int] = {}
    used: list[int] = []

    while run.done < run.steps:
        for what, number in begin(run):
            if what == "generate":
                weights_of[number] = run.rollout_version
            elif what == "update":
                assert number - 1 - weights_of[number] <= bound
        under_way = [
            (ends, batch)
            for ends, batch in (
                (run.batch_generated, run.generating),
                (run.batch_updated, run.updating),
            )
            if batch is not None
        ]
        steps_of_a_delivery = (
            (run.weights_sent, run.sending),
            (run.weights_switched, run.switching),
        )
        deliveries = [ends for ends, version in steps_of_a_delivery if version is not None]
        assert len(deliveries) <= 1 and (run.sending is None or run.updating is None)
        if deliveries and (not under_way or data.draw(st.booleans())):
            deliveries[0]()
            continue
        if run.paused:
            run.paused = not run.at_rest
            if not under_way:
                assert not run.paused
                continue
        assert under_way, "nothing is under way and nothing may begin"
        ends, batch = data.draw(st.sampled_from(under_way))
        lost = sorted({batch, *run.generated_with})
        if failures and data.draw(st.booleans()):
            failures -= 1
            run.batch_failed(data.draw(st.sampled_from(lost)))
            continue
        if ends == run.batch_updated:
            used.append(batch)
            run.paused = data.draw(st.booleans())
        ends(batch)

    assert used == list(range(done + 1, steps + 1))
    assert not run.generated_with


@pytest.mark.parametrize("bound", [1, 2, 3])
def test_where_generation_is_slow_the_samples_are_as_fresh_as_they_can_be(bound: int) -> None:
    run = fresh(steps=6, max_staleness=bound)
    lags = []

    while run.done < run.steps:
        begin(run)
        if run.updating is not None:
            lags.append(run.updating - 1 - run.generated_with[run.updating])
            run.batch_updated(run.updating)
        else:
            run.batch_generated(run.generating)

    assert lags == [0, 1, 1, 1, 1, 1]
