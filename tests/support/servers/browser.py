"""A headless Chromium for tests, spoken to over its DevTools protocol: no driver besides it."""

import base64
import contextlib
import itertools
import json
import os
import shutil
import signal
import subprocess
import time
import urllib.request
from pathlib import Path
from typing import Any

import websocket

NAMES = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")
PROGRAM = next((found for name in NAMES if (found := shutil.which(name))), None)
MISSING = f"no browser: none of {', '.join(NAMES)} is installed"
START_SECONDS = 120.0
CALL_SECONDS = 180.0
FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync",
    "--disable-background-networking", "--disable-component-update", "--disable-dev-shm-usage",
    "--remote-debugging-port=0", "--remote-allow-origins=*",
)  # fmt: skip


NAVIGATED = "Inspected target navigated or closed"
"""What Chromium answers to a question that was put to a page on its way to another one."""


class Navigated(Exception):
    """The page went elsewhere before it answered."""


class Browser:
    """One page. errors: what its console said of errors, exceptions and refused requests."""

    def __init__(self, profile: Path, *, width: int = 1366, height: int = 768) -> None:
        assert PROGRAM is not None, MISSING
        self.errors: list[str] = []
        self._ids = itertools.count(1)
        self._process = subprocess.Popen(
            [PROGRAM, *FLAGS, f"--user-data-dir={profile}", "about:blank"],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,  # the program may be a script that starts the browser
        )
        try:
            self._socket = websocket.create_connection(_page_of(profile), timeout=CALL_SECONDS)
        except BaseException:
            self.close()
            raise
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")
        self.resize(width, height)

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        """One DevTools command and its result; events that come meanwhile are kept if they tell of errors."""
        wanted = next(self._ids)
        self._socket.send(json.dumps({"id": wanted, "method": method, "params": params}))
        while True:
            message = json.loads(self._socket.recv())
            if message.get("id") == wanted:
                if message.get("error", {}).get("message") == NAVIGATED:
                    raise Navigated(message)
                assert "error" not in message, message
                return dict(message["result"])
            self._note(message)

    def _note(self, message: dict[str, Any]) -> None:
        method, params = message.get("method"), message.get("params", {})
        if method == "Runtime.exceptionThrown":
            self.errors.append(json.dumps(params["exceptionDetails"]))
        elif method == "Log.entryAdded" and params["entry"]["level"] == "error":
            self.errors.append(params["entry"]["text"])

    def reset(self, width: int, height: int) -> None:
        """An empty page of this size, without cookies."""
        self.open("about:blank")
        self.call("Network.clearBrowserCookies")
        self.resize(width, height)
        self.errors.clear()

    def open(self, address: str) -> None:
        """Go there."""
        self.call("Page.navigate", url=address)

    def tell(self, expression: str) -> Any:
        """The value of a JavaScript expression in the page."""
        said = self.call(
            "Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True
        )
        assert "exceptionDetails" not in said, said["exceptionDetails"]
        return said["result"].get("value")

    def wait(self, condition: str, *, seconds: float = CALL_SECONDS) -> None:
        """Return once an expression is true; in a page that is not there yet it is not. Raises AssertionError
        at the deadline."""
        guarded = (
            f"(() => {{ try {{ return Boolean({condition}); }} catch {{ return false; }} }})()"
        )
        deadline = time.monotonic() + seconds
        while True:
            with contextlib.suppress(Navigated):  # the page before this one is gone
                if self.tell(guarded):
                    return
            assert time.monotonic() < deadline, (
                f"not within {seconds:g} s: {condition}; {self.errors}"
            )
            time.sleep(0.1)

    def drag(self, start: tuple[float, float], end: tuple[float, float]) -> None:
        """Press the mouse's left button at a place of the window, and release it at another."""
        for kind, (x, y) in (
            ("mouseMoved", start),
            ("mousePressed", start),
            ("mouseMoved", end),
            ("mouseReleased", end),
        ):
            button = {"button": "left", "buttons": 1, "clickCount": 1}
            self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, **button)

    def resize(self, width: int, height: int) -> None:
        """The size of the window's inside, in pixels."""
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=False,
        )

    def keep_files(self, folder: Path) -> None:
        """Where downloads go."""
        options = {"behavior": "allow", "downloadPath": str(folder)}
        self.call("Browser.setDownloadBehavior", **options)

    def wait_for_file(self, file: Path) -> None:
        """Return once a download is there, which has another name until it is whole."""
        deadline = time.monotonic() + CALL_SECONDS
        while not file.exists():
            assert time.monotonic() < deadline, f"{file} did not arrive; {self.errors}"
            time.sleep(0.1)

    def picture(self, file: Path, *, whole: bool = False) -> None:
        """A PNG of the window, or of the whole page."""
        said = self.call("Page.captureScreenshot", captureBeyondViewport=whole)
        file.write_bytes(base64.b64decode(said["data"]))

    def close(self) -> None:
        """End the browser, with all of its processes."""
        os.killpg(self._process.pid, signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout=20)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait(timeout=20)


def _page_of(profile: Path) -> str:
    """The address at which the page's DevTools listen."""
    told = profile / "DevToolsActivePort"
    deadline = time.monotonic() + START_SECONDS
    while not (told.exists() and told.read_text().count("\n")):
        assert time.monotonic() < deadline, f"{PROGRAM} did not start within {START_SECONDS:g} s"
        time.sleep(0.05)
    port = told.read_text().splitlines()[0]
    while True:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/json/list", timeout=10) as answer:
            pages = [page for page in json.load(answer) if page["type"] == "page"]
        if pages:
            return str(pages[0]["webSocketDebuggerUrl"])
        assert time.monotonic() < deadline, "the browser opened no page"
        time.sleep(0.05)
