"""A rank that dies or stays away in a reshard: the others say who and keep what they train, and a restart
goes on from what was saved."""

import gc
import os
import re
import threading
import weakref
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from forked_ranks import RanksFailed, on_ranks
from reshard_ranks import full_weights, made, plan_of, slices_of
from torch import Tensor
from wait_until import wait_until

from rljob_plan.resharding.boxes import TensorBox
from rljob_plan.resharding.resharding_plan import ReshardPlan
from rljob_plan.resharding.widths import Widths
from rljob_runtime.devices.cpu import CpuBackend
from rljob_runtime.errors import WorkerError
from rljob_runtime.weights.reshard import peers
from rljob_runtime.weights.reshard.executor import Resharder
from rljob_runtime.weights.reshard.strategies import AllgatherSwap
from rljob_runtime.weights.reshard_state import Reshard, ReshardSetup

PLAN = plan_of(
    "fewer tensor ranks", nodes=None, separated=False, widths=Widths(update=4, rollout=4)
)
OF_TWO_NODES = plan_of(
    "fewer tensor ranks", nodes=2, separated=False, widths=Widths(update=4, rollout=4)
)
WHOLE = full_weights(PLAN.update.shape, torch.float32)
MORTAL = 1
alive: list[Resharder] = []
"""Their sockets stay open, as those of a worker's process do."""
STEPS = ("gather", "select", "swap", "free", "fetch back")


class Fates:
    """Ends the process at the n-th time of a step. at: None for a rank that lives."""

    def __init__(self, at: str | None, n: int) -> None:
        self.at, self.left = at, n

    def meet(self, step: str) -> None:
        if step == self.at:
            self.left -= 1
            if not self.left:
                os._exit(3)


class Mortal(CpuBackend):
    """The first side stream gathers, the second swaps and, after `generates`, fetches back."""

    def __init__(self, rank: int, fates: Fates) -> None:
        super().__init__(name=f"emulated:{rank}")
        self.fates, self.streams, self.generates = fates, 0, False

    def side_stream(self) -> Any:
        stream, number = super().side_stream(), self.streams
        self.streams += 1
        run = stream.run

        def watched(work: Callable[[], None]) -> Any:
            step = ("gather", "fetch back" if self.generates else "swap")[number]

            def begin() -> None:
                self.fates.meet(step)
                work()

            mark = run(begin)
            if step == "swap":
                wait = mark.wait

                def freed() -> None:
                    wait()
                    self.fates.meet("free")

                mark.wait = freed  # type: ignore[method-assign]
            return mark

        stream.run = watched  # type: ignore[method-assign]
        return stream


def two_steps(rank: int, at: str, *, plan: ReshardPlan = PLAN, shares_memory: bool) -> None:
    """Reshards, generates, trains and reshards again; what fails leaves the update's weights as they were."""
    fates = Fates(at if rank == MORTAL else None, n=1 if at == "fetch back" else 3)
    backend = Mortal(rank, fates)
    update = slices_of(WHOLE, plan.update, rank)
    resharder = Resharder(
        plan,
        backend,
        sent=torch.float32,
        timeout_seconds=600,
        shares_memory=shares_memory,
    )
    strategy = AllgatherSwap(resharder, update, backend)

    def new(piece: TensorBox) -> Tensor:
        fates.meet("select")
        return made(piece, torch.float32, backend.ledger)

    try:
        for _ in range(2):
            dict(strategy.to_rollout(new))
            backend.generates = True
            strategy.prefetch()
            strategy.to_update()
            backend.generates = False
    finally:
        alive.append(resharder)
        backend.generates = True
        strategy.to_update()
        for name, tensor in slices_of(WHOLE, plan.update, rank).items():
            assert torch.equal(update[name], tensor), name


