"""Limit the number of concurrent passes: fewer while the Kubernetes API answers slowly.

`kube_client` reports the duration of calls, as it does to the metrics; `queue` reads the limit. Waiting keys
of the queue are ordered by importance, requests that wait for the server are not.
"""

from rljob_operator.kube.kube_client import KubeMetrics

QUICK_SECONDS = 0.025
"""A call that takes no longer does not indicate load."""
SHARE = 0.1
"""Weight of the newest call in the mean."""
LEAST = 2


class Pace:
    """Sits between the client and `metrics`. most: passes while calls are quick. The limit is half of it if a
    call takes twice `QUICK_SECONDS` in the mean, and so on, down to `LEAST`."""

    def __init__(self, most: int, metrics: KubeMetrics) -> None:
        self._most, self._metrics = most, metrics
        self._mean = 0.0

    def kube_call(self, verb: str, code: str, seconds: float) -> None:
        """Count one call. Lists are ignored, since their duration depends on their length."""
        self._metrics.kube_call(verb, code, seconds)
        if verb != "list":
            self._mean += SHARE * (seconds - self._mean)

    def pass_limit(self) -> int:
        """Return the number of passes that may currently run."""
        limit = self._most * QUICK_SECONDS / max(self._mean, QUICK_SECONDS)
        return max(min(LEAST, self._most), round(limit))
