"""The controller's ledger: what is granted, in which order, what comes back, what is explained."""

import pytest
from numbered_rows import Numbering, Row

from rljob_runtime.dock.clients.claimed import decode_rows
from rljob_runtime.dock.controller.claims import ClaimGrant, ClaimRequest
from rljob_runtime.dock.controller.ledger import ControllerLedger
from rljob_runtime.dock.rows import RowMeta, Share
from rljob_runtime.dock.wire.messages import BatchNotice, Notices
from rljob_runtime.errors import DockLost, DockStale

STATES = ("generate", "reward")
WAREHOUSES: dict[tuple[int, int], Numbering] = {}
"""Of a ledger and a warehouse."""


def ledger(**changes: object) -> ControllerLedger:
    arguments = {
        "state": "reward",
        "needs": frozenset({"prompt", "response"}),
        "lease_seconds": 10.0,
        "epoch": "e1",
        "num_warehouses": 1,
    }
    made = ControllerLedger(**{**arguments, **changes})  # type: ignore[arg-type]
    for key in [key for key in WAREHOUSES if key[0] == id(made)]:
        del WAREHOUSES[key]  # of another ledger that was there
    snapshot(made, "w1", [], [])
    return made


def numbering(made: ControllerLedger, warehouse: int = 0) -> Numbering:
    return WAREHOUSES.setdefault((id(made), warehouse), Numbering())


def row(group: int, sample: int, *, size: int = 2, ready: bool = False) -> Row:
    return Row(
        uid=f"b/{group}/{sample}",
        batch="b",
        group=f"b/{group}",
        group_index=group,
        group_size=size,
        sample=sample,
        version=0,
        lengths={"prompt": 3, "response": 5} if ready else {"prompt": 3},
    )


def rows(groups: int, *, size: int = 2, ready: bool = True) -> list[Row]:
    return [row(g, s, size=size, ready=ready) for g in range(groups) for s in range(size)]


def put(made: ControllerLedger, told: list[Row], total: int | None = None) -> None:
    batch = BatchNotice(name="b", total=len(told) if total is None else total, states=STATES)
    made.apply(0, Notices(batches=[batch], rows=numbering(made).rows(told)))


def more(made: ControllerLedger, *told: Row, warehouse: int = 0) -> None:
    made.apply(warehouse, Notices(rows=numbering(made, warehouse).rows(told)))


def snapshot(
    made: ControllerLedger,
    epoch: str,
    batches: list[BatchNotice],
    told: list[Row],
    *,
    warehouse: int = 0,
    now: float = 0.0,
) -> None:
    """Of a warehouse that numbers anew where its epoch is another one."""
    known = made.warehouse_epochs.get(warehouse, epoch)
    if known.split(".")[0] != epoch.split(".")[0]:
        WAREHOUSES.pop((id(made), warehouse), None)
    made.apply_snapshot(warehouse, epoch, batches, numbering(made, warehouse).rows(told), now)


def answered(made: ControllerLedger, *uids: str) -> None:
    made.apply(0, Notices(columns=[numbering(made).column("b", "response", uids, 4, version=1)]))


def acked(made: ControllerLedger, *uids: str) -> None:
    made.apply(0, Notices(acks=[numbering(made).ack("b", uids)]))


def ask(request: str = "1", *, owner: str = "w", **changes: object) -> ClaimRequest:
    arguments = {"owner": owner, "session": owner, "request": request, "batch": "b"}
    return ClaimRequest(**{**arguments, **changes})  # type: ignore[arg-type]


def uids(grant: ClaimGrant | None) -> list[str]:
    assert grant is not None
    return grant.uids


def metas(grant: ClaimGrant | None) -> list[RowMeta]:
    assert grant is not None and grant.rows is not None
    return list(decode_rows(grant.rows, grant.lease))


def leased(made: ControllerLedger, lease: str) -> set[str]:
    return set(made.leases[lease].uids())


