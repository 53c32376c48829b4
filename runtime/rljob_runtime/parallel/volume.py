"""Compute the bytes that a rank sends in a ring collective over a group; it receives as many.

Each primitive defines a function that adds these up. Pure, without torch.
"""


def gather_bytes(shard_bytes: int, ranks: int) -> int:
    """Return the bytes of an all-gather: each rank's shard passes every rank but the last."""
    return shard_bytes * (ranks - 1)


def scatter_sum_bytes(shard_bytes: int, ranks: int) -> int:
    """Return the bytes of a reduce-scatter, which is an all-gather run backwards."""
    return shard_bytes * (ranks - 1)


def sum_bytes(full_bytes: int, ranks: int) -> int:
    """Return the bytes of an all-reduce: a reduce-scatter, then an all-gather."""
    return 2 * full_bytes * (ranks - 1) // ranks


def exchange_bytes(sent_bytes: list[int], rank: int) -> int:
    """Return the bytes of an all-to-all. sent_bytes: by receiver; a rank's bytes to itself are not sent."""
    return sum(sent_bytes) - sent_bytes[rank]
