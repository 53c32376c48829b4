"""Pairs of the data through the dock: what the update and the compare states make of them."""

from typing import Any

import numpy as np
import pytest
import torch
from forked_docks import ForkedDock
from made_samples import RANKS
from whole_runs import SMALL_JOB

from rljob_api.check.load import read_job
from rljob_api.spec.rljob import RLJobSpec
from rljob_api.topology.resolved import resolve
from rljob_runtime.algorithms.kl_control import KlControl
from rljob_runtime.dock.columns import Ragged
from rljob_runtime.dock.rows import NewRow
from rljob_runtime.record.kept_logprobs import LogprobCache
from rljob_runtime.samples.batches import BatchName
from rljob_runtime.samples.flow import evaluation_states, state_graph, training_states
from rljob_runtime.update.update_ranks import UpdateRanks
from rljob_runtime.worker.compare import CompareState
from rljob_runtime.worker.inference import InferenceState
from rljob_runtime.worker.update import UpdateState

PAIRS, BETA = 8, 0.5
SIZES = {
    "globalBatchSize": PAIRS,
    "samplesPerPrompt": 2,
    "maxPromptLength": 16,
    "maxResponseLength": 8,
    "microBatchSize": 2,
}


@pytest.fixture
def spec() -> RLJobSpec:
    own = {key: SMALL_JOB["spec"][key] for key in ("steps", "model", "update", "accelerator")}
    pairs = {
        "data": {"preferences": {"path": "pairs.jsonl"}},
        "algorithm": {"name": "dpo", "params": {"beta": BETA}},
        "batch": SIZES,
        "evaluation": {"prompts": PAIRS},
    }
    return resolve(read_job({**SMALL_JOB, "spec": {**own, **pairs}})).spec


def tokens(pair, sample):
    return np.random.default_rng([pair, sample]).integers(0, 48, 2 + sample, dtype=np.int32)


def reference(row):
    return -3.9 + 0.1 * row.group_index + np.zeros(2 + row.sample, dtype=np.float32)


def put(dock, batch, states):
    put_rows(dock, batch, states)
    client = dock.client("reference", "reference-0")
    found = client.claim(str(batch), timeout_seconds=10).rows
    columns = Ragged.from_rows([reference(row) for row in found])
    client.write(found, {"reference_logprobs": columns})


def put_rows(dock, batch, states, order=range(PAIRS)):
    """order: of the pairs, by their numbers."""
    prompts = np.random.default_rng(1).integers(0, 48, (PAIRS, 5), dtype=np.int32)
    rows = [
        NewRow(
            uid=batch.row(place, sample),
            group=batch.group(place),
            group_index=place,
            columns={
                "response": tokens(pair, sample),
                "reward": np.asarray([1.0 - sample], dtype=np.float32),
            },
            group_columns={"prompt": prompts[pair]},
        )
        for place, pair in enumerate(order)
        for sample in range(2)
    ]
    dock.client("feed", "feeder").put_rows(str(batch), rows, total=len(rows), states=states)


def on_devices(bench, spec, *, compares):
    """What each of two ranks reports, and its weights."""
    batch = BatchName(kind="eval" if compares else "train", step=1)
    with ForkedDock(state_graph(spec).states) as dock:
        put(dock, batch, evaluation_states(spec) if compares else training_states(spec))
        state = "compare" if compares else "update"
        clients = [dock.client(state, f"{state}-{rank}") for rank in range(RANKS)]

        def run(rank, group):
            engine = bench.make_engine(bench.make_model(), group, learning_rate=1e-3)
            own = {
                "engine": engine,
                "dock": clients[rank],
                "ranks": UpdateRanks(everyone=group),
                "spec": spec,
            }
            control = KlControl.of(spec.algorithm.params)
            made = CompareState(**own) if compares else UpdateState(**own, control=control)
            report = made.run(batch)
            return report, {name: weight.clone() for name, weight in engine.weights()}

        return bench.on_ranks(RANKS, run)


def margins(bench, spec):
    """β·h of each pair, pair by pair."""
    model, found = bench.make_model(), []
    prompts = np.random.default_rng(1).integers(0, 48, (PAIRS, 5), dtype=np.int32)
    for pair in range(PAIRS):
        gained = []
        for sample in range(2):
            response = torch.tensor(tokens(pair, sample)).long()
            batch = bench.make_batch(1, 1)
            batch.prompts[0], batch.responses[0] = torch.tensor(prompts[pair]).long(), response
            with torch.no_grad():
                own_T = model.logprobs(batch, temperature=1.0).logprobs_T
            gained.append(float(own_T.sum()) - len(response) * (-3.9 + 0.1 * pair))
        found.append(BETA * (gained[0] - gained[1]))
    return found


