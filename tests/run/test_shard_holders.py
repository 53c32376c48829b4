"""Who can give a lost update rank its state, in every layout."""

from hypothesis import given
from hypothesis import strategies as st

from rljob_api.spec.engines import UpdateParallelism
from rljob_api.topology.devices import UpdateDegrees
from rljob_api.topology.second_copies import second_holders, unique_states
from rljob_runtime.run.shard_holders import plan_transfers, shard_holders
from rljob_runtime.worker.transfers import Transfer

WEIGHTS, STATE = "policy/weights", "policy/state"
BOTH = (WEIGHTS, STATE)
STEPS = range(100)


def layout(**degrees: int) -> UpdateParallelism:
    return UpdateParallelism.model_validate(degrees)


def of_policy(ranks: int, **degrees: int) -> dict[str, list[frozenset[int]]]:
    return shard_holders({"policy": layout(**degrees)}, ranks)


def transfers(*parts: str, copied: bool = False, **givers: int) -> list[Transfer]:
    """givers: by `rank_<taker>`."""
    return [
        Transfer(part=part, giver=giver, taker=int(taker[5:]), copied=copied)
        for taker, giver in givers.items()
        for part in parts
    ]


def test_ranks_hold_the_same_where_only_data_and_context_part_them() -> None:
    every = [frozenset(range(4))] * 4
    assert of_policy(4, data=4) == {WEIGHTS: every, STATE: every}
    assert of_policy(4, data=2, context=2)[STATE] == every
    assert of_policy(4, data=2, tensor=2)[STATE] == [{0, 2}, {1, 3}, {0, 2}, {1, 3}]
    assert of_policy(4, data=2, pipeline=2)[WEIGHTS] == [{0, 1}, {0, 1}, {2, 3}, {2, 3}]


def test_shards_of_the_optimizer_and_experts_are_held_once_a_copy() -> None:
    for zero in (1, 2):
        found = of_policy(2, data=2, zero=zero)
        assert found == {WEIGHTS: [{0, 1}, {0, 1}], STATE: [{0}, {1}]}
    assert of_policy(2, data=2, zero=3) == {WEIGHTS: [{0}, {1}], STATE: [{0}, {1}]}
    assert of_policy(4, data=4, expert=2)[WEIGHTS] == [{0, 2}, {1, 3}, {0, 2}, {1, 3}]


def test_both_models_have_their_own_holders() -> None:
    found = shard_holders({"policy": layout(data=2), "critic": layout(data=1, tensor=2)}, 2)

    assert found["policy/state"] == [{0, 1}, {0, 1}]
    assert found["critic/state"] == [{0}, {1}]


@given(
    st.sampled_from([(1, 1, 1), (2, 1, 1), (1, 2, 1), (2, 1, 2), (4, 1, 2), (2, 2, 2), (2, 2, 4)]),
    st.sampled_from([0, 1, 2, 3]),
)
def test_what_is_held_alone_is_what_nobody_else_holds(
    degrees: tuple[int, int, int], zero: int
) -> None:
    data, context, expert = degrees
    chosen = layout(data=data, context=context, expert=expert, zero=zero)
    ranks = data * context

    found = shard_holders({"policy": chosen}, ranks)

    alone = unique_states(UpdateDegrees.model_validate(dict(chosen)))
    for part, same in found.items():
        own = all(peers == {rank} for rank, peers in enumerate(same))
        assert own == (part.removeprefix("policy/") in alone)


def test_all_go_on_after_the_latest_step_that_is_whole_somewhere() -> None:
    def found(after: dict[int, int | None]) -> tuple[int, list[Transfer]] | None:
        return plan_transfers(of_policy(4, data=2, tensor=2), after, {}, copied=(), reachable=STEPS)

    assert found({0: 7, 1: 7, 2: 7}) == (7, transfers(*BOTH, rank_3=1))
    assert found({0: 7, 1: 7, 2: 6, 3: 8}) == (7, transfers(*BOTH, rank_2=0, rank_3=1))
    assert found({0: None, 1: 7, 3: 7}) is None
    assert plan_transfers(of_policy(2, data=2), {0: None}, {}, copied=(), reachable=STEPS) is None


