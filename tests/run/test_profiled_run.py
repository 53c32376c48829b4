"""A run that records one step on one device, and no other; and what a browser shows of it, while it runs
and afterwards."""

import contextlib
import gzip
import json
import socket
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import yaml
from browser import MISSING, PROGRAM, Browser
from free_ports import free_port
from page_data import page_data
from shown_run import READY, shown
from whole_runs import SMALL_JOB, DriverHere, Finished, run_while

from rljob_runtime.dock.thread import ServerThread
from rljob_runtime.report.watch.http_server import HttpServer
from rljob_runtime.report.watch.live_document import LiveRun
from rljob_runtime.report.watch.runs import LocalRun
from rljob_runtime.report.watch.watched_page import Page

pytestmark = [pytest.mark.run, pytest.mark.xdist_group("profiled-run")]  # one run for all
in_a_browser = pytest.mark.skipif(PROGRAM is None, reason=MISSING)

TOKEN = "the-token-of-this-job"
STEPS = 6
LISTEN_SECONDS = 120.0
PACE = '''
import os, time
calls = 0
def reward(prompt, response, answer):
    """Wait in the third step until the page is watched."""
    global calls
    calls += 1
    while calls > 64 and not os.path.exists({free!r}):
        time.sleep(0.05)
    return 0.0
'''
CURVES = ("reward", "accuracy", "entropy", "gradient", "speed", "memory", "phases")
STAGES = {"device 0": 3, "device 1": 3, "reward 0": 1}
"""Of a step, by role and device: devices generate, train and take the new weights."""


@dataclass(slots=True, kw_only=True)
class Seen:
    """What the run's own page showed. states: of the run, one after the other; trace: the file of a link."""

    states: list[str] = field(default_factory=list)
    shown: dict[str, Any] = field(default_factory=dict)
    errors: list[str] = field(default_factory=list)
    trace: tuple[str, bytes] = ("", b"")


@dataclass(frozen=True, slots=True)
class Watched:
    """The run that has ended, and the browser, if there is one."""

    run: Finished
    seen: Seen
    browser: Browser | None


@pytest.fixture(scope="module")
def watched(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Watched]:
    """It serves its page, which a browser has open from before the first step on."""
    folder = tmp_path_factory.mktemp("profiled")
    (folder / "pace.py").write_text(PACE.format(free=str(folder / "free")))
    pace = {"name": "pace", "type": "python", "weight": 0.0, "timeoutSeconds": 120}
    pace["python"] = {"path": "pace.py"}
    spec = SMALL_JOB["spec"] | {"steps": STEPS, "profile": {"steps": [2], "ranks": [1]}}
    spec["rewards"] = [*spec["rewards"], pace]
    if PROGRAM is None:
        (folder / "free").touch()
    (folder / "job.yaml").write_text(yaml.safe_dump(SMALL_JOB | {"spec": spec}))
    with contextlib.ExitStack() as stack:
        browser = Browser(folder / "browser") if PROGRAM else None
        if browser:
            stack.callback(browser.close)
        port, seen = free_port(), Seen()
        environment = {"RLJOB_STATUS_PORT": str(port), "RAY_AUTH_TOKEN": TOKEN}

        def watch(_: DriverHere) -> None:
            if browser:
                wait_for_answers(port)
                look(browser, f"http://127.0.0.1:{port}/", folder, seen)
                ask_status(port)  # as the operator does; the driver waits for it

        finished = run_while(
            folder / "job.yaml", folder / "run", beside=watch, environment=environment
        )
        yield Watched(finished, seen, browser)


def wait_for_answers(port: int) -> None:
    """Return once the run listens."""
    deadline = time.monotonic() + LISTEN_SECONDS
    while True:
        try:
            return socket.create_connection(("127.0.0.1", port), timeout=1).close()
        except OSError:
            assert time.monotonic() < deadline, f"nobody listens after {LISTEN_SECONDS:g} s"
            time.sleep(0.1)


def look(browser: Browser, address: str, folder: Path, seen: Seen) -> None:
    """Watch the run's own page until it says that the run has ended."""
    status = "document.getElementById('status')"
    browser.keep_files(folder / "files")
    browser.open(f"{address}#token={TOKEN}")
    browser.wait(READY)
    browser.tell(
        f"window.states = [{status}.textContent]; "
        f"new MutationObserver(() => states.push({status}.textContent))"
        f".observe({status}, {{ childList: true }})"
    )
    (folder / "free").touch()
    browser.wait("document.querySelector('#profiles a')")
    browser.tell("document.querySelector('#profiles a').click()")
    name = browser.tell("document.querySelector('#profiles a').text")
    file = folder / "files" / name.replace("/", "-")
    browser.wait_for_file(file)
    seen.trace = (name, file.read_bytes())
    browser.wait(f"{status}.textContent === 'succeeded'")
    seen.shown = shown(browser)
    seen.states = browser.tell("states")  # of one page: it was never loaded anew
    seen.errors = [*browser.errors]


