"""Bytes that ranks send in a training step, beside those that the plan's arithmetic says."""

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import yaml
from forked_ranks import on_ranks
from parallel_training import SETTINGS, grid_of, said_of, shape_of, undivided_loss
from reference_models import make_reference
from sent_bytes import SentBytes

from rljob_api.model.architecture import Shape
from rljob_api.spec.engines import Recompute
from rljob_api.spec.rljob import RLJob
from rljob_api.topology.devices import UpdateDegrees
from rljob_api.topology.resolved import resolve
from rljob_plan.gradient_traffic import zero_bytes
from rljob_plan.memory import plan_memory
from rljob_plan.traffic import UpdateTraffic, UpdateWork
from rljob_plan.update_traffic import stage_traffic
from rljob_runtime.devices.memory_ledger import MemoryLedger
from rljob_runtime.parallel.context import ZigZag
from rljob_runtime.parallel.decoder.parameters import purposes
from rljob_runtime.parallel.decoder.policy import load_parallel
from rljob_runtime.parallel.fully_sharded import fully_sharded_bytes
from rljob_runtime.parallel.pipeline import HiddenStates, run_pipeline
from rljob_runtime.parallel.process_groups import ProcessGroups
from rljob_runtime.parallel.ranks import RankGrid
from rljob_runtime.parallel.ring import ring_attention
from rljob_runtime.samples.sample import SampleBatch
from rljob_runtime.update.parallel_optimizer import ParallelOptimizer

EXAMPLES = Path(__file__).parents[3] / "examples"
PASSES = 2
DENSE = Shape(
    family="llama", vocab=96, hidden=64, layers=4, intermediate=128, heads=8, kv_heads=4, head_dim=8
)
CASES: dict[str, tuple[str, dict[str, Any], set[str]]] = {
    "tensor": ("qwen3", {"tensor": 2}, {"tensor", "data"}),
    "tensor, latent attention": ("deepseek-v3", {"tensor": 2}, {"tensor", "data"}),
    "tensor, repeated key heads": ("qwen2-tied", {"tensor": 4}, {"tensor", "data"}),
    "tensor, experts by features": ("qwen3-moe", {"tensor": 2}, {"tensor", "data"}),
    "context": ("qwen3", {"context": 2}, {"context", "data"}),
    "context, latent attention": ("deepseek-v2", {"context": 2}, {"context", "data"}),
    "experts": ("qwen3-moe", {"data": 2, "expert": 2}, {"expert", "data"}),
    "data": ("llama", {"data": 2}, {"data"}),
    "data, ZeRO 1": ("llama", {"data": 2, "zero": 1}, {"data"}),
    "data, ZeRO 2": ("llama", {"data": 2, "zero": 2}, {"data"}),
    "tensor, ZeRO 3": ("llama", {"data": 2, "tensor": 2, "zero": 3}, {"tensor", "data"}),
    "ring, latent attention": (
        "deepseek-v3", {"context": 2, "context_algorithm": "ring"}, {"context", "data"},
    ),
    "all of them": (
        "deepseek-v3", {"tensor": 2, "context": 2, "expert": 2, "zero": 1},
        {"tensor", "context", "expert", "data"},
    ),
}  # fmt: skip


def make_batch() -> SampleBatch:
    random = torch.Generator().manual_seed(3)

    def tokens(count: int) -> torch.Tensor:
        return torch.randint(0, 71, (count,), generator=random)

    responses = [tokens(24 + 3 * i) for i in range(12)]
    near = [torch.full((len(r),), -4.0) for r in responses]
    return SampleBatch(
        prompts=[tokens(60), tokens(45), tokens(52)],
        group_of_B=torch.arange(3).repeat_interleave(4),
        responses=responses,
        fields={"rollout_logprobs": near, "old_logprobs": near, "reference_logprobs": near},
        scalars={"advantage": torch.randn(12, generator=random)},
    )


def work_of(batch: SampleBatch) -> UpdateWork:
    inner = batch.num_tokens - batch.num_samples
    return UpdateWork(
        tokens=sum(map(len, batch.prompts)) + inner,
        positions=len(batch.prompts) + inner,
        targets=batch.num_tokens,
        passes=PASSES,
    )


def planned(
    shape: Shape,
    batch: SampleBatch,
    stage: int = 0,
    *,
    recompute: Recompute = "none",
    **degrees: Any,
) -> UpdateTraffic:
    parallelism, work = UpdateDegrees.model_validate({"data": 1, **degrees}), work_of(batch)
    return stage_traffic(shape, parallelism, work, stage, dtype="float32", recompute=recompute)


def train_step(
    path: Path, grid: RankGrid, batch: SampleBatch, *, recompute: bool = False
) -> tuple[float, dict[str, int]]:
    """Bytes that this rank sends in an optimizer step, and what it keeps of each kind at its peak."""
    groups, ledger = ProcessGroups(grid, timeout_seconds=60), MemoryLedger(device="unlimited")
    model = load_parallel(path, groups, dtype=torch.float32)
    if recompute:
        model.recompute_layers()
    parameters, of = dict(model.trained_parameters()), purposes(model, shape_of(path))
    optimizer = ParallelOptimizer(
        parameters, of, SETTINGS, groups=groups, everyone=dist.group.WORLD, ledger=ledger
    )
    with SentBytes() as sent:
        begun = optimizer.begin()
        for _ in range(PASSES):
            undivided_loss(said_of(model, batch), batch)[0].backward()
            begun.end_pass()
        begun.divide(batch.num_tokens)
        begun.sum_over_ranks()
        begun.clip(1.0)
        optimizer.step(1e-3)
        begun.free()
    kept = {
        "update weights": sum(parameter.nbytes for parameter in parameters.values()),
        "gradients": ledger.report().kind_peak_bytes["gradients"],
        "optimizer": sum(state.nbytes for state in optimizer.state_dict().values()),
    }
    return sent.total, kept