def test_a_row_is_granted_once_all_needed_columns_are_there() -> None:
    made = ledger()
    put(made, rows(1, ready=False))

    assert made.claim(ask("1"), 0.0) is None
    answered(made, "b/0/1")
    grant = made.claim(ask("2"), 0.0)

    (given,) = metas(grant)
    assert (given.uid, given.lengths) == ("b/0/1", {"prompt": 3, "response": 4})
    assert (given.sample, given.version, given.attempt) == (1, 1, 1)


def test_claims_go_round_the_warehouses_whatever_was_told_first() -> None:
    made = ledger(num_warehouses=3)
    batch = BatchNotice(name="b", total=9, states=STATES)
    for warehouse in range(3):
        told = [row(3 * i + warehouse, 0, size=1, ready=True) for i in range(3)]
        made.apply(warehouse, Notices(batches=[batch]))
        more(made, *told, warehouse=warehouse)

    first = made.claim(ask("1", limit=4), 0.0)
    second = made.claim(ask("2", limit=3), 0.0)

    assert uids(first) == ["b/0/0", "b/1/0", "b/2/0", "b/3/0"]
    assert uids(second) == ["b/4/0", "b/5/0", "b/6/0"]
    made.give_back(first.lease, ["b/2/0"])
    assert uids(made.claim(ask("3", limit=2), 0.0))[0] == "b/2/0"


def test_a_partial_group_is_never_granted_where_whole_groups_are_asked() -> None:
    made = ledger()
    put(made, rows(2, ready=False))
    answered(made, "b/0/0", "b/0/1", "b/1/0")

    grant = made.claim(ask("1", whole_groups=True), 0.0)

    assert grant is not None and uids(grant) == ["b/0/0", "b/0/1"]
    assert made.claim(ask("2", whole_groups=True), 0.0) is None


def test_a_group_larger_than_the_limit_is_granted_alone() -> None:
    made = ledger()
    put(made, rows(3, size=3))

    grant = made.claim(ask(whole_groups=True, limit=2), 0.0)

    assert grant is not None and uids(grant) == ["b/0/0", "b/0/1", "b/0/2"]


def test_groups_are_granted_up_to_the_limit() -> None:
    made = ledger()
    put(made, rows(3))

    grant = made.claim(ask(whole_groups=True, limit=5), 0.0)

    assert grant is not None and len(uids(grant)) == 4


def test_a_share_is_granted_whole_in_order_and_only_when_all_is_known() -> None:
    made = ledger()
    late_first = [row(group, sample) for group in (3, 1, 2) for sample in range(2)]
    put(made, late_first, total=8)
    answered(made, *[told.uid for told in late_first])

    assert made.claim(ask("1", share=Share(1, 2)), 0.0) is None
    more(made, row(0, 0), row(0, 1))
    grant = made.claim(ask("2", share=Share(1, 2)), 0.0)

    assert grant is not None and uids(grant) == ["b/1/0", "b/1/1", "b/3/0", "b/3/1"]


def test_a_share_with_a_limit_comes_in_order_as_far_as_it_is_ready() -> None:
    made = ledger()
    put(made, rows(8, ready=False))
    answered(made, "b/1/0", "b/1/1", "b/5/0", "b/5/1", "b/0/0", "b/0/1")

    first = made.claim(ask("1", share=Share(1, 2), limit=4), 0.0)
    assert made.claim(ask("2", share=Share(1, 2), limit=4), 0.0) is None
    answered(made, "b/3/0", "b/3/1", "b/7/0", "b/7/1")
    second = made.claim(ask("3", share=Share(1, 2), limit=4), 0.0)
    third = made.claim(ask("4", share=Share(1, 2), limit=4), 0.0)

    assert first is not None and uids(first) == ["b/1/0", "b/1/1"]
    assert second is not None and uids(second) == ["b/3/0", "b/3/1", "b/5/0", "b/5/1"]
    assert third is not None and uids(third) == ["b/7/0", "b/7/1"]
    assert made.claim(ask("5", share=Share(1, 2), limit=4), 0.0) is None
    acked(made, *[f"b/{g}/{s}" for g in (1, 3, 5, 7) for s in (0, 1)])
    end = made.claim(ask("6", share=Share(1, 2), limit=4), 0.0)
    assert end is not None and end.done


