"""Which groups a step takes, which go into the next one, and which prompts a round draws."""

import json
import time
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from whole_runs import SMALL_JOB

from rljob_api.check.load import read_job
from rljob_api.spec.algorithms.dapo import DAPOParams
from rljob_runtime.algorithms import ALGORITHMS
from rljob_runtime.dock.rows import RowMeta
from rljob_runtime.errors import WorkerError
from rljob_runtime.prompts.candidates import Candidates
from rljob_runtime.prompts.rounds import Selection
from rljob_runtime.prompts.selection import ScoredGroup, batch_rows, has_signal, select_groups
from rljob_runtime.run.course import rounds
from rljob_runtime.run.stages import BatchCalls
from rljob_runtime.samples.batches import BatchName
from rljob_runtime.samples.sample import SampleBatch


def candidates(**changes) -> Candidates:
    settings = {"prompts": 8, "steps": 3, "most_rounds": 3, "fills": True, **changes}
    return Candidates(**settings)


def gave(now, *, taken=0, left_over=(), lost=()) -> Selection:
    """So many of the round's first groups were taken; of the others, these positions have a signal."""
    others = {*left_over, *lost}
    silent = tuple(p for p in now.positions[taken:] if p not in others)
    return Selection(
        taken=now.positions[:taken],
        left_over=tuple(left_over),
        lost=tuple(lost),
        silent=silent,
        num_with_signal=taken + len(others),
    )


def test_a_group_is_kept_by_raw_accuracy_though_its_rewards_differ():
    rewards, passes = [0.1, 0.2, 0.3], [False, False, False]

    assert not has_signal(rewards, passes, by="accuracy")
    assert has_signal(rewards, passes, by="reward")
    assert has_signal(rewards, [False, True, False], by="accuracy")


def scored(rewards: list[float], *, signal: bool) -> ScoredGroup:
    rows = [
        RowMeta("a", "b", "g", 0, len(rewards), i, 0, 0, {}, 1, "l") for i in range(len(rewards))
    ]
    return ScoredGroup(
        rows=rows,
        shared={"position": np.asarray([0])},
        columns=[{} for _ in rewards],
        rewards=rewards,
        signal=signal,
    )


@pytest.mark.parametrize("signal", ["accuracy", "reward"])
def test_groups_that_fill_places_have_no_advantage_though_rewards_or_lengths_differ(signal):
    rewards = [[1.0, 0.2, 0.2], [0.1, 0.2, 0.3] if signal == "accuracy" else [0.1] * 3]
    batch, lengths = BatchName(kind="train", step=1), [2, 3, 4]
    rows = [
        row
        for place, group in enumerate(rewards)
        for row in batch_rows(batch, place, scored(group, signal=place == 0), reserve_bytes=0)
    ]
    samples = SampleBatch(
        prompts=[torch.tensor([1]), torch.tensor([2])],
        group_of_B=torch.tensor([row.group_index for row in rows]),
        responses=[torch.zeros(length, dtype=torch.int64) for length in lengths * 2],
        scalars={"reward": torch.tensor([float(row.columns["reward"][0]) for row in rows])},
    )
    params = DAPOParams.model_validate(
        {"dynamicSampling": {"signal": signal}, "overlong": {"bufferTokens": 3}}
    )

    ALGORITHMS["dapo"].prepare(samples, params.resolved(max_response_length=4))

    advantages_B = samples.scalars["advantage"]
    assert samples.scalars["reward"][:3].tolist() == pytest.approx(rewards[0])
    assert advantages_B[:3].count_nonzero() == 3
    assert advantages_B[3:].tolist() == [0.0, 0.0, 0.0]


