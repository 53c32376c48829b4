"""The report document of a running run, in parts: a reader requests the changes since its last version.

Called by `watched_page`. Lists of charts and of steps are sent entry by entry, so that a page's request each
second stays small, however long the run is.
"""

import json
import threading
import time
import uuid
from collections.abc import Callable
from typing import Any

from rljob_runtime.errors import RljobError
from rljob_runtime.record.profiles.traces import NAME
from rljob_runtime.report.display.document import Document, document
from rljob_runtime.report.display.history import RunHistory
from rljob_runtime.report.watch.follow import Read
from rljob_runtime.report.watch.runs import RunActivity, RunStatus, WatchedRun

ENTRY_IDS = {
    "charts": "key",
    "dockCharts": "key",
    "reshardCharts": "key",
    "timeline": "step",
    "samples": "step",
    "dockRows": "step",
    "reshardMemory": "step",
}
"""Lists that are sent entry by entry, and the key of their entries."""
LEAST_SECONDS = 0.5
MOST_SECONDS = 2.0
"""Time for reading a long run before its first steps are shown."""
SHARE = 5
"""A document that takes a second to build is built again after this many seconds, because the run needs the
processor."""


class LiveDocument:
    """Parts of a document as JSON, each with the version of its last change."""

    def __init__(self) -> None:
        self.version = 0
        self._parts: dict[str, tuple[str, int]] = {}
        self._orders: dict[str, list[str]] = {}
        self._entries: dict[str, dict[str, tuple[str, int]]] = {}

    def take(self, latest: Document) -> None:
        """Replace the document by a new version."""
        self.version += 1
        for name, value in latest.items():
            if name in ENTRY_IDS:
                entries = {str(entry[ENTRY_IDS[name]]): entry for entry in value}
                if self._orders.get(name) != [*entries]:
                    # Send the order, even if no entry is new.
                    self._parts[name] = ("", self.version)
                self._orders[name] = [*entries]
                self._entries[name] = self._with_versions(self._entries.get(name, {}), entries)
            else:
                self._parts |= self._with_versions(self._parts, {name: value})

    def _with_versions(
        self, before: dict[str, tuple[str, int]], values: dict[str, Any]
    ) -> dict[str, tuple[str, int]]:
        texts = {name: _json(value) for name, value in values.items()}
        nothing = ("", 0)
        return {
            name: old if (old := before.get(name, nothing))[0] == text else (text, self.version)
            for name, text in texts.items()
        }

    def since(self, version: int) -> str:
        """Return the changes after `version` as JSON: `parts`, and `lists` with the order of all entries."""
        parts = [
            f"{_json(name)}:{text}"
            for name, (text, changed) in self._parts.items()
            if changed > version and name not in ENTRY_IDS
        ]
        lists = []
        for name, order in self._orders.items():
            changed_entries = [
                f"{_json(key)}:{text}"
                for key, (text, changed) in self._entries[name].items()
                if changed > version
            ]
            if changed_entries or self._parts.get(name, ("", 0))[1] > version:
                entries = ",".join(changed_entries)
                lists.append(f'{_json(name)}:{{"order":{_json(order)},"entries":{{{entries}}}}}')
        return f'"parts":{{{",".join(parts)}}},"lists":{{{",".join(lists)}}}'


class LiveRun:
    """The live document of a watched run. Reads new events on request; safe for several threads."""

    def __init__(self, run: WatchedRun, *, clock: Callable[[], float] = time.time) -> None:
        self._run, self._clock = run, clock
        self._name = uuid.uuid4().hex
        self._lock = threading.Lock()
        self._next_read, self._more = 0.0, False
        self._activity, self._history = RunActivity(), RunHistory()
        self._status = RunStatus(over=False)
        self._document = LiveDocument()

    def answer(self, known: str, version: int) -> bytes:
        """Return JSON for a reader that has `version` of the run `known`; of another run it has nothing."""
        with self._lock:
            self._read_on_if_due()
            last = self._activity.last
            facts = {
                "run": self._name,
                "version": self._document.version,
                "over": self._status.over,
                "trouble": self._status.text,
                "age": max(0.0, self._clock() - last) if last else None,
            }
            changes = self._document.since(version if known == self._name else 0)
        return f"{_json(facts)[:-1]},{changes}}}".encode()

    def trace(self, name: str) -> Read | None:
        """Return a reader for a trace that the run's events name; None for any other name."""
        with self._lock:
            self._read_on_if_due()
            is_known = any(event.path == name for event in self._history.profiles)
        return self._run.reader(name) if is_known and NAME.fullmatch(name) else None

    def _read_on_if_due(self) -> None:
        began = time.monotonic()
        if began >= self._next_read:
            self._read_on()
            spent = time.monotonic() - began
            pause = 0.0 if self._more else max(LEAST_SECONDS, SHARE * spent)
            self._next_read = began + spent + pause

    def _read_on(self) -> None:
        try:
            self._take_news()
        except RljobError as error:
            self._status = RunStatus(over=True, text=str(error))
        except Exception as error:  # a page never ends a run
            self._status = RunStatus(over=False, text=f"this run cannot be shown: {error!r}")

    def _take_news(self) -> None:
        changed, began = not self._document.version, time.monotonic()
        self._more = True
        while self._more:
            news = self._run.news()
            self._activity.add(news)
            if news.restarted:
                self._history = RunHistory()
            self._history.take(news.events)
            changed = changed or news.restarted or bool(news.events)
            self._more = news.more
            if time.monotonic() - began > MOST_SECONDS:
                break
        self._status = self._run.status(self._activity, self._clock())
        if self._more:
            self._status = RunStatus(over=False, text="its earlier steps are still being read")
        if changed:
            self._document.take(document(self._history, self._run.spec()))


def _json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