def test_the_next_rank_gives_its_copy_where_nobody_holds_the_same() -> None:
    same, copies = of_policy(2, tensor=2, data=1), {0: {0: [6, 7], 1: [6, 7]}}

    assert plan_transfers(same, {0: 7}, copies, copied=BOTH, reachable=STEPS) == (
        7,
        transfers(*BOTH, copied=True, rank_1=0),
    )
    assert plan_transfers(same, {0: 7}, {0: {1: []}}, copied=BOTH, reachable=STEPS) is None


def test_with_zero_1_weights_come_from_a_replica_and_the_state_from_the_copy() -> None:
    same, copies = of_policy(3, data=3, zero=1), {0: {2: [7]}}

    found = plan_transfers(same, {0: 7, 1: 7}, copies, copied=[STATE], reachable=STEPS)

    replica = Transfer(part=WEIGHTS, giver=0, taker=2, copied=False)
    assert found == (7, [replica, Transfer(part=STATE, giver=0, taker=2, copied=True)])


def test_all_step_back_where_the_last_copy_did_not_come_whole() -> None:
    same = of_policy(2, data=2, zero=3)
    copies = {0: {0: [7], 1: [6]}, 1: {0: [6, 7]}}

    assert plan_transfers(same, {0: 7}, copies, copied=BOTH, reachable={6, 7, 8}) == (
        6,
        transfers(*BOTH, copied=True, rank_0=1) + transfers(*BOTH, copied=True, rank_1=0),
    )
    assert plan_transfers(same, {0: 7}, copies, copied=BOTH, reachable={7, 8}) is None


def test_with_zero_1_a_step_back_has_no_weights() -> None:
    same, copies = of_policy(2, data=2, zero=1), {0: {0: [6], 1: [6]}}

    assert plan_transfers(same, {0: 7}, copies, copied=[STATE], reachable=STEPS) is None


def test_a_process_that_finds_its_own_copy_takes_that() -> None:
    same, copies = of_policy(1, data=1), {0: {0: [6, 7]}}

    found = plan_transfers(same, {}, copies, copied=BOTH, reachable=STEPS)

    assert found == (7, transfers(*BOTH, copied=True, rank_0=0))


def test_a_copy_lies_on_the_next_node_and_on_the_next_rank_of_one() -> None:
    assert second_holders(1, 8) == [0]
    assert second_holders(4, 8) == [1, 2, 3, 0]
    assert second_holders(6, 2) == [2, 3, 4, 5, 0, 1]
    assert second_holders(5, 3) == [3, 4, 3, 0, 1]


@given(st.integers(2, 64), st.integers(1, 16))
def test_no_copy_lies_with_its_rank_nor_on_its_node_where_there_are_others(
    ranks: int, per_node: int
) -> None:
    holders = second_holders(ranks, per_node)

    for rank, holder in enumerate(holders):
        assert 0 <= holder < ranks
        assert holder != rank
        assert ranks <= per_node or holder // per_node != rank // per_node


@given(
    st.sampled_from([(2, 2, 1), (4, 1, 1), (1, 4, 1), (2, 1, 2), (1, 2, 2)]),
    st.dictionaries(st.integers(0, 3), st.sampled_from([None, 4, 5])),
)
def test_who_gives_holds_the_same_after_that_very_step(
    degrees: tuple[int, int, int], after: dict[int, int | None]
) -> None:
    data, tensor, pipeline = degrees
    same = of_policy(4, data=data, tensor=tensor, pipeline=pipeline)
    found = plan_transfers(same, after, {}, copied=(), reachable=STEPS)
    if found is None:
        for step in (4, 5):
            holders = {rank for rank, at in after.items() if at == step}
            assert any(not peers & holders for peers in same[STATE])
        return
    step, given = found
    assert {each.taker for each in given} == {rank for rank in range(4) if after.get(rank) != step}
    for each in given:
        assert after[each.giver] == step
        assert each.giver in same[each.part][each.taker]
