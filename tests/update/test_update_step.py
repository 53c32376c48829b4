"""One optimizer step: AdamW, clipping, skipping, and what is not finite."""

import copy
import math

import pytest
import torch

from rljob_api.spec.engines import Optimizer
from rljob_runtime.devices.cpu import CpuBackend
from rljob_runtime.devices.host_swap import HostSwap
from rljob_runtime.devices.memory_ledger import MemoryKind, MemoryLedger
from rljob_runtime.errors import ConfigError, DeviceMemoryError
from rljob_runtime.update.update_torch import TorchUpdateEngine


def copied_weights(engine):
    return {name: value.clone() for name, value in engine.weights()}


@pytest.mark.parametrize("gradient_clip", [1e9, 0.05])
def test_three_steps_are_those_of_torch_with_its_clipping(bench, gradient_clip):
    model = bench.make_model()
    reference = copy.deepcopy(model)
    engine = bench.make_engine(model, gradient_clip=gradient_clip, weight_decay=0.1)
    named = dict(reference.named_hf_parameters())
    adamw = torch.optim.AdamW(
        [
            {"params": [p for p in named.values() if p.ndim > 1], "weight_decay": 0.1},
            {"params": [p for p in named.values() if p.ndim == 1], "weight_decay": 0.0},
        ],
        lr=1e-2,
        betas=(0.9, 0.95),
        eps=1e-8,
        foreach=False,
        fused=False,
    )
    loss = bench.make_loss()

    for seed in range(3):
        batch = bench.make_batch(3, 4, seed=seed)
        metrics = engine.train([batch], loss, groups_with_signal=3)
        adamw.zero_grad()
        logprobs_T = reference.logprobs(batch, temperature=1.0).logprobs_T
        ratio_T = (logprobs_T - batch.packed("old_logprobs")).exp()
        advantages_T = batch.spread("advantage")
        surrogate_T = torch.min(ratio_T * advantages_T, ratio_T.clamp(0.8, 1.2) * advantages_T)
        (-surrogate_T.mean()).backward()
        norm = torch.nn.utils.clip_grad_norm_(named.values(), gradient_clip)
        adamw.step()

        assert metrics["gradient_norm"] == pytest.approx(norm.item(), rel=1e-5)
        assert metrics["loss"] == pytest.approx(-surrogate_T.mean().item(), abs=1e-6)
    for name, value in engine.weights():
        torch.testing.assert_close(value, named[name].detach(), atol=1e-5, rtol=0)


def test_samples_without_advantage_need_no_backward_pass(bench):
    batch = bench.make_batch(4, 4)
    del batch.fields["old_logprobs"]
    silent = [i for i in range(16) if batch.group_of_B[i] % 2]
    batch.scalars["advantage"][silent] = 0.0
    teaching = [i for i in range(16) if i not in silent]
    whole, cut = (bench.make_engine(bench.make_model()) for _ in range(2))

    expected = whole.train([batch], bench.make_loss(), groups_with_signal=2)
    metrics = cut.train(
        [batch.select(teaching)],
        bench.make_loss(),
        groups_with_signal=2,
        without_gradient=[batch.select(silent)],
    )

    assert metrics == pytest.approx(expected, rel=1e-4, abs=1e-6)
    weights = dict(whole.weights())
    for name, value in cut.weights():
        torch.testing.assert_close(value, weights[name], atol=1e-5, rtol=0)


def test_the_probability_of_a_good_response_rises(bench):
    engine = bench.make_engine(bench.make_model(), learning_rate=1e-3)
    batch = bench.make_batch(3, 4)
    del batch.fields["old_logprobs"]
    before_T = engine.logprobs(batch)

    engine.train([batch], bench.make_loss(), groups_with_signal=3)

    gain_T = (engine.logprobs(batch) - before_T) * batch.spread("advantage")
    assert gain_T.mean() > 0


