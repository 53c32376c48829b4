"""Bytes that a rank sends in a collective over a group, as a ring moves them; it receives as many.

Each primitive has a function of its own beside it that adds these up. Pure, without torch.
"""


def gather_bytes(part_bytes: int, ranks: int) -> int:
    """Every rank's part to every rank: each part passes every rank but its last."""
    return part_bytes * (ranks - 1)


def scatter_sum_bytes(part_bytes: int, ranks: int) -> int:
    """The sum of all ranks' wholes, a part of it to each: a gather run backwards."""
    return part_bytes * (ranks - 1)


def sum_bytes(whole_bytes: int, ranks: int) -> int:
    """The sum of all ranks' wholes to every rank: scattered, then gathered."""
    return 2 * whole_bytes * (ranks - 1) // ranks


def exchange_bytes(sent_bytes: list[int], rank: int) -> int:
    """To each rank what is its own. sent_bytes: by receiver; what stays at home is not sent."""
    return sum(sent_bytes) - sent_bytes[rank]
