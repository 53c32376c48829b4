"""Who is missing in a run that does not go on, and who waits for whom. Pure.

A process is missing when it does not answer, or does something while others wait and itself waits for
nobody. Collectives are compared by their numbers: the rank that has entered fewer of a group's is awaited.
"""

import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from rljob_runtime.record.event_types import Missing
from rljob_runtime.run.hangs.switchboard import Heard

NAMED = 3
"""Processes that a run's error names; the summary names all."""
DOCK_SERVERS = ("warehouse-", "controller-")
MESSAGES = ("send", "receive")
"""Between two ranks, each of which does its own."""

Dock = Mapping[str, Mapping[str, Any]]
"""What each of the dock's servers told, by role; `error` in place of it where it did not."""


@dataclass(slots=True, kw_only=True)
class Verdict:
    """missing: the awaited first. waiting: a line for each wait. idle: who has nothing to do."""

    missing: list[Missing] = field(default_factory=list)
    waiting: list[str] = field(default_factory=list)
    idle: list[str] = field(default_factory=list)

    @property
    def reason(self) -> str:
        """For the run's error: at most NAMED of those who are missing."""
        named = [f"{one.process} {one.why}" for one in self.missing[:NAMED]]
        if len(self.missing) > NAMED:
            named.append(f"and {len(self.missing) - NAMED} more")
        if named:
            return "missing: " + "; ".join(named)
        return "all processes answer and wait for each other" if self.waiting else "nobody is busy"


def judge(
    heard: Mapping[str, Heard],
    expected: Collection[str],
    dock: Dock,
    *,
    now: float,
    states: Mapping[str, str] | None = None,
) -> Verdict:
    """now: unix seconds. states: what the system says of processes that do not answer."""
    verdict, awaited = Verdict(), set[str]()
    missing = dict(_silent(heard, expected, now, states or {}))
    waits = _Waits(heard, dock)
    busy: dict[str, str] = {}
    for name, one in sorted(heard.items()):
        if one.gone is not None or one.report is None:
            continue
        found = [*waits.in_collectives(name), *waits.in_dock(name)]
        for line, others in found:
            verdict.waiting.append(f"{name}: {line}")
            awaited |= others
        if found or name.startswith(DOCK_SERVERS) or not one.report.get("stands"):
            if not found:
                verdict.idle.append(name)
        else:
            busy[name] = f"is in {one.report['stands']}"
    missing |= busy
    order = sorted(missing, key=lambda name: (name not in awaited, name in busy, name))
    verdict.missing = [Missing(process=name, why=missing[name]) for name in order]
    return verdict


def _silent(
    heard: Mapping[str, Heard], expected: Collection[str], now: float, states: Mapping[str, str]
) -> Iterator[tuple[str, str]]:
    """Who does not answer, and since when."""
    for name in sorted({*expected, *heard}):
        one = heard.get(name)
        if one is None:
            yield name, "has not started, or did not come to the driver"
        elif one.gone is not None:
            if name in expected:
                yield name, f"is gone since {_clock(one.gone)} ({now - one.gone:.0f} s)"
        elif one.report is None:
            state = f", {states[name]}" if name in states else ""
            silent = f"silent since {_clock(one.heard)} ({now - one.heard:.0f} s)"
            yield name, f"does not answer{state}, {silent}"


class _Waits:
    def __init__(self, heard: Mapping[str, Heard], dock: Dock) -> None:
        self._reports = {
            name: one.report for name, one in heard.items() if one.report and one.gone is None
        }
        self._dock = dock
        self._groups = {
            name: {group["key"]: group for group in report.get("collectives", [])}
            for name, report in self._reports.items()
        }

    def in_collectives(self, name: str) -> Iterator[tuple[str, set[str]]]:
        """A line for each collective that the process waits in, and who has not come to it."""
        for group in self._groups[name].values():
            for note in group["waits"]:
                late = self._late(name, group, note)
                told = [f"{other} has not come ({why})" for other, why in late.items()]
                others = self._parted(name, group, note)
                text = f"waits {note['seconds']:.1f} s in {collective_text(group, note)}"
                yield "; ".join([text, *told, *others]), set(late)

    def in_dock(self, name: str) -> Iterator[tuple[str, set[str]]]:
        """A line for each claim of the process that waits, and who holds rows of what it waits for."""
        for told in self._dock.values():
            for claim in told.get("waiting", []) if "state" in told else []:
                if claim["owner"] != name:
                    continue
                holders = self._holders(claim["awaits"], claim["batch"]) - {name}
                by = f", held by {', '.join(sorted(holders))}" if holders else ""
                yield (
                    f"waits {claim['waited_seconds']:.1f} s for rows of {claim['batch']} for state "
                    f"{told['state']}, which {claim['awaits']} has to pass{by}",
                    holders,
                )

    def _late(self, name: str, group: Mapping[str, Any], note: Mapping[str, Any]) -> dict[str, str]:
        """Members that have entered fewer collectives of the group, with their last one."""
        found = {}
        for other in self._awaited(name, group, note):
            theirs = self._groups.get(other, {}).get(group["key"])
            last = theirs["last"] if theirs else None
            if note["awaited"] or last is None or last["number"] < note["number"]:
                found[other] = _last_text(last) if other in self._reports else "it does not answer"
        return found

    def _awaited(
        self, name: str, group: Mapping[str, Any], note: Mapping[str, Any]
    ) -> Sequence[str]:
        """Names of the other members. A group that is not torch's is known by who told of it."""
        ranks = note["awaited"] or group["ranks"]
        if not ranks:
            return [n for n, groups in self._groups.items() if group["key"] in groups and n != name]
        world = self._reports[name].get("world")
        others = [f"device-{world[rank] if world else rank}" for rank in ranks]
        return [other for other in others if other != name]

    def _parted(
        self, name: str, group: Mapping[str, Any], note: Mapping[str, Any]
    ) -> Iterator[str]:
        """Members that do something else under the same number: they will never meet."""
        if note["awaited"] or note["what"] in MESSAGES:
            return
        for other in self._awaited(name, group, note):
            theirs = self._groups.get(other, {}).get(group["key"])
            for waiting in theirs["waits"] if theirs else []:
                differs = waiting["number"] == note["number"] and waiting["what"] != note["what"]
                if differs:
                    yield f"{other} is in {waiting['what']} under the same number: they have parted"

    def _holders(self, state: str, batch: str) -> set[str]:
        told = self._dock.get(f"controller/{state}", {})
        return {lease["owner"] for lease in told.get("leases", []) if batch in lease["rows"]}


def collective_text(group: Mapping[str, Any], note: Mapping[str, Any]) -> str:
    """`all_reduce sum number 12 of group 0, ranks 0,1 (float32 [1024], 4096 bytes)`."""
    shape = f" ({note['dtype']} {note['shape']}, {note['bytes']} bytes)" if note["dtype"] else ""
    return f"{note['what']}, number {note['number']} of {group['key']}{shape}"


def _last_text(last: Mapping[str, Any] | None) -> str:
    if last is None:
        return "it has entered none there"
    ended = {"done": "ended", "failed": "failed", "waits": "waited for", "begun": "begun"}
    error = f": {last['error']}" if last["error"] else ""
    return (
        f"its last there is number {last['number']}, {last['what']}, {ended[last['state']]} "
        f"{last['seconds']:.1f} s ago{error}"
    )


def _clock(seconds: float) -> str:
    return time.strftime("%H:%M:%S UTC", time.gmtime(seconds))
