"""Under `mindspeed`, what torch_npu fuses is called by this project's kernels: no flag decides it.

torch_npu's operators are registered with their published schemas and computed on CPU, and the kernels take
tensors for those of an NPU.
"""

from collections import Counter
from functools import wraps
from importlib import import_module

import npu_operators
import pytest
import torch
from engine_steps import ALIKE, MODELS, save_model, setup_of
from forked_ranks import on_ranks

from rljob_runtime.update.update_table import make_torch, make_update

pytestmark = pytest.mark.filterwarnings("ignore:.*overriding a previously registered kernel")
KERNELS = ("flash_attention", "rms_norm", "rotary_embedding", "swiglu", "grouped_matmul")
PLACE = "rljob_runtime.devices.kernels"


def counting(called, name, operator):
    @wraps(operator)
    def count(*args, **kwargs):
        called[name] += 1
        return operator(*args, **kwargs)

    return count


def calls_of_a_pass(folder, batch):
    """Log-probs, and how often each operator was called for them."""
    called = Counter()
    with pytest.MonkeyPatch.context() as patch:
        for name, operator in list(npu_operators.OPERATORS.items()):
            patch.setitem(npu_operators.OPERATORS, name, counting(called, name, operator))
        for kernel in KERNELS:
            patch.setattr(import_module(f"{PLACE}.{kernel}"), "on_npu", lambda tensor: True)
        with npu_operators.npu_operators("2.10.0.post4"):
            found = make_update(setup_of(folder)).logprobs(batch)
    return found, dict(called)


def test_every_layers_attention_norms_and_swiglu_are_fused_operators(both, tmp_path):
    torch.set_num_threads(1)
    folders = {name: save_model(tmp_path / name, MODELS[name]) for name in ("llama", "latent")}
    batch = both[0].make_batch(2, 2)

    def passes(_):  # in one process, which imports Megatron once
        return {name: calls_of_a_pass(folder, batch) for name, folder in folders.items()}

    (told,) = on_ranks(1, passes, seconds=180)

    for name, swiglus in (("llama", 3), ("latent", 5)):  # routed and shared experts in two layers
        found, called = told[name]
        assert called["npu_fusion_attention"] == 3
        assert called["npu_swiglu"] == swiglus
        assert called["npu_rms_norm"] >= 7
        expected = make_torch(setup_of(folders[name])).logprobs(batch)
        torch.testing.assert_close(found, expected, **ALIKE)
