"""A device generates while new weights come to it, and switches to them once all devices have them whole."""

import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from forked_ranks import RanksFailed, on_ranks
from rollout_devices import joined, make_job, sync_of
from rollouts import make_groups, run, sampling
from rollouts_on_ranks import ARGUMENTS

from rljob_runtime.backends.sync_group import Meeting, SyncGroup
from rljob_runtime.engines.base import Generated, RolloutEngine
from rljob_runtime.engines.rollout_torch import TorchRollout
from rljob_runtime.engines.rollout_transformers import TransformersRollout
from rljob_runtime.errors import WeightsError
from rljob_runtime.models.loading import load_policy
from rljob_runtime.models.weights import load_weights_into, stored_weights, weights_checksum
from rljob_runtime.states.held_policy import WholePolicy
from rljob_runtime.states.in_flight import InFlight

SaveReference = Callable[..., tuple[Any, Path]]
GREEDY = sampling(greedy=True, eos_ids=())
"""Every sample has as many tokens as there is room for, which no noise decides."""


def receiver(engine: Any, group: SyncGroup, *, alone: bool = True) -> InFlight:
    """Of a rollout device that listens to the group."""
    found = InFlight(engine, dtype=torch.float32, alone=alone)
    found.listen(group)
    return found


def until(what: str, there: Callable[[], object]) -> None:
    """Wait for it, a minute at most."""
    deadline = time.monotonic() + 60
    while not there():
        assert time.monotonic() < deadline, what
        time.sleep(0.005)


def tokens_of(made: dict[str, Generated]) -> dict[str, list[int]]:
    return {uid: made[uid].token_ids for uid in sorted(made)}


def source(path: Path) -> WholePolicy:
    return WholePolicy(model=load_policy(path, dtype=torch.float32))


def test_a_device_generates_with_the_old_weights_until_it_switches_to_the_verified_new_ones(
    save_reference: SaveReference,
) -> None:
    path, other = save_reference("qwen3")[1], save_reference("qwen3", seed=5)[1]
    job, groups = make_job({}), make_groups()

    def device(rank: int) -> Any:
        _, group = joined(rank, job, path)
        if rank == 0:
            return sync_of(group, policy=source(other)).send(4).checksum
        engine = TorchRollout(path, **ARGUMENTS)
        arriving = receiver(engine, group)
        engine.between = None  # so that the call before the switch is of one version
        calls = [run(engine, groups, GREEDY)]
        until("the weights", lambda: arriving._arrived)
        before, held = engine.checksum(), engine.version
        calls.append(run(engine, groups, GREEDY))
        report = arriving.switch(4)
        calls.append(run(engine, groups, GREEDY))
        versions = [
            {version for made in call.values() for version in made.versions} for call in calls
        ]
        return [tokens_of(call) for call in calls], versions, (before, held), report

    sent, *devices = on_ranks(3, device, seconds=90)

    old, new = (tokens_of(run(TorchRollout(p, **ARGUMENTS), groups, GREEDY)) for p in (path, other))
    assert old != new
    for made, versions, before, report in devices:
        assert made == [old, old, new]
        assert versions == [{0}, {0}, {4}]
        assert before == (weights_checksum(stored_weights(path)), 0)
        assert report.checksum == sent == weights_checksum(stored_weights(other))
        assert report.in_flight.received_seconds > 0 and report.in_flight.switch_seconds > 0
        assert not report.in_flight.generating


