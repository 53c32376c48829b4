"""A device generates while new weights come to it, and switches to them once all devices have them whole."""

import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from forked_ranks import RanksFailed, on_ranks
from rollout_devices import joined, make_job, sync_of
from rollouts import make_groups, run, sampling
from rollouts_on_ranks import ARGUMENTS
from wait_until import wait_until

from rljob_runtime.devices.cpu import CpuBackend
from rljob_runtime.devices.meetings import Rendezvous
from rljob_runtime.devices.sync_group import SyncGroup
from rljob_runtime.errors import WeightsError, WorkerError
from rljob_runtime.models.loading import load_policy
from rljob_runtime.models.weights import load_weights_into, stored_weights, weights_checksum
from rljob_runtime.record.spans import Stopwatch
from rljob_runtime.rollout.rollout_engine import Generated, RolloutEngine
from rljob_runtime.rollout.rollout_torch import TorchRollout
from rljob_runtime.rollout.rollout_transformers import TransformersRollout
from rljob_runtime.rollout.sync_probe import gap_of, policy_logprobs, probe_sequences
from rljob_runtime.weights.arrivals import TensorArrival
from rljob_runtime.weights.held_policy import FullPolicy
from rljob_runtime.worker.in_flight import InFlight, Probe
from rljob_runtime.worker.rollout_replica import RolloutReplica

SaveReference = Callable[..., tuple[Any, Path]]
GREEDY = sampling(greedy=True, eos_ids=(), max_response_length=12)
"""Every sample has as many tokens as there is room for, which no noise decides."""
PROBE = Probe(sequences=probe_sequences(71, 64), dtype=torch.float32)


def made(engine: Any, replica: RolloutReplica) -> InFlight:
    room = CpuBackend(name="emulated:1").host_buffer
    arrival = TensorArrival(engine, dtype=torch.float32, host_buffer=room)
    return InFlight(engine, replica, arrival=arrival, probe=PROBE)


def receiver(engine: Any, group: SyncGroup, ranks: Any = None) -> InFlight:
    """Of a rollout device that listens to the group. ranks: that generate together."""
    replica = RolloutReplica(engine=engine, groups=ranks)
    found = made(engine, replica)
    found.listen(group)
    return found


def tokens_of(made: dict[str, Generated]) -> dict[str, list[int]]:
    return {uid: made[uid].token_ids for uid in sorted(made)}


def source(path: Path) -> FullPolicy:
    return FullPolicy(model=load_policy(path, dtype=torch.float32))


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
        wait_until("the weights arrived", lambda: arriving._arrived)
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
        assert report.in_flight.probe_gap < 1e-4
        names = len(list(stored_weights(other)))
        assert report.in_flight.checks == names + 2 + len(PROBE.sequences)


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
                wait_until("the weights arrived", lambda: arriving._arrived)
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


def test_a_device_tells_what_it_drew_while_weights_came_and_how_long_it_generated(
    save_reference: SaveReference,
) -> None:
    """Rank 1 generates from before the first tensor until the last one is there; rank 2 does nothing."""
    path, other = save_reference("qwen3")[1], save_reference("qwen3", seed=5)[1]
    job, groups = make_job({}), make_groups()

    def device(rank: int) -> Any:
        _, group = joined(rank, job, path)
        if rank == 0:
            sync = sync_of(group, policy=source(other))
            group.agree()  # rank 1 generates
            return sync.send(1).checksum
        engine = TorchRollout(path, **ARGUMENTS)
        replica = RolloutReplica(engine=engine)
        arriving = made(engine, replica)
        asked: list[int] = []

        def begin() -> None:
            """At the third token weights may come; what is asked for goes on once they are there."""
            asked.append(engine.drawn)
            if len(asked) == 3:
                group.agree()
                arriving.listen(group)
            if len(asked) == 6:
                wait_until("the weights arrived", lambda: arriving._arrived)

        engine.between = begin
        if rank == 1:
            replica.generate(groups, GREEDY, lambda ended: None)
        else:
            group.agree()
            arriving.listen(group)
        report = arriving.switch(1)
        return report.in_flight, asked

    _, (busy, asked), (idle, _) = on_ranks(3, device, seconds=90)

    sizes = sum(w.nbytes for _, w in stored_weights(other))
    assert 0 < busy.hidden_seconds <= busy.received_seconds
    assert busy.tokens <= asked[5] - asked[2]
    assert (idle.hidden_seconds, idle.tokens) == (0.0, 0)
    for told in (busy, idle):
        assert (told.before, told.received_bytes) == (0, sizes)


