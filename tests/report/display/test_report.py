"""The report: one file that needs no network, whatever the run was like."""

import html.parser
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from browser import MISSING, PROGRAM, Browser
from page_data import page_data
from programs import needs
from run_events import event_of, history_of

from rljob_runtime.errors import ConfigError
from rljob_runtime.record.events import EventLog
from rljob_runtime.report.display.chart_table import charts
from rljob_runtime.report.display.document import document
from rljob_runtime.report.display.figures import moving_average, shown_steps
from rljob_runtime.report.display.history import RunHistory
from rljob_runtime.report.display.report import write_report

Event = dict[str, Any]
ONE_PIXEL = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
HOSTILE = '</script><script>document.title="owned"</script><img src=x onerror=alert(1)>'
PICTURES = [
    {"width": 56, "height": 56, "format": "png", "content": ONE_PIXEL},
    {"width": 999, "height": 10, "format": "png", "content": '" onerror="alert(1)'},
    {"width": 0, "height": -3, "content": "PHN2Zz4="},
    {"width": 600, "height": 3},
]
"""One that can be shown, and what is none."""
BROKEN_WORDS = """[...document.querySelectorAll('td:first-child')].filter((cell) => {
    const text = document.createRange();
    text.selectNodeContents(cell);
    return !cell.firstElementChild && text.getClientRects().length > cell.textContent.split(/[ -]/).length;
}).map((cell) => cell.textContent)"""
"""Labels of tables with more lines than words."""


def write_run(folder: Path, events: list[Event], spec: str = "kind: RLJob\n") -> Path:
    """A run's folder with these events; returns its report."""
    times = iter([event["time"] for event in events])
    log = EventLog(folder / "events.jsonl", clock=lambda: next(times))
    for event in events:
        log.write(event_of(event))
    log.close()
    (folder / "rljob.yaml").write_text(spec)
    return write_report(folder)


