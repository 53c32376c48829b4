"""Which packed tokens each rank of a replica has: all of them once, equally many a tensor rank."""

import pytest

from rljob_runtime.models.packing import Segments
from rljob_runtime.parallel.decoder.tokens import TokenShare, even_share, zig_zag, zig_zag_share

SEGMENTS = Segments(lengths=(5, 1, 12, 3, 0, 7), prompt_of=(0, 2, 2))


def shares_of_ring(contexts: int, tensors: int) -> list[TokenShare]:
    return [
        zig_zag_share(zig_zag(SEGMENTS, contexts), context, tensor=(tensor, tensors))
        for context in range(contexts)
        for tensor in range(tensors)
    ]


def even_shares(tokens: int, contexts: int, tensors: int) -> list[TokenShare]:
    return [
        even_share(tokens, (context, contexts), tensor=(tensor, tensors))
        for context in range(contexts)
        for tensor in range(tensors)
    ]


def real_places(shares: list[TokenShare]) -> list[int]:
    return [
        share.packed_offsets[place]
        for share in shares
        for place in share.outside[: share.real_outside]
    ]


@pytest.mark.parametrize(("tokens", "contexts", "tensors"), [(13, 2, 3), (12, 2, 3), (1, 2, 2)])
def test_every_real_token_is_on_one_rank_and_shares_are_equal(
    tokens: int, contexts: int, tensors: int
) -> None:
    shares = even_shares(tokens, contexts, tensors)

    assert real_places(shares) == list(range(tokens))
    assert {len(share.outside) for share in shares} == {-(-tokens // (contexts * tensors))}


@pytest.mark.parametrize(("contexts", "tensors"), [(2, 3), (3, 1), (30, 2)])
def test_in_a_ring_every_real_token_is_on_one_rank_and_no_rank_is_empty(
    contexts: int, tensors: int
) -> None:
    shares = shares_of_ring(contexts, tensors)

    assert sorted(real_places(shares)) == list(range(SEGMENTS.num_tokens))
    assert min(len(share.outside) for share in shares) >= 1
    of_context = [shares[i : i + tensors] for i in range(0, len(shares), tensors)]
    assert all(len({len(share.outside) for share in context}) == 1 for context in of_context)


def test_a_context_ranks_tokens_are_those_of_its_tensor_ranks() -> None:
    shares = even_shares(13, 2, 3)[3:]

    assert [(share.packed_offsets, share.inside) for share in shares] == [(range(9, 13), 9)] * 3
    assert [share.outside for share in shares] == [range(3), range(3, 6), range(6, 9)]
    assert [share.real_outside for share in shares] == [3, 1, 0]


def test_in_a_ring_a_response_sees_its_prompt() -> None:
    assert zig_zag(SEGMENTS, 2).prefixes == ((3, 0), (4, 2), (5, 2))
