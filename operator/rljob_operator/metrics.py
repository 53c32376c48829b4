"""The operator's Prometheus instruments, on a separate registry.

`queue`, `kube_client` and `ray_jobs` report through the small methods; `main` and `apply` use the instruments
directly; `health` serves the registry.
"""

from collections.abc import Callable, Mapping
from typing import Literal

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    GCCollector,
    Histogram,
    PlatformCollector,
    ProcessCollector,
)

# Reconciling takes milliseconds, an API call up to its timeout, a gang's start up to hours.
PASS_BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)
CALL_BUCKETS = (0.002, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)
START_BUCKETS = (5, 10, 20, 30, 60, 120, 300, 600, 1800, 3600, 7200)

HANGS = ("Hung", "NoProgress")
"""Reasons with an alert. Their series start at 0, since `increase` misses a series that starts at 1."""

PassResult = Literal["ok", "retry", "error"]


class Metrics:
    """All instruments of one operator; two operators count separately."""

    def __init__(self, *, version: str) -> None:
        registry = self.registry = CollectorRegistry()
        ProcessCollector(registry=registry)
        PlatformCollector(registry=registry)
        GCCollector(registry=registry)
        self.reconciles = Counter(
            "rljob_reconcile_total", "Passes over a job.", ["result"], registry=registry
        )
        self.reconcile_seconds = Histogram(
            "rljob_reconcile_duration_seconds",
            "Duration of a pass over a job.",
            buckets=PASS_BUCKETS,
            registry=registry,
        )
        self.queue_adds = Counter(
            "workqueue_adds_total", "Jobs put into the queue.", registry=registry
        )
        self.queue_retries = Counter(
            "workqueue_retries_total", "Passes that failed and are tried again.", registry=registry
        )
        self.queue_depth = Gauge("workqueue_depth", "Jobs that wait for a pass.", registry=registry)
        self.queue_longest = Gauge(
            "workqueue_longest_running_seconds",
            "Age of the longest pass under way.",
            registry=registry,
        )
        self.states = Gauge("rljob_state", "Jobs in a state.", ["state"], registry=registry)
        self.time_to_running = Histogram(
            "rljob_time_to_running_seconds",
            "From a job's creation to its first training process.",
            buckets=START_BUCKETS,
            registry=registry,
        )
        self.restarts = Counter(
            "rljob_restarts_total", "Attempts that failed and began anew.", ["reason"],
            registry=registry,
        )  # fmt: skip
        self.failures = Counter(
            "rljob_failures_total", "Attempts and jobs that failed.", ["reason"], registry=registry
        )
        for reason in HANGS:
            self.failures.labels(reason)
        self.chip_faults = Counter(
            "rljob_chip_faults_total", "Chips of jobs' pods that began to warn or stop.", ["level"],
            registry=registry,
        )  # fmt: skip
        self.faulty_chips = Gauge(
            "rljob_faulty_chips", "Chips that are reported to warn or stop.", ["level"],
            registry=registry,
        )  # fmt: skip
        self.ray_seconds = Histogram(
            "ray_api_request_duration_seconds",
            "Duration of a request to Ray's Jobs API.",
            ["verb", "code"],
            buckets=CALL_BUCKETS,
            registry=registry,
        )
        self.kube_seconds = Histogram(
            "k8s_api_request_duration_seconds",
            "Duration of a call to the Kubernetes API.",
            ["verb", "code"],
            buckets=CALL_BUCKETS,
            registry=registry,
        )
        self.leader = Gauge("rljob_leader", "1 while this replica leads.", registry=registry)
        build = Gauge("build_info", "Always 1.", ["version"], registry=registry)
        build.labels(version).set(1)

    def pass_done(self, result: PassResult, seconds: float) -> None:
        """Count one pass over a job."""
        self.reconciles.labels(result).inc()
        self.reconcile_seconds.observe(seconds)
        if result != "ok":
            self.queue_retries.inc()

    def key_added(self) -> None:
        """Count a job that was put into the queue."""
        self.queue_adds.inc()

    def kube_call(self, verb: str, code: str, seconds: float) -> None:
        """Count one call to the Kubernetes API."""
        self.kube_seconds.labels(verb, code).observe(seconds)

    def ray_call(self, verb: str, code: str, seconds: float) -> None:
        """Count one request to Ray's Jobs API."""
        self.ray_seconds.labels(verb, code).observe(seconds)

    def read_queue(self, depth: Callable[[], float], longest: Callable[[], float]) -> None:
        """Read the queue's depth and its longest pass (seconds) at each scrape."""
        self.queue_depth.set_function(depth)
        self.queue_longest.set_function(longest)

    def set_faulty_chips(self, counts: Mapping[str, int]) -> None:
        """Replace the number of chips at each level; levels that are not named have none."""
        self.faulty_chips.clear()
        for level, count in counts.items():
            self.faulty_chips.labels(level).set(count)

    def set_states(self, counts: Mapping[str, int]) -> None:
        """Replace the number of jobs in each state; states that are not named have none."""
        self.states.clear()
        for state, count in counts.items():
            self.states.labels(state).set(count)
