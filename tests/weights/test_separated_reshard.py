"""Devices that train give devices that generate their slices alone, by the plan, however many there are."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from forked_ranks import RanksFailed, on_ranks
from separated_states import SeparatedDevice, separated_job
from torch import Tensor

from rljob_api.topology.resolved import ResolvedJob
from rljob_runtime.errors import WeightsError, WorkerError
from rljob_runtime.models.loading import load_policy
from rljob_runtime.models.weights import weights_checksum
from rljob_runtime.rollout.rollout_engine import SlicedEngine
from rljob_runtime.weights.reshard_state import Reshard
from rljob_runtime.weights.rollout_weights import RolloutWeights

SaveReference = Callable[..., Path]
LAYOUTS: dict[str, tuple[str, dict[str, Any], dict[str, Any], tuple[int, int]]] = {
    "tensor to tensor": ("qwen3", {"tensor": 2}, {"tensor": 2}, (2, 2)),
    "a pipeline to whole models": ("qwen3", {"pipeline": 2}, {}, (2, 2)),
    "ZeRO 3 to tensor": ("qwen3", {"data": 2, "zero": 3}, {"tensor": 2}, (2, 2)),
    "whole models to a pipeline": ("qwen3", {"data": 1}, {"pipeline": 2}, (1, 2)),
    "experts to experts": ("deepseek-v3", {"data": 1}, {"tensor": 2, "expert": 2}, (1, 2)),
}


def expected_of(path: Path) -> str:
    return weights_checksum(load_policy(path, dtype=torch.float32).named_hf_parameters())


def whole_bytes(path: Path) -> int:
    model = load_policy(path, dtype=torch.float32)
    return sum(weight.nbytes for _, weight in model.named_hf_parameters())


@pytest.mark.parametrize("name", LAYOUTS)
def test_devices_that_generate_get_their_slices_and_no_other_byte(
    name: str, save_reference: SaveReference
) -> None:
    family, update, rollout, devices = LAYOUTS[name]
    path = save_reference(family)
    job = separated_job(path, update, rollout, devices=devices)
    training, generating = devices

    def device(rank: int) -> tuple[int, int, str]:
        own = SeparatedDevice(job, path, rank)
        own.meet(0, training + generating)
        figures = own.states.sync(3).reshard
        assert figures is not None and isinstance(own.states.port, Reshard)
        assert figures.peak_bytes <= figures.bound_bytes
        if own.states.policy is not None:
            return figures.received_bytes, 0, ""
        held = own.states.port.rollout
        assert held is not None and own.states.port.engine is not None
        assert own.states.port.engine.version == 3
        return figures.received_bytes, held.num_bytes, own.states.port.engine.checksum()

    found = on_ranks(training + generating, device, seconds=120)

    assert [received for received, *_ in found] == [held for _, held, _ in found]
    assert {checksum for *_, checksum in found[training:]} == {expected_of(path)}
    replicas = job.spec.rollout.parallelism.data or 1
    assert sum(received for received, *_ in found) < 1.3 * replicas * whole_bytes(path)


def test_the_plan_is_another_one_when_devices_come_and_go(save_reference: SaveReference) -> None:
    path = save_reference("qwen3")
    job = separated_job(path, {"tensor": 2}, {}, devices=(2, 2))

    def device(rank: int) -> list[str]:
        own, found = SeparatedDevice(job, path, rank, meetings=3), []
        for number, size in enumerate((4, 3, 4)):
            if rank >= size:
                own.states.port.leave()
                continue
            own.meet(number, size)
            own.states.sync(number + 1)
            if rank >= 2:
                found.append(own.states.port.engine.checksum())  # type: ignore[attr-defined]
        return found

    expected = expected_of(path)
    assert on_ranks(4, device, seconds=120) == [[], [], [expected] * 3, [expected] * 2]


def with_deltas(job: ResolvedJob) -> ResolvedJob:
    """Trained in float32, generated with in bfloat16."""
    changed = {
        "resharding": job.spec.resharding.model_copy(update={"deltas": True}),
        "rollout": job.spec.rollout.model_copy(update={"dtype": "bfloat16"}),
    }
    return job.model_copy(update={"spec": job.spec.model_copy(update=changed)})


def test_changes_alone_travel_bit_by_bit_and_whole_slices_after_who_came(
    save_reference: SaveReference,
) -> None:
    path = save_reference("qwen3")
    job = with_deltas(separated_job(path, {"tensor": 2}, {}, devices=(2, 2)))

    def device(rank: int) -> list[tuple[int | None, int, str]]:
        own, found = SeparatedDevice(job, path, rank, meetings=2), []
        for version in range(4):
            if version in (0, 3):
                own.meet(version // 3, 4)
            policy = own.states.policy
            if policy is not None and version == 1:
                for _, weight in policy.shard.model.trained_parameters():
                    weight.data.view(-1)[::50] *= 1.01
            if policy is not None and version == 2:
                for _, weight in policy.shard.model.trained_parameters():
                    weight.data += 0.5
            figures = own.states.sync(version).reshard
            assert figures is not None and figures.peak_bytes <= figures.bound_bytes
            checksum = (
                own.states.port.engine.checksum()  # type: ignore[attr-defined]
                if policy is None
                else weights_checksum(policy.shard.full_weights(), dtype=torch.bfloat16)
            )
            found.append((figures.delta_bytes, figures.received_bytes, checksum))
        return found

    ranks = on_ranks(4, device, seconds=200)

    for each in zip(*ranks, strict=True):
        assert len({checksum for *_, checksum in each}) == 1
    whole, few, most, again = ([rank[version] for rank in ranks[2:]] for version in range(4))
    assert [told for told, *_ in (*whole, *again)] == [None] * 4
    for told, received, _ in few:
        assert told is not None and told < 0.1 * received
    for told, received, _ in most:
        assert told is not None and 0.9 * received < told < 1.05 * received


def test_adapters_are_merged_on_their_way_to_separated_devices(
    save_reference: SaveReference,
) -> None:
    path = save_reference("qwen3")
    job = separated_job(path, {"tensor": 2}, {"tensor": 2}, devices=(2, 2), lora={"rank": 4})

    def device(rank: int) -> str:
        own = SeparatedDevice(job, path, rank)
        own.meet(0, 4)
        if own.states.policy is not None:
            for number, (_, adapter) in enumerate(
                own.states.policy.shard.model.trained_parameters()
            ):
                adapter.data.fill_(0.01 * (1 + number % 3))
        own.states.sync(1)
        if own.states.policy is not None:
            return weights_checksum(own.states.policy.shard.full_weights())
        return own.states.port.engine.checksum()  # type: ignore[attr-defined]

    found = on_ranks(4, device, seconds=120)

    assert len(set(found)) == 1
    assert found[0] != expected_of(path)


def test_a_slice_that_is_wrong_is_found_on_all_devices(save_reference: SaveReference) -> None:
    path = save_reference("qwen3")
    job = separated_job(path, {"tensor": 2}, {"tensor": 2}, devices=(2, 2))
    name = "model.layers.1.mlp.up_proj.weight"

    def device(rank: int) -> str:
        own = SeparatedDevice(job, path, rank)
        own.meet(0, 4)
        port = own.states.port
        assert isinstance(port, Reshard)
        arrive = port.setup.strategy.to_rollout

        def wrong(new: Any) -> Iterator[tuple[str, Tensor]]:
            for found, own in arrive(new):
                if rank == 3 and found == name:
                    own[0] += 1
                yield found, own

        port.setup.strategy.to_rollout = wrong  # type: ignore[method-assign]
        with pytest.raises(WeightsError) as caught:
            own.states.sync(5)
        return str(caught.value)

    messages = on_ranks(4, device, seconds=120)

    assert len(set(messages)) == 1
    assert f"weights version 5 differ after the reshard (1 parameters): {name}" in messages[0]
    assert "rollout rank 3 does not hold what update rank" in messages[0]


def test_who_dies_is_named_by_the_others_and_those_meet_again(
    save_reference: SaveReference,
) -> None:
    path = save_reference("qwen3")
    job = separated_job(path, {"tensor": 2}, {}, devices=(2, 2))

    def device(rank: int) -> str:
        own = SeparatedDevice(job, path, rank, meetings=2)
        own.meet(0, 4)
        own.states.sync(1)
        if rank == 3:
            own.states.port.rollout.allocate = lambda name: os._exit(3)  # type: ignore
        try:
            own.states.sync(2)
        except WorkerError as error:
            assert "device 3 is gone" in str(error), error
            assert "weights version 2" in str(error), error
        else:
            raise AssertionError("a dead device was not missed")
        own.meet(1, 3)
        own.states.sync(2)
        if rank < 2:
            return ""
        return own.states.port.engine.checksum()  # type: ignore[attr-defined]

    with pytest.raises(RanksFailed) as caught:
        on_ranks(4, device, seconds=120, grace_seconds=60)

    assert set(caught.value.reasons) == {3}, str(caught.value)


@pytest.mark.parametrize("rollout", [{}, {"tensor": 2}], ids=["whole models", "shared models"])
def test_slices_come_while_devices_generate_and_are_taken_together(
    rollout: dict[str, Any], save_reference: SaveReference
) -> None:
    path = save_reference("qwen3")
    job = separated_job(path, {"tensor": 2}, rollout, devices=(2, 2), flow={"mode": "async"})

    def device(rank: int) -> tuple[str, int, int]:
        own = SeparatedDevice(job, path, rank)
        own.meet(0, 4)
        states = own.states
        states.sync(1)
        if states.policy is not None:
            for _, weight in states.policy.shard.model.trained_parameters():
                weight.data.mul_(1.5)
            states.port.send(2)
            return weights_checksum(states.policy.shard.full_weights()), 0, 0
        assert states.in_flight is not None and isinstance(states.port, Reshard)
        engine = states.port.engine
        assert engine is not None
        states.in_flight.listen(states.port.group)
        report = states.in_flight.switch(2)
        assert report.in_flight is not None and report.in_flight.probe_gap is not None
        assert report.in_flight.probe_gap < 1e-4
        assert isinstance(states.port.rollout, RolloutWeights)
        assert report.in_flight.checks > len(states.port.rollout.slices)
        return engine.checksum(), report.in_flight.received_bytes, engine.version

    found = on_ranks(4, device, seconds=120)

    expected = found[0][0]
    assert expected != expected_of(path)
    held = {received for _, received, _ in found[2:]}
    assert [(checksum, version) for checksum, _, version in found[2:]] == [(expected, 2)] * 2
    assert max(held) <= whole_bytes(path) * (0.7 if rollout else 1)


def test_slices_that_changed_between_host_and_engine_are_found(
    save_reference: SaveReference,
) -> None:
    path = save_reference("qwen3")
    job = separated_job(path, {"data": 1}, {}, devices=(1, 2), flow={"mode": "async"})

    def device(rank: int) -> str:
        own = SeparatedDevice(job, path, rank)
        own.meet(0, 3)
        states = own.states
        if states.policy is not None:
            states.port.send(1)
            return ""
        assert states.in_flight is not None and isinstance(states.port, Reshard)
        assert isinstance(states.port.engine, SlicedEngine)
        assert isinstance(states.port.rollout, RolloutWeights)
        if rank == 2:
            weight = states.port.rollout.slices["model.norm.weight"]
            filled = states.port.engine.filled

            def spoiled(version: int) -> None:
                filled(version)
                weight[0] += 1

            states.port.engine.filled = spoiled  # type: ignore[method-assign]
        states.in_flight.listen(states.port.group)
        try:
            states.in_flight.switch(1)
        except WeightsError as error:
            return str(error)
        return ""

    first, fine, spoiled = on_ranks(3, device, seconds=120)

    assert (first, fine) == ("", "")
    assert "weights version 1 did not arrive in the rollout engine as they came" in spoiled
