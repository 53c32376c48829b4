"""The report's document of a run that goes on, in parts: a reader asks for what has changed since its last.

Called by `watched_page`. Lists of charts and of steps come entry by entry, so that what a page asks for each
second stays small however long the run is.
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
from rljob_runtime.report.watch.runs import Pulse, Standing, WatchedRun

ENTRY_IDS = {
    "charts": "key",
    "dockCharts": "key",
    "reshardCharts": "key",
    "timeline": "step",
    "samples": "step",
    "dockRows": "step",
    "reshardMemory": "step",
}
"""Lists that come entry by entry, and what tells their entries apart."""
LEAST_SECONDS = 0.5
MOST_SECONDS = 2.0
"""Of reading before what is read by then is shown, of a long run that is looked at for the first time."""
SHARE = 5
"""A document that took a second to make is made again after so many: the run has the processor first."""


class LiveDocument:
    """Parts of a document as JSON, with the version at which each last changed."""

    def __init__(self) -> None:
        self.version = 0
        self._parts: dict[str, tuple[str, int]] = {}
        self._orders: dict[str, list[str]] = {}
        self._entries: dict[str, dict[str, tuple[str, int]]] = {}

    def take(self, made: Document) -> None:
        """The document as it is now."""
        self.version += 1
        for name, value in made.items():
            if name in ENTRY_IDS:
                entries = {str(entry[ENTRY_IDS[name]]): entry for entry in value}
                if self._orders.get(name) != [*entries]:
                    self._parts[name] = ("", self.version)  # to be told, even if no entry is new
                self._orders[name] = [*entries]
                self._entries[name] = self._dated(self._entries.get(name, {}), entries)
            else:
                self._parts |= self._dated(self._parts, {name: value})

    def _dated(
        self, before: dict[str, tuple[str, int]], values: dict[str, Any]
    ) -> dict[str, tuple[str, int]]:
        texts = {name: _json(value) for name, value in values.items()}
        nothing = ("", 0)
        return {
            name: old if (old := before.get(name, nothing))[0] == text else (text, self.version)
            for name, text in texts.items()
        }

    def since(self, version: int) -> str:
        """JSON of what has changed after `version`: `parts`, and `lists` with the order of all entries."""
        parts = [
            f"{_json(name)}:{text}"
            for name, (text, changed) in self._parts.items()
            if changed > version and name not in ENTRY_IDS
        ]
        lists = []
        for name, order in self._orders.items():
            news = [
                f"{_json(key)}:{text}"
                for key, (text, changed) in self._entries[name].items()
                if changed > version
            ]
            if news or self._parts.get(name, ("", 0))[1] > version:
                entries = ",".join(news)
                lists.append(f'{_json(name)}:{{"order":{_json(order)},"entries":{{{entries}}}}}')
        return f'"parts":{{{",".join(parts)}}},"lists":{{{",".join(lists)}}}'


class LiveRun:
    """What a page is told of a run that is watched. Reads on when it is asked; safe for several threads."""

    def __init__(self, run: WatchedRun, *, clock: Callable[[], float] = time.time) -> None:
        self._run, self._clock = run, clock
        self._name = uuid.uuid4().hex
        self._lock = threading.Lock()
        self._next, self._more = 0.0, False
        self._pulse, self._history = Pulse(), RunHistory()
        self._standing = Standing(over=False)
        self._document = LiveDocument()

    def answer(self, known: str, version: int) -> bytes:
        """JSON for a reader that has `version` of what it knows as `known`: of another, it has nothing."""
        with self._lock:
            self._read_on_if_due()
            last = self._pulse.last
            facts = {
                "run": self._name,
                "version": self._document.version,
                "over": self._standing.over,
                "trouble": self._standing.text,
                "age": max(0.0, self._clock() - last) if last else None,
            }
            changes = self._document.since(version if known == self._name else 0)
        return f"{_json(facts)[:-1]},{changes}}}".encode()

    def trace(self, name: str) -> Read | None:
        """How a trace is read that the run has told of; None for any other name."""
        with self._lock:
            self._read_on_if_due()
            told = any(event.path == name for event in self._history.profiles)
        return self._run.reader(name) if told and NAME.fullmatch(name) else None

    def _read_on_if_due(self) -> None:
        began = time.monotonic()
        if began >= self._next:
            self._read_on()
            spent = time.monotonic() - began
            rest = 0.0 if self._more else max(LEAST_SECONDS, SHARE * spent)
            self._next = began + spent + rest

    def _read_on(self) -> None:
        try:
            self._take_news()
        except RljobError as error:
            self._standing = Standing(over=True, text=str(error))
        except Exception as error:  # a page never ends a run
            self._standing = Standing(over=False, text=f"this run cannot be shown: {error!r}")

    def _take_news(self) -> None:
        changed, began = not self._document.version, time.monotonic()
        self._more = True
        while self._more:
            news = self._run.news()
            self._pulse.add(news)
            if news.afresh:
                self._history = RunHistory()
            self._history.take(news.events)
            changed = changed or news.afresh or bool(news.events)
            self._more = news.more
            if time.monotonic() - began > MOST_SECONDS:
                break
        self._standing = self._run.standing(self._pulse, self._clock())
        if self._more:
            self._standing = Standing(over=False, text="its earlier steps are still being read")
        if changed:
            self._document.take(document(self._history, self._run.spec()))


def _json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
