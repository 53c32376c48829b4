"""Every kernel on a real device gives the result and the gradients of its reference on CPU.

`pytest -m npu tests` on a node with an NPU, `-m cuda` with a GPU; skipped elsewhere.
"""

import pytest
import torch
from kernel_cases import CASES, assert_same, kernel_of, outputs_and_gradients


@pytest.fixture(
    params=[
        pytest.param("npu", marks=pytest.mark.npu),
        pytest.param("cuda", marks=pytest.mark.cuda),
    ]
)
def device(request):
    module = getattr(torch, request.param, None)
    if module is None or not module.is_available():
        pytest.skip(f"no {request.param} device here")
    return request.param


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("case", CASES)
def test_result_and_gradients_on_the_device_are_the_references(device, case, dtype):
    kernel = kernel_of(case)

    found = outputs_and_gradients(kernel.kernel, case, dtype, device)

    assert_same(found, outputs_and_gradients(kernel.reference, case, dtype), dtype)
