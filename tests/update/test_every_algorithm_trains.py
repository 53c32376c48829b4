"""Each algorithm that needs no model beside policy and reference takes a step through the update state."""

import math

import pytest
import torch
from made_samples import GROUPS, SAMPLES, Samples, make_spec

from rljob_api.algorithms import PARAMS
from rljob_runtime.algorithms.kl_control import KlControl
from rljob_runtime.batches import BatchName
from rljob_runtime.dock.local import LocalDock
from rljob_runtime.engines.update_ranks import UpdateRanks
from rljob_runtime.flow import state_graph
from rljob_runtime.states.update import Update

ALONE = {"generate", "reward", "reference", "update"}
NAMES = [name for name, params in PARAMS.items() if set(params().states) <= ALONE]


def test_those_left_out_have_a_model_of_their_own() -> None:
    assert set(PARAMS) - set(NAMES) == {"ppo", "distillation"}


@pytest.mark.parametrize("name", NAMES)
def test_a_step_moves_the_weights(both, name):
    bench, spec = both[0], make_spec(algorithm=name, devices=1)
    samples = Samples(spec, BatchName(kind="train", step=1))
    engine = bench.make_engine(bench.make_model(), learning_rate=1e-3)
    before = {name: weight.clone() for name, weight in engine.weights()}

    with LocalDock(state_graph(spec).states) as dock:
        feeder = dock.client("feed", "feeder")
        feeder.put_rows(str(samples.batch), samples.rows(), total=GROUPS * SAMPLES)
        samples.write(dock, range(GROUPS), pause=0)
        report = Update(
            engine=engine,
            dock=dock.client("update", "update-0"),
            ranks=UpdateRanks(),
            spec=spec,
            control=KlControl.of(spec.algorithm.params),
        ).run(samples.batch)

    assert report.metrics["skipped"] == 0
    assert all(math.isfinite(value) for value in report.metrics.values())
    assert any(not torch.equal(before[name], weight) for name, weight in engine.weights())