def test_states_of_pairs_generate_and_score_nothing(spec):
    assert spec.states == ("reference", "compare", "update")
    assert training_states(spec) == ("reference", "update")
    assert evaluation_states(spec) == ("reference", "compare")


def test_held_out_margins_are_those_of_each_pair_alone(both, spec):
    bench = both[0]
    start = dict(bench.make_model().named_hf_parameters())

    reports = on_devices(bench, spec, compares=True)

    found = [None] * PAIRS
    for rank, (report, weights) in enumerate(reports):
        found[rank::RANKS] = report.margins
        assert all(torch.equal(weights[name], start[name]) for name in start)
    assert found == pytest.approx(margins(bench, spec), abs=1e-5)


def test_an_update_from_pairs_tells_their_margin_and_moves_the_weights(both, spec):
    bench = both[0]
    start = dict(bench.make_model().named_hf_parameters())

    reports = on_devices(bench, spec, compares=False)

    expected = torch.tensor(margins(bench, spec)).double()
    loss = -torch.nn.functional.logsigmoid(expected).mean()
    for report, weights in reports:
        assert report.metrics["loss"] == pytest.approx(float(loss), abs=1e-5)
        found = report.metrics["pairs/margin"] / report.metrics["pairs/count"]
        assert found == pytest.approx(float(expected.mean()), abs=1e-5)
        assert any(not torch.equal(weights[name], start[name]) for name in start)


class Counted:
    """A model that counts its passes."""

    def __init__(self, model):
        self.model, self.passes = model, 0

    def logprobs(self, samples, *, temperature):
        self.passes += 1
        return self.model.logprobs(samples, temperature=temperature)


ORDERS = [[*range(PAIRS)], [5, 0, 3, 6, 1, 4, 7, 2], [*range(PAIRS)]]
"""Of each epoch: in the second, each rank has pairs that the other has computed."""


def asked(bench, spec, folders, *, meet=False):
    """Three epochs on two ranks: the column by pair of each, and each rank's passes in it."""
    states = training_states(spec)
    columns, passes = [], []
    with ForkedDock(state_graph(spec).states) as dock:
        clients = [dock.client("reference", f"reference-{rank}") for rank in range(RANKS)]
        views = [LogprobCache(folder=folder) for folder in folders]
        for step, order in enumerate(ORDERS, start=1):
            batch = BatchName(kind="train", step=step)
            put_rows(dock, batch, states, order)

            def run(rank, group, batch=batch):
                counted: Any = Counted(bench.make_model())
                InferenceState(
                    model=counted,
                    column="reference_logprobs",
                    dock=clients[rank],
                    ranks=UpdateRanks(everyone=group, passes_meet=meet),
                    temperature=1.0,
                    sizes=spec.batch,
                    evaluation=None,
                    pass_groups=spec.batch.micro_batch_size,
                    timeout_seconds=30,
                    stored_logprobs=views[rank],
                ).run(batch)
                return counted.passes

            passes.append(bench.on_ranks(RANKS, run))
            client = dock.client("update", "reader")
            rows = client.claim(str(batch), timeout_seconds=10).rows
            read = client.read(rows, ["reference_logprobs"])["reference_logprobs"].rows()
            found = zip(rows, read, strict=True)
            columns.append({(order[r.group_index], r.sample): v.tobytes() for r, v in found})
            client.acknowledge(rows)
    return columns, passes


def test_the_reference_computes_each_pair_in_the_first_epoch_alone(both, spec, tmp_path):
    columns, passes = asked(both[0], spec, [tmp_path] * RANKS)
    later, later_passes = asked(both[0], spec, [tmp_path] * RANKS)

    assert len(columns[0]) == 2 * PAIRS
    assert all(epoch == columns[0] for epoch in (*columns, *later))
    assert passes == [[2, 2], [0, 0], [0, 0]]
    assert later_passes == [[0, 0]] * 3


def test_ranks_that_wait_for_each_other_compute_what_one_of_them_lacks(both, spec, tmp_path):
    known, _ = asked(both[0], spec, [tmp_path / "full"] * RANKS)

    columns, passes = asked(both[0], spec, [tmp_path / "full", tmp_path / "own"], meet=True)

    assert passes == [[2, 2], [2, 2], [0, 0]]
    assert columns[0] == columns[2] == known[0]


def test_a_damaged_file_is_never_trained_on(both, spec, tmp_path):
    columns, _ = asked(both[0], spec, [tmp_path] * RANKS)
    for file in tmp_path.iterdir():
        content = bytearray(file.read_bytes())
        content[-3] ^= 64
        file.write_bytes(content)

    again, passes = asked(both[0], spec, [tmp_path] * RANKS)

    assert passes[0] == [2, 2]
    assert again == columns
