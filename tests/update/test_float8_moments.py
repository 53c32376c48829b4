"""AdamW's moments in 8 bits: what is held, how it is rounded, and that a model learns with them."""

import pytest
import torch

from rljob_api.spec.engines import Optimizer
from rljob_runtime.devices.memory_ledger import MemoryKind, MemoryLedger
from rljob_runtime.errors import CheckpointError
from rljob_runtime.update.adamw import AdamW
from rljob_runtime.update.float8 import BLOCK, Float8
from rljob_runtime.update.moments import Float8Moments
from rljob_runtime.update.update_torch import TorchUpdateEngine

FLOAT8 = {"moments_dtype": "float8"}
E4M3 = torch.arange(127, dtype=torch.uint8).view(torch.float8_e4m3fn).float()  # 0 to 448


def random(seed=0):
    return torch.Generator().manual_seed(seed)


def held(values, *, root=False, seed=0):
    """The values as they are read again."""
    moment, everything = Float8.zeros_like(values), slice(0, len(values))
    (moment.write_root if root else moment.write)(everything, values, random(seed))
    return moment.read(everything)


def train(engine, bench, steps):
    return [
        engine.train([bench.make_batch(3, 4, seed=seed)], bench.make_loss(), groups_with_signal=3)
        for seed in steps
    ]


def weights_of(engine):
    return {name: weight.clone() for name, weight in engine.weights()}


def test_what_e4m3_has_is_held_exactly():
    values = torch.cat([E4M3, -E4M3])

    assert held(values).equal(values)
    assert held(E4M3.square(), root=True).equal(E4M3)


def test_other_values_become_one_of_the_two_next_to_them():
    values = torch.cat([torch.rand(4000, generator=random(1)) * 448, torch.tensor([448.0])])
    values = torch.cat([values, values * 2**-12])[:, None].expand(-1, BLOCK).clone()
    values[:, 0] = 448.0  # the largest of each block, so that the scales are 1

    found = held(values.view(-1)).view(values.shape)[:, 1:]

    place = torch.bucketize(values[:, 1:].contiguous(), E4M3)
    above, below = E4M3[place], E4M3[(place - 1).clamp(min=0)]
    assert ((found == above) | (found == below)).all()
    assert (found == above).any() and (found == below).any()


def test_the_mean_of_what_is_held_is_right():
    value = torch.full((200 * BLOCK,), 3.3)
    value.view(-1, BLOCK)[:, 0] = 448.0

    first = held(value).view(-1, BLOCK)[:, 1:]
    second = held(value, root=True).view(-1, BLOCK)[:, 1:]

    assert first.mean() == pytest.approx(3.3, rel=1e-3)
    assert second.square().mean() == pytest.approx(3.3, rel=2e-3)


def test_a_mean_square_never_vanishes_beside_large_ones():
    squares = torch.tensor([1.0, 1e-20, 0.0])

    roots = held(squares, root=True)

    assert roots[1] > 0
    assert roots[2] == 0


def test_moments_fade_although_one_step_is_less_than_the_distance_to_the_next_value():
    weights = {"w": torch.zeros(64 * BLOCK)}
    moments = Float8Moments(weights)

    for step in range(21):
        for part in moments.chunks(weights, weights, step=step):
            for (moment,) in (part.first, part.second):
                moment.mul_(0.97) if step else moment.fill_(1.0)
                moment[::BLOCK] = 2.0  # the largest of each block: scales stay as they are

    part = next(moments.chunks(weights, weights, step=21))
    for (moment,) in (part.first, part.second):
        faded = moment.view(-1, BLOCK)[:, 1:]
        assert faded.mean() == pytest.approx(0.97**20, rel=0.02)


@pytest.mark.parametrize("beta2", [0.95, 0.999])
def test_rounding_adds_up_to_no_bias_and_to_a_sixth_of_a_step(beta2):
    weights, drawn = {"w": torch.zeros(8 * BLOCK)}, random(1)
    moments, wide = Float8Moments(weights), torch.zeros(8 * BLOCK)

    for step in range(round(3 / (1 - beta2))):
        squares = torch.randn(len(wide), generator=drawn).square()
        wide.lerp_(squares, 1 - beta2)
        for part in moments.chunks(weights, weights, step=step):
            part.second[0].lerp_(squares, 1 - beta2)

    found = next(moments.chunks(weights, weights, step=step + 1)).second[0]
    assert found.mean() == pytest.approx(float(wide.mean()), rel=0.03)
    assert ((found / wide).sqrt() - 1).square().mean().sqrt() < 0.18


