"""Events come once each, in order, whatever happens to the file that they are written to."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from growing_run import GrowingRun, line_of

from rljob_runtime.record.event_types import WarningEvent
from rljob_runtime.record.events import EventLog
from rljob_runtime.report.watch import follow
from rljob_runtime.report.watch.follow import Follower, News, read_file


def warning(text: str) -> dict[str, object]:
    return {"time": 1.0, "kind": "warning", "message": text}


def texts(news: News) -> list[str]:
    events: Sequence[Any] = news.events
    return [event.message for event in events]


@pytest.fixture
def run(tmp_path: Path) -> GrowingRun:
    return GrowingRun(tmp_path / "run", [warning(f"{i}") for i in range(6)])


@pytest.fixture
def follower(run: GrowingRun) -> Follower:
    return Follower(read_file(run.file))


def test_a_file_that_is_not_there_yet_brings_nothing_until_it_is(run, follower) -> None:
    assert follower.news() == News(events=[])

    run.write(2)

    assert texts(follower.news()) == ["0", "1"]


def test_each_event_comes_once(run, follower) -> None:
    run.write(2)
    first = texts(follower.news())
    run.write(3)

    assert (first, texts(follower.news()), texts(follower.news())) == (
        ["0", "1"],
        ["2", "3", "4"],
        [],
    )


def test_a_line_waits_for_its_end_wherever_it_was_cut(run, follower) -> None:
    line = line_of(warning("ü"))
    for cut in range(1, len(line)):
        run.append(line[:cut])
        assert follower.news().events == []
        run.append(line[cut:])
        assert texts(follower.news()) == ["ü"]


def test_a_line_that_a_killed_writer_left_is_left_out_and_the_next_writers_come(
    run, follower
) -> None:
    run.write(1)
    run.append(line_of(warning("torn"))[:-5])
    before = texts(follower.news())
    log = EventLog(run.file)
    log.write(WarningEvent(message="of the next writer"))
    log.close()

    assert (before, texts(follower.news())) == (["0"], ["of the next writer"])


def test_lines_that_are_no_events_are_left_out(run, follower) -> None:
    run.append(b'no json\n[]\n{"time": 1.0, "kind": "unknown"}\n{"kind": "warning"}\n\n')
    run.write(1)

    assert texts(follower.news()) == ["0"]


def test_another_file_in_its_place_is_read_from_its_beginning(run, follower) -> None:
    run.write(4)
    follower.news()
    run.replace([warning("x") for _ in range(9)])

    news = follower.news()

    assert (texts(news), news.restarted) == (["x"] * 9, True)
    assert follower.news() == News(events=[])


def test_a_file_that_shrank_is_read_from_its_beginning(run, follower) -> None:
    run.write(3)
    run.append(b"torn")
    follower.news()
    run.file.write_bytes(line_of(warning("again")))

    news = follower.news()

    assert (texts(news), news.restarted) == (["again"], True)


def test_a_file_that_went_and_came_back_is_another(run, follower) -> None:
    run.write(3)
    follower.news()
    run.file.rename(run.folder / "old")
    gone = follower.news()
    run.write(1)

    news = follower.news()

    assert gone == News(events=[])
    assert (texts(news), news.restarted) == (["3"], True)


def test_a_large_file_is_read_piece_by_piece_to_its_end(run, follower, monkeypatch) -> None:
    monkeypatch.setattr(follow, "FILE_PIECE_BYTES", 7)
    run.write()

    pieces = [follower.news()]
    while pieces[-1].more:
        pieces.append(follower.news())

    assert len(pieces) == -(-run.file.stat().st_size // 7)
    assert [text for news in pieces for text in texts(news)] == ["0", "1", "2", "3", "4", "5"]
    assert follower.news() == News(events=[])
