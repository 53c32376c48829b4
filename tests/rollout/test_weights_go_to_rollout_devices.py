"""Separated devices that generate: those that share a model meet in a world of their own, and take the
weights of the device that trains without a copy of its policy."""

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch
from forked_ranks import on_ranks
from rollout_devices import joined, make_job, sync_of
from rollouts import make_groups, run, sampling
from rollouts_on_ranks import ARGUMENTS

from rljob_runtime.errors import WeightsError, WorkerError
from rljob_runtime.models.loading import load_policy
from rljob_runtime.models.weight_stream import pack_outlines
from rljob_runtime.models.weights import weights_checksum
from rljob_runtime.rollout.rollout_torch import TorchRollout
from rljob_runtime.weights.held_policy import FullPolicy

SaveReference = Callable[..., tuple[Any, Path]]
SHORT = sampling(max_response_length=10)


@pytest.mark.parametrize("degrees", [{}, {"tensor": 2}, {"pipeline": 2}])
def test_devices_without_a_policy_hold_the_weights_that_were_sent(
    degrees: dict[str, int], save_reference: SaveReference
) -> None:
    path, other = save_reference("qwen3")[1], save_reference("qwen3", seed=5)[1]
    job, groups = make_job(degrees), make_groups(samples=2)

    def device(rank: int) -> tuple[str, int, dict[str, list[int]]]:
        ranks, group = joined(rank, job, path)
        if rank == 0:
            policy = FullPolicy(model=load_policy(other, dtype=torch.float32))
            return sync_of(group, policy=policy).run(version=4).checksum, 4, {}
        engine = TorchRollout(path, groups=ranks.rollout, **ARGUMENTS)
        report = sync_of(group, engine=engine).run(version=4)
        made = run(engine, groups, SHORT)
        return report.checksum, engine.version, {uid: made[uid].token_ids for uid in made}

    found = on_ranks(3, device, seconds=90)

    policy = load_policy(other, dtype=torch.float32)
    alone = run(TorchRollout(other, **ARGUMENTS), groups, SHORT)
    expected = {uid: alone[uid].token_ids for uid in alone}
    assert {checksum for checksum, *_ in found} == {weights_checksum(policy.named_hf_parameters())}
    assert [version for _, version, _ in found] == [4, 4, 4]
    assert [made for *_, made in found] == [{}, expected, expected]


def test_weights_arrive_as_they_travel_in_the_narrower_type(save_reference: SaveReference) -> None:
    path, other = save_reference("deepseek-v3")[1], save_reference("deepseek-v3", seed=5)[1]
    job, narrow = make_job({"tensor": 2, "expert": 2}), torch.bfloat16

    def device(rank: int) -> str:
        ranks, group = joined(rank, job, path)
        if rank == 0:
            policy = FullPolicy(model=load_policy(other, dtype=torch.float32))
            return sync_of(group, policy=policy, dtype=narrow).run(version=1).checksum
        engine = TorchRollout(path, groups=ranks.rollout, **(ARGUMENTS | {"dtype": narrow}))
        sync_of(group, engine=engine, dtype=narrow).run(version=1)
        return engine.checksum()

    policy = load_policy(other, dtype=torch.float32)
    expected = weights_checksum(policy.named_hf_parameters(), dtype=narrow)
    assert on_ranks(3, device, seconds=90) == [expected] * 3


def test_a_part_that_is_wrong_is_found_on_every_device_of_its_model(
    save_reference: SaveReference,
) -> None:
    path = save_reference("qwen3")[1]
    job = make_job({"tensor": 2})

    def device(rank: int) -> str:
        ranks, group = joined(rank, job, path)
        if rank == 0:
            policy = FullPolicy(model=load_policy(path, dtype=torch.float32))
            sync_of(group, policy=policy).run(version=1)
            return ""
        engine = TorchRollout(path, groups=ranks.rollout, **ARGUMENTS)
        if rank == 2:
            keep, layer = engine.load_weights, "model.layers.1.self_attn.o_proj.weight"

            def spoil(weights: Any, *, version: int) -> None:
                keep(weights, version=version)
                engine._share.views[layer][0, 0] += 1  # type: ignore[index, operator]

            engine.load_weights = spoil  # type: ignore[method-assign]
        with pytest.raises(WeightsError) as caught:
            sync_of(group, engine=engine).run(version=1)
        return str(caught.value)

    _, right, wrong = on_ranks(3, device, seconds=90)

    assert "weights version 1 did not arrive in the rollout engine" in right
    assert right == wrong


def test_weights_of_another_model_are_refused_by_name_before_they_come(
    save_reference: SaveReference,
) -> None:
    path, other = save_reference("qwen3")[1], save_reference("llama")[1]
    job = make_job({"tensor": 2})

    def device(rank: int) -> tuple[str, bool]:
        ranks, group = joined(rank, job, path)
        if rank == 0:
            policy = FullPolicy(model=load_policy(other, dtype=torch.float32))
            with suppress(WorkerError):  # where another gave up before all had them
                group.broadcast_bytes(pack_outlines(policy.outlines()))
            group.close()
            return "", True  # and no tensor follows
        engine = TorchRollout(path, groups=ranks.rollout, **ARGUMENTS)
        before = engine.checksum()
        with pytest.raises((WeightsError, WorkerError)) as caught:  # its own, or whose it heard of
            sync_of(group, engine=engine).run(version=1)
        return str(caught.value), engine.checksum() == before

    told = on_ranks(3, device, seconds=90)[1:]

    for message, fixed_fields_rule in told:
        assert "model.layers.0.self_attn.q_norm.weight is missing" in message
        assert fixed_fields_rule
