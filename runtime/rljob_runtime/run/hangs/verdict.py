"""Determine which processes are missing in a run that makes no progress, and which wait for which. Pure.

A process is missing if it does not answer, or if it is busy while others wait and does not wait itself.
Collectives are compared by their numbers: the rank that has entered fewer of a group's is awaited.
"""

import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from rljob_runtime.record.event_types import Missing
from rljob_runtime.run.hangs.switchboard import KnownProcess

NAMED = 3
"""Most processes that a run's error names; the summary names all."""
DOCK_SERVERS = ("warehouse-", "controller-")
MESSAGES = ("send", "receive")
"""Operations between two ranks, of which each does a different one."""

Dock = Mapping[str, Mapping[str, Any]]
"""Answers of the dock's servers, by role; `error` in place of the answer of one that gave none."""


@dataclass(slots=True, kw_only=True)
class HangVerdict:
    """The result of an investigation. missing: the awaited processes first. waiting: a line for each wait.
    idle: processes that have nothing to do."""

    missing: list[Missing] = field(default_factory=list)
    waiting: list[str] = field(default_factory=list)
    idle: list[str] = field(default_factory=list)

    @property
    def reason(self) -> str:
        """The missing processes for the run's error, at most NAMED of them."""
        named = [f"{process.process} {process.why}" for process in self.missing[:NAMED]]
        if len(self.missing) > NAMED:
            named.append(f"and {len(self.missing) - NAMED} more")
        if named:
            return "missing: " + "; ".join(named)
        return "all processes answer and wait for each other" if self.waiting else "nobody is busy"


def judge(
    processes: Mapping[str, KnownProcess],
    expected: Collection[str],
    dock: Dock,
    *,
    time_s: float,
    states: Mapping[str, str] | None = None,
) -> HangVerdict:
    """Return the verdict on a run's processes. time_s: Unix seconds. states: the system's states of processes
    that do not answer."""
    verdict, awaited = HangVerdict(), set[str]()
    missing = dict(_silent_processes(processes, expected, time_s, states or {}))
    waits = _WaitGraph(processes, dock)
    busy: dict[str, str] = {}
    for name, process in sorted(processes.items()):
        if process.gone_s is not None or process.report is None:
            continue
        wait_lines = [*waits.in_collectives(name), *waits.in_dock(name)]
        for line, others in wait_lines:
            verdict.waiting.append(f"{name}: {line}")
            awaited |= others
        if wait_lines or name.startswith(DOCK_SERVERS) or not process.report.get("stands"):
            if not wait_lines:
                verdict.idle.append(name)
        else:
            busy[name] = f"is in {process.report['stands']}"
    missing |= busy
    order = sorted(missing, key=lambda name: (name not in awaited, name in busy, name))
    verdict.missing = [Missing(process=name, why=missing[name]) for name in order]
    return verdict


def _silent_processes(
    processes: Mapping[str, KnownProcess],
    expected: Collection[str],
    time_s: float,
    states: Mapping[str, str],
) -> Iterator[tuple[str, str]]:
    """Yield the processes that do not answer, and since when."""
    for name in sorted({*expected, *processes}):
        process = processes.get(name)
        if process is None:
            yield name, "has not started, or did not come to the driver"
        elif process.gone_s is not None:
            if name in expected:
                yield (
                    name,
                    f"is gone since {_clock(process.gone_s)} ({time_s - process.gone_s:.0f} s)",
                )
        elif process.report is None:
            state = f", {states[name]}" if name in states else ""
            silent = (
                f"silent since {_clock(process.last_message_s)} "
                f"({time_s - process.last_message_s:.0f} s)"
            )
            yield name, f"does not answer{state}, {silent}"