def test_what_is_kept_beyond_the_missing_ones_is_left_over_in_order():
    signals = [True, False, True, True, False, True]

    few = select_groups(signals, missing=2, fill=True)
    assert (few.taken, few.left_over, few.silent, few.num_with_signal) == (
        (0, 2),
        (3, 5),
        (1, 4),
        4,
    )
    assert select_groups(signals, missing=5, fill=False).taken == (0, 2, 3, 5)
    full = select_groups(signals, missing=5, fill=True)
    assert (full.taken, full.left_over, full.silent) == ((0, 2, 3, 5, 1), (), (4,))


def test_groups_that_no_later_step_can_take_come_first_and_are_lost_where_they_are_too_many():
    signals = [True, True, True, False, True]

    one = select_groups(signals, missing=2, fill=False, last={2, 3})
    all_of_them = select_groups(signals, missing=2, fill=False, last=range(5))

    assert (one.taken, one.left_over, one.lost, one.silent) == ((2, 0), (1, 4), (), (3,))
    assert (all_of_them.taken, all_of_them.left_over, all_of_them.lost) == ((0, 1), (), (2, 4))


def test_a_second_round_draws_as_many_as_the_first_one_lost():
    rounds = candidates(replicas=2)
    rounds.begin(1, replicas=2)
    first = rounds.next_round(1)
    rounds.record_selection(gave(first, taken=6))

    second = rounds.next_round(1)

    assert (first.positions, first.fill) == (tuple(range(8)), False)
    assert second.positions == (8, 9, 10, 11)  # 2 missing at 6 of 8 kept: 2.67, for two replicas
    assert (second.groups, second.filled, second.missing) == (range(8, 12), 6, 2)


def test_the_last_round_alone_takes_groups_without_a_signal():
    rounds = candidates(most_rounds=2)
    rounds.begin(1, replicas=1)
    fills = []
    while (now := rounds.next_round(1)) is not None:
        fills.append(now.fill)
        rounds.record_selection(gave(now))

    assert fills == [False, True]


def test_a_step_begins_with_what_was_left_over_and_draws_the_rest():
    rounds = candidates()
    rounds.begin(1, replicas=1)
    rounds.record_selection(gave(rounds.next_round(1), taken=5))
    rounds.record_selection(gave(rounds.next_round(1), taken=3, left_over=[11, 12]))

    rounds.begin(1, replicas=1)
    now = rounds.next_round(2)

    assert (now.filled, now.missing, len(now.positions)) == (2, 6, 6)


def test_after_the_last_step_nothing_is_left_over():
    rounds = candidates(steps=1)
    rounds.begin(1, replicas=1)

    assert rounds.next_round(1).next_batch is None


@pytest.mark.parametrize("trained", [False, True])
def test_a_lost_step_draws_its_prompts_again_under_names_that_are_new(trained):
    rounds = candidates()
    rounds.begin(1, replicas=1)
    before = rounds.next_round(1)
    rounds.record_selection(gave(before, taken=6, left_over=[6, 7]))

    rounds.start_over(trained=trained)
    rounds.begin(1, replicas=1)
    again = rounds.next_round(1)

    assert again.positions == ((6, 7, *range(8, 14)) if trained else tuple(range(8)))
    assert {before.rows, before.batch, before.next_batch}.isdisjoint(
        {again.rows, again.batch, again.next_batch}
    )


def test_what_is_too_many_and_too_old_for_the_next_step_is_drawn_first_there():
    rounds = candidates()
    rounds.begin(1)
    rounds.record_selection(gave(rounds.next_round(1), taken=6, lost=[6, 7]))

    rounds.begin(2)

    now = rounds.next_round(2)
    assert (now.filled, now.positions) == (0, (6, 7, *range(8, 14)))


def test_steps_that_run_ahead_and_are_lost_are_all_drawn_again_but_for_the_one_that_was_trained_on():
    rounds = candidates()
    for step in (1, 2, 3):
        rounds.begin(step)
        now = rounds.next_round(step)
        rounds.record_selection(
            gave(now, taken=len(now.positions) - 1, left_over=now.positions[-1:])
        )

    assert rounds.state().open_prompts == []
    rounds.start_over(trained=True)
    rounds.finish_step([])

    assert rounds.state().open_prompts == [7]
    rounds.begin(2)
    assert rounds.next_round(2).positions == (7, *range(8, 15))


