"""A step that is not finite tells which rows it was made of, and its alarm names the file that has them."""

import json
import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from forked_docks import ForkedDock
from made_samples import GROUPS, RANKS, SAMPLES, Samples, make_spec
from run_events import told_in

from rljob_api.spec.guards import Guards
from rljob_runtime.algorithms.kl_control import KlControl
from rljob_runtime.dock.columns import Ragged
from rljob_runtime.errors import GuardStop
from rljob_runtime.record.checkpoint import CheckpointStore
from rljob_runtime.record.events import EventLog
from rljob_runtime.run import alarm_actions as guarding_module
from rljob_runtime.run.alarm_actions import AlarmActions
from rljob_runtime.run.alarm_watch import AlarmWatch
from rljob_runtime.samples.batches import BatchName
from rljob_runtime.samples.flow import state_graph
from rljob_runtime.samples.sample import SampleBatch
from rljob_runtime.update.update_ranks import UpdateRanks
from rljob_runtime.worker import bad_batch
from rljob_runtime.worker.update import UpdateState

KL = 0.1
BAD_GROUP, BAD_SAMPLE, BAD_TOKEN = 4, 2, 1


@dataclass
class BrokenReference(Samples):
    """One token's log-prob under the reference is not a number."""

    def columns(self, rows):
        made = super().columns(rows)

        def broken(names):
            columns = made(names)
            if "reference_logprobs" not in columns:
                return columns
            values = [row.copy() for row in columns["reference_logprobs"].rows()]
            for row, value in zip(rows, values, strict=True):
                if (row.group_index, row.sample) == (BAD_GROUP, BAD_SAMPLE):
                    value[BAD_TOKEN] = np.nan
            return columns | {"reference_logprobs": Ragged.from_rows(values)}

        return broken


def train(bench, samples, *, ruined=False):
    """Reports of the ranks. ruined: a weight of the model is not finite."""
    with ForkedDock(state_graph(samples.spec).states) as dock:
        feeder = dock.client("feed", "feeder")
        feeder.put_rows(str(samples.batch), samples.rows(), total=GROUPS * SAMPLES)
        samples.write(dock, range(GROUPS), pause=0)

        def run(rank, group):
            model = bench.make_model()
            if ruined:
                next(iter(dict(model.named_hf_parameters()).values())).data.fill_(math.nan)
            update = UpdateState(
                engine=bench.make_engine(model, group),
                dock=dock.client("update", f"update-{rank}"),
                ranks=UpdateRanks(everyone=group),
                spec=samples.spec,
                control=KlControl.of(samples.spec.algorithm.params),
            )
            return update.run(samples.batch)

        return bench.on_ranks(RANKS, run)


def made(samples, group, sample):
    """A row's prompt, response and reference log-probs, as they were written."""
    found = next(r for r in samples.rows() if r.uid == samples.batch.row(group, sample))
    row: Any = type(
        "Row", (), {"group_index": group, "sample": sample, "columns": found.group_columns}
    )
    columns = samples.columns([row])(["response", "reference_logprobs", "rollout_logprobs"])
    return row.columns["prompt"], *(columns[name].row(0) for name in columns)


def test_the_row_with_the_value_comes_first_with_its_tokens_and_what_is_wrong(both):
    samples = BrokenReference(make_spec(kl=KL), BatchName(kind="train", step=1))

    reports = train(both[0], samples)

    assert all(math.isnan(report.metrics["loss"]) for report in reports)
    assert [report.metrics["skipped"] for report in reports] == [1, 1]
    rows = [row for report in reports for row in report.bad_rows]
    assert {row["uid"] for row in rows} == {row.uid for row in samples.rows()}
    (bad,) = [row for row in rows if row["not_finite"]]
    assert bad in [report.bad_rows[0] for report in reports]
    assert bad["uid"] == samples.batch.row(BAD_GROUP, BAD_SAMPLE)
    assert bad["not_finite"] == ["loss", "reference_logprobs"]
    assert bad["loss"] == "nan"
    prompt, response, reference, _ = made(samples, BAD_GROUP, BAD_SAMPLE)
    assert (bad["prompt"], bad["response"]) == (prompt.tolist(), response.tolist())
    assert (bad["prompt_tokens"], bad["response_tokens"]) == (len(prompt), len(response))
    summary = bad["of_tokens"]["reference_logprobs"]
    assert (summary["not_finite"], summary["first_not_finite"]) == (1, BAD_TOKEN)
    assert summary["mean"] == pytest.approx(np.nanmean(reference.astype(np.float64)), abs=1e-6)
    json.dumps(rows, allow_nan=False)


