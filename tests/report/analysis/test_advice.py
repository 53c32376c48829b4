"""What is advised for steps that are slow in one way each, and the time that it should take."""

import math

import pytest

from rljob_runtime.report.analysis.advice import advise, is_legal, merge_change

SEPARATED = {"mode": "separated", "updateDevices": 1, "rolloutDevices": 1}
LENGTHS = {"mean": 20.0, "p80": 24.0, "max": 124.0}


def first(found):
    return found[0].change["spec"], found[0].seconds


def test_a_slow_reward_after_each_generation_is_let_run_beside_other_steps(job_of, figures_of):
    job = job_of(flow={"mode": "sync"}, placement=SEPARATED, accelerator__devicesPerNode=2)
    busy = {"generate": 2.0, "reward": 6.0, "update": 1.0, "sync": 0.5}
    blamed = {"generate": 2.0, "reward": 6.0, "update": 1.0, "reshard": 0.5, "other": 0.5}
    figures = figures_of(blamed, busy, half_seconds=2.0)

    ahead, streaming = advise(figures, job, parts=["reward"])[:2]

    assert ahead.change["spec"]["flow"] == {"mode": "async", "maxStaleness": 1}
    assert ahead.seconds == pytest.approx(6.0 + 0.5)  # the reward alone, and what is nobody's
    assert streaming.change["spec"]["flow"] == {"mode": "streaming"}
    # groups are there after 2 s, the last is scored at 8 s, and a quarter of the update is left
    assert streaming.seconds == pytest.approx(2 + 6 + 1 / 4 + 0.5 + 0.5)


def test_a_colocated_job_streams_before_it_is_told_to_take_as_many_devices_again(
    job_of, figures_of
):
    job = job_of(flow={"mode": "sync"})
    busy = {"generate": 2.0, "reward": 6.0, "update": 4.0}
    figures = figures_of({"generate": 2.0, "reward": 6.0, "update": 4.0}, busy, half_seconds=2.0)

    streaming, *_, apart = advise(figures, job, parts=["reward", "update"])

    assert streaming.change["spec"] == {"flow": {"mode": "streaming"}}
    assert streaming.seconds == pytest.approx(2 + 6 + 1)
    assert apart.seconds == pytest.approx(6)  # shorter by a third alone, with twice the devices
    assert apart.price == "devices"


@pytest.mark.parametrize("part", ["generate", "inference", "reward"])
def test_a_colocated_job_that_streams_already_may_generate_ahead_on_devices_of_its_own(
    part, job_of, figures_of
):
    job = job_of(batch__microBatchSize=1, accelerator__devicesPerNode=2)
    busy = {"generate": 6.0, "reward": 1.0, "reference": 3.0, "update": 2.0, "sync": 0.5}
    blamed = {"generate": 6.0, "inference": 3.0, "update": 2.0, "reshard": 0.5, "other": 0.5}
    figures = figures_of(blamed, busy, half_seconds=6.0)

    found = advise(figures, job, parts=[part])

    (apart,) = [advice for advice in found if advice.price == "devices"]
    assert apart.change["spec"] == {
        "placement": {"mode": "separated", "updateDevices": 2, "rolloutDevices": 2},
        "flow": {"mode": "async", "maxStaleness": 1},
        "resharding": {"strategy": "allgather"},
    }
    before = 6 + 3 + 2 + 0.5 + 0.5
    assert apart.seconds == pytest.approx((6 + 0.5 + 0.5) * figures.seconds / before)
    assert "takes 2 more devices" in apart.note


@pytest.mark.parametrize("target", [None, 0.1])
def test_the_reference_goes_where_only_a_kl_term_needs_it_and_comes_last(
    target, job_of, figures_of
):
    kl = {"klCoefficient": 0.1} | ({"klTarget": target} if target else {})
    job = job_of(algorithm={"name": "grpo", "params": kl}, batch__microBatchSize=1)
    busy = {"generate": 1.0, "reference": 6.0, "update": 2.0}
    figures = figures_of({"generate": 1.0, "inference": 6.0, "update": 2.0}, busy, half_seconds=1.0)

    *_, without = advise(figures, job, parts=["inference"])

    asked = {"klCoefficient": 0} | ({"klTarget": None} if target else {})
    assert without.change["spec"] == {"algorithm": {"params": asked}}
    assert without.seconds == pytest.approx(1 + 2)
    assert without.price == "learning"


def test_neither_a_teacher_nor_the_reference_of_pairs_is_left_out(job_of, figures_of):
    busy = {"generate": 1.0, "teacher": 3.0, "reference": 3.0, "update": 2.0}
    figures = figures_of({"generate": 1.0, "inference": 6.0, "update": 2.0}, busy, half_seconds=1.0)
    distilled = job_of(algorithm={"name": "distillation"}, teacher={"path": "large"})
    preferred = job_of(algorithm={"name": "dpo"})

    found = [
        advice
        for job in (distilled, preferred)
        for advice in advise(figures, job, parts=["inference"])
    ]

    assert found
    assert all("algorithm" not in advice.change["spec"] for advice in found)