def ask_status(port: int) -> None:
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}/status", headers={"Authorization": f"Bearer {TOKEN}"}
    )
    urllib.request.urlopen(request, timeout=20).close()


def test_each_state_of_the_step_leaves_a_trace_on_the_device_that_was_named(
    watched: Watched,
) -> None:
    finished = watched.run

    assert finished.code == 0, finished.output
    told = finished.of_kind("profile")
    assert {(event["step"], event["rank"]) for event in told} == {(2, 1)}
    assert {event["state"] for event in told} == {"generate", "update", "sync"}
    files = {file for file in (finished.folder / "profile").rglob("*") if file.is_file()}
    assert files == {finished.folder / event["path"] for event in told}
    for event in told:
        content = (finished.folder / event["path"]).read_bytes()
        assert len(content) == event["bytes"]
        assert json.loads(gzip.decompress(content))["traceEvents"]
    (update,) = (event for event in told if event["state"] == "update")
    assert any(operator["name"].startswith("aten::") for operator in update["operators"])
    traces = page_data(finished.folder / "report.html")["profiles"]
    assert {trace["path"] for trace in traces} == {event["path"] for event in told}


def everything_is_there(found: dict[str, Any], finished: Finished) -> None:
    """Curves of all steps, stages by role and device, dock, memory, samples and traces."""
    assert found["status"] == "succeeded"
    assert {found["points"].get(f"plot-{curve}") for curve in CURVES} == {STEPS}, found["points"]
    assert 0 not in found["points"].values(), found["points"]
    assert found["timeline"] == STAGES
    assert set(found["stages"]) == {"generate", "reward", "update", "sync"}
    assert found["dock"] > 0
    last = finished.of_kind("step")[-1]["samples"][0]["responses"]
    assert sorted(found["samples"]) == sorted(sample["text"] for sample in last)
    assert sorted(found["tokens"]) == sorted(
        [
            [text, f"token {token} · log-prob"]
            for text, token in zip(t["texts"], t["ids"], strict=True)
        ]
        for t in (sample["tokens"] for sample in last)
    )
    assert set(found["traces"]) == {event["path"] for event in finished.of_kind("profile")}


def test_samples_are_told_with_their_tokens_in_few_bytes(watched: Watched) -> None:
    for step in watched.run.of_kind("step"):
        told = [response for group in step["samples"] for response in group["responses"]]
        size = sum(len(json.dumps({"tokens": response["tokens"]})) for response in told)

        assert 0 < size < 8 * 1024
        for response in told:
            tokens = response["tokens"]
            assert len(tokens["ids"]) == response["length"]
            assert "".join(tokens["texts"]).removesuffix("<eos>").startswith(response["text"])
            assert max(tokens["logprobs"]) <= 0 and len(tokens["logprobs"]) == response["length"]
            assert tokens["versions"] == [[step["step"] - 1, response["length"]]]
            assert tokens["version"] == step["step"] - 1


@in_a_browser
def test_a_run_shows_itself_while_it_goes_on(watched: Watched) -> None:
    seen, finished = watched.seen, watched.run

    assert seen.errors == []
    assert any(state.startswith("running at step") for state in seen.states), seen.states
    assert seen.states[-1] == "succeeded"
    name, content = seen.trace
    assert content == (finished.folder / name).read_bytes()
    everything_is_there(seen.shown, finished)


@in_a_browser
def test_its_folder_shows_the_same_afterwards(watched: Watched) -> None:
    assert watched.browser is not None
    watched.browser.reset(1366, 768)
    page = Page(LiveRun(LocalRun(watched.run.folder)), TOKEN)
    server = ServerThread(HttpServer(page.routes(), host="127.0.0.1", port=0))
    served = f"http://127.0.0.1:{server.start()[1]}/#token={TOKEN}"
    try:
        for address in (served, (watched.run.folder / "report.html").as_uri()):
            watched.browser.open(address)

            everything_is_there(shown(watched.browser), watched.run)
    finally:
        server.stop()
    assert watched.browser.errors == []