def test_log_probs_have_no_gradient_and_follow_the_temperature(bench):
    model, batch = bench.make_model(), bench.make_batch(2, 3)
    engine = TorchUpdateEngine(model, optimizer=Optimizer(), total_steps=1, temperature=0.5)

    got_T = engine.logprobs(batch)

    torch.testing.assert_close(got_T, model.logprobs(batch, temperature=0.5).logprobs_T.detach())
    assert not got_T.requires_grad
    assert (got_T - bench.make_engine(model).logprobs(batch)).abs().max() > 0.1


def test_too_few_groups_with_signal_leave_everything_but_the_schedule(bench):
    engine = bench.make_engine(bench.make_model())
    before = copied_weights(engine)
    batch = bench.make_batch(2, 4)

    metrics = engine.train(
        [batch], bench.make_loss(), groups_with_signal=1, min_groups_with_signal=2
    )

    assert (engine.step, engine.version) == (1, 0)
    assert metrics["skipped"] == 1 and metrics["gradient_norm"] == 0
    assert metrics["mismatch/kl"] > 0 and metrics["entropy"] > 0
    assert all(value.equal(before[name]) for name, value in engine.weights())
    assert engine.state_dict()["adamw_step"] == 0


def test_a_batch_without_response_tokens_is_skipped(bench):
    engine = bench.make_engine(bench.make_model())
    batch = bench.make_batch(1, 1)
    empty = [torch.zeros(0)]
    batch.responses[:] = [torch.zeros(0, dtype=torch.int64)]
    batch.fields.update(dict.fromkeys(batch.fields, empty))

    metrics = engine.train([batch], bench.make_loss(), groups_with_signal=1)

    assert metrics["skipped"] == 1
    assert metrics["loss"] == metrics["mismatch/max"] == 0


@pytest.mark.parametrize("field", ["advantage", "old_logprobs"])
def test_a_value_that_is_not_finite_skips_the_step_of_every_rank(bench, field, caplog):
    good, bad = bench.make_batch(2, 4, seed=1), bench.make_batch(2, 4, seed=2)
    if field == "advantage":
        bad.scalars["advantage"][:] = torch.nan
    else:
        bad.fields["old_logprobs"] = [row * torch.nan for row in bad.fields["old_logprobs"]]
    before = dict(bench.make_model().named_hf_parameters())
    engines, metrics = {}, {}

    def run(rank, group):
        engines[rank] = bench.make_engine(bench.make_model(), group)
        metrics[rank] = engines[rank].train(
            [bad if rank else good], bench.make_loss(), groups_with_signal=1
        )

    bench.on_ranks(2, run)

    for told in metrics.values():
        assert math.isnan(told["gradient_norm"]) and math.isnan(told["loss"])
        assert told["skipped"] == 1
    assert "optimizer step 1" in caplog.text and "update ranks [1]" in caplog.text
    for engine in engines.values():
        assert (engine.step, engine.version) == (1, 0)
        assert all(value.equal(before[name]) for name, value in engine.weights())
        assert engine.state_dict()["adamw_step"] == 0


def test_gradients_hold_no_memory_between_steps(bench):
    ledger = MemoryLedger(device="emulated:0")
    model = bench.make_model()
    weights_bytes = sum(p.nbytes for _, p in model.named_hf_parameters())
    engine = TorchUpdateEngine(
        model, optimizer=Optimizer(), total_steps=1, temperature=1.0, ledger=ledger
    )

    engine.train([bench.make_batch(2, 2)], bench.make_loss(), groups_with_signal=2)

    report = ledger.report()
    assert report.kind_bytes[MemoryKind.UPDATE_WEIGHTS] == weights_bytes
    assert MemoryKind.GRADIENTS not in report.kind_bytes
    assert report.kind_peak_bytes[MemoryKind.GRADIENTS] == weights_bytes
    assert 2 * weights_bytes <= report.kind_bytes[MemoryKind.OPTIMIZER] < 2.1 * weights_bytes


