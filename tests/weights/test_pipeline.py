"""Three buckets are on their way at a time: each is waited for, so that one after the other would fail."""

import threading
from collections.abc import Callable, Sequence
from typing import Any

import torch
from forked_ranks import on_ranks
from reshard_ranks import full_weights, plan_of, slices_of
from torch import Tensor

from rljob_plan.resharding.boxes import TensorBox
from rljob_plan.resharding.widths import Widths
from rljob_runtime.devices.cpu import CpuBackend
from rljob_runtime.weights.reshard.executor import Resharder

PLAN = plan_of(
    "fewer tensor ranks", nodes=None, separated=False, widths=Widths(update=4, rollout=4)
)
DEADLINE_SECONDS = 30


class Watched(CpuBackend):
    """Counts the work that its side stream has begun: a gather for each bucket."""

    def __init__(self, rank: int) -> None:
        super().__init__(name=f"emulated:{rank}")
        self.begun = 0
        self.changed = threading.Condition()

    def side_stream(self) -> Any:
        stream = super().side_stream()
        run = stream.run

        def watched(work: Callable[[], None]) -> Any:
            def begin() -> None:
                with self.changed:
                    self.begun += 1
                    self.changed.notify_all()
                work()

            return run(begin)

        stream.run = watched  # type: ignore[method-assign]
        return stream

    def await_begun(self, number: int) -> bool:
        with self.changed:
            return self.changed.wait_for(lambda: self.begun >= number, DEADLINE_SECONDS)


def test_the_next_gather_has_begun_and_the_last_swap_goes_on_while_a_bucket_is_selected():
    def reshard(rank: int) -> int:
        backend, buckets = Watched(rank), len(PLAN.buckets)
        bucket_of = {
            name: number
            for number, bucket in enumerate(PLAN.buckets)
            for name in PLAN.freed(bucket)
        }
        swapping: set[int] = set()
        update = slices_of(full_weights(PLAN.update.shape, torch.float32), PLAN.update, rank)
        resharder = Resharder(PLAN, backend, sent=torch.float32, timeout_seconds=30)

        def new(piece: TensorBox) -> Tensor:
            number = bucket_of[piece.tensor.name]
            assert backend.await_begun(min(number + 2, buckets))
            assert swapping == ({number - 1} if number else set())
            return torch.empty(piece.box.size[: len(piece.tensor.shape)])

        def leave(names: Sequence[str]) -> Callable[[], None]:
            number = bucket_of[names[0]]
            swapping.add(number)
            return lambda: swapping.remove(number)

        dict(resharder.run(update, new, release=leave))
        return buckets

    assert on_ranks(4, reshard)[0] > 3
