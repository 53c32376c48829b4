"""State of the update engine: N steps, saved and loaded, and N more are 2N steps, bit for bit."""

import copy

import pytest
import torch

from rljob_runtime.errors import CheckpointError


def train(bench, engine, steps):
    for seed in steps:
        batch = bench.make_batch(2, 4, seed=seed)
        metrics = engine.train([batch], bench.make_loss(), groups_with_signal=2)
    return metrics


def test_a_resumed_run_is_bitwise_the_run_without_a_break(bench, tmp_path):
    settings = {"schedule": "cosine", "warmup_steps": 2, "weight_decay": 0.01}
    whole = bench.make_engine(bench.make_model(), **settings)
    expected = train(bench, whole, range(6))
    first = bench.make_engine(bench.make_model(), **settings)
    train(bench, first, range(3))
    torch.save(first.state_dict(), tmp_path / "optimizer.pt")
    torch.save(dict(first.weights()), tmp_path / "weights.pt")

    model = bench.make_model(seed=99)
    weights = torch.load(tmp_path / "weights.pt")
    for name, parameter in model.named_hf_parameters():
        parameter.data.copy_(weights[name])
    second = bench.make_engine(model, **settings)
    second.load_state_dict(torch.load(tmp_path / "optimizer.pt"))
    got = train(bench, second, range(3, 6))

    assert (second.step, second.version) == (whole.step, whole.version) == (6, 6)
    assert got == expected
    for (name, value), (_, reference) in zip(second.weights(), whole.weights(), strict=True):
        assert value.equal(reference), name
    for name, value in whole.state_dict().items():
        assert value.equal(second.state_dict()[name]), name


@pytest.mark.parametrize("damage", ["missing", "unknown", "shape"])
def test_a_state_that_does_not_fit_is_refused_whole(bench, damage):
    engine = bench.make_engine(bench.make_model())
    train(bench, engine, range(1))
    state = copy.deepcopy(engine.state_dict())
    name = "exp_avg.model.norm.weight"
    if damage == "missing":
        del state[name]
    elif damage == "unknown":
        name = "exp_avg.model.other.weight"
        state[name] = torch.zeros(3)
    else:
        state[name] = torch.zeros(3)

    fresh = bench.make_engine(bench.make_model())
    with pytest.raises(CheckpointError, match=name.replace(".", r"\.")):
        fresh.load_state_dict(state)

    assert fresh.step == 0 and fresh.state_dict()["adamw_step"] == 0