def test_a_device_too_small_for_the_optimizer_refuses_it_by_name(bench):
    model = bench.make_model()
    weights_bytes = sum(p.nbytes for _, p in model.named_hf_parameters())
    ledger = MemoryLedger(device="emulated:0", limit_bytes=2 * weights_bytes)

    with pytest.raises(DeviceMemoryError, match=r"emulated:0: optimizer need \d+ bytes"):
        TorchUpdateEngine(
            model, optimizer=Optimizer(), total_steps=1, temperature=1.0, ledger=ledger
        )


def test_weights_of_half_precision_are_refused_by_name(bench):
    model = bench.make_model(dtype=torch.float16)

    with pytest.raises(ConfigError, match=r"type float16 \(spec\.update\.dtype\).*bfloat16"):
        bench.make_engine(model)


def test_a_state_on_the_host_gives_the_same_bits_and_takes_no_device_memory_between_steps(bench):
    def train(model, swap, ledger):
        engine = TorchUpdateEngine(
            model, optimizer=Optimizer(), total_steps=2, temperature=1.0, ledger=ledger, swap=swap
        )
        between = ledger.kind_bytes(MemoryKind.OPTIMIZER)
        for seed in range(2):
            batch = bench.make_batch(2, 2, seed=seed)
            engine.train([batch], bench.make_loss(), groups_with_signal=2)
        return engine, between

    backend = CpuBackend(name="emulated:0")
    kept, _ = train(bench.make_model(), None, MemoryLedger(device="emulated:1"))
    moved, before = train(bench.make_model(), HostSwap(backend), backend.ledger)

    report, state = backend.ledger.report(), kept.state_dict()
    moments = sum(t.nbytes for t in state.values() if t.ndim)
    assert before == report.kind_bytes.get(MemoryKind.OPTIMIZER, 0) <= 8  # the count of steps
    assert moments <= report.kind_peak_bytes[MemoryKind.OPTIMIZER] <= moments + 8
    for (name, weight), (_, expected) in zip(moved.weights(), kept.weights(), strict=True):
        assert weight.equal(expected), name
    assert all(tensor.equal(state[name]) for name, tensor in moved.state_dict().items())


def test_a_state_on_the_host_is_saved_and_loaded_there(bench):
    def make(swap):
        return TorchUpdateEngine(
            bench.make_model(), optimizer=Optimizer(), total_steps=2, temperature=1.0,
            ledger=swap and backend.ledger, swap=swap,
        )  # fmt: skip

    def step(engine):
        engine.train([bench.make_batch(2, 2)], bench.make_loss(), groups_with_signal=2)
        return copy.deepcopy(engine.state_dict())

    backend = CpuBackend(name="emulated:0")
    saved = step(make(HostSwap(backend)))
    loaded = make(HostSwap(backend))
    loaded.load_state_dict(saved)

    assert backend.ledger.kind_bytes(MemoryKind.OPTIMIZER) <= 16
    assert loaded.state_dict().keys() == saved.keys()
    assert all(tensor.equal(saved[name]) for name, tensor in loaded.state_dict().items())
    stayed = make(None)
    stayed.load_state_dict(saved)
    assert all(map(torch.equal, step(loaded).values(), step(stayed).values()))


def test_a_device_without_room_for_the_state_refuses_the_step_with_nothing_applied(bench):
    backend = CpuBackend(name="emulated:0", limit_bytes=None)
    model = bench.make_model()
    engine = TorchUpdateEngine(
        model, optimizer=Optimizer(), total_steps=1, temperature=1.0, ledger=backend.ledger,
        swap=HostSwap(backend),
    )  # fmt: skip
    before = [parameter.clone() for parameter in model.parameters()]
    weights_bytes = sum(weight.nbytes for weight in before)
    backend.ledger.limit_bytes = 3 * weights_bytes

    with pytest.raises(DeviceMemoryError, match=r"optimizer need \d+ bytes"):
        engine.train([bench.make_batch(2, 2)], bench.make_loss(), groups_with_signal=2)

    assert all(map(torch.equal, model.parameters(), before))
