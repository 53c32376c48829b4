"""Every kernel on CPU gives the result and the gradients of its plain-torch reference."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rljob_runtime.cli.bring_up.kernel_cases import (
    CASES,
    RandomTensors,
    kernel_of,
    outputs_and_gradients,
    worst_share,
)
from rljob_runtime.devices.kernels.flash_attention import CALL_SCORES, Sequences
from rljob_runtime.devices.kernels.token_permutation import (
    permute_tokens,
    permute_tokens_reference,
    unpermute_tokens,
)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("case", CASES)
def test_result_and_gradients_are_the_references(case, dtype):
    kernel = kernel_of(case)

    found = outputs_and_gradients(kernel.kernel, case, dtype)

    assert worst_share(found, outputs_and_gradients(kernel.reference, case, dtype), dtype) <= 1


@pytest.mark.parametrize("case", CASES)
def test_results_without_gradients_are_the_same(case):
    kernel = kernel_of(case)
    arguments, settings = CASES[case](RandomTensors(torch.float32, "cpu"))

    with torch.inference_mode():
        arguments = [x.clone() if isinstance(x, torch.Tensor) else x for x in arguments]
        output = kernel.kernel(*arguments, **settings)

    expected = outputs_and_gradients(kernel.reference, case, torch.float32)["output"]
    assert worst_share({"output": output}, {"output": expected}, torch.float32) <= 1


def test_places_lead_back_to_the_tokens():
    tokens = torch.randn(6, 3)
    experts = torch.tensor([[3, 0], [1, 2], [0, 3], [3, 1], [2, 0], [1, 3]])

    permuted, places = permute_tokens(tokens, experts)

    assert permuted[:3].equal(tokens[[0, 2, 4]])  # expert 0, in the order of the tokens
    assert places.dtype == torch.int32
    assert places.equal(permute_tokens_reference(tokens, experts)[1])
    torch.testing.assert_close(unpermute_tokens(permuted, places, torch.full((6, 2), 0.5)), tokens)


def test_a_causal_query_sees_its_own_key_and_those_before():
    kernel = kernel_of("attention")
    (query, key, value, sequences), _ = CASES["attention goes on"](
        RandomTensors(torch.float32, "cpu")
    )

    before = kernel.kernel(query, key, value, sequences)
    with torch.no_grad():
        value[6] += 1.0  # the last key of the first sequence
    after = kernel.kernel(query, key, value, sequences)

    changed = (before != after).flatten(1).any(-1)
    assert changed.tolist() == [False, True, False, False, False, False]


@given(st.lists(st.tuples(st.integers(0, 90), st.integers(0, 90)), min_size=1, max_size=12))
def test_rectangles_hold_every_query_once_and_pad_for_less_than_a_call_costs(lengths):
    sequences = Sequences.apart([(queries, queries + before) for queries, before in lengths])

    rows = sequences.row_of_Q
    held = [rectangle.query_index_BS.flatten() for rectangle in sequences.rectangles]

    assert len(rows) == sum(queries for queries, _ in lengths)
    if held:
        assert torch.cat(held)[rows].equal(torch.arange(len(rows)))
    scores = sum(q * (q + before) for q, before in lengths)
    padded = sum(r.query_index_BS.numel() * r.key_index_BL.shape[1] for r in sequences.rectangles)
    assert padded - scores <= CALL_SCORES * len(lengths)
