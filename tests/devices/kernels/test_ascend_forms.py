"""What the kernels ask of torch_npu: its schemas are met, and results are the references'.

No NPU is needed: the operators are registered with the schemas of three releases and computed on
CPU. What this cannot show is in the operators' own arithmetic (`test_kernels_on_a_device.py`).
"""

import inspect
import sys
from types import SimpleNamespace

import pytest
import torch
from npu_operators import OPERATORS, SCHEMAS, VERSIONS, npu_operators

from rljob_runtime.cli.bring_up.kernel_cases import (
    CASES,
    RandomTensors,
    kernel_of,
    outputs_and_gradients,
    worst_share,
)
from rljob_runtime.devices.kernels.block_attention import attend_blocks, attend_blocks_backward
from rljob_runtime.devices.kernels.flash_attention import (
    Sequences,
    flash_attention,
    flash_attention_ascend,
    npu_causal_mask,
)
from rljob_runtime.devices.kernels.grouped_matmul import grouped_matmul
from rljob_runtime.devices.kernels.rms_norm import rms_norm
from rljob_runtime.devices.kernels.rotary_embedding import rotate
from rljob_runtime.devices.kernels.swiglu import swiglu
from rljob_runtime.devices.kernels.token_permutation import permute_tokens, unpermute_tokens

pytestmark = pytest.mark.filterwarnings("ignore:.*overriding a previously registered kernel")
PINNED = "2.10.0.post4"  # vllm-ascend's


@pytest.fixture(params=VERSIONS)
def version(request):
    with npu_operators(request.param):
        yield request.param


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_ascend_forms_give_the_references_result_and_gradients(version, dtype):
    for case in CASES:
        kernel = kernel_of(case)

        found = outputs_and_gradients(kernel.ascend, case, dtype)

        assert worst_share(found, outputs_and_gradients(kernel.reference, case, dtype), dtype) <= 1


@pytest.mark.parametrize(
    ("case", "argument"),
    [
        ("attention odd", "atten_mask"),
        ("attention odd", "sparse_mode"),
        ("attention", "actual_seq_qlen"),
        ("attention", "actual_seq_kvlen"),
        ("norm odd width", "epsilon"),
        ("rope halves", "rotary_mode"),
        ("swiglu odd width", "dim"),
        ("gmm odd", "group_list_type"),
        ("unpermute", "probs"),
    ],
)
def test_an_argument_that_torch_npu_calls_otherwise_is_refused(case, argument):
    with (
        npu_operators(PINNED, rename=(argument, "renamed")),
        pytest.raises(RuntimeError, match=f"Unknown keyword argument '{argument}'"),
    ):
        outputs_and_gradients(kernel_of(case).ascend, case, torch.float32)


def test_only_the_grouped_product_needs_a_gradient_of_our_own():
    for version in VERSIONS:
        lines = (SCHEMAS / f"{version}.txt").read_text().splitlines()
        without = {
            name for name in OPERATORS if name.title().replace("_", "") + "Backward0" not in lines
        }

        assert without == {"npu_grouped_matmul", "npu_fusion_attention_grad"}


@pytest.mark.parametrize(
    "kernel",
    [
        flash_attention,
        attend_blocks,
        attend_blocks_backward,
        rms_norm,
        rotate,
        swiglu,
        grouped_matmul,
        permute_tokens,
        unpermute_tokens,
    ],
    ids=lambda kernel: kernel.__name__,
)
def test_tensors_on_an_npu_take_the_ascend_form(kernel, monkeypatch):
    module = sys.modules[kernel.__module__]
    monkeypatch.setattr(module, f"{kernel.__name__}_ascend", lambda *_, **__: "ascend")
    on_npu = SimpleNamespace(is_cpu=False, device=SimpleNamespace(type="npu"))
    needed = [p for p in inspect.signature(kernel).parameters.values() if p.default is p.empty]
    named = {p.name: [] for p in needed if p.kind is p.KEYWORD_ONLY}

    assert kernel(*[on_npu] * (len(needed) - len(named)), **named) == "ascend"


def test_more_sequences_than_one_call_takes_are_several_calls():
    query, key, value = (torch.randn(1500, 2, 4, requires_grad=True) for _ in range(3))
    sequences = Sequences.apart([(1, 1)] * 1500)

    with npu_operators(PINNED):
        mixed = flash_attention_ascend(query, key, value, sequences)

    torch.testing.assert_close(mixed, value)


def test_the_causal_mask_made_by_generation_serves_training():
    npu_causal_mask.cache_clear()
    with npu_operators(PINNED):
        (query, key, value, sequences), _ = CASES["attention"](RandomTensors(torch.float32, "cpu"))
        with torch.inference_mode():
            flash_attention_ascend(query.clone(), key.clone(), value.clone(), sequences)

        flash_attention_ascend(query, key, value, sequences).sum().backward()

    assert query.grad is not None
