"""Every kernel on a real device gives the result and the gradients of its reference on CPU."""

import pytest
import torch
from real_devices import DEVICES, skip_without

from rljob_runtime.cli.bring_up.kernel_cases import (
    CASES,
    kernel_of,
    outputs_and_gradients,
    worst_share,
)


@pytest.fixture(params=DEVICES)
def device(request):
    return skip_without(request.param)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("case", CASES)
def test_result_and_gradients_on_the_device_are_the_references(device, case, dtype):
    kernel = kernel_of(case)

    found = outputs_and_gradients(kernel.kernel, case, dtype, device)

    assert worst_share(found, outputs_and_gradients(kernel.reference, case, dtype), dtype) <= 1
