"""A slow or stuck consumer is found and named by whoever waits for it."""

import pytest

from rljob_runtime.errors import DockFull, DockTimeout


def test_a_full_dock_names_the_stuck_state_and_who_holds_its_rows(
    make_dock, rows_of, responses_of
) -> None:
    dock = make_dock(capacity=16_000)
    feeder = dock.client("feed")
    generate, stuck = dock.client("generate", "gen-0"), dock.client("reward", "judge-7")
    feeder.put_rows("t", rows_of("t", groups=2, samples=4, reserve_bytes=900), total=8)
    claim = generate.claim("t", timeout_seconds=5)
    generate.write(claim.rows, responses_of(claim.rows))
    assert len(stuck.claim("t", limit=5, timeout_seconds=5).rows) == 5

    with pytest.raises(DockFull) as caught:
        feeder.put_rows(
            "u",
            rows_of("u", groups=4, samples=2, reserve_bytes=1_000),
            total=8,
            timeout_seconds=0.2,
        )

    text = str(caught.value)
    assert "state reward has not acknowledged 8 rows that are ready for it" in text
    assert text.endswith("; state reward: judge-7 holds 5 rows")


def test_a_full_dock_without_claims_says_so_and_names_controllers_that_do_not_answer(
    make_dock, rows_of, monkeypatch
) -> None:
    dock = make_dock(capacity=16_000)
    feeder = dock.client("feed")
    feeder.put_rows("t", rows_of("t", groups=2, samples=4, reserve_bytes=900), total=8)
    more = rows_of("u", groups=4, samples=2, reserve_bytes=1_000)

    with pytest.raises(DockFull, match=r"nobody holds a claim$"):
        feeder.put_rows("u", more, total=8, timeout_seconds=0.1)
    dock.threads[1].stop()
    monkeypatch.setattr("rljob_runtime.dock.clients.holders.ANSWER_SECONDS", 0.1)
    with pytest.raises(DockFull, match=r"state generate: stats waited 0\.1 s for controller/gener"):
        feeder.put_rows("u", more, total=8, timeout_seconds=0.1)


def test_a_claim_in_vain_names_the_missing_column_and_a_claim_for_a_share_who_holds_it(
    make_dock, rows_of
) -> None:
    dock = make_dock()
    dock.client("feed").put_rows("t", rows_of("t", groups=2, samples=2), total=4)
    dock.client("generate", "slow-3").claim("t", limit=3, timeout_seconds=5)

    with pytest.raises(DockTimeout, match=r"state reward .* 4 of 4 rows lack column response"):
        dock.client("reward").claim("t", timeout_seconds=0.2)
    with pytest.raises(DockTimeout, match=r"state generate .* slow-3 holds 3 rows"):
        dock.client("generate").claim("t", share=(0, 1), timeout_seconds=0.2)