def test_a_share_with_a_limit_begins_before_the_last_group_was_put() -> None:
    made = ledger()
    put(made, [notice for notice in rows(6) if notice.group_index in (0, 1, 2, 5)], total=12)

    first = made.claim(ask("1", share=Share(1, 2), limit=2), 0.0)
    assert made.claim(ask("2", share=Share(1, 2), limit=2), 0.0) is None, "group 3 comes before 5"
    acked(made, "b/1/0", "b/1/1")
    assert made.claim(ask("3", share=Share(1, 2), limit=2), 0.0) is None
    more(made, row(3, 0, ready=True), row(3, 1, ready=True))
    second = made.claim(ask("4", share=Share(1, 2), limit=4), 0.0)
    balanced = made.claim(ask("5", share=Share(0, 2, 6), limit=4), 0.0)

    assert first is not None and uids(first) == ["b/1/0", "b/1/1"]
    assert second is not None and uids(second) == ["b/3/0", "b/3/1", "b/5/0", "b/5/1"]
    assert balanced is None, "lengths of group 4 are not known"


def test_groups_that_left_before_a_controller_started_hold_a_share_up_until_all_are_put() -> None:
    made = ledger()
    batch = BatchNotice(name="b", total=6, states=STATES, known=4, acked=2)
    snapshot(made, "w1", [batch], [row(1, 0, ready=True), row(1, 1, ready=True)], now=0.0)

    assert made.claim(ask("1", share=Share(0, 1), limit=2), 0.0) is None
    more(made, row(2, 0, ready=True), row(2, 1, ready=True))
    grant = made.claim(ask("2", share=Share(0, 1), limit=2), 0.0)

    assert grant is not None and uids(grant) == ["b/1/0", "b/1/1"]


def test_a_share_with_a_limit_gives_whole_groups_and_what_came_back_first() -> None:
    made = ledger()
    put(made, rows(3, size=3))

    first = made.claim(ask("1", share=Share(0, 1), limit=2), 0.0)
    second = made.claim(ask("2", share=Share(0, 1), limit=2), 0.0)
    assert first is not None and second is not None
    made.give_back(first.lease, ["b/0/1"])
    assert made.claim(ask("3", share=Share(0, 1), limit=9), 0.0) is None
    made.give_back(first.lease, ["b/0/0", "b/0/2"])
    again = made.claim(ask("4", share=Share(0, 1), limit=9), 0.0)

    assert [len(uids(grant)) for grant in (first, second)] == [3, 3]
    assert again is not None and uids(again) == ["b/0/0", "b/0/1", "b/0/2"]


def test_rows_that_are_too_old_are_told_and_none_is_given() -> None:
    made = ledger()
    put(made, rows(2, ready=False))
    answered(made, "b/0/0", "b/0/1", "b/1/1")
    column = numbering(made).column("b", "response", ["b/1/0"], 4, version=3)
    made.apply(0, Notices(columns=[column]))

    with pytest.raises(
        DockStale, match=r"3 of 4 rows of b were made by weights version 1; .* is 2"
    ):
        made.claim(ask("1", share=Share(0, 1), limit=4, min_version=2), 0.0)
    grant = made.claim(ask("2", share=Share(0, 1), limit=4, min_version=1), 0.0)

    assert grant is not None and len(uids(grant)) == 4


def test_a_share_without_groups_is_done_at_once() -> None:
    made = ledger()
    put(made, rows(2))

    grant = made.claim(ask(share=Share(3, 4)), 0.0)

    assert grant is not None and grant.done and not grant.uids


def test_a_batch_that_does_not_pass_the_state_is_done() -> None:
    made = ledger(state="update")
    made.apply(0, Notices(batches=[BatchNotice(name="b", total=4, states=STATES)]))

    grant = made.claim(ask(), 0.0)

    assert grant is not None and grant.done


