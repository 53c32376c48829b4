"""Read MindCluster's reports of faults repeatedly, and requeue the jobs that they concern.

Started by `main` if the settings name the reports' namespace. It lists instead of watching: kopf watches the
jobs' namespaces for all kinds, and this is another namespace.
"""

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import replace
from itertools import groupby
from typing import Never, Protocol

from rljob_operator.errors import MalformedReport, Temporary
from rljob_operator.kube.kube_answers import Manifest
from rljob_operator.watch.cache import Cache
from rljob_operator.watch.fault_reports import ORDER, ChipFault, is_report, read_report
from rljob_operator.watch.informers import JobQueue
from rljob_operator.watch.resync import Lister

logger = logging.getLogger(__name__)

READ_SECONDS = 5.0


class FaultMetrics(Protocol):
    """The methods of `Metrics` for chips."""

    def set_faulty_chips(self, counts: Counter[str]) -> None:
        """Replace the number of chips at each level; levels without a count have none."""
        ...


class ChipFaults:
    """The faults of all chips as last read. wall: unix seconds."""

    def __init__(self, wall: Callable[[], float] = time.time) -> None:
        self._wall = wall
        self._reports: dict[str, list[ChipFault]] = {}
        self._problems: dict[str, str] = {}
        self._first: dict[ChipFault, float] = {}
        self._by_node: dict[str, tuple[ChipFault, ...]] = {}

    def on(self, nodes: Iterable[str]) -> tuple[ChipFault, ...]:
        """Return the faults on these nodes, each with the time when it started."""
        return tuple(fault for node in sorted(nodes) for fault in self._by_node.get(node, ()))

    def nodes(self) -> tuple[str, ...]:
        """Return the nodes with a chip that warns or stops."""
        return tuple(sorted(self._by_node))

    def levels(self) -> Counter[str]:
        """Count the chips at each level."""
        return Counter(fault.level for faults in self._by_node.values() for fault in faults)

    def take(self, manifests: Iterable[Manifest]) -> set[str]:
        """Store all ConfigMaps of the namespace, and return the nodes with changes. A report that cannot be
        read is logged once and leaves the previous one."""
        reports = {m["metadata"]["name"]: m for m in manifests if is_report(m["metadata"]["name"])}
        self._reports = {name: self._read(name, report) for name, report in reports.items()}
        self._problems = {
            name: problem for name, problem in self._problems.items() if name in reports
        }
        all_faults = {fault for faults in self._reports.values() for fault in faults}
        unix_time = self._wall()
        self._first = {fault: self._first.get(fault, unix_time) for fault in all_faults}
        by_node: dict[str, tuple[ChipFault, ...]] = {}
        for _, faults in groupby(
            sorted(all_faults, key=_order), key=lambda fault: (fault.node, fault.chip)
        ):
            worst = next(faults)
            dated = replace(worst, since=worst.since or self._first[worst])
            by_node[worst.node] = (*by_node.get(worst.node, ()), dated)
        before, self._by_node = self._by_node, by_node
        both = before.keys() | by_node.keys()
        return {node for node in both if before.get(node) != by_node.get(node)}

    def _read(self, name: str, report: Manifest) -> list[ChipFault]:
        try:
            faults = read_report(name, report.get("data") or {})
        except MalformedReport as error:
            if self._problems.get(name) != str(error):
                where = f"{report['metadata'].get('namespace', '')}/{name}"
                logger.error("report of chips ignored configmap=%s: %s", where, error)
            self._problems[name] = str(error)
            return self._reports.get(name, [])
        self._problems.pop(name, None)
        return faults


def _order(fault: ChipFault) -> tuple[str, str, int, str]:
    """Return the sort key that puts the worst of each chip first: NodeD's report of a node and ClusterD's
    copy may differ."""
    return fault.node, fault.chip, -ORDER.index(fault.severity), fault.level


async def keep_reading(
    kube: Lister,
    *,
    namespace: str,
    faults: ChipFaults,
    cache: Cache,
    queue: JobQueue,
    metrics: FaultMetrics,
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
) -> Never:
    """Read the namespace's reports now and every READ_SECONDS. Raises errors that a retry cannot fix, such as
    a missing role."""
    while True:
        pause = READ_SECONDS
        try:
            changed_nodes = faults.take(await kube.list("v1", "ConfigMap", namespace))
            metrics.set_faulty_chips(faults.levels())
            for job in sorted(cache.jobs_on(changed_nodes)):
                queue.add(job)
        except Temporary as error:
            pause = max(READ_SECONDS, error.retry_after)
            logger.warning("reports of chips not read, again in %.0f s: %s", pause, error)
        await sleep(pause)
