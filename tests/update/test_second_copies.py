"""A second copy is whole, whoever dies while it is made, and whoever comes in a dead one's place finds it."""

import os
import secrets
import signal
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

import pytest
import torch
import torch.distributed as dist
from forked_ranks import FORK, RanksFailed, on_ranks
from torch import Tensor

from rljob_runtime.children.owned_folders import MemoryFolder
from rljob_runtime.errors import WeightsError, WorkerError
from rljob_runtime.worker.kept_state import KeptState
from rljob_runtime.worker.second_copies import HostCopies, PeerCopies

WEIGHTS, STATE = "policy/weights", "policy/state"
SECONDS = 30.0
LARGE = 2**24
"""Items that no send is through with before its process ends."""


def live(step: int, items: int = 1000) -> dict[str, dict[str, Tensor]]:
    """What a rank has after a step."""
    return {
        WEIGHTS: {"w": torch.full((items,), float(step)), "empty": torch.empty(0, 3)},
        STATE: {"count": torch.tensor(step), "half": torch.full((7,), step, dtype=torch.bfloat16)},
    }


def assert_is(kept: KeptState, step: int, parts: tuple[str, ...] = (WEIGHTS, STATE)) -> None:
    kept.check()
    assert kept.step == step
    assert kept.parts.keys() == {*parts}
    for part, tensors in kept.parts.items():
        for name, expected in live(step, len(kept.parts[WEIGHTS]["w"]))[part].items():
            assert torch.equal(tensors[name], expected)
            assert tensors[name].dtype == expected.dtype


@pytest.fixture
def folder() -> Iterator[MemoryFolder]:
    token = secrets.token_hex()
    yield MemoryFolder(token)
    MemoryFolder(token).close()


def test_the_next_rank_has_the_last_two_copies_and_so_has_each_rank_itself() -> None:
    def keeps(rank: int) -> dict[int, list[int]]:
        copies = PeerCopies(rank, [1, 2, 0], [WEIGHTS, STATE])
        copies.join(SECONDS)
        for step in (1, 2, 3):
            copies.keep(step, partial(live, step))
            copies.settle()
        ((sender, took),) = copies.take_received().items()
        assert (sender, took.tokens) == ((rank - 1) % 3, 4 * 1000 + 8 + 2 * 7)
        assert took.seconds > 0
        assert not copies.take_received()
        assert_is(copies.get((rank - 1) % 3, 2), 2)
        assert_is(copies.get((rank - 1) % 3, 3), 3)
        copies.drop(after=2)
        assert copies.complete_steps() == {(rank - 1) % 3: [2], rank: [2]}
        copies.keep(3, lambda: live(3))
        copies.leave()
        return {of: sorted(steps) for of, steps in copies.complete_steps().items()}

    assert on_ranks(3, keeps) == [{r: [2, 3], (r - 1) % 3: [2, 3]} for r in range(3)]


def test_a_rank_that_dies_while_it_sends_leaves_the_copy_before_and_all_others_have_theirs() -> (
    None
):
    def dies(rank: int) -> None:
        copies = PeerCopies(rank, [1, 2, 0], [WEIGHTS, STATE])
        copies.join(SECONDS)
        copies.keep(1, lambda: live(1, LARGE))
        copies.settle()
        dist.barrier()  # as the sums of the next step are
        copies.keep(2, lambda: live(2, LARGE))
        if rank == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        with pytest.raises(WorkerError, match="second copy"):
            copies.settle()
        copies.leave()
        if rank == 1:
            assert copies.complete_steps() == {0: [1], 1: [1, 2]}
            assert_is(copies.get(0, 1), 1)
        else:
            assert copies.complete_steps() == {1: [1, 2], 2: [1, 2]}
            assert_is(copies.get(1, 2), 2)

    with pytest.raises(RanksFailed) as failed:
        on_ranks(3, dies, grace_seconds=SECONDS)

    assert failed.value.reasons.keys() == {0}


def test_what_replicas_hold_is_not_copied() -> None:
    def keeps(rank: int) -> None:
        copies = PeerCopies(rank, [1, 0], [STATE])
        copies.join(SECONDS)
        copies.keep(1, lambda: live(1))
        copies.settle()
        assert copies.get(1 - rank, 1).parts.keys() == {STATE}

    on_ranks(2, keeps)


class DiesWhenCopied(dict[str, Tensor]):
    """Tells what it has once, and ends the process in the midst of telling it again."""

    told = False

    def items(self) -> Any:
        if self.told:
            yield next(iter(super().items()))
            os.kill(os.getpid(), signal.SIGKILL)
        self.told = True
        yield from super().items()


def test_a_process_in_the_place_of_a_killed_one_finds_its_last_whole_copy(
    folder: MemoryFolder,
) -> None:
    def dies() -> None:
        copies = HostCopies(folder, 5, [WEIGHTS, STATE])
        for step in (1, 2):
            copies.keep(step, partial(live, step))
        torn: Mapping[str, Mapping[str, Tensor]] = live(3) | {STATE: DiesWhenCopied(live(3)[STATE])}
        copies.keep(3, lambda: torn)

    process = FORK.Process(target=dies)
    process.start()
    process.join(SECONDS)

    found = HostCopies(folder, 5, [WEIGHTS, STATE])
    assert process.exitcode == -signal.SIGKILL
    assert found.complete_steps() == {5: [2]}
    assert_is(found.get(5, 2), 2)
    assert HostCopies(folder, 4, [WEIGHTS, STATE]).complete_steps() == {}

    found.keep(3, lambda: live(3, items=2000))
    found.drop(after=2)
    assert HostCopies(folder, 5, [WEIGHTS, STATE]).complete_steps() == {5: [2]}
    found.close()
    assert not folder.path.exists()


def test_a_bit_that_changed_while_it_was_kept_is_found() -> None:
    kept = KeptState.of(1, live(1))
    kept.check()

    kept.parts[WEIGHTS]["w"].view(torch.int32)[3] ^= 1

    with pytest.raises(WeightsError, match="policy/weights after step 1 changed"):
        kept.check()