class Page(html.parser.HTMLParser):
    """Scripts, their texts and all addresses of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.scripts: list[str] = []
        self.addresses: list[str] = []
        self._inside = False
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.addresses += [v or "" for name, v in attrs if name in ("src", "href", "action")]
        self._inside = tag == "script"
        if self._inside:
            self.scripts.append("")

    def handle_endtag(self, tag: str) -> None:
        self._inside = False

    def handle_data(self, data: str) -> None:
        if self._inside:
            self.scripts[-1] += data


def test_the_page_carries_everything_and_refers_to_nothing(tmp_path: Path, events_of) -> None:
    report = write_run(tmp_path, events_of(steps=20))
    page = Page(report.read_text(encoding="utf-8"))

    assert page.addresses == []
    assert len(page.scripts) == 3  # data, plotly, our own
    data = page_data(report)
    assert data["name"] == "spell-backward-grpo"
    assert [entry["step"] for entry in data["samples"]] == list(range(1, 21))
    assert data["spec"] == "kind: RLJob\n"


def test_a_page_of_a_run_as_long_as_the_quickstart_has_at_most_two_megabytes(
    tmp_path: Path, events_of
) -> None:
    report = write_run(tmp_path, events_of(steps=120))

    assert (tmp_path / "events.jsonl").stat().st_size > 500_000
    assert report.stat().st_size <= 2_000_000


def test_only_the_pages_own_scripts_may_run_and_nothing_may_be_fetched(
    tmp_path: Path, events_of
) -> None:
    text = write_run(tmp_path, events_of(steps=2)).read_text(encoding="utf-8")

    policy = text.split('Content-Security-Policy" content="')[1].split('"')[0]
    assert "default-src 'none'" in policy
    assert policy.count("'sha256-") == 2
    assert "script-src 'unsafe-inline'" not in policy and "http" not in policy


def test_texts_of_the_run_cannot_become_markup(tmp_path: Path, events_of) -> None:
    report = write_run(tmp_path, hostile(events_of(steps=3)), spec=HOSTILE)

    text = report.read_text(encoding="utf-8")
    page = Page(text)

    assert len(page.scripts) == 3
    assert text.count("<script") == text.count("</script") == 3
    data = page_data(report)
    group = data["samples"][0]["groups"][0]
    assert group["prompt"] == HOSTILE
    address = f"data:image/png;base64,{ONE_PIXEL}"
    assert [picture["address"] for picture in group["pictures"]] == [address, None, None, None]
    assert data["spec"] == data["name"] == data["notices"][0]["text"] == HOSTILE


@needs("browser", PROGRAM, MISSING)
@pytest.mark.parametrize("case", ["hostile", "single"])
def test_a_browser_draws_the_page_without_an_error(tmp_path: Path, events_of, case: str) -> None:
    events = {
        "hostile": lambda: hostile(events_of(steps=3)),
        "single": lambda: events_of(steps=1, total_steps=9, every=None, finished=None),
    }[case]()
    report = write_run(tmp_path, events)
    browser = Browser(tmp_path / "profile")
    try:
        browser.resize(400, 800)
        browser.open(report.as_uri())
        browser.wait("document.documentElement.dataset.ready === 'true'")
        unseen = browser.tell("[...plots.values()].filter((plot) => plot.due).length")
        browser.tell("dispatchEvent(new Event('beforeprint'))")
        plots = browser.tell("document.querySelectorAll('.plot[id^=plot-]').length")
        drawn = browser.tell("document.querySelectorAll('.plot[id^=plot-].js-plotly-plot').length")
        rows = browser.tell("document.getElementById('dock-rows').className")
        title = browser.tell("document.title")
        width = browser.tell("document.documentElement.scrollWidth")
        broken = browser.tell(BROKEN_WORDS)
        pictures = browser.tell(
            "[...document.querySelectorAll('#group img')].map((image) => "
            "[image.naturalWidth, image.width, image.height, image.alt])"
        )
    finally:
        browser.close()

    assert browser.errors == []
    assert title != "owned"
    assert drawn == plots > 10
    assert rows == "js-plotly-plot"
    assert unseen > 5  # they wait until somebody looks
    assert width <= 400
    assert broken == []
    known = [[1, 112, 112, "Picture 1, 56 × 56"]]
    assert pictures == (known if case == "hostile" else [])


def hostile(events: list[Event]) -> list[Event]:
    """The events with markup in every text."""
    events[0]["name"] = HOSTILE
    for event in events:
        for group in event.get("samples", []):
            group["prompt"] = group["answer"] = HOSTILE
            group["responses"][0]["text"] = HOSTILE
            group["pictures"] = PICTURES
    return [*events, {"kind": "warning", "message": HOSTILE, "time": 0.0}]


def test_a_folder_without_a_run_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"events\.jsonl does not exist"):
        write_report(tmp_path)


@pytest.mark.parametrize("upto", range(1, 30, 4))
def test_a_run_of_any_length_has_a_report(events_of, upto: int) -> None:
    history = history_of(events_of(steps=2, total_steps=9)[:upto])

    told = json.loads(json.dumps(document(history, ""), allow_nan=False))

    assert told["status"]["step"] == history.step


def test_metrics_that_are_no_numbers_leave_gaps(events_of) -> None:
    events = events_of(steps=4, every=None)
    steps = [event for event in events if event["kind"] == "step"]
    steps[1]["metrics"] |= {"reward/mean": math.nan, "entropy": None, "reward/std": math.nan}
    for event in steps:
        event["metrics"]["kl"] = math.nan
    history = history_of(events)

    drawn = {chart["key"]: chart["figure"]["data"] for chart in charts(history)}

    assert drawn["entropy"][0]["y"][1] is None
    assert drawn["reward"][-1]["y"][1] is None
    assert drawn["kl"][0]["y"] == [None] * 4
    json.dumps(document(history, ""), allow_nan=False)


def test_a_resumed_run_shows_each_step_once_and_marks_the_place(events_of) -> None:
    first = events_of(steps=8, total_steps=12, every=4, finished="failed")
    start = first[0] | {"resumed_from": 6}
    again = [e for e in events_of(steps=12, seed=8, every=4) if e.get("step", 0) > 6]
    history = history_of([*first, start, *again])

    [chart] = [chart for chart in charts(history) if chart["key"] == "entropy"]

    assert chart["figure"]["data"][0]["x"] == list(range(1, 13))
    assert [shape["x0"] for shape in chart["figure"]["layout"]["shapes"]] == [6.5]


def test_evaluations_have_error_bars_of_their_interval(events_of) -> None:
    history = history_of(events_of(steps=40, every=20))

    [chart] = [chart for chart in charts(history) if chart["key"] == "accuracy"]

    points = chart["figure"]["data"][-1]
    evaluation = history.evaluations[20]
    assert points["x"] == [0, 20, 40]
    assert points["error_y"]["array"][1] == pytest.approx(1.96 * evaluation.stderr)
    assert points["error_y"]["arrayminus"][1] == pytest.approx(1.96 * evaluation.stderr)


def test_charts_of_metrics_that_the_run_lacks_are_left_out(events_of) -> None:
    events = events_of(steps=3, every=None)
    for event in events:
        if event["kind"] == "step":
            event["metrics"] = {"reward/mean": 0.5}

    assert [chart["key"] for chart in charts(history_of(events))] == ["reward"]


def test_phases_come_from_the_step_or_else_from_the_busiest_worker() -> None:
    phases = [
        {"name": "update", "step": 1, "start": 0.0, "end": 0.2, "role": "device", "device": 0},
        {"name": "update", "step": 1, "start": 0.5, "end": 0.6, "role": "device", "device": 0},
        {"name": "update", "step": 1, "start": 0.0, "end": 0.25, "role": "device", "device": 1},
        {"name": "generate", "step": 1, "start": 0.0, "end": 9.0, "evaluation": True},
    ]
    events = [{"time": 1.0, "kind": "phase", **phase} for phase in phases]
    step = {"time": 1.0, "kind": "step", "step": 1, "seconds": 1.0, "metrics": {}}

    assert history_of([*events, step]).phase_seconds(1) == {"update": pytest.approx(0.3)}
    given = step | {"phases": {"update": 0.4}}
    assert history_of([*events, given]).phase_seconds(1) == {"update": 0.4}


def test_the_timeline_leaves_out_what_ran_before_the_step(events_of) -> None:
    events = events_of(steps=1, every=None)
    early = {"time": 0.0, "kind": "phase", "name": "sync", "step": 1, "start": 1.0, "end": 2.0}
    history = history_of([*events, early | {"role": "device", "device": 0}])

    [step] = document(history, "")["timeline"]

    assert step["seconds"] < 1
    assert [row["row"] for row in step["rows"]] == [
        "rollout 0",
        "rollout 1",
        "reference 0",
        "reference 1",
        "reward",
        "update 0",
        "update 1",
    ]
    assert all(0 <= start < end for row in step["rows"] for _, start, end in row["spans"])


def test_samples_are_ranked_and_long_texts_are_cut_aloud(events_of) -> None:
    events = events_of(steps=1)
    [step] = [event for event in events if event["kind"] == "step"]
    step["samples"][0]["responses"] = [
        {"text": "a", "reward": 0.0},
        {"text": "b" * 5000, "reward": 1.0},
        {"text": "c", "reward": None},
    ]

    [entry] = document(history_of(events), "")["samples"]

    texts = [response["text"] for response in entry["groups"][0]["responses"]]
    assert [text[0] for text in texts] == ["b", "a", "c"]
    assert texts[0].endswith("… (1 000 more characters)")


def test_a_long_run_makes_a_page_of_bounded_size(make_history: Callable[[int], RunHistory]) -> None:
    history = make_history(9_000)

    assert len(shown_steps(history)) <= 2000
    assert shown_steps(history)[-1] == 9_000
    [chart] = charts(history, "phaseChart")
    assert len(chart["figure"]["data"][0]["x"]) <= 400
    shown = document(history, "")
    assert len(shown["samples"]) <= 200 and shown["samples"][-1]["step"] == 9_000


@pytest.fixture
def make_history() -> Callable[[int], RunHistory]:
    """A long run with few facts a step."""

    def make(steps: int) -> RunHistory:
        group = {"prompt": "p", "responses": [{"text": "r", "reward": 1.0}]}
        return history_of(
            {
                "time": float(step),
                "kind": "step",
                "step": step,
                "seconds": 1.0,
                "metrics": {"reward/mean": 0.5},
                "phases": {"generate": 0.5, "update": 0.5},
                "samples": [group],
            }
            for step in range(1, steps + 1)
        )

    return make


def test_a_moving_average_keeps_gaps_and_ignores_them() -> None:
    assert moving_average([1.0, None, 3.0, 5.0], 1) == [1.0, None, 4.0, 4.0]