def test_a_rows_figures_are_those_of_the_model_and_the_loss(both):
    samples = BrokenReference(make_spec(kl=KL), BatchName(kind="train", step=1))

    rows = [row for report in train(both[0], samples) for row in report.bad_rows]

    row = next(row for row in rows if row["uid"] == samples.batch.row(1, 0))
    prompt, response, reference, _ = made(samples, 1, 0)
    alone = SampleBatch(
        prompts=[torch.tensor(prompt.tolist())],
        group_of_B=torch.zeros(1, dtype=torch.int64),
        responses=[torch.tensor(response.tolist())],
    )
    logprobs_T = both[1].make_engine(both[1].make_model()).logprobs(alone).double()
    assert row["of_tokens"]["logprobs"]["mean"] == pytest.approx(float(logprobs_T.mean()), abs=1e-5)
    # Two of four samples are right: mean 0.5, deviation 0.5 with n, 0.577 with n - 1.
    advantage = 0.5 / (math.sqrt(1 / 3) + 1e-6)
    assert row["advantage"] == pytest.approx(advantage, rel=1e-4)
    gap_T = torch.tensor(reference).double() - logprobs_T
    expected = float((-advantage + KL * (gap_T.exp() - gap_T - 1)).sum())
    assert row["loss"] == pytest.approx(expected, rel=1e-4)


def test_weights_that_are_not_finite_show_in_every_row(both):
    samples = Samples(make_spec(), BatchName(kind="train", step=1))

    reports = train(both[0], samples, ruined=True)

    rows = [row for report in reports for row in report.bad_rows]
    assert len(rows) == GROUPS * SAMPLES
    assert all("logprobs" in row["not_finite"] for row in rows)
    assert not any("rollout_logprobs" in row["not_finite"] for row in rows)


def test_a_step_that_is_finite_tells_of_no_rows(both):
    samples = Samples(make_spec(), BatchName(kind="train", step=1))

    assert [report.bad_rows for report in train(both[0], samples)] == [[], []]


def test_rows_and_tokens_are_bounded_and_the_bad_ones_stay(both, monkeypatch):
    monkeypatch.setattr(bad_batch, "MOST_ROWS", 3)
    monkeypatch.setattr(bad_batch, "MOST_TOKENS", 2)
    samples = BrokenReference(make_spec(kl=KL), BatchName(kind="train", step=1))

    reports = train(both[0], samples)

    assert [len(report.bad_rows) for report in reports] == [3, 3]
    rows = [row for report in reports for row in report.bad_rows]
    assert sum(bool(row["not_finite"]) for row in rows) == 1
    assert {len(row["prompt"]) for row in rows} == {2}
    assert {row["prompt_tokens"] for row in rows} == {5}


def guarding_of(folder, **guards):
    return AlarmActions(
        watch=AlarmWatch(guards=Guards.model_validate(guards), compares=True),
        log=EventLog(folder / "events.jsonl"),
        store=CheckpointStore(folder=folder / "checkpoints", keep=1),
    )


def test_the_alarm_names_the_file_with_the_rows(both, tmp_path):
    samples = BrokenReference(make_spec(kl=KL), BatchName(kind="train", step=1))
    reports = train(both[0], samples)
    rows = [row for report in reports for row in report.bad_rows]
    file = tmp_path / "bad-batches" / "step-000001.json"
    alarm_actions = guarding_of(tmp_path)

    with pytest.raises(GuardStop, match=f"nonFinite: not finite: .*; its batch: {file}"):
        alarm_actions.observe(1, reports[0].metrics, rows)

    content = json.loads(file.read_text())
    assert content["step"] == 1
    assert content["rows"][0]["uid"] == samples.batch.row(BAD_GROUP, BAD_SAMPLE)
    assert len(content["rows"]) == GROUPS * SAMPLES
    (alarm,) = told_in(alarm_actions.log.path)
    assert str(file) in alarm.message


def test_of_the_files_the_last_ones_stay(tmp_path, monkeypatch):
    monkeypatch.setattr(guarding_module, "MOST_FILES", 2)
    alarm_actions = guarding_of(tmp_path, non_finite={"policy": "warn"})

    for step in range(1, 9):  # raised at every other step
        loss = math.nan if step % 2 else 0.1
        alarm_actions.observe(step, {"loss": loss}, [{"not_finite": ["loss"]}])

    names = sorted(file.name for file in (tmp_path / "bad-batches").iterdir())
    assert names == ["step-000005.json", "step-000007.json"]


def test_a_folder_that_cannot_be_written_stops_nobody(tmp_path, caplog):
    (tmp_path / "bad-batches").write_text("in the way")
    alarm_actions = guarding_of(tmp_path, non_finite={"policy": "warn"})

    alarm_actions.observe(1, {"loss": math.nan}, [{"not_finite": ["loss"]}])

    (alarm,) = told_in(alarm_actions.log.path)
    assert "its batch" not in alarm.message
    assert "were not written" in caplog.text
