"""Which packed tokens each rank of a replica has: all of them once, equally many a rank."""

import pytest

from rljob_runtime.parallelize.tokens import TokenShares


@pytest.mark.parametrize(("tokens", "contexts", "tensors"), [(13, 2, 3), (12, 2, 3), (1, 2, 2)])
def test_every_real_token_is_on_one_rank_and_shares_are_equal(
    tokens: int, contexts: int, tensors: int
) -> None:
    shares = [
        TokenShares(tokens=tokens, context=(context, contexts), tensor=(tensor, tensors))
        for context in range(contexts)
        for tensor in range(tensors)
    ]

    real = [place for share in shares for place in share.outside[: share.real_outside]]

    assert real == list(range(tokens))
    assert {len(share.outside) for share in shares} == {-(-tokens // (contexts * tensors))}


def test_a_context_ranks_tokens_are_those_of_its_tensor_ranks() -> None:
    shares = [TokenShares(tokens=13, context=(1, 2), tensor=(tensor, 3)) for tensor in range(3)]

    assert {share.inside for share in shares} == {range(9, 18)}
    assert [share.outside for share in shares] == [range(9, 12), range(12, 15), range(15, 18)]
    assert [share.real_outside for share in shares] == [3, 1, 0]
