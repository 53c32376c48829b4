"""Engines of both layouts on colocated devices: by the plan, the rollout holds what the update trained, the
update's memory is on the host meanwhile, and the policy comes back as it was."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from colocated_states import job_of, states_of
from forked_ranks import RanksFailed, on_ranks
from torch import Tensor

from rljob_runtime.devices.memory_ledger import MemoryKind
from rljob_runtime.errors import WeightsError
from rljob_runtime.models.loading import load_policy
from rljob_runtime.models.weights import weights_checksum
from rljob_runtime.rollout.rollout_engine import SlicedEngine
from rljob_runtime.weights.reshard_state import Reshard
from rljob_runtime.weights.rollout_weights import RolloutWeights
from rljob_runtime.worker.device_states import DeviceStates

SaveReference = Callable[..., Path]

SWAP = {"strategy": "allgather-swap"}
LAYOUTS: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "tensor to data": ("qwen3", {"tensor": 2}, {"data": 2}),
    "data with ZeRO 1 to tensor": ("qwen3", {"data": 2, "zero": 1}, {"tensor": 2}),
    "pipeline to tensor": ("qwen3-tied", {"pipeline": 2}, {"tensor": 2}),
    "ZeRO 3 to pipeline": ("llama", {"data": 2, "zero": 3}, {"pipeline": 2}),
    "experts to tensor": ("qwen3-moe", {"data": 2, "expert": 2}, {"tensor": 2}),
    "all experts on each to tensor": ("deepseek-v3", {"data": 2}, {"tensor": 2}),
    "all experts on each to themselves": ("qwen3-moe", {"data": 2}, {"data": 2}),
}


LAYERED = ("update_bytes", "rollout_bytes", "buffer_bytes")


@pytest.mark.parametrize("name", LAYOUTS)
def test_a_step_swaps_both_layouts_and_keeps_the_weights(
    name: str, save_reference: SaveReference
) -> None:
    family, update, rollout = LAYOUTS[name]
    path = save_reference(family)
    job = job_of(path, update, rollout, resharding=SWAP)

    def device(rank: int) -> tuple[str, str, str]:
        states, (backend, _) = states_of(job, path, rank)
        reshard, ledger = states.port, backend.ledger
        assert isinstance(reshard, Reshard) and states.policy is not None
        figures = states.sync(3).reshard
        assert figures is not None
        assert ledger.kind_bytes(MemoryKind.UPDATE_WEIGHTS) == figures.kept_bytes
        assert figures.kept_bytes == 0
        assert figures.peak_bytes <= figures.bound_bytes
        assert figures.host_bytes >= figures.course["update_bytes"][0] > 0
        assert figures.course["update_bytes"][-1] == 0
        assert figures.course["rollout_bytes"][-1] == reshard.rollout.num_bytes
        held = zip(*(figures.course[kind] for kind in LAYERED), strict=True)
        assert max(map(sum, held)) == figures.peak_bytes
        assert 0 <= figures.swap_waited_seconds <= figures.seconds
        assert min(figures.swap_seconds, figures.select_seconds, figures.check_seconds) > 0
        assert isinstance(reshard.rollout, RolloutWeights)
        assert figures.checks > len(reshard.rollout.slices)
        assert reshard.engine.version == 3
        generating = reshard.engine.checksum()
        at_rest = weights_checksum(states.policy.shard.full_weights(reshard.values))

        states.end_generation()
        reshard.ready_to_train()

        assert ledger.kind_bytes(MemoryKind.ROLLOUT_WEIGHTS) == 0
        return generating, at_rest, weights_checksum(states.policy.shard.full_weights())

    found = on_ranks(2, device, seconds=120)

    expected = weights_checksum(load_policy(path, dtype=torch.float32).named_hf_parameters())
    assert found == [(expected, expected, expected)] * 2


@pytest.mark.parametrize("name", ["tensor to data", "experts to tensor"])
def test_the_baseline_holds_both_layouts_throughout_and_generates_with_the_same_weights(
    name: str, save_reference: SaveReference
) -> None:
    family, update, rollout = LAYOUTS[name]
    path = save_reference(family)
    job = job_of(path, update, rollout, resharding={"strategy": "allgather"})

    def device(rank: int) -> tuple[str, str]:
        states, (backend, _) = states_of(job, path, rank)
        reshard, ledger = states.port, backend.ledger
        assert isinstance(reshard, Reshard) and states.policy is not None
        both = ledger.kind_bytes(MemoryKind.UPDATE_WEIGHTS) + reshard.rollout.num_bytes
        for version in (1, 2):
            figures = states.sync(version).reshard
            assert figures is not None
            assert figures.kept_bytes == ledger.kind_bytes(MemoryKind.UPDATE_WEIGHTS) > 0
            assert figures.released_bytes == 0
            assert both <= figures.peak_bytes <= figures.bound_bytes
            assert ledger.kind_bytes(MemoryKind.ROLLOUT_WEIGHTS) == reshard.rollout.num_bytes
            states.end_generation()
        return reshard.engine.checksum(), weights_checksum(
            states.policy.shard.full_weights(reshard.values)
        )

    expected = weights_checksum(load_policy(path, dtype=torch.float32).named_hf_parameters())
    assert on_ranks(2, device, seconds=120) == [(expected, expected)] * 2


@pytest.mark.parametrize("family", ["deepseek-v3", "qwen3"])
def test_a_rollout_of_a_narrower_type_gets_rounded_weights_and_the_update_keeps_its_own(
    family: str, save_reference: SaveReference
) -> None:
    path = save_reference(family)
    job = job_of(path, {"data": 2}, {"data": 2})
    rollout = job.spec.rollout.model_copy(update={"dtype": "bfloat16"})
    job = job.model_copy(update={"spec": job.spec.model_copy(update={"rollout": rollout})})

    def device(rank: int) -> tuple[str, str, int]:
        states, _ = states_of(job, path, rank)
        assert isinstance(states.port, Reshard) and states.policy is not None
        figures = states.sync(1).reshard
        assert figures is not None
        generating = states.port.engine.checksum()
        states.port.ready_to_train()
        trained = weights_checksum(states.policy.shard.full_weights())
        return generating, trained, figures.kept_bytes

    policy = load_policy(path, dtype=torch.float32)
    rounded = weights_checksum(policy.named_hf_parameters(), dtype=torch.bfloat16)
    whole = weights_checksum(policy.named_hf_parameters())
    assert on_ranks(2, device, seconds=120) == [(rounded, whole, 0)] * 2


SPOILT = "model.layers.0.mlp.down_proj.weight"


def told_after(
    spoil: Callable[[DeviceStates], None], path: Path, parallelism: tuple[dict[str, Any], ...]
) -> list[str]:
    """What each of two devices says of a sync whose rank 1 was spoilt."""
    job = job_of(path, *parallelism)

    def device(rank: int) -> str:
        states, _ = states_of(job, path, rank)
        if rank == 1:
            spoil(states)
        try:
            states.sync(3)
        except WeightsError as error:
            return str(error)
        return ""

    return on_ranks(2, device, seconds=120)


@pytest.mark.parametrize("elements", [1, None])
def test_a_parameter_that_arrived_wrong_stops_all_devices_which_name_it(
    elements: int | None, save_reference: SaveReference
) -> None:
    def spoil(states: DeviceStates) -> None:
        assert isinstance(states.port, Reshard)
        arrive = states.port.setup.strategy.to_rollout

        def wrong(new: Any) -> Iterator[tuple[str, Tensor]]:
            for name, own in arrive(new):
                if name == SPOILT:
                    own.view(-1)[:elements] += 1e-6
                yield name, own

        states.port.setup.strategy.to_rollout = wrong  # type: ignore[method-assign]

    messages = told_after(spoil, save_reference("qwen3"), ({"tensor": 2}, {"data": 2}))

    assert len(set(messages)) == 1
    assert (
        f"weights version 3 differ after the reshard (1 parameters): {SPOILT} rows" in (messages[0])
    )
    assert "rollout rank 1 does not hold what update rank" in messages[0]
    assert "the run stops, resume from the last checkpoint" in messages[0]


def test_log_probs_find_a_parameter_that_changed_after_it_arrived(
    save_reference: SaveReference,
) -> None:
    def spoil(states: DeviceStates) -> None:
        reshard = states.port
        assert isinstance(reshard, Reshard)

        assert isinstance(reshard.rollout, RolloutWeights)
        assert isinstance(reshard.engine, SlicedEngine)
        slices = reshard.rollout.slices

        def filled(version: int) -> None:
            slices[SPOILT].mul_(-1)

        reshard.engine.filled = filled  # type: ignore[method-assign]

    messages = told_after(spoil, save_reference("qwen3"), ({"tensor": 2}, {"data": 2}))

    assert len(set(messages)) == 1
    assert (
        f"weights version 3 differ after the reshard (1 parameters): {SPOILT} rows" in (messages[0])
    )
    assert "rollout rank 1 does not hold" in messages[0]


def test_log_probs_name_the_rank_where_every_parameter_is_as_it_was_given(
    save_reference: SaveReference,
) -> None:
    def spoil(states: DeviceStates) -> None:
        reshard = states.port
        assert isinstance(reshard, Reshard)
        compute = reshard.engine.token_logprobs

        def wrong(sequences: Any) -> list[list[float]]:
            return [[value - 0.5 for value in row] for row in compute(sequences)]

        reshard.engine.token_logprobs = wrong  # type: ignore[method-assign]

    messages = told_after(spoil, save_reference("qwen3"), ({"data": 2}, {"data": 2}))

    assert len(set(messages)) == 1
    assert "weights version 3 did not arrive in the rollout engine of rank 1" in messages[0]
    assert "its log-probs are off by 0.5 nats" in messages[0]


def test_a_parameter_that_did_not_come_is_named(save_reference: SaveReference) -> None:
    def spoil(states: DeviceStates) -> None:
        assert isinstance(states.port, Reshard)
        arrive = states.port.setup.strategy.to_rollout

        def short(new: Any) -> Iterator[tuple[str, Tensor]]:
            return ((name, own) for name, own in arrive(new) if name != SPOILT)

        states.port.setup.strategy.to_rollout = short  # type: ignore[method-assign]

    messages = told_after(spoil, save_reference("qwen3"), ({"tensor": 2}, {"data": 2}))

    assert messages[0].startswith("rollout weights of ranks [1] are incomplete at version 3")
    assert "rollout weights of rank 1 are incomplete at version 3 (1 parameters)" in messages[1]
    assert f"{SPOILT} is missing" in messages[1]


def test_a_device_alone_swaps_without_a_process_group(save_reference: SaveReference) -> None:
    path = save_reference("qwen3")
    device_of_its_own = {"type": "emulated", "devicesPerNode": 1}
    job = job_of(path, {}, {}, resharding=SWAP, accelerator=device_of_its_own)

    def device(rank: int) -> tuple[int, str]:
        states, _ = states_of(job, path, rank)
        assert not dist.is_initialized() and isinstance(states.port, Reshard)
        figures = states.sync(1).reshard
        assert figures is not None
        return figures.kept_bytes, states.port.engine.checksum()

    expected = weights_checksum(load_policy(path, dtype=torch.float32).named_hf_parameters())
    assert on_ranks(1, device) == [(0, expected)]


def test_devices_that_start_again_after_one_died_in_a_reshard_generate_with_what_was_saved(
    save_reference: SaveReference, tmp_path: Path
) -> None:
    path, saved = save_reference("qwen3"), tmp_path / "checkpoint"
    job = job_of(path, {"tensor": 2}, {"data": 2}, resharding=SWAP)

    def first_life(rank: int) -> None:
        states, _ = states_of(job, path, rank)
        assert isinstance(states.port, Reshard)
        for tensor in states.port.update.values():
            tensor.detach().mul_(1.5)  # training
        states.sync(1)
        states.save(saved)  # what it trains is on the host
        dist.barrier()
        states.port.ready_to_train()
        if rank == 1:
            states.port.rollout.allocate = lambda rollout_slice: os._exit(3)  # type: ignore[method-assign]
        states.sync(2)

    def second_life(rank: int) -> tuple[str, str]:
        states, _ = states_of(job, path, rank)
        assert isinstance(states.port, Reshard) and states.policy is not None
        states.load(saved, step=1)
        states.sync(2)
        generating = states.port.engine.checksum()
        states.port.ready_to_train()
        return generating, weights_checksum(states.policy.shard.full_weights())

    with pytest.raises(RanksFailed) as failed:
        on_ranks(2, first_life, seconds=120, grace_seconds=40)
    found = on_ranks(2, second_life, seconds=120)

    assert failed.value.reasons[1] == "died without a word, exit code 3"
    last = failed.value.reasons[0].rstrip().splitlines()[-1]
    assert "WorkerError: reshard of weights version 2 on rank 0: " in last
    assert "rank 1 is gone" in last
    policy = load_policy(path, dtype=torch.float32)
    with torch.no_grad():
        trained = ((name, weight * 1.5) for name, weight in policy.named_hf_parameters())
        expected = weights_checksum(trained)
    assert found == [(expected, expected)] * 2