def leaves(rank: int, *, shares_memory: bool) -> None:
    """Reshards, which a death cuts, and leaves; its groups and their connections live on."""
    backend = Mortal(rank, Fates("gather" if rank == MORTAL else None, n=3))
    update = slices_of(WHOLE, PLAN.update, rank)
    trained = [weakref.ref(tensor.untyped_storage()) for tensor in update.values()]
    resharder = Resharder(
        PLAN, backend, sent=torch.float32, timeout_seconds=600, shares_memory=shares_memory
    )
    alive.append(resharder)
    with pytest.raises(WorkerError):
        dict(resharder.run(update, lambda piece: made(piece, torch.float32, backend.ledger)))

    resharder.close()
    del update

    def all_gone() -> bool:
        gc.collect()
        return all(storage() is None for storage in trained)

    wait_until("nothing holds the weights that were trained", all_gone, seconds=20)


def restarted(rank: int, saved: Path) -> None:
    """A new process reshards what a checkpoint has."""
    backend = CpuBackend(name=f"emulated:{rank}")
    read: dict[str, Tensor] = torch.load(saved / f"{rank}.pt")
    update = {name: tensor.clone() for name, tensor in read.items()}
    resharder = Resharder(PLAN, backend, sent=torch.float32, timeout_seconds=30)
    strategy = AllgatherSwap(resharder, update, backend)
    found = dict(strategy.to_rollout(lambda piece: made(piece, torch.float32, backend.ledger)))
    for name, tensor in slices_of(WHOLE, PLAN.rollout, rank).items():
        assert torch.equal(found[name], tensor), name
    strategy.to_update()
    for name, tensor in slices_of(WHOLE, PLAN.update, rank).items():
        assert torch.equal(update[name], tensor), name


