"""Orders of pipeline steps: complete, free of deadlock, with the papers' waiting times and memory."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rljob_runtime.parallel.pipeline_schedule import (
    PipelineSchedule,
    PipelineStep,
    peak_activations,
)

schedules = st.builds(
    PipelineSchedule,
    ranks=st.integers(1, 6),
    chunks=st.integers(1, 4),
    micro_batches=st.integers(0, 14),
    trains=st.booleans(),
)


def idle_share(schedule: PipelineSchedule, *, backward_cost: float = 2.0) -> float:
    """Time that the ranks wait over the time that they compute, where every forward pass takes 1.

    (ranks - 1) / (chunks · micro-batches) for whole rounds. Raises AssertionError for a schedule in which
    ranks wait for each other for ever.
    """
    ends: dict[PipelineStep, float] = {}
    left = [schedule.steps(rank) for rank in range(schedule.ranks)]
    busy = sum(1.0 if s.direction == "forward" else backward_cost for steps in left for s in steps)
    now = [0.0] * schedule.ranks
    while any(left):
        went_on = False
        for rank, steps in enumerate(left):
            while steps and (needs := needs_of(schedule, steps[0])) <= ends.keys():
                step = steps.pop(0)
                cost = 1.0 if step.direction == "forward" else backward_cost
                now[rank] = max([now[rank], *(ends[need] for need in needs)]) + cost
                ends[step] = now[rank]
                went_on = True
        assert went_on, f"{schedule} waits for ever before {[steps[:1] for steps in left]}"
    return schedule.ranks * max(now) / busy - 1 if busy else 0.0


def needs_of(schedule: PipelineSchedule, step: PipelineStep) -> set[PipelineStep]:
    if step.direction == "forward":
        return {PipelineStep("forward", step.stage - 1, step.micro_batch)} if step.stage else set()
    if step.stage == schedule.stages - 1:
        return {PipelineStep("forward", step.stage, step.micro_batch)}
    return {PipelineStep("backward", step.stage + 1, step.micro_batch)}


@given(schedule=schedules)
def test_every_rank_runs_each_micro_batch_through_each_of_its_stages_once(schedule):
    directions = ["forward", "backward"] if schedule.trains else ["forward"]
    for rank in range(schedule.ranks):
        steps = schedule.steps(rank)

        assert len(set(steps)) == len(steps)
        assert set(steps) == {
            PipelineStep(direction, stage, micro_batch)  # type: ignore[arg-type]
            for direction in directions
            for stage in range(rank, schedule.stages, schedule.ranks)
            for micro_batch in range(schedule.micro_batches)
        }


@given(schedule=schedules)
def test_no_schedule_waits_for_ever(schedule):
    assert idle_share(schedule) >= 0


@given(schedule=schedules)
def test_every_message_is_needed_once_by_the_rank_that_it_goes_to(schedule):
    messages = [message for rank in range(schedule.ranks) for message in schedule.messages(rank)]

    needed = {
        step
        for rank in range(schedule.ranks)
        for step in schedule.steps(rank)
        if step.stage != (0 if step.direction == "forward" else schedule.stages - 1)
    }
    assert {message.needed_by for message in messages} == needed
    assert len(messages) == len(needed)
    assert all(message.target == message.needed_by.stage % schedule.ranks for message in messages)


def test_four_ranks_run_1f1b_as_in_the_paper():
    steps = PipelineSchedule(ranks=4, chunks=1, micro_batches=4).steps(2)

    assert "".join(f"{step.direction[0]}{step.micro_batch}" for step in steps) == "f0f1b0f2b1f3b2b3"


@pytest.mark.parametrize("chunks", [1, 2, 3])
@pytest.mark.parametrize("rounds", [1, 2, 5])
@pytest.mark.parametrize("ranks", [2, 4, 6])
def test_idle_time_of_whole_rounds_is_the_papers(ranks, rounds, chunks):
    schedule = PipelineSchedule(ranks=ranks, chunks=chunks, micro_batches=rounds * ranks)

    assert idle_share(schedule) == pytest.approx((ranks - 1) / (chunks * rounds * ranks))


@given(ranks=st.integers(1, 6), micro_batches=st.integers(1, 14))
def test_1f1b_holds_as_many_micro_batches_as_there_are_ranks_from_here_on(ranks, micro_batches):
    schedule = PipelineSchedule(ranks=ranks, chunks=1, micro_batches=micro_batches)

    held = [peak_activations(schedule.steps(rank)) for rank in range(ranks)]

    assert held == [min(ranks - rank, micro_batches) for rank in range(ranks)]