class _WaitGraph:
    """The waits of the processes that answered, in collectives and for rows of the dock."""

    def __init__(self, processes: Mapping[str, KnownProcess], dock: Dock) -> None:
        self._reports = {
            name: process.report
            for name, process in processes.items()
            if process.report and process.gone_s is None
        }
        self._dock = dock
        self._groups = {
            name: {group["key"]: group for group in report.get("collectives", [])}
            for name, report in self._reports.items()
        }

    def in_collectives(self, name: str) -> Iterator[tuple[str, set[str]]]:
        """Yield a line for each collective that the process waits in, and the members that have not entered
        it."""
        for group in self._groups[name].values():
            for note in group["waits"]:
                late = self._late(name, group, note)
                late_texts = [f"{other} has not come ({why})" for other, why in late.items()]
                parted_texts = self._parted(name, group, note)
                text = f"waits {note['seconds']:.1f} s in {collective_text(group, note)}"
                yield "; ".join([text, *late_texts, *parted_texts]), set(late)

    def in_dock(self, name: str) -> Iterator[tuple[str, set[str]]]:
        """Yield a line for each claim of the process that waits, and the processes that have leased rows it
        waits for."""
        for facts in self._dock.values():
            for claim in facts.get("waiting", []) if "state" in facts else []:
                if claim["owner"] != name:
                    continue
                holders = self._holders(claim["awaits"], claim["batch"]) - {name}
                leased_by = f", held by {', '.join(sorted(holders))}" if holders else ""
                yield (
                    f"waits {claim['waited_seconds']:.1f} s for rows of {claim['batch']} for state "
                    f"{facts['state']}, which {claim['awaits']} has to pass{leased_by}",
                    holders,
                )

    def _late(self, name: str, group: Mapping[str, Any], note: Mapping[str, Any]) -> dict[str, str]:
        """Return the members that have entered fewer collectives of the group, with their last one."""
        late_members = {}
        for other in self._awaited(name, group, note):
            group_of_other = self._groups.get(other, {}).get(group["key"])
            last = group_of_other["last"] if group_of_other else None
            if note["awaited"] or last is None or last["number"] < note["number"]:
                late_members[other] = (
                    _last_text(last) if other in self._reports else "it does not answer"
                )
        return late_members

    def _awaited(
        self, name: str, group: Mapping[str, Any], note: Mapping[str, Any]
    ) -> Sequence[str]:
        """Return the names of the other members. The members of a group that is not torch's are those that
        reported it."""
        ranks = note["awaited"] or group["ranks"]
        if not ranks:
            return [n for n, groups in self._groups.items() if group["key"] in groups and n != name]
        world = self._reports[name].get("world")
        others = [f"device-{world[rank] if world else rank}" for rank in ranks]
        return [other for other in others if other != name]

    def _parted(
        self, name: str, group: Mapping[str, Any], note: Mapping[str, Any]
    ) -> Iterator[str]:
        """Yield members that are in another operation under the same number: they will never meet."""
        if note["awaited"] or note["what"] in MESSAGES:
            return
        for other in self._awaited(name, group, note):
            group_of_other = self._groups.get(other, {}).get(group["key"])
            for waiting in group_of_other["waits"] if group_of_other else []:
                differs = waiting["number"] == note["number"] and waiting["what"] != note["what"]
                if differs:
                    yield f"{other} is in {waiting['what']} under the same number: they have parted"

    def _holders(self, state: str, batch: str) -> set[str]:
        facts = self._dock.get(f"controller/{state}", {})
        return {lease["owner"] for lease in facts.get("leases", []) if batch in lease["rows"]}


def collective_text(group: Mapping[str, Any], note: Mapping[str, Any]) -> str:
    """Return the text of a collective: `all_reduce sum, number 12 of group 0, ranks 0,1 (float32 [1024], 4096
    bytes)`."""
    shape = f" ({note['dtype']} {note['shape']}, {note['bytes']} bytes)" if note["dtype"] else ""
    return f"{note['what']}, number {note['number']} of {group['key']}{shape}"


def _last_text(last: Mapping[str, Any] | None) -> str:
    if last is None:
        return "it has entered none there"
    state_texts = {"done": "ended", "failed": "failed", "waits": "waited for", "begun": "begun"}
    error = f": {last['error']}" if last["error"] else ""
    return (
        f"its last there is number {last['number']}, {last['what']}, {state_texts[last['state']]} "
        f"{last['seconds']:.1f} s ago{error}"
    )


def _clock(seconds: float) -> str:
    return time.strftime("%H:%M:%S UTC", time.gmtime(seconds))