def test_a_service_is_asked_for_more_samples_at_the_same_time(job_of, figures_of):
    service = {"name": "judge", "type": "http", "http": {"url": "http://judge", "concurrency": 2}}
    job = job_of(rewards=[service])
    busy = {"generate": 1.0, "reward": 8.0, "update": 1.0}
    figures = figures_of({"generate": 1.0, "reward": 8.0, "update": 1.0}, busy, half_seconds=1.0)

    change, seconds = first(advise(figures, job, parts=["reward"]))

    assert change["rewards"][0]["http"]["concurrency"] == 8  # a group's samples
    ends_before, ends_after = 1 + 8 + 1 / 4, 1 + 2 + 1 / 4
    assert seconds == pytest.approx(10 * ends_after / ends_before)


def test_a_long_tail_is_not_waited_for(job_of, figures_of):
    busy = {"generate": 8.0, "reward": 0.1, "update": 2.0}
    figures = figures_of(
        {"generate": 3.0, "tail": 5.0, "update": 2.0},
        busy,
        half_seconds=1.0,
        tail=5.0,
        lengths=LENGTHS,
    )

    change, seconds = first(advise(figures, job_of(), parts=["tail"]))

    assert change == {"flow": {"partialRollout": {"budgetTokens": 24}}}
    # half of the last fifth's 100 tokens is 10 a sample, beside 10 that came before; a token took 50 ms in
    # the tail and 125 before it, so that three fifths of these were for the number of samples
    generated = 3.0 * (1 + 0.6 * 10 / (20 - 10))
    assert seconds == pytest.approx(generated + 2.0, rel=0.01)


def test_samples_that_decode_as_fast_alone_make_room_for_the_tail_at_no_cost(job_of, figures_of):
    busy = {"generate": 6.2, "update": 2.0}
    figures = figures_of(
        {"generate": 1.2, "tail": 5.0, "update": 2.0},
        busy,
        half_seconds=1.0,
        tail=5.0,
        lengths=LENGTHS,
    )

    _, seconds = first(advise(figures, job_of(), parts=["tail"]))

    assert seconds == pytest.approx(1.2 + 2.0, rel=0.01)  # 50 ms a token all along


@pytest.mark.parametrize("fixed", [0.0, 1.0, None])
def test_smaller_passes_are_advised_for_what_they_gain_beyond_what_each_costs(
    fixed, job_of, figures_of
):
    job = job_of(flow={"mode": "streaming"}, batch__globalBatchSize=4, batch__microBatchSize=4)
    busy = {"generate": 2.0, "reward": 6.0, "update": 4.0}
    passes = tuple((float(n), (fixed or 0.0) + 0.01 * n) for n in range(20, 60, 2))
    figures = figures_of(
        busy, busy, half_seconds=2.0, num_passes=1.0, passes=() if fixed is None else passes
    )

    found = [a for a in advise(figures, job, parts=["reward"]) if "batch" in a.change["spec"]]

    before, streamed = 2 + 6 + 4, 2 + 6 + (4 + 3 * (fixed or 0.0)) / 4
    assert [advice.seconds for advice in found] == [pytest.approx(streamed, rel=0.02)], before
    assert found[0].change["spec"]["batch"] == {"microBatchSize": 1}


def test_smaller_passes_that_may_cost_more_than_they_gain_are_not_advised(job_of, figures_of):
    job = job_of(flow={"mode": "streaming"}, batch__globalBatchSize=4, batch__microBatchSize=4)
    busy = {"generate": 2.0, "reward": 0.2, "update": 4.0, "sync": 4.0}
    figures = figures_of({"generate": 2.0, "update": 4.0, "reshard": 4.0}, busy, half_seconds=2.0)

    found = advise(figures, job, parts=["reshard"])

    assert not [advice for advice in found if "batch" in advice.change["spec"]]


def test_a_budget_never_makes_a_sample_older_than_the_contract_allows(job_of, figures_of):
    job = job_of(batch__maxResponseLength=8192)
    figures = figures_of(
        {"tail": 5.0, "update": 1.0}, {"generate": 5.0, "update": 1.0}, tail=4.0, lengths=LENGTHS
    )

    change, _ = first(advise(figures, job, parts=["tail"]))

    assert change["flow"]["partialRollout"]["budgetTokens"] == math.ceil(8192 / 63)


def test_layouts_that_differ_become_alike(job_of, figures_of):
    job = job_of(
        update__parallelism={"tensor": 2},
        resharding__strategy="stream",
        accelerator__devicesPerNode=2,
    )
    busy = {"generate": 1.0, "update": 1.0, "sync": 6.0}
    figures = figures_of({"generate": 1.0, "update": 1.0, "reshard": 6.0}, busy, half_seconds=1.0)

    (alike,) = advise(figures, job, parts=["reshard"])

    degrees = {"data": 2, "tensor": 1, "pipeline": 1}
    assert alike.change["spec"] == {"update": {"parallelism": degrees}}
    assert alike.seconds is None  # what the update takes in that layout is not known


