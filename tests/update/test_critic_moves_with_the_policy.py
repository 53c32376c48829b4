"""A critic moves when the policy does: a step that starts over has taught neither, and goes on as if new."""

import pytest
import torch
from forked_docks import ForkedDock
from made_samples import GROUPS, SAMPLES, Samples, make_spec

from rljob_runtime.algorithms.kl_control import KlControl
from rljob_runtime.errors import DockError
from rljob_runtime.samples.batches import BatchName
from rljob_runtime.samples.flow import state_graph
from rljob_runtime.update.update_ranks import UpdateRanks
from rljob_runtime.worker.training_objective import critic_objective
from rljob_runtime.worker.update import UpdateState


class Bench:
    """A policy and its critic, on one device, which read from one dock."""

    def __init__(self, bench, dock, spec):
        self.dock, self.spec = dock, spec
        control = KlControl.of(spec.algorithm.params)
        self.engines = [bench.make_engine(bench.make_model(seed=seed)) for seed in (0, 1)]
        self.critic = UpdateState(
            engine=self.engines[1],
            dock=dock.client("critic", "critic-0"),
            ranks=UpdateRanks(),
            spec=spec.of_critic(),
            control=control,
            teaches=critic_objective,
        )
        self.policy = UpdateState(
            engine=self.engines[0],
            dock=dock.client("update", "update-0"),
            ranks=UpdateRanks(),
            spec=spec,
            control=control,
            critic=self.critic,
        )

    def put(self, batch):
        samples = Samples(self.spec, batch)
        feeder = self.dock.client("feed", "feeder")
        feeder.put_rows(str(batch), samples.rows(), total=GROUPS * SAMPLES)
        samples.write(self.dock, range(GROUPS), pause=0, elsewhere={"critic"})
        return batch

    def drop(self, batch):
        self.dock.client("feed", "feeder").drop_batch(str(batch))

    def weights(self):
        return [
            torch.cat([w.detach().flatten() for _, w in engine.weights()])
            for engine in self.engines
        ]


@pytest.fixture
def spec():
    return make_spec(algorithm="ppo", params={"valueClip": None})


def lives(bench, spec, steps):
    """Weights of policy and critic after `steps`, a function of a Bench, and its last report."""
    with ForkedDock(state_graph(spec).states) as dock:
        made = Bench(bench, dock, spec)
        report = steps(made)
        return made.weights(), report


def whole(made):
    batch = made.put(BatchName(kind="train", step=1))
    made.critic.read(batch)
    return made.policy.run(batch)


def test_a_step_whose_policy_loses_its_rows_teaches_no_critic(both, spec):
    def fails(made):
        before = made.weights()
        batch = made.put(BatchName(kind="train", step=1))
        made.critic.read(batch)
        made.drop(batch)
        with pytest.raises(DockError):
            made.policy.run(batch)
        return before

    after, before = lives(both[0], spec, fails)

    assert all(torch.equal(one, other) for one, other in zip(before, after, strict=True))


def test_a_step_that_starts_over_ends_with_the_bits_of_one_that_did_not(both, spec):
    def starts_over(made):
        lost = made.put(BatchName(kind="train", step=1))
        made.critic.read(lost)
        made.drop(lost)
        with pytest.raises(DockError):
            made.policy.run(lost)
        batch = made.put(BatchName(kind="train", step=1, attempt=1))
        made.critic.read(batch)
        return made.policy.run(batch)

    expected, told = lives(both[0], spec, whole)
    found, report = lives(both[0], spec, starts_over)

    assert all(torch.equal(one, other) for one, other in zip(found, expected, strict=True))
    assert report.metrics == told.metrics
    assert report.critic_metrics == told.critic_metrics
    assert report.critic_metrics["gradient_norm"] > 0


def test_a_policy_does_not_train_on_what_its_critic_could_not_read(both, spec):
    def without_critic(made):
        before = made.weights()
        with pytest.raises(DockError, match="the critic could not read its share of train/1"):
            made.policy.run(made.put(BatchName(kind="train", step=1)))
        return before

    after, before = lives(both[0], spec, without_critic)

    assert all(torch.equal(one, other) for one, other in zip(before, after, strict=True))