@pytest.mark.parametrize("orders", [2, 8])
def test_a_step_is_near_that_of_wide_moments_whatever_the_gradients_sizes(orders):
    """orders: of magnitude that gradients of one block differ by; epsilon is the default, 1e-8."""
    weights = {kind: torch.zeros(16, BLOCK, requires_grad=True) for kind in ("float32", "float8")}
    adamws = {k: AdamW({"w": w}, Optimizer(moments_dtype=k)) for k, w in weights.items()}  # type: ignore[arg-type]
    drawn = random(2)
    sizes = 10 ** -(orders * torch.rand(16, BLOCK, generator=drawn))
    for _ in range(30):
        gradient = sizes * (1 + torch.randn(16, BLOCK, generator=drawn))
        for kind, weight in weights.items():
            weight.grad = gradient.clone()
            weight.data.zero_()
            adamws[kind].step(1.0)

    wide, narrow = (weight.detach().flatten() for weight in weights.values())

    assert narrow.abs().max() < 4  # of a learning rate of 1; with roots that vanish, thousands
    seen = (sizes > sizes.amax(1, keepdim=True) / 100).flatten()
    assert torch.cosine_similarity(narrow[seen], wide[seen], dim=0) > 0.98
    assert narrow[seen].norm() == pytest.approx(float(wide[seen].norm()), rel=0.05)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_what_is_learnt_is_near_that_of_wide_moments(bench, dtype):
    engines = [
        bench.make_engine(bench.make_model(dtype=dtype), epsilon=1e-3, **more)
        for more in ({}, FLOAT8)
    ]
    start = weights_of(engines[0])

    wide, narrow = (train(engine, bench, range(6)) for engine in engines)

    for step, other in zip(narrow, wide, strict=True):
        assert step["loss"] == pytest.approx(other["loss"], rel=0.1, abs=0.02)
    moved = [
        torch.cat([(w - start[name]).float().flatten() for name, w in engine.weights()])
        for engine in engines
    ]
    assert torch.cosine_similarity(moved[0], moved[1], dim=0) > 0.98
    assert moved[1].norm() == pytest.approx(float(moved[0].norm()), rel=0.05)


def test_a_resumed_engine_goes_on_bit_for_bit(bench, tmp_path):
    engine = bench.make_engine(bench.make_model(), **FLOAT8)
    train(engine, bench, range(2))
    torch.save(engine.state_dict(), tmp_path / "optimizer.pt")
    weights = weights_of(engine)
    expected = train(engine, bench, range(2, 5))

    model = bench.make_model(seed=1)
    for name, weight in model.named_hf_parameters():
        weight.data.copy_(weights[name])
    resumed = bench.make_engine(model, **FLOAT8)
    resumed.load_state_dict(torch.load(tmp_path / "optimizer.pt", weights_only=True))

    assert train(resumed, bench, range(2, 5)) == expected
    for name, tensor in resumed.state_dict().items():
        assert tensor.equal(engine.state_dict()[name]), name


def test_a_state_of_wide_moments_is_refused(bench):
    wide = bench.make_engine(bench.make_model())
    narrow = bench.make_engine(bench.make_model(), **FLOAT8)

    with pytest.raises(CheckpointError, match=r"exp_avg_scale\..*momentsDtype that it was saved"):
        narrow.load_state_dict(wide.state_dict())


@pytest.mark.parametrize(("dtype", "main"), [(torch.float32, 0), (torch.bfloat16, 4)], ids=str)
def test_a_weight_takes_two_bytes_of_moments(bench, dtype, main):
    ledger = MemoryLedger(device="emulated:0")
    model = bench.make_model(dtype=dtype)
    sizes = [weight.numel() for _, weight in model.trained_parameters()]
    settings = Optimizer.model_validate(FLOAT8)
    engine = TorchUpdateEngine(
        model, optimizer=settings, total_steps=1, temperature=1.0, ledger=ledger
    )

    train(engine, bench, range(1))

    scales = 8 * sum(-(-size // BLOCK) for size in sizes)
    assert ledger.kind_bytes(MemoryKind.OPTIMIZER) == (2 + main) * sum(sizes) + scales + 4
