"""Layers that the backward pass computes again: the same bits, on one rank and on ranks that share them."""

import gc
import json
import weakref
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.fsdp  # once, not in every fork
from forked_ranks import on_ranks
from made_samples import make_spec
from parallel_training import grid_of, make_batch, passes, said_of, undivided_loss
from reference_models import make_reference
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks

from rljob_runtime.devices.memory_ledger import MemoryLedger
from rljob_runtime.models.loading import load_decoder
from rljob_runtime.models.packing import Packing
from rljob_runtime.parallel.decoder.policy import load_parallel
from rljob_runtime.parallel.fully_sharded import local_rows
from rljob_runtime.parallel.process_groups import ProcessGroups
from rljob_runtime.update.update_engine import UpdateSetup
from rljob_runtime.update.update_ranks import UpdateRanks
from rljob_runtime.update.update_table import make_update

RING = {"context_algorithm": "ring"}
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "tensor, context": ("qwen3-tied", {"tensor": 2, "context": 2}),
    "ring, experts over context and data": (
        "deepseek-v3", {"context": 2, "data": 2, "expert": 4} | RING,
    ),
    "tensor, experts by features": ("qwen3-moe-some-dense", {"tensor": 2}),
    "virtual stages, experts over data": (
        "qwen3-moe-deep", {"pipeline": 2, "virtual_pipeline": 2, "data": 2, "expert": 2},
    ),
    "ZeRO 3, tensor": ("llama-biased", {"data": 2, "tensor": 2, "zero": 3}),
}  # fmt: skip


def save(family: str, folder: Path) -> Path:
    """A family's random model, whose experts' balance counts in the loss."""
    make_reference(family).save_pretrained(folder)
    config = json.loads((folder / "config.json").read_text())
    config |= {"output_router_logits": True, "router_aux_loss_coef": 0.5}
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def test_nothing_of_a_pass_is_kept_when_the_experts_balance_is_not_in_the_loss(
    tmp_path: Path,
) -> None:
    make_reference("deepseek-v3").save_pretrained(tmp_path)
    model = load_decoder(tmp_path, dtype=torch.float32)
    model.recompute_layers()
    packings: list[weakref.ref[Packing]] = []
    model.model.layers[-1].register_forward_pre_hook(
        lambda _, given: packings.append(weakref.ref(given[1]))
    )

    model.logprobs(make_batch(1), temperature=1.0).logprobs_T.sum().backward()
    gc.collect()

    assert [packing() for packing in packings] == [None]


@pytest.mark.parametrize("case", CASES)
def test_ranks_get_the_same_bits_from_layers_that_are_computed_again(
    case: str, tmp_path: Path
) -> None:
    family, degrees = CASES[case]
    path = save(family, tmp_path)
    grid = grid_of(path, **degrees)
    batches = [make_batch(seed) for seed in (1, 2)]

    def train(groups: ProcessGroups, *, recompute: bool) -> tuple[list[Any], dict[str, Tensor]]:
        model = load_parallel(path, groups, dtype=torch.float32)
        if recompute:
            model.recompute_layers()
        found = passes(model, groups, batches)
        seen = [
            [x.detach() for x in (said.logprobs_T, *undivided_loss(said, batch)[1])]
            for said, batch in zip(found, batches, strict=True)
        ]
        gradients = {
            name: local_rows(parameter.grad)
            for name, parameter in model.named_parameters()
            if parameter.grad is not None
        }
        return seen, gradients

    def run(_: int) -> Any:
        groups = ProcessGroups(grid, timeout_seconds=60)
        return train(groups, recompute=False), train(groups, recompute=True)

    for (seen, gradients), (again, recomputed) in on_ranks(grid.size, run, seconds=120):
        torch.testing.assert_close(again, seen, rtol=0, atol=0)
        assert gradients and gradients.keys() == recomputed.keys()
        for name, gradient in gradients.items():
            assert recomputed[name].equal(gradient), name


@pytest.mark.parametrize("family", ["qwen2-tied", "deepseek-v3", "qwen3-moe"])
def test_one_rank_keeps_of_a_layer_its_input_alone(family: str, tmp_path: Path) -> None:
    path, batch = save(family, tmp_path), make_batch(1)

    def backward(*, recompute: bool) -> tuple[int, dict[str, Tensor]]:
        """Bytes that the graph keeps of the layers, and gradients."""
        model = load_decoder(path, dtype=torch.float32)
        if recompute:
            model.recompute_layers()
        kept = {parameter.untyped_storage()._cdata: 0 for parameter in model.parameters()}

        def keep(tensor: Tensor) -> Tensor:
            storage = tensor.untyped_storage()
            kept.setdefault(storage._cdata, storage.nbytes())
            return tensor

        with saved_tensors_hooks(keep, lambda tensor: tensor):
            loss, _ = undivided_loss(said_of(model, batch), batch)
        loss.backward()
        gradients = {n: p.grad for n, p in model.named_parameters() if p.grad is not None}
        return sum(kept.values()), gradients

    kept, gradients = backward(recompute=False)
    fewer, recomputed = backward(recompute=True)

    assert fewer < kept / 2
    assert recomputed.keys() == gradients.keys()
    assert all(recomputed[name].equal(gradient) for name, gradient in gradients.items())


@pytest.mark.parametrize("recompute", ["none", "full"])
def test_a_job_says_whether_its_policy_computes_layers_again(
    recompute: str, tmp_path: Path
) -> None:
    spec = make_spec()
    spec = spec.model_copy(
        update={"update": spec.update.model_copy(update={"recompute": recompute})}
    )
    policy = load_decoder(save("qwen2-tied", tmp_path), dtype=torch.float32)

    make_update(
        UpdateSetup(
            spec=spec,
            model=tmp_path,
            policy=policy,
            total_steps=1,
            ranks=UpdateRanks(),
            ledger=MemoryLedger(device="unlimited"),
        )
    )

    assert {layer.recompute for layer in policy.model.layers} == {recompute == "full"}
