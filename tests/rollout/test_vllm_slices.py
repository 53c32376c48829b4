"""What vLLM's loaders are given of a tensor that is cut."""

import pytest
import torch

from rljob_api.model.tensors import Cut, TensorSpec
from rljob_plan.resharding.boxes import Box, TensorBox
from rljob_runtime.errors import WeightsError
from rljob_runtime.rollout.vllm_slices import as_full_tensor

WHOLE = torch.arange(48.0).view(8, 6)
ROWS, COLUMNS = Box(2, 6, 0, 6), Box(0, 8, 3, 6)


def piece(box: Box) -> TensorBox:
    tensor = TensorSpec(name="up_proj.weight", shape=(8, 6), cut=Cut.ROWS, layer=0)
    return TensorBox(tensor, box)


def given(box: Box) -> torch.Tensor:
    return as_full_tensor(piece(box), WHOLE[box.top : box.bottom, box.left : box.right].clone())


@pytest.mark.parametrize(("box", "axis", "first", "size"), [(ROWS, 0, 3, 2), (COLUMNS, 1, 3, 3)])
def test_a_slice_has_the_shape_of_the_whole_and_is_narrowed_to_what_is_there(
    box: Box, axis: int, first: int, size: int
) -> None:
    tensor = given(box)

    assert tensor.shape == WHOLE.shape and tensor.dtype == WHOLE.dtype
    assert torch.equal(tensor.narrow(axis, first, size), WHOLE.narrow(axis, first, size))


def test_an_expert_is_taken_out_of_a_row_of_one_before_it_is_narrowed() -> None:
    (expert,) = given(COLUMNS).unsqueeze(0).unbind()

    assert expert.shape == WHOLE.shape
    assert torch.equal(expert.narrow(1, 4, 2), WHOLE[:, 4:])


def test_what_is_not_there_is_refused_by_name() -> None:
    message = r"up_proj\.weight for 4 to 8 of axis 0, and there is 2 to 6; use spec\.resharding"
    with pytest.raises(WeightsError, match=message):
        given(ROWS).narrow(0, 4, 4)
    with pytest.raises(WeightsError, match=r"asks up_proj\.weight for aten\.add.* has but a slice"):
        given(ROWS) + 1


def test_a_tensor_that_is_whole_is_given_as_it_is() -> None:
    held = WHOLE.clone()

    assert as_full_tensor(piece(Box(0, 8, 0, 6)), held) is held