@pytest.mark.parametrize("kind", [TorchRollout, TransformersRollout])
def test_tokens_tell_which_weights_drew_them_where_a_device_switches_within_a_batch(
    kind: type[Any], save_reference: SaveReference
) -> None:
    path, other = save_reference("qwen3")[1], save_reference("qwen3", seed=5)[1]
    job, groups = make_job({}), make_groups()

    def device(rank: int) -> Any:
        _, group = joined(rank, job, path)
        if rank == 0:
            return sync_of(group, policy=source(other)).send(1).checksum
        engine = kind(path, **ARGUMENTS)
        arriving = receiver(engine, group)
        take, asked = arriving._between, []

        def third_time() -> None:
            """The switch comes after a part of the samples has begun."""
            asked.append(1)
            if len(asked) == 3:
                until("the weights", lambda: arriving._arrived)
            if len(asked) >= 3:
                take()

        engine.between = third_time
        made = run(engine, groups, GREEDY)
        report = arriving.switch(1)
        again = run(engine, groups, GREEDY)
        return made, report, tokens_of(again)

    _, *devices = on_ranks(3, device, seconds=90)

    old, new = (tokens_of(run(kind(p, **ARGUMENTS), groups, GREEDY)) for p in (path, other))
    for made, report, again in devices:
        assert report.in_flight.generating
        assert again == new
        for uid, sample in made.items():
            assert len(sample.versions) == len(sample.token_ids) == len(sample.logprobs)
            assert sample.versions == sorted(sample.versions)
            assert sample.version == sample.versions[0]
            first = sample.versions.count(0)
            assert sample.token_ids[:first] == old[uid][:first]
        kept = {uid for uid, sample in made.items() if set(sample.versions) == {0}}
        late = {uid for uid, sample in made.items() if set(sample.versions) == {1}}
        assert late and all(made[uid].token_ids == new[uid] for uid in late)
        if kind is TorchRollout:
            assert not kept and len(late) < len(made)


def test_a_sample_whose_prompt_the_old_weights_computed_says_so() -> None:
    """Of a group that is half seated: its later samples' first tokens are drawn from what was computed."""
    sample = Generated(
        uid="a", token_ids=[7, 8, 9, 6], logprobs=[0.0] * 4, finish="length", version=3,
        switches=[(1, 4), (3, 6)],
    )  # fmt: skip

    assert sample.versions == [3, 4, 4, 6]


def test_devices_that_share_a_model_switch_together_before_their_next_call(
    save_reference: SaveReference,
) -> None:
    path, other = save_reference("qwen3")[1], save_reference("qwen3", seed=5)[1]
    job, groups = make_job({"tensor": 2}), make_groups((5, 2), samples=2)

    def device(rank: int) -> Any:
        ranks, group = joined(rank, job, path)
        if rank == 0:
            return sync_of(group, policy=source(other)).send(1).checksum
        engine = TorchRollout(path, groups=ranks.rollout, **ARGUMENTS)
        arriving = receiver(engine, group, alone=False)
        until("the weights", lambda: arriving._arrived)
        before = tokens_of(run(engine, groups, GREEDY))
        report = arriving.switch(1)
        return before, tokens_of(run(engine, groups, GREEDY)), report.checksum

    sent, *devices = on_ranks(3, device, seconds=90)

    old, new = (tokens_of(run(TorchRollout(p, **ARGUMENTS), groups, GREEDY)) for p in (path, other))
    assert devices == [(old, new, sent)] * 2


def test_several_versions_come_one_after_another_and_a_sync_between_them(
    save_reference: SaveReference,
) -> None:
    paths = [save_reference("qwen3", seed=seed)[1] for seed in (0, 5, 6, 7)]
    job = make_job({})

    def device(rank: int) -> list[str]:
        _, group = joined(rank, job, paths[0])
        if rank == 0:
            policy = source(paths[0])
            sync, found = sync_of(group, policy=policy), []
            for version, give in ((1, sync.send), (2, sync.run), (3, sync.send)):
                load_weights_into(policy.model, paths[version])
                found.append(give(version).checksum)
                group.agree()  # all have switched, as the driver waits for
            return found
        engine = TorchRollout(paths[0], **ARGUMENTS)
        arriving, sync = receiver(engine, group), sync_of(group, engine=engine)
        found = []
        for version, take in ((1, arriving.switch), (2, sync.run), (3, arriving.switch)):
            found.append(take(version).checksum)
            assert engine.version == version
            group.agree()
        return found

    expected = [weights_checksum(stored_weights(path)) for path in paths[1:]]
    assert on_ranks(3, device, seconds=90) == [expected] * 3


def test_a_device_takes_what_the_group_of_now_is_sent(
    save_reference: SaveReference, tmp_path: Path
) -> None:
    path, other = save_reference("qwen3")[1], save_reference("qwen3", seed=5)[1]
    job, place = make_job({}), tmp_path / "address"

    def device(rank: int) -> str:
        _, group = joined(rank, job, path)
        if rank == 0:
            meeting = Meeting("127.0.0.1")
            place.with_name("draft").write_text(meeting.address)
            place.with_name("draft").rename(place)
            sync = sync_of(SyncGroup(meeting.address, rank=0, size=3), policy=source(other))
            return sync.send(1).checksum
        arriving = receiver(TorchRollout(path, **ARGUMENTS), group)
        until("the address", place.exists)
        arriving.listen(None)
        arriving.listen(SyncGroup(place.read_text(), rank=rank, size=3))
        until("the weights", lambda: arriving._arrived)
        return arriving.switch(1).checksum

    assert on_ranks(3, device, seconds=90) == [weights_checksum(stored_weights(other))] * 3