def test_done_comes_with_the_last_acknowledgement() -> None:
    made = ledger()
    put(made, rows(1))
    made.claim(ask("1"), 0.0)
    acked(made, "b/0/0")

    assert made.claim(ask("2"), 0.0) is None
    acked(made, "b/0/1")
    grant = made.claim(ask("3"), 0.0)

    assert grant is not None and grant.done
    assert made.leases == {} and made.num_rows == 0


def test_expired_rows_go_back_first_and_with_a_new_attempt() -> None:
    made = ledger()
    put(made, rows(2))
    made.claim(ask("1", limit=2), 0.0)

    assert made.expire(9.9) == 0
    assert made.leases.next_deadline() == 10.0
    assert made.expire(10.0) == 2
    grant = made.claim(ask("2", owner="v", limit=2), 10.0)

    assert grant is not None and uids(grant) == ["b/0/0", "b/0/1"]
    assert [given.attempt for given in metas(grant)] == [2, 2]
    assert made.leases.expired == 1


def test_a_renewed_lease_lives_on_and_an_expired_one_is_lost() -> None:
    made = ledger()
    put(made, rows(1))
    grant = made.claim(ask(), 0.0)
    assert grant is not None
    held = uids(grant)

    assert made.renew(grant.lease, owner="w", session="w", uids=held, time_s=5.0) == []
    assert made.expire(12.0) == 0
    assert made.expire(15.0) == 2
    assert made.renew(grant.lease, owner="w", session="w", uids=held, time_s=16.0) == held


def test_a_restarted_controller_takes_over_what_nobody_claimed_since() -> None:
    made = ledger(epoch="e2")
    put(made, rows(2))
    made.claim(ask(owner="v", limit=1), 0.0)

    lost = made.renew("e1-7", owner="w", session="w", uids=["b/0/0", "b/0/1"], time_s=0.0)

    assert lost == ["b/0/0"]
    assert leased(made, "e1-7") == {"b/0/1"}
    assert made.renew("e1-8", owner="w", session="w", uids=["b/0/0"], time_s=0.0) == ["b/0/0"]


def test_leases_announced_before_the_snapshots_are_taken_over_with_them() -> None:
    made = ControllerLedger(
        state="reward",
        needs=frozenset({"response"}),
        lease_seconds=10.0,
        epoch="e2",
        num_warehouses=2,
    )
    both = ["b/0/0", "b/1/0"]
    told = BatchNotice(name="b", total=4, states=STATES, known=2)

    assert made.renew("e1-7", owner="w", session="w", uids=both, time_s=0.0) == []
    assert made.renew("e1-8", owner="v", session="v", uids=["b/0/1"], time_s=0.0) == []
    made.owner_gone("v", "v")
    snapshot(made, "w1", [told], [row(0, s, ready=True) for s in range(2)], now=1.0)
    snapshot(made, "w2", [told], [row(1, s, ready=True) for s in range(2)], warehouse=1, now=2.0)
    grant = made.claim(ask(), 3.0)

    assert leased(made, "e1-7") == set(both)
    assert grant is not None and uids(grant) == ["b/0/1", "b/1/1"]


def test_a_dead_owner_gives_back_all_and_a_dead_process_only_its_own() -> None:
    made = ledger()
    put(made, rows(2))
    made.claim(ask("1", owner="w", limit=1), 0.0)
    made.claim(ask("1", owner="w", session="w2", limit=1), 0.0)
    made.claim(ask("1", owner="v", limit=1), 0.0)

    assert made.owner_gone("w", "w2") == 1
    assert made.owner_gone("w") == 1
    assert [lease.owner for lease in made.leases.values()] == ["v"]


def test_rows_given_back_can_be_claimed_again() -> None:
    made = ledger()
    put(made, rows(1))
    grant = made.claim(ask("1"), 0.0)
    assert grant is not None

    assert made.give_back(grant.lease, ["b/0/1", "b/7/7"]) == 1
    assert made.give_back("e1-99", ["b/0/0"]) == 0
    again = made.claim(ask("2"), 0.0)

    assert again is not None and uids(again) == ["b/0/1"]


