"""How many passes may be under way: fewer while the Kubernetes API answers slowly.

`kube_client` tells it how long calls take, as it tells the metrics; `queue` asks it. What waits in the
queue goes in the order of what it is about; what waits for the server does not.
"""

from rljob_operator.kube.kube_client import KubeMetrics

QUICK_SECONDS = 0.025
"""A call that takes no longer is no sign of load."""
SHARE = 0.1
"""Of the newest call in the mean."""
LEAST = 2


class Pace:
    """Between the client and `metrics`. most: passes while calls are quick; half of them where a call takes
    twice `QUICK_SECONDS` in the mean, and so on, down to `LEAST`."""

    def __init__(self, most: int, metrics: KubeMetrics) -> None:
        self._most, self._metrics = most, metrics
        self._mean = 0.0

    def kube_call(self, verb: str, code: str, seconds: float) -> None:
        """Count one call; a list takes long for its length."""
        self._metrics.kube_call(verb, code, seconds)
        if verb != "list":
            self._mean += SHARE * (seconds - self._mean)

    def at_once(self) -> int:
        """Passes that may be under way now."""
        wanted = self._most * QUICK_SECONDS / max(self._mean, QUICK_SECONDS)
        return max(min(LEAST, self._most), round(wanted))
