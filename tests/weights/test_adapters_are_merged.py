"""Colocated devices that train adapters: by the plan, the rollout generates with merged weights."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from colocated_states import job_of, states_of
from forked_ranks import on_ranks

from rljob_runtime.devices.memory_ledger import MemoryKind
from rljob_runtime.errors import CheckpointError
from rljob_runtime.models.adapter_files import ADAPTER_FILE, CONFIG_FILE
from rljob_runtime.models.loading import load_decoder
from rljob_runtime.models.lora import WithoutAdapters
from rljob_runtime.worker.device_states import DeviceStates

SaveReference = Callable[..., Path]
LORA = {"rank": 3, "alpha": 6, "targetModules": ["all-linear"]}
LAYOUTS: dict[str, tuple[str, dict[str, Any], str]] = {
    "tensor, swapped": ("qwen3", {"tensor": 2}, "allgather-swap"),
    "ZeRO 1, swapped": ("qwen3-moe", {"data": 2, "zero": 1}, "allgather-swap"),
    "ZeRO 3": ("llama", {"data": 2, "zero": 3}, "allgather"),
    "data, as a stream": ("qwen3", {"data": 2}, "stream"),
}


def learn(states: DeviceStates) -> None:
    """Each adapter becomes the same on every layout: of its name and place alone."""
    assert states.policy is not None
    for name, adapter in states.policy.shard.model.trained_parameters():
        rows = getattr(adapter, "to_local", lambda own=adapter: own)()
        with torch.no_grad():
            rows.fill_(0.02 + 0.001 * (len(name) % 7))


@pytest.mark.parametrize("name", LAYOUTS)
def test_the_rollout_gets_what_peft_would_merge_and_the_frozen_weights_stay(
    name: str, save_reference: SaveReference
) -> None:
    family, update, strategy = LAYOUTS[name]
    path = save_reference(family)
    sections: dict[str, Any] = {
        "resharding": {"strategy": strategy},
        "algorithm": {"name": "grpo", "params": {"klCoefficient": 0.1}},
    }
    job = job_of(path, update, {"data": 2}, lora=LORA, **sections)

    def device(rank: int) -> Any:
        states, (backend, _) = states_of(job, path, rank)
        learn(states)
        assert states.policy is not None and states.generate is not None
        figures = states.sync(3).reshard
        rollout = {
            name: weight.clone()
            for name, weight in states.generate.replica.engine.slices().items()  # type: ignore[attr-defined]
        }
        if figures is not None:
            assert figures.peak_bytes <= figures.bound_bytes
        states.end_generation()
        reference = states.inference["reference"]
        assert isinstance(reference.model, WithoutAdapters)
        reference.ready()
        adapters = {
            name: adapter.detach().clone() for name, adapter in states.policy.shard.full_adapters()
        }
        frozen = {n: w.clone() for n, w in states.policy.shard.slices().items()}
        assert backend.ledger.kind_bytes(MemoryKind.REFERENCE_WEIGHTS) == 0
        return rollout, adapters, frozen if "zero" not in update and "tensor" not in update else {}

    base = {
        name: weight.detach()
        for name, weight in load_decoder(path, dtype=torch.float32).named_hf_parameters()
    }
    for rollout, adapters, frozen in on_ranks(2, device, seconds=120):
        assert rollout.keys() == base.keys()
        for name, weight in rollout.items():
            stem, expected = name.removesuffix(".weight"), base[name]
            if (a := adapters.get(f"{stem}.lora_A.weight")) is not None:
                expected = expected + 2.0 * (adapters[f"{stem}.lora_B.weight"] @ a)
            torch.testing.assert_close(weight, expected, rtol=1e-6, atol=1e-6, msg=name)
        assert all(base[name].equal(weight) for name, weight in frozen.items())


def test_saved_adapters_go_on_from_the_same_frozen_model_alone(
    save_reference: SaveReference, tmp_path: Path
) -> None:
    path = save_reference("qwen3")
    job, saved = job_of(path, {"tensor": 2}, {"data": 2}, lora=LORA), tmp_path / "saved"

    def first(rank: int) -> str:
        states, _ = states_of(job, path, rank)
        learn(states)
        states.sync(1)
        states.save(saved)  # frozen weights are on the host
        return states.generate.replica.engine.checksum() if states.generate else ""

    def second(rank: int) -> str:
        states, _ = states_of(job, path, rank)
        states.load(saved, step=1)
        states.sync(1)
        return states.generate.replica.engine.checksum() if states.generate else ""

    def of_another_model(rank: int) -> str:
        states, _ = states_of(job, path, rank)
        with pytest.raises(CheckpointError) as caught:
            states.load(saved, step=1)
        return str(caught.value)

    before = on_ranks(2, first, seconds=120)
    after = on_ranks(2, second, seconds=120)
    save_reference("qwen3", 1)
    refused = on_ranks(2, of_another_model, seconds=120)

    assert before == after
    assert all("is not the model that the adapters of" in message for message in refused)
    assert {file.name for file in (saved / "adapter").iterdir()} == {ADAPTER_FILE, CONFIG_FILE}