@given(data=st.data())
def test_every_prompt_is_drawn_once_and_every_step_is_filled(data):
    rounds, drawn = candidates(steps=20, most_rounds=None), []
    for step in range(1, 20):
        rounds.begin(1, replicas=1)
        while (now := rounds.next_round(step)) is not None:
            drawn += now.positions
            signals = data.draw(
                st.lists(
                    st.booleans(), min_size=len(now.positions), max_size=len(now.positions)
                ).filter(any)
            )
            chosen = select_groups(signals, missing=now.missing, fill=now.fill)
            rounds.record_selection(chosen.with_positions(now.positions))
        assert rounds.current.filled == 8
        assert len(rounds.carried) < 8

    assert drawn == list(range(len(drawn)))


class FakeStages:
    """Rounds of which each keeps so many groups, and takes so long."""

    def __init__(self, spec, *, kept, seconds=0.0):
        self.job, self.rounds = SimpleNamespace(spec=spec), 0
        self.candidates, self.kept, self.seconds = Candidates.of(spec), kept, seconds

    def start(self, calls, stages):
        calls.of_stage.update({stage: [] for stage in stages})
        calls.devices.update({stage: [] for stage in stages})

    def draw(self):
        self.candidates.begin(1, replicas=1)
        calls = BatchCalls(batch=BatchName(kind="train", step=1))
        positions = iter(range(1000))
        for waits in rounds(self.candidates, self, calls):  # type: ignore[arg-type]
            if "reward" in waits:
                time.sleep(self.seconds)
                self.rounds += 1
                taken = tuple(next(positions) for _ in range(self.kept))
                self.candidates.record_selection(Selection(taken=taken, num_with_signal=self.kept))


def fake_stages(*, timeout=3600.0, mode="streaming", kept=1, seconds=0.0, **sampling):
    job = json.loads(json.dumps(SMALL_JOB))
    job["spec"]["flow"] = {"mode": mode, "stageTimeoutSeconds": timeout}
    job["spec"]["algorithm"] = {"name": "dapo", "params": {"dynamicSampling": sampling}}
    return FakeStages(read_job(job).spec, kept=kept, seconds=seconds)


@pytest.mark.parametrize("mode", ["sync", "streaming"])
def test_a_run_that_stops_when_short_says_what_it_kept_and_what_helps(mode):
    stages = fake_stages(whenShort="stop", maxRounds=3, mode=mode)

    with pytest.raises(WorkerError) as stopped:
        stages.draw()

    told = "step 1: 3 of 8 groups have a signal after 3 rounds of dynamic sampling (24 drawn, 12% kept)"
    assert str(stopped.value).startswith(told)
    assert "dynamicSampling.maxRounds, or set whenShort: fill" in str(stopped.value)


def test_a_run_that_goes_on_when_short_draws_past_its_rounds_until_the_step_is_full():
    stages = fake_stages(whenShort="go-on", maxRounds=3)

    stages.draw()

    assert stages.rounds == 8


def test_a_run_that_goes_on_when_short_stops_at_the_stages_deadline():
    stages = fake_stages(whenShort="go-on", maxRounds=3, kept=0, timeout=0.05, seconds=0.03)

    with pytest.raises(WorkerError, match=r"0 of 8 groups have a signal after 0\.05 s of dynamic"):
        stages.draw()

    assert stages.rounds in (1, 2)  # 1 where a busy machine takes as long as two for it


def test_a_step_that_is_full_at_its_deadline_is_not_short():
    stages = fake_stages(whenShort="go-on", maxRounds=3, kept=8, timeout=0.001, seconds=0.01)

    stages.draw()

    assert stages.candidates.current.filled == 8