class Spoiled(SyncGroup):
    """A member whose memory loses a number of a tensor that came."""

    def broadcast(self, tensor: torch.Tensor) -> None:
        super().broadcast(tensor)
        if tensor.dtype == torch.float32 and tensor.ndim == 2:
            tensor[0, 0] += 1


def test_a_sum_that_is_wrong_on_one_device_keeps_the_old_weights_on_all(
    save_reference: SaveReference,
) -> None:
    path, other = save_reference("qwen3")[1], save_reference("qwen3", seed=5)[1]

    check_nobody_switches(
        save_reference, path, other, spoiled=2, message="their sum is [0-9a-f]+ on the way"
    )


def test_weights_of_another_model_are_refused_by_name_before_they_come(
    save_reference: SaveReference,
) -> None:
    path, other = save_reference("qwen3")[1], save_reference("llama")[1]

    check_nobody_switches(
        save_reference, path, other, spoiled=None, message="self_attn.q_norm.weight is missing"
    )


def check_nobody_switches(
    save_reference: SaveReference, path: Path, other: Path, *, spoiled: int | None, message: str
) -> None:
    """Sender and both receivers end with the error, and these go on with the old weights."""
    job, groups = make_job({}), make_groups()

    def device(rank: int) -> Any:
        _, group = joined(rank, job, path)
        if rank == spoiled:
            group.__class__ = Spoiled
        if rank == 0:
            with pytest.raises(WeightsError, match=f"weights version 1: .*{message}"):
                sync_of(group, policy=source(other)).send(1)
            return None
        engine = TorchRollout(path, **ARGUMENTS)
        arriving = receiver(engine, group)
        until("the failure", lambda: arriving._failure)
        with pytest.raises(WeightsError, match=f"weights version 1: .*{message}"):
            arriving.switch(1)
        return tokens_of(run(engine, groups, GREEDY)), engine.version, engine.checksum()

    _, *devices = on_ranks(3, device, seconds=90)

    old = tokens_of(run(TorchRollout(path, **ARGUMENTS), groups, GREEDY))
    assert devices == [(old, 0, weights_checksum(stored_weights(path)))] * 2


@pytest.mark.parametrize("lost", [0, 2], ids=["sender", "receiver"])
def test_a_device_that_dies_while_weights_come_leaves_the_old_ones_on_the_others(
    lost: int, save_reference: SaveReference, tmp_path: Path
) -> None:
    path, other = save_reference("qwen3")[1], save_reference("qwen3", seed=5)[1]
    job, groups = make_job({}), make_groups()
    old = tokens_of(run(TorchRollout(path, **ARGUMENTS), groups, GREEDY))
    ended = tmp_path / "ended"
    ended.mkdir()

    def device(rank: int) -> None:
        _, group = joined(rank, job, path)
        if rank == lost:
            die_at_tensor(group, 6)
        if rank == 0:
            with pytest.raises(RuntimeError):
                sync_of(group, policy=source(other)).send(1)
        else:
            engine: RolloutEngine = TorchRollout(path, **ARGUMENTS)
            arriving = receiver(engine, group)
            until("the failure", lambda: arriving._failure)
            with pytest.raises(RuntimeError):
                arriving.switch(1)
            assert tokens_of(run(engine, groups, GREEDY)) == old
            assert engine.version == 0
            assert engine.checksum() == weights_checksum(stored_weights(path))
        (ended / str(rank)).touch()

    with pytest.raises(RanksFailed):
        on_ranks(3, device, seconds=90, grace_seconds=20)

    assert {place.name for place in ended.iterdir()} == {str(r) for r in range(3) if r != lost}


def die_at_tensor(group: SyncGroup, number: int) -> None:
    """The process ends in the middle of a version."""
    keep, lock, count = group.broadcast, threading.Lock(), [0]

    def broadcast(tensor: torch.Tensor) -> None:
        with lock:
            count[0] += 1
            if count[0] == number:
                os._exit(3)
        keep(tensor)

    group.broadcast = broadcast  # type: ignore[method-assign]