def test_layouts_that_become_alike_are_told_what_the_reshard_spares(job_of, figures_of):
    job = job_of(update__parallelism={"tensor": 2}, accelerator__devicesPerNode=2)
    reshard = {"gather_seconds": 2.0, "swap_waited_seconds": 0.0, "overlap": 1.0}
    busy = {"generate": 1.0, "update": 1.0, "sync": 6.0}
    figures = figures_of(
        {"generate": 1.0, "update": 1.0, "reshard": 6.0}, busy, half_seconds=1.0, reshard=reshard
    )

    (alike,) = advise(figures, job, parts=["reshard"])

    assert "without its exchanges, 2 s" in alike.how
    assert "2 times as many weights" in alike.how


def test_layouts_stay_apart_whose_exchanges_are_a_small_part_of_a_step(job_of, figures_of):
    job = job_of(update__parallelism={"tensor": 2}, accelerator__devicesPerNode=2)
    reshard = {
        "gather_seconds": 0.5,
        "check_seconds": 5.0,
        "swap_waited_seconds": 0.0,
        "overlap": 1.0,
    }
    busy = {"generate": 1.0, "update": 1.0, "sync": 6.0}
    figures = figures_of(
        {"generate": 1.0, "update": 1.0, "reshard": 6.0}, busy, half_seconds=1.0, reshard=reshard
    )

    assert advise(figures, job, parts=["reshard"]) == []


def test_waits_for_copies_to_the_host_go_where_both_layouts_stay(job_of, figures_of):
    reshard = {"swap_waited_seconds": 1.0, "back_seconds": 4.0, "overlap": 0.5}
    busy = {"generate": 1.0, "update": 1.0, "sync": 4.0}
    figures = figures_of(
        {"generate": 1.0, "update": 1.0, "reshard": 4.0}, busy, half_seconds=1.0, reshard=reshard
    )

    found = advise(figures, job_of(), parts=["reshard"])

    assert first(found) == ({"resharding": {"strategy": "allgather"}}, pytest.approx(1 + 1 + 1))


def test_many_small_passes_become_fewer_and_epochs_come_last(job_of, figures_of):
    job = job_of(batch__microBatchSize=1, batch__epochs=4, update__recompute="full")
    passes = tuple((float(n), 0.1 + 0.001 * n) for n in range(20, 60, 2))
    busy = {"generate": 1.0, "update": 12.0}
    figures = figures_of(
        {"generate": 1.0, "update": 12.0}, busy, half_seconds=1.0, passes=passes, num_passes=32.0
    )

    found = advise(figures, job, parts=["update"])

    asked = [advice.change["spec"] for advice in found]
    assert asked == [
        {"update": {"recompute": "none"}},
        {"batch": {"microBatchSize": 4}},
        {"batch": {"epochs": 2}},
    ]
    assert found[1].seconds == pytest.approx(1 + 12 - 24 * 0.1, rel=0.02)  # 24 passes less
    assert found[0].seconds == pytest.approx(1 + 9, rel=0.02)
    assert found[2].seconds == pytest.approx(1 + 6, rel=0.02)


def test_passes_of_one_size_leave_the_estimate_open(job_of, figures_of):
    job = job_of(batch__microBatchSize=1)
    figures = figures_of({"update": 10.0}, {"update": 10.0}, passes=((50.0, 0.1),) * 20)

    (advice,) = advise(figures, job, parts=["update"])

    assert advice.change["spec"] == {"batch": {"microBatchSize": 4}}
    assert advice.seconds is None


def test_a_full_dock_gets_room(job_of, figures_of):
    figures = figures_of({"generate": 2.0, "dock": 6.0}, {"generate": 8.0}, half_seconds=4.0)

    (advice,) = advise(figures, job_of(), parts=["dock"])

    assert (advice.change["spec"], advice.seconds) == ({"dock": {"capacity": "2048Mi"}}, 2.0)


def test_what_gains_next_to_nothing_or_is_refused_is_not_advised(job_of, figures_of):
    busy = {"generate": 10.0, "reward": 0.1, "update": 0.2}
    figures = figures_of(
        {"generate": 5.0, "tail": 4.9, "update": 0.1},
        busy,
        half_seconds=1.0,
        tail=4.9,
        lengths=LENGTHS,
    )
    limited = job_of(flow={"mode": "sync"}, data__difficultyFilter={})

    assert advise(figures, limited, parts=["generate", "tail"]) == []  # no partial rollout with it


def test_a_change_is_merged_into_the_job_and_null_takes_a_key_away(job_of):
    before = {"spec": {"flow": {"mode": "sync"}, "batch": {"epochs": 2}}}

    after = merge_change(before, {"spec": {"flow": {"mode": "async"}, "batch": {"epochs": None}}})

    assert after == {"spec": {"flow": {"mode": "async"}, "batch": {}}}
    assert before["spec"]["batch"] == {"epochs": 2}
    assert not is_legal(job_of(), {"spec": {"flow": {"mode": "async"}}})  # colocated