@pytest.mark.parametrize("case", CASES)
def test_ranks_send_what_is_planned(case: str, tmp_path: Path) -> None:
    family, degrees, techniques = CASES[case]
    make_reference(family).save_pretrained(tmp_path)
    grid, batch = grid_of(tmp_path, **degrees), make_batch()

    found = on_ranks(grid.size, lambda _: train_step(tmp_path, grid, batch)[0])

    traffic = planned(shape_of(tmp_path), batch, **degrees)
    assert {name for name, number in traffic.parts().items() if number} == techniques
    assert sum(found) / len(found) == pytest.approx(traffic.total, rel=0.05)


@pytest.mark.parametrize(
    "case",
    [
        "tensor", "tensor, latent attention", "tensor, experts by features", "context",
        "ring, latent attention", "experts", "all of them",
    ],
)  # fmt: skip
def test_ranks_send_again_for_layers_that_are_computed_again(case: str, tmp_path: Path) -> None:
    family, degrees, _ = CASES[case]
    make_reference(family).save_pretrained(tmp_path)
    grid, batch, shape = grid_of(tmp_path, **degrees), make_batch(), shape_of(tmp_path)

    found = on_ranks(grid.size, lambda _: train_step(tmp_path, grid, batch, recompute=True)[0])

    again = planned(shape, batch, recompute="full", **degrees).total
    assert again > 1.05 * planned(shape, batch, **degrees).total
    assert sum(found) / len(found) == pytest.approx(again, rel=0.05)


@pytest.mark.parametrize("degrees", [{"data": 2}, {"data": 2, "zero": 1}, {"tensor": 2}])
def test_ranks_keep_what_is_planned(degrees: dict[str, Any], tmp_path: Path) -> None:
    make_reference("llama").save_pretrained(tmp_path)
    grid, batch = grid_of(tmp_path, **degrees), make_batch()
    quickstart = yaml.safe_load((EXAMPLES / "quickstart.yaml").read_text())
    quickstart["spec"]["update"]["parallelism"] = degrees
    quickstart["spec"]["accelerator"] = {"type": "emulated", "devicesPerNode": grid.size}
    spec = resolve(RLJob.model_validate(quickstart)).spec

    peaks = on_ranks(grid.size, lambda _: train_step(tmp_path, grid, batch)[1])

    phases = {phase.name: phase for phase in plan_memory(spec, shape_of(tmp_path)).phases}
    for kind in ("update weights", "gradients", "optimizer"):
        fullest = max(peak[kind] for peak in peaks)
        assert fullest == pytest.approx(phases["update"].parts[kind], rel=0.05)


def test_pipeline_ranks_send_what_is_planned() -> None:
    batch = make_batch()
    tokens = work_of(batch).tokens
    hidden = HiddenStates(
        shapes=[(tokens, DENSE.hidden)] * PASSES, dtype=torch.float32, device=torch.device("cpu")
    )

    def run(rank: int) -> float:
        def middle(_: int, given: torch.Tensor | None) -> torch.Tensor:
            made = torch.ones(tokens, DENSE.hidden, requires_grad=True) if given is None else given
            return made * 2.0

        def end(number: int, given: torch.Tensor | None) -> torch.Tensor:
            return middle(number, given).sum()

        chunks = [middle, end if rank == 1 else middle]
        with SentBytes() as sent:
            run_pipeline(chunks, hidden, torch.distributed.group.WORLD, trains=True)
        return sent.total

    found = on_ranks(2, run)

    degrees: dict[str, Any] = {"pipeline": 2, "virtual_pipeline": 2}
    told = PASSES * 2 * 4 * batch.num_tokens // 2  # by `run_micro_batches`
    plans = [planned(DENSE, batch, stage, **degrees).pipeline - told for stage in range(2)]
    assert found == plans


def test_ring_attention_sends_what_is_planned() -> None:
    lengths = (512, 256, 128)
    layout = ZigZag(lengths=lengths, ranks=2)

    def run(rank: int) -> float:
        own = layout.num_tokens(rank)
        query = torch.ones(own, DENSE.heads, DENSE.head_dim, requires_grad=True)
        keys = torch.ones(own, DENSE.kv_heads, DENSE.head_dim, requires_grad=True)
        with SentBytes() as sent:
            ring_attention(
                query, keys, keys * 2, layout, torch.distributed.group.WORLD
            ).sum().backward()
        return sent.total

    found = on_ranks(2, run)

    work = UpdateWork(tokens=sum(lengths), positions=0, targets=0, passes=1)
    degrees = UpdateDegrees(data=1, context=2, context_algorithm="ring")
    traffic = stage_traffic(DENSE, degrees, work, 0, dtype="float32")
    assert found == pytest.approx([traffic.context / DENSE.layers] * 2, rel=0.05)


def test_zero_3_gathers_weights_twice_a_pass() -> None:
    items = 4096

    planned_bytes = zero_bytes(items, 4, 3, PASSES, "float32", resident=64)

    assert planned_bytes == fully_sharded_bytes(
        items, 4, passes=PASSES, item_bytes=4, outside_blocks=64
    )