def test_rows_that_a_restarted_warehouse_lost_are_told() -> None:
    made = ledger()
    put(made, rows(2))
    made.claim(ask("1"), 0.0)

    snapshot(made, "w2", [], [], now=0.0)

    assert made.leases == {}
    with pytest.raises(DockLost, match="4 of 4 rows of b were lost"):
        made.claim(ask("2"), 0.0)
    put(made, rows(2))
    grant = made.claim(ask("3"), 0.0)
    assert grant is not None and len(uids(grant)) == 4


@pytest.mark.parametrize("whole_groups", [False, True])
def test_rows_in_line_are_gone_with_their_warehouse_and_in_line_once_when_they_are_put_again(
    whole_groups: bool,
) -> None:
    made = ledger()
    told = rows(3)
    put(made, told)
    first = made.claim(ask("1", limit=4), 0.0)
    made.give_back(first.lease, uids(first))
    batch = BatchNotice(name="b", total=6, states=STATES, known=2)

    snapshot(made, "w2", [batch], told[4:])
    with pytest.raises(DockLost, match="4 of 6 rows of b were lost"):
        made.claim(ask("2", whole_groups=whole_groups, limit=2), 0.0)
    more(made, *told[:4])
    given = [
        uids(made.claim(ask(str(3 + i), whole_groups=whole_groups, limit=2), 0.0)) for i in range(3)
    ]

    assert given == [["b/2/0", "b/2/1"], ["b/0/0", "b/0/1"], ["b/1/0", "b/1/1"]]
    assert made.claim(ask("6", whole_groups=whole_groups), 0.0) is None


@pytest.mark.parametrize("done", [0, 2])
def test_rows_that_come_after_a_warehouse_restarted_do_not_make_up_for_those_it_lost(
    done: int,
) -> None:
    """done: of those that it lost, so many had been acknowledged."""
    made = ledger()
    first, second = rows(2)[:2], rows(2)[2:]
    put(made, first, total=4)
    acked(made, *[told.uid for told in first[:done]])
    batch = BatchNotice(name="b", total=4, states=STATES, known=2)

    snapshot(made, "w2", [batch], second, now=1.0)

    with pytest.raises(DockLost, match="2 of 4 rows of b were lost"):
        made.claim(ask(), 1.0)
    put(made, first, total=4)
    assert len(uids(made.claim(ask(), 1.0))) == 4


def test_rows_put_again_before_their_warehouses_restart_was_heard_of_are_no_loss() -> None:
    made = ledger()
    put(made, rows(2))
    assert uids(made.claim(ask(), 0.5))
    batch = BatchNotice(name="b", total=4, states=STATES, known=4)

    snapshot(made, "w2", [batch], rows(2), now=1.0)

    assert len(uids(made.claim(ask(request="2"), 1.0))) == 4


def test_rows_put_again_and_done_before_their_warehouses_restart_was_heard_of_are_no_loss() -> None:
    made = ledger()
    put(made, rows(2))
    batch = BatchNotice(name="b", total=4, states=STATES, known=4, acked=1)

    snapshot(made, "w2", [batch], rows(2)[1:], now=1.0)

    assert len(uids(made.claim(ask(), 1.0))) == 3


def test_what_was_done_before_a_restart_was_heard_of_is_missed_after_the_next_one() -> None:
    made = ledger()
    put(made, rows(2))
    batch = BatchNotice(name="b", total=4, states=STATES, known=4, acked=1)
    snapshot(made, "w2", [batch], rows(2)[1:], now=1.0)

    snapshot(made, "w3", [], [], now=2.0)
    snapshot(made, "w3", [batch._replace(acked=0)], rows(2)[1:], now=3.0)

    with pytest.raises(DockLost, match="1 of 4 rows of b were lost"):
        made.claim(ask(), 3.0)