def two_machines(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ranks 0 and 1 share memory, and so do 2 and 3."""
    machines = [frozenset({0, 1})] * 2 + [frozenset({2, 3})] * 2
    place = "rljob_runtime.weights.reshard.exchange.machines_of"
    monkeypatch.setattr(place, lambda members: machines)


@pytest.mark.parametrize("way", ["shared memory", "collectives", "two machines"])
@pytest.mark.parametrize("step", STEPS)
def test_whoever_dies_at_any_step_is_named_by_all_others_who_keep_their_weights(
    step: str, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if way == "two machines":
        two_machines(monkeypatch)
    plan = OF_TWO_NODES if way == "two machines" else PLAN
    dies = partial(two_steps, at=step, plan=plan, shares_memory=way != "collectives")
    dies.__qualname__ = f"a death at {step}"  # type: ignore[attr-defined]

    with pytest.raises(RanksFailed) as failed:
        on_ranks(4, dies, seconds=45, grace_seconds=25)

    reasons = failed.value.reasons
    assert set(reasons) == {0, 1, 2, 3}
    assert reasons[MORTAL] == "died without a word, exit code 3"
    for rank in set(reasons) - {MORTAL}:
        last = reasons[rank].rstrip().splitlines()[-1]
        assert "WorkerError: " in last, reasons[rank]
        assert f"rank {MORTAL} is gone" in last, reasons[rank]


@pytest.mark.parametrize("shares_memory", [True, False], ids=["shared memory", "collectives"])
def test_groups_that_outlive_a_cut_reshard_hold_none_of_the_weights_that_were_trained(
    shares_memory: bool,
) -> None:
    with pytest.raises(RanksFailed) as failed:
        on_ranks(4, lambda rank: leaves(rank, shares_memory=shares_memory), grace_seconds=40)

    assert failed.value.reasons == {MORTAL: "died without a word, exit code 3"}


def test_a_restart_brings_both_sides_what_was_saved(tmp_path: Path) -> None:
    for rank in range(4):
        torch.save(slices_of(WHOLE, PLAN.update, rank), tmp_path / f"{rank}.pt")
    dies = partial(two_steps, at="swap", shares_memory=True)
    dies.__qualname__ = "a death at swap"  # type: ignore[attr-defined]

    with pytest.raises(RanksFailed):
        on_ranks(4, dies, seconds=30)

    on_ranks(4, lambda rank: restarted(rank, tmp_path))


@pytest.mark.parametrize("way", ["shared memory", "collectives", "two machines"])
def test_who_waits_for_a_rank_that_gave_up_does_not_wait_for_its_timeout(
    way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if way == "two machines":
        two_machines(monkeypatch)
    plan = OF_TWO_NODES if way == "two machines" else PLAN

    def reshard(rank: int) -> None:
        backend = CpuBackend(name=f"emulated:{rank}")
        update = slices_of(WHOLE, plan.update, rank)
        resharder = Resharder(
            plan,
            backend,
            sent=torch.float32,
            timeout_seconds=600,
            shares_memory=way != "collectives",
        )

        def refuses(piece: TensorBox) -> Tensor:
            raise MemoryError("no room")

        alive.append(resharder)
        if rank == MORTAL:  # its process lives on, and its connections stay open
            with pytest.raises(MemoryError):
                dict(resharder.run(update, refuses))
        else:
            dict(resharder.run(update, lambda piece: made(piece, torch.float32, backend.ledger)))

    with pytest.raises(RanksFailed) as failed:
        on_ranks(4, reshard, seconds=60, grace_seconds=40)

    reasons = failed.value.reasons
    assert set(reasons) == {0, 2, 3}
    for reason in reasons.values():
        last = reason.rstrip().splitlines()[-1]
        assert re.search(r"WorkerError: .*rank \d gave up", last), reason


@pytest.mark.parametrize(
    ("shares_memory", "told"),
    [
        (True, "rank 1 was silent for 5 s"),
        (False, r"in collectives of ranks \[[^]]*1[^]]*\]: .*Timed out waiting 5000ms"),
    ],
    ids=["shared memory", "collectives"],
)
def test_a_rank_that_never_comes_is_named_after_the_timeout(shares_memory: bool, told: str) -> None:
    kept: list[Resharder] = []  # while it lives, the rank's connections do

    def stay_away(rank: int) -> None:
        backend = CpuBackend(name=f"emulated:{rank}")
        update = slices_of(WHOLE, PLAN.update, rank)
        resharder = Resharder(
            PLAN, backend, sent=torch.float32, timeout_seconds=5, shares_memory=shares_memory
        )
        kept.append(resharder)
        if rank != MORTAL:
            dict(resharder.run(update, lambda piece: made(piece, torch.float32, backend.ledger)))

    with pytest.raises(RanksFailed) as failed:
        on_ranks(4, stay_away)

    reasons = failed.value.reasons
    assert any(re.search(told, reason) for reason in reasons.values()), reasons


def test_a_rank_that_dies_on_its_way_to_the_others_is_not_waited_for_as_long_as_a_reshard(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(peers, "MEET_SECONDS", 2.0)

    def meet(rank: int) -> None:
        if rank == MORTAL:
            monkeypatch.setattr(peers.Listening, "connect", lambda *_: os._exit(3))
        backend = CpuBackend(name=f"emulated:{rank}")
        alive.append(Resharder(PLAN, backend, sent=torch.float32, timeout_seconds=600))

    with pytest.raises(RanksFailed) as failed:
        on_ranks(4, meet, seconds=120, grace_seconds=60)

    reasons = failed.value.reasons
    assert all("to share memory within 2 s" in reasons[rank] for rank in (0, 2, 3)), reasons


class EndsLate:
    """As groups that wait for a rank that has died."""

    def __init__(self, until: threading.Event) -> None:
        self.until = until

    def close(self) -> None: ...

    def __del__(self) -> None:
        self.until.wait(60)


class Holds:
    """A strategy, which has the weights that are trained."""

    def __init__(self, weights: Tensor) -> None:
        self.weights = weights


def test_weights_are_let_go_while_groups_still_wait_for_who_died() -> None:
    late, nothing = threading.Event(), cast(Any, None)

    def planned(_: object) -> ReshardSetup:
        ends: Any = EndsLate(late)
        strategy: Any = Holds(torch.ones(3))
        return ReshardSetup(
            plan=nothing,
            members=ends,
            resharder=ends,
            strategy=strategy,
            checks=nothing,
            merge=None,
        )

    own = Reshard(
        make=planned,
        update={},
        policy=None,
        rollout=None,
        engine=None,
        ledger=nothing,
        vocab_size=1,
        max_length=1,
    )
    own.plan_among(nothing)
    weights = weakref.ref(cast(Any, own.setup.strategy).weights)

    own.leave()

    assert weights() is None
    late.set()