class ComputesOtherwise(TorchRollout):
    """Holds the right bits and computes with others."""

    def token_logprobs(self, sequences: Any) -> list[list[float]]:
        return [[value - 0.01 for value in row] for row in super().token_logprobs(sequences)]


def test_a_device_that_computes_otherwise_with_the_right_bits_is_found_after_its_switch(
    save_reference: SaveReference,
) -> None:
    path, other = save_reference("qwen3")[1], save_reference("qwen3", seed=5)[1]
    job = make_job({})

    def device(rank: int) -> str:
        _, group = joined(rank, job, path)
        if rank == 0:
            return sync_of(group, policy=source(other)).send(1).checksum
        engine = (TorchRollout if rank == 1 else ComputesOtherwise)(path, **ARGUMENTS)
        arriving = receiver(engine, group)
        if rank == 1:
            return arriving.switch(1).checksum
        with pytest.raises(WeightsError, match=r"version 1 .* log-probs are off by 0\.01 nats"):
            arriving.switch(1)
        return engine.checksum()

    sent = on_ranks(3, device, seconds=90)

    assert sent == [weights_checksum(stored_weights(other))] * 3


@pytest.mark.parametrize("kind", [TorchRollout, TransformersRollout])
def test_engines_score_given_tokens_as_the_policy_does(
    kind: type[Any], save_reference: SaveReference
) -> None:
    path = save_reference("qwen3")[1]

    found = kind(path, **ARGUMENTS).token_logprobs(PROBE.sequences)

    expected_T = policy_logprobs(source(path).model, PROBE.sequences)
    assert gap_of(found, expected_T) < 1e-4


def test_engines_count_the_tokens_that_they_draw(save_reference: SaveReference) -> None:
    path = save_reference("qwen3")[1]

    for kind in (TorchRollout, TransformersRollout):
        engine = kind(path, **ARGUMENTS)
        made = [*run(engine, make_groups()).values(), *run(engine, make_groups()).values()]
        assert engine.drawn == sum(len(sample.token_ids) for sample in made)


def test_a_stopwatch_runs_while_it_is_told_to() -> None:
    now = [10.0]
    watch = Stopwatch(lambda: now[0])
    with watch.running():
        now[0] = 12.0
        assert watch.seconds() == 2.0
        now[0] = 13.0
    now[0] = 20.0
    assert watch.seconds() == 3.0
    with pytest.raises(ValueError, match="broken"), watch.running():
        now[0] = 21.0
        raise ValueError("broken")
    assert watch.seconds() == 4.0


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
        arriving = receiver(engine, group, ranks.rollout)
        wait_until("the weights arrived", lambda: arriving._arrived)
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
            meeting = Rendezvous("127.0.0.1")
            place.with_name("draft").write_text(meeting.address)
            place.with_name("draft").rename(place)
            sync = sync_of(SyncGroup(meeting.address, rank=0, size=3), policy=source(other))
            return sync.send(1).checksum
        arriving = receiver(TorchRollout(path, **ARGUMENTS), group)
        wait_until("the address is there", place.exists)
        arriving.listen(None)
        arriving.listen(SyncGroup(place.read_text(), rank=rank, size=3))
        wait_until("the weights arrived", lambda: arriving._arrived)
        return arriving.switch(1).checksum

    assert on_ranks(3, device, seconds=90) == [weights_checksum(stored_weights(other))] * 3


class Spoiled(SyncGroup):
    """A member whose memory loses a number of a tensor that came."""

    def broadcast(self, tensor: torch.Tensor, description: str = "") -> None:
        super().broadcast(tensor, description)
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
        wait_until("they failed", lambda: arriving._failure)
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
    gone = rf"(?s)(?=.*weights version 1, )(?=.*member {lost} is gone)"

    def device(rank: int) -> None:
        _, group = joined(rank, job, path)
        if rank == lost:
            die_at_tensor(group, 6)
        if rank == 0:
            with pytest.raises(WorkerError, match=gone):
                sync_of(group, policy=source(other)).send(1)
        else:
            engine: RolloutEngine = TorchRollout(path, **ARGUMENTS)
            arriving = receiver(engine, group)
            wait_until("they failed", lambda: arriving._failure)
            with pytest.raises(WorkerError, match=gone):
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

    def broadcast(tensor: torch.Tensor, description: str = "") -> None:
        with lock:
            count[0] += 1
            if count[0] == number:
                os._exit(3)
        keep(tensor, description)

    group.broadcast = broadcast  # type: ignore[method-assign]
