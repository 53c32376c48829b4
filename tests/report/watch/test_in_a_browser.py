"""The page in a real browser: it shows new steps by itself and leaves the reader where they are."""

import json
from collections.abc import Callable, Iterator

import pytest
from browser import MISSING, PROGRAM, Browser
from growing_run import GrowingRun
from programs import needs
from run_events import make_events
from typer.testing import CliRunner

from rljob_runtime.cli.main import app
from rljob_runtime.dock.thread import ServerThread
from rljob_runtime.report.display.report import write_report
from rljob_runtime.report.watch.http_server import HttpServer
from rljob_runtime.report.watch.live_document import LiveRun
from rljob_runtime.report.watch.runs import LocalRun
from rljob_runtime.report.watch.watched_page import Page

pytestmark = [needs("browser", PROGRAM, MISSING), pytest.mark.xdist_group("browser")]

TOKEN = "the-token-of-this-run"
READY = "document.documentElement.dataset.ready === 'true'"
LAPTOP, DESKTOP = (1366, 768), (1920, 1080)
HOSTILE = '</script><img src=x onerror="document.title=1">'


@pytest.fixture(scope="module")
def started(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    """One browser for all tests: it takes a while to start."""
    started = Browser(tmp_path_factory.mktemp("profile"))
    yield started
    started.close()


@pytest.fixture
def browser(started: Browser) -> Browser:
    """The browser as if nobody had used it."""
    started.reset(*LAPTOP)
    return started


@pytest.fixture
def serve() -> Iterator[Callable[..., str]]:
    """serve(run): the address of its page, without the token."""
    servers: list[ServerThread] = []

    def start(run: GrowingRun, port: int = 0) -> str:
        page = Page(LiveRun(LocalRun(run.folder)), TOKEN)
        servers.append(ServerThread(HttpServer(page.routes(), host="127.0.0.1", port=port)))
        return f"http://127.0.0.1:{servers[-1].start()[1]}/"

    yield start
    for server in servers:
        server.stop()


def text_of(element: str) -> str:
    return f"document.getElementById('{element}').textContent"


def test_new_steps_come_without_a_reload_and_the_reader_stays_in_place(
    browser, serve, growing
) -> None:
    run = growing(steps=30, total_steps=30, every=10)
    run.write_until("dock", 12)
    browser.open(f"{serve(run)}#token={TOKEN}")
    browser.wait(f"{READY} && {text_of('status')}.includes('step 12 of 30')")
    browser.tell("window.mark = 'the same page'")
    browser.tell("document.querySelector('.spec').open = true")
    browser.tell("document.querySelector('#sample-stepper button').click()")
    shown = browser.tell("document.querySelector('#sample-stepper output').textContent")
    browser.tell("document.getElementById('samples').scrollIntoView()")
    place = browser.tell("document.getElementById('samples').getBoundingClientRect().top")

    run.write_until("dock", 14)
    browser.wait(f"{text_of('status')}.includes('step 14 of 30')")
    browser.wait("document.querySelector('#gantt-stepper output').textContent === 'step 14'")

    assert shown == "step 11"
    assert browser.tell("document.querySelector('#sample-stepper output').textContent") == shown
    assert browser.tell("document.querySelector('.spec').open") is True
    assert browser.tell("document.getElementById('samples').getBoundingClientRect().top") == place
    assert browser.tell("window.mark") == "the same page"
    browser.tell("scrollTo(0, 0)")
    browser.tell("document.getElementById('plot-entropy').scrollIntoView()")
    drawn = "document.getElementById('plot-entropy').data[0].x.length"
    browser.wait(f"{drawn} === 14")

    run.write()
    browser.wait(f"{text_of('status')} === 'succeeded'")

    browser.wait(f"{text_of('freshness')} === 'ended' && {drawn} === 30")
    assert browser.tell("window.mark") == "the same page"
    assert browser.errors == []


def test_tokens_are_unfolded_and_stay_so(browser, serve, growing) -> None:
    run = growing(steps=3)
    told = {"ids": [65, 10, 7], "texts": ["<b>", "\n", ""], "logprobs": [-0.25, None, -1e-5]}
    for event in run.events:
        for response in [r for g in event.get("samples", []) for r in g["responses"]]:
            response["tokens"] = {**told, "version": 4, "versions": [[4, 1], [None, 1], [5, 1]]}
    run.write_until("dock", 1)
    browser.open(f"{serve(run)}#token={TOKEN}")
    browser.wait(READY)
    line = "document.querySelector('#group details')"

    folded = browser.tell(f"{line}.querySelector('.tokens').checkVisibility()")
    browser.tell(f"{line}.querySelector('summary').click()")
    browser.wait(f"{line}.querySelector('.tokens').checkVisibility()")
    run.write()
    browser.wait("document.querySelector('#sample-stepper output').textContent === 'step 3'")

    assert folded is False
    tokens = browser.tell(
        f"[...{line}.querySelectorAll('.tokens span')].map((token) => [token.textContent, token.title])"
    )
    assert tokens == [
        ["<b>", "token 65 · log-prob -0.25 · weights' version 4"],
        ["↵\n", "token 10 · not drawn by the policy"],
        ["", "token 7 · log-prob -0.00001 · weights' version 5"],
    ]
    assert browser.tell(f"{line}.open") is True
    assert browser.errors == []


def test_a_zoom_outlives_new_steps(browser, serve, growing) -> None:
    run = growing(steps=9)
    run.write_until("dock", 6)
    browser.open(f"{serve(run)}#token={TOKEN}")
    plot = "document.getElementById('plot-entropy')"
    browser.wait(READY)
    browser.tell(f"{plot}.scrollIntoView()")
    browser.wait(f"{plot}.data.length")
    before = browser.tell(f"{plot}.layout.xaxis.range")
    box = browser.tell(f"{plot}.querySelector('.nsewdrag').getBoundingClientRect().toJSON()")
    left, right = (box["x"] + share * box["width"] for share in (0.4, 0.7))
    browser.drag((left, box["y"] + 40), (right, box["y"] + 42))
    browser.wait(f"{plot}.layout.xaxis.range[0] > {before[0]}")
    zoomed = browser.tell(f"{plot}.layout.xaxis.range")

    run.write_until("dock", 7)

    browser.wait(f"{plot}.data[0].x.length === 7")
    assert browser.tell(f"{plot}.layout.xaxis.range") == zoomed


def test_a_new_trace_appears_at_once_and_its_link_brings_the_file(
    browser, serve, growing, tmp_path
) -> None:
    run, files = growing(steps=9), tmp_path / "files"
    run.write_until("dock", 3)
    browser.keep_files(files)
    browser.open(f"{serve(run)}#token={TOKEN}")
    browser.wait(f"{READY} && document.getElementById('profiles').hidden")

    for step in (2, 3):
        name = run.record(step, b"trace of step %d" % step)
        links = "document.querySelectorAll('#profiles a')"
        browser.wait(f"{links}.length === {step - 1}")
        browser.tell(f"{links}[{step - 2}].click()")
        browser.wait_for_file(files / name.replace("/", "-"))

        assert (files / name.replace("/", "-")).read_bytes() == (run.folder / name).read_bytes()

    run.write()
    browser.wait(f"{text_of('status')} === 'succeeded'")
    assert browser.tell("document.querySelectorAll('#profiles table').length") == 1
    assert browser.tell("document.querySelectorAll('#profiles tbody tr').length") == 2
    assert browser.errors == []


def test_a_run_that_has_not_begun_is_waited_for(browser, serve, growing) -> None:
    run = growing(steps=3)
    browser.open(f"{serve(run)}#token={TOKEN}")

    browser.wait(f"{text_of('trouble')} === {json.dumps(f'waiting for {run.file}')}")
    run.write(3)
    browser.wait(f"{text_of('name')} === 'spell-backward-grpo'")
    browser.wait(f"{text_of('doing')}.startsWith('warming up the tiny model')")

    assert browser.tell("document.getElementById('trouble').hidden") is True
    assert browser.errors == []


def test_the_form_takes_the_token_and_the_address_forgets_it(browser, serve, growing) -> None:
    run = growing(steps=2)
    run.write()
    address = serve(run)
    browser.open(address)
    browser.wait("document.getElementById('token')")

    enter = "document.getElementById('token').value = {}; document.querySelector('button').click()"
    browser.tell(enter.format("'another'"))
    browser.wait(f'{text_of("wrong")} === "That is not this run\'s token."')
    browser.tell(enter.format(json.dumps(TOKEN)))
    browser.wait(READY)

    assert browser.tell("location.href") == address
    assert browser.tell("document.cookie") == ""
    browser.open(address)
    browser.wait(READY)


def test_the_fragment_with_the_token_is_gone_once_the_page_is_there(
    browser, serve, growing
) -> None:
    run = growing(steps=2)
    run.write()
    address = serve(run)
    browser.open(f"{address}#token={TOKEN}")

    browser.wait(READY)

    assert browser.tell("location.href") == address


@pytest.mark.nightly
def test_a_server_that_is_gone_is_told_and_another_one_asks_for_its_token(
    browser, serve, growing
) -> None:
    run = growing(steps=2)
    run.write(4)
    page = Page(LiveRun(LocalRun(run.folder)), "of-before")
    server = ServerThread(HttpServer(page.routes(), host="127.0.0.1", port=0))
    _, port = server.start()
    browser.open(f"http://127.0.0.1:{port}/#token=of-before")
    browser.wait(READY)

    server.stop()
    browser.wait(f"{text_of('freshness')}.startsWith('no answer for')")
    serve(run, port)

    browser.wait("document.getElementById('token')")


def test_two_runs_curves_lie_over_each_other(browser, tmp_path) -> None:
    runs = {}
    for name, seed in (("A", 7), ("B<b>", 8)):
        events = make_events(steps=40, seed=seed, every=10)
        runs[name] = [event["metrics"] for event in events if event["kind"] == "step"]
        GrowingRun(tmp_path / name, events).write()
    for metrics in runs["B<b>"]:
        del metrics["kl"]
    GrowingRun(tmp_path / "B<b>", events).replace(events)
    page = tmp_path / "diff.html"

    folders = [str(tmp_path / name) for name in runs]
    done = CliRunner().invoke(app, ["diff", *folders, "--json", "--html", str(page)])
    browser.open(page.as_uri())
    browser.wait(READY)
    browser.tell("dispatchEvent(new Event('beforeprint'))")

    assert done.exit_code == 0 and json.loads(done.output)["steps"] == 40
    lines = browser.tell(
        "document.getElementById('plot-reward-mean').data.filter((line) => line.opacity)"
        ".map((line) => [line.name, line.line.color, line.y])"
    )
    rewards = [[step["reward/mean"] for step in metrics] for metrics in runs.values()]
    assert [(name, values) for name, _, values in lines] == [("A", rewards[0]), ("B", rewards[1])]
    assert lines[0][1] != lines[1][1]
    charts = browser.tell("[...document.querySelectorAll('#charts .plot')].map((p) => p.id)")
    assert {"plot-accuracy", "plot-entropy", "plot-clip_fraction", "plot-seconds"} <= {*charts}
    assert "plot-kl" not in charts
    assert browser.tell("[...plots.values()].every((plot) => !plot.due)") is True
    heads = browser.tell("[...document.querySelectorAll('h1')].map((head) => head.textContent)")
    assert heads == [f"{run} {folder} 40 steps" for run, folder in zip("AB", folders, strict=True)]
    assert browser.tell("document.documentElement.scrollWidth") <= LAPTOP[0]
    hidden = "document.getElementById('plot-entropy').data.map((line) => [line.name, line.visible])"
    names = "document.getElementById('plot-entropy').previousElementSibling.children"
    browser.tell(f"{names}[1].click()")
    assert {*map(tuple, browser.tell(hidden))} == {("A", True), ("B", False)}
    browser.tell(f"{names}[1].dispatchEvent(new MouseEvent('click', {{ detail: 2 }}))")
    assert {*map(tuple, browser.tell(hidden))} == {("A", False), ("B", True)}
    pressed = f"[...{names}].map((name) => name.ariaPressed)"
    assert browser.tell(pressed) == ["false", "true"]
    assert browser.errors == []


def test_a_browser_that_cannot_unpack_the_page_says_so(browser, tmp_path) -> None:
    run = GrowingRun(tmp_path / "run", make_events(steps=1))
    run.write()
    report = write_report(run.folder)
    old = browser.call(
        "Page.addScriptToEvaluateOnNewDocument", source="delete window.DecompressionStream"
    )

    browser.open(report.as_uri())

    browser.wait("document.getElementById('broken').checkVisibility()")
    browser.call("Page.removeScriptToEvaluateOnNewDocument", **old)
    browser.open(report.as_uri())
    browser.wait(f"{READY} && document.getElementById('broken').hidden")


@pytest.mark.parametrize("finished", [None, "failed"], ids=["goes on", "has failed"])
def test_nothing_is_wider_than_the_window(browser, serve, growing, finished) -> None:
    run = growing(steps=24, finished=finished, devices=8)
    raised = {"alarm": "entropyCollapse", "state": "raised", "policy": "warn", "since": 2}
    run.events.append({"time": 0.0, "kind": "alarm", "step": 9, "message": "x" * 300, **raised})
    run.events.append({"time": 0.0, "kind": "warning", "message": HOSTILE + "y" * 300})
    run.write()

    browser.open(f"{serve(run)}#token={TOKEN}")
    browser.wait(READY)
    widths = {}
    for size in (LAPTOP, DESKTOP):
        browser.resize(*size)
        widths[size[0]] = browser.tell("document.documentElement.scrollWidth")

    assert all(needed <= width for width, needed in widths.items())
    assert HOSTILE in browser.tell(text_of("notice-card"))
    assert browser.tell(
        f"{text_of('active-alarms')}.includes('Alarm entropyCollapse since step 2')"
    )
    assert browser.errors == []
