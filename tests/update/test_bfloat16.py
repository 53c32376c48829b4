"""Training of weights in bfloat16: float32 main weights and gradients, the model's rounded from them."""

import pytest
import torch

from rljob_api.spec.engines import Optimizer
from rljob_runtime.devices.memory_ledger import MemoryKind, MemoryLedger
from rljob_runtime.update.update_torch import TorchUpdateEngine

BF16 = torch.bfloat16


def held(engine):
    return {name: weight.clone() for name, weight in engine.weights()}


def main_of(engine):
    state = engine.state_dict()
    return {n.removeprefix("main."): t for n, t in state.items() if n.startswith("main.")}


def train(engine, bench, steps):
    return [
        engine.train([bench.make_batch(3, 4, seed=seed)], bench.make_loss(), groups_with_signal=3)
        for seed in steps
    ]


def test_the_models_weights_are_the_main_weights_rounded(bench):
    model = bench.make_model(dtype=BF16)
    engine = bench.make_engine(model, learning_rate=1e-3)
    before = held(engine)

    train(engine, bench, range(2))

    main = main_of(engine)
    assert main.keys() == dict(model.trained_parameters()).keys()
    for name, weight in model.trained_parameters():
        assert main[name].dtype == torch.float32
        assert weight.dtype == BF16
        assert weight.equal(main[name].to(BF16))
    assert any(not weight.equal(before[name]) for name, weight in engine.weights())


def test_steps_that_bfloat16_would_lose_add_up(bench):
    """A norm's weight of about 1 has neighbours 2⁻⁷ away: no single step of 2⁻¹⁰ reaches them."""
    model = bench.make_model(dtype=BF16)
    engine = bench.make_engine(model, learning_rate=2**-10)
    name, norm = next((n, p) for n, p in model.trained_parameters() if "input_layernorm" in n)
    start = norm.detach().float()
    batch = bench.make_batch(3, 4)

    for _ in range(16):
        engine.train([batch], bench.make_loss(), groups_with_signal=3)

    moved = (main_of(engine)[name] - start).abs()
    assert moved.max() > 2**-7
    assert (norm.detach().float() - start).abs().max() >= 2**-8


def test_what_is_learnt_is_near_float32(bench):
    narrow = bench.make_engine(bench.make_model(dtype=BF16), epsilon=1e-3)
    wide_model = bench.make_model()
    for name, weight in wide_model.trained_parameters():
        weight.data.copy_(main_of(narrow)[name])  # the same start
    wide = bench.make_engine(wide_model, epsilon=1e-3)
    start = {name: weight.clone() for name, weight in wide_model.trained_parameters()}

    found, expected = train(narrow, bench, range(4)), train(wide, bench, range(4))

    for step, other in zip(found, expected, strict=True):
        assert step["loss"] == pytest.approx(other["loss"], rel=0.05, abs=0.01)
        assert step["gradient_norm"] == pytest.approx(other["gradient_norm"], rel=0.05)
    main = main_of(narrow)
    moved = torch.cat([(main[name] - start[name]).flatten() for name in start])
    weights = dict(wide_model.trained_parameters())
    other = torch.cat([(weights[name].detach() - start[name]).flatten() for name in start])
    assert torch.cosine_similarity(moved, other, dim=0) > 0.98


def test_gradients_of_many_micro_batches_are_those_of_one(bench):
    norms = []
    for size in (8, 1):
        engine = bench.make_engine(bench.make_model(dtype=BF16))
        whole = bench.make_batch(8, 4)
        groups = whole.by_group()
        parts = [whole] if size == 8 else groups
        norms.append(engine.train(parts, bench.make_loss(), groups_with_signal=8)["gradient_norm"])

    assert norms[1] == pytest.approx(norms[0], rel=0.01)


def test_a_resumed_engine_goes_on_bit_for_bit(bench):
    engine = bench.make_engine(bench.make_model(dtype=BF16))
    train(engine, bench, range(2))
    state = {name: tensor.clone() for name, tensor in engine.state_dict().items()}
    weights = held(engine)
    expected = train(engine, bench, range(2, 5))

    model = bench.make_model(seed=1, dtype=BF16)
    for name, weight in model.named_hf_parameters():
        weight.data.copy_(weights[name])
    resumed = bench.make_engine(model)
    resumed.load_state_dict(state)

    assert train(resumed, bench, range(2, 5)) == expected
    assert all(weight.equal(held(engine)[name]) for name, weight in resumed.weights())
    assert all(main.equal(main_of(engine)[name]) for name, main in main_of(resumed).items())


def test_a_state_without_main_weights_is_refused(bench):
    wide = bench.make_engine(bench.make_model())
    engine = bench.make_engine(bench.make_model(dtype=BF16))

    with pytest.raises(
        Exception, match=r"missing \['main\..*spec\.update\.dtype and the momentsDtype"
    ):
        engine.load_state_dict(wide.state_dict())


def test_a_weight_takes_two_bytes_its_gradient_four_and_its_optimizer_twelve(bench):
    ledger = MemoryLedger(device="emulated:0")
    model = bench.make_model(dtype=BF16)
    items = sum(weight.numel() for _, weight in model.trained_parameters())
    engine = TorchUpdateEngine(
        model, optimizer=Optimizer(), total_steps=1, temperature=1.0, ledger=ledger
    )

    train(engine, bench, range(1))

    report = ledger.report()
    assert report.kind_bytes[MemoryKind.UPDATE_WEIGHTS] == 2 * items
    assert report.kind_peak_bytes[MemoryKind.GRADIENTS] == 4 * items
    assert report.kind_bytes[MemoryKind.OPTIMIZER] == 12 * items + 4  # and the number of steps
