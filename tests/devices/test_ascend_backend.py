"""The Ascend backend without an NPU: what is missing is named, HCCL's options are torch_npu's."""

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

import rljob_runtime.devices.kernels
from rljob_api.spec.infrastructure import Accelerator
from rljob_runtime.devices.ascend import DETERMINISTIC, AscendBackend
from rljob_runtime.devices.backend_table import BACKENDS, open_backend
from rljob_runtime.devices.cpu import CpuBackend
from rljob_runtime.errors import ConfigError


class Options:
    """In place of ProcessGroupHCCL.Options."""

    hccl_config: dict[str, object]


def torch_npu_with(**parts):
    """A module object as much of torch_npu as is used."""
    group = SimpleNamespace(ProcessGroupHCCL=SimpleNamespace(Options=Options))
    return SimpleNamespace(_C=SimpleNamespace(_distributed_c10d=group), **parts)


def ascend_backend(module=None):
    return AscendBackend(device=torch.device("cpu"), module=module, name="ascend910b:3")


def test_every_accelerator_of_the_contract_has_a_backend():
    legal = Accelerator.model_json_schema()["properties"]["type"]["enum"]

    assert set(BACKENDS) == set(legal)


def test_an_emulated_device_has_the_specs_memory():
    backend = open_backend(Accelerator(memory="2Mi"), rank=4)

    assert isinstance(backend, CpuBackend)
    assert (backend.ledger.device, backend.ledger.limit_bytes) == ("emulated:4", 2 * 2**20)


def test_without_torch_npu_the_error_names_it_and_what_to_do(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch_npu", None)  # import fails

    with pytest.raises(ConfigError) as caught:
        open_backend(Accelerator(type="ascend910b"), rank=3)

    message = str(caught.value)
    assert message.startswith("device ascend910b:3 needs torch_npu")
    assert "rljob-runtime-ascend" in message
    assert "spec.accelerator.type" in message


def test_without_a_visible_npu_the_error_says_where_to_look(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch_npu", torch_npu_with())
    unavailable = SimpleNamespace(is_available=lambda: False)
    monkeypatch.setattr(torch, "npu", unavailable, raising=False)
    monkeypatch.setenv("ASCEND_RT_VISIBLE_DEVICES", "7")

    with pytest.raises(ConfigError, match=r"sees no NPU.*ASCEND_RT_VISIBLE_DEVICES=7.*npu-smi"):
        open_backend(Accelerator(type="ascend910c"), rank=0)


def test_hccl_groups_keep_the_buffer_that_they_are_given(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch_npu", torch_npu_with())
    backend = ascend_backend()

    options = backend.group_options(buffer_mib=32)

    assert backend.collectives == "cpu:gloo,npu:hccl"
    assert isinstance(options, Options)
    assert options.hccl_config == {"hccl_buffer_size": 32}
    assert backend.group_options() is None  # HCCL_BUFFSIZE of the pod holds


def test_sums_are_deterministic_unless_the_pod_says_otherwise(monkeypatch):
    for name in DETERMINISTIC:
        monkeypatch.setenv(name, "")  # so that what the backend sets is undone
        monkeypatch.delenv(name)
    monkeypatch.setenv("HCCL_DETERMINISTIC", "false")
    ignored = SimpleNamespace(set_device=lambda device: None, manual_seed_all=lambda seed: None)

    ascend_backend(ignored).set_up(seed=1, num_threads=1)

    assert os.environ["HCCL_DETERMINISTIC"] == "false"
    assert os.environ["LCCL_DETERMINISTIC"] == "1"


def test_no_module_of_the_runtime_imports_torch_npu():
    code = """
import pkgutil, sys
sys.modules["torch_npu"] = None
import rljob_runtime.devices, rljob_runtime.devices.kernels
for package in (rljob_runtime.devices, rljob_runtime.devices.kernels):
    for module in pkgutil.iter_modules(package.__path__, package.__name__ + "."):
        __import__(module.name)
import rljob_runtime.worker.build
print(len([name for name in sys.modules if name.startswith("rljob_runtime.devices.kernels.")]))
"""
    environment = os.environ | {"TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}

    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=environment
    )

    assert done.returncode == 0, done.stderr
    folder = Path(rljob_runtime.devices.kernels.__file__).parent
    assert int(done.stdout) == len([*folder.glob("[!_]*.py")])