def test_a_warehouse_that_was_taken_over_after_it_had_gone_on_alone_lost_nothing() -> None:
    made = ledger()
    snapshot(made, "w2.0", [], [], now=0.0)
    put(made, rows(2))
    acked(made, "b/0/0")
    batch = BatchNotice(name="b", total=4, states=STATES, known=4, acked=1)

    snapshot(made, "w2.1", [batch], rows(2)[1:], now=1.0)

    assert len(uids(made.claim(ask(), 1.0))) == 3


def test_a_state_that_was_done_stays_done_when_the_warehouse_restarts() -> None:
    made = ledger()
    put(made, rows(1))
    acked(made, "b/0/0", "b/0/1")

    snapshot(made, "w2", [], [], now=0.0)

    grant = made.claim(ask(), 0.0)
    assert grant is not None and grant.done


def test_a_new_snapshot_of_the_same_warehouse_keeps_leases() -> None:
    made = ledger()
    put(made, rows(2, ready=False))
    answered(made, "b/0/0")
    grant = made.claim(ask("1"), 0.0)
    assert grant is not None

    told = BatchNotice(name="b", total=4, states=STATES, known=4, acked=1)
    snapshot(made, "w1", [told], [row(0, 0, ready=True), row(0, 1), row(1, 0, ready=True)])

    assert leased(made, grant.lease) == {"b/0/0"}
    again = made.claim(ask("2"), 0.0)
    assert again is not None and uids(again) == ["b/1/0"]


def test_claims_of_a_dropped_batch_are_told() -> None:
    made = ledger()
    put(made, rows(1))
    made.apply(0, Notices(drops=["b"]))

    with pytest.raises(DockLost, match="batch b was dropped"):
        made.claim(ask(), 0.0)
    again = ledger()
    told = BatchNotice(name="b", total=0, states=(), dropped=True)
    again.apply_snapshot(0, "w1", [told], [], 0.0)
    with pytest.raises(DockLost, match="batch b was dropped"):
        again.claim(ask(), 0.0)


def test_a_timeout_says_what_is_missing_and_who_holds_the_rest() -> None:
    made = ledger(num_warehouses=2)
    put(made, rows(2, ready=False), total=6)
    answered(made, "b/0/0")
    made.claim(ask("1", owner="reward-3"), 0.0)

    text = made.explain(ask("2"), 30.0)

    assert text == (
        "state reward waited 30 s for rows of b: warehouse 1 has not been reached by this "
        "controller; 4 of 6 rows were put; 3 of 6 rows lack column response; reward-3 holds 1 rows"
    )
    assert made.explain(ask(batch="c"), 1.0).endswith("no row of it was put")
    assert "2 of 6 rows lack column response" in made.explain(ask(share=Share(1, 2)), 1.0)


def test_finished_batches_are_forgotten_in_the_end(monkeypatch) -> None:
    monkeypatch.setattr("rljob_runtime.dock.controller.ledger.REMEMBERED_BATCHES", 2)
    made = ledger(state="update")

    for name in ("b0", "b1", "b2", "b3"):
        made.apply(0, Notices(batches=[BatchNotice(name=name, total=1, states=STATES)]))

    assert [*made.batches] == ["b2", "b3"]


@pytest.mark.parametrize("share", [None, Share(0, 1), Share(0, 2, 2)])
def test_a_waiting_claim_is_told_the_columns_that_its_next_rows_lack(share: Share | None) -> None:
    made = ledger()
    claim = ask(share=share)
    before = made.next_missing_columns(claim)
    put(made, rows(2, ready=False), total=6)
    some = made.next_missing_columns(claim)
    more(made, *(row(2, sample) for sample in range(2)))
    lacking = made.next_missing_columns(claim)
    answered(made, *(f"b/{g}/{s}" for g in range(3) for s in range(2)))
    made.claim(ask("other", owner="other"), 0.0)

    assert before is None
    assert some == (frozenset({"response"}) if share is None else None)
    assert lacking == {"response"}
    assert made.next_missing_columns(claim) == frozenset()
