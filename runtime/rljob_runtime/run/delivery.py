"""One version of the weights that is sent to devices while they generate, and that they then switch to.

`loop` starts a delivery when `run_ahead` returns that action, and polls it whenever a call ends. Only
`finish` waits.
"""

from dataclasses import dataclass, field

from rljob_runtime.processes.calls import ended_of, results
from rljob_runtime.processes.clock import monotonic
from rljob_runtime.processes.workers import Call
from rljob_runtime.run.run_ahead import RunAhead
from rljob_runtime.run.stages import Stages


@dataclass(slots=True, kw_only=True)
class Delivery:
    """A delivery of one version of the weights. calls: all calls of this version so far. pending: those that
    have not ended. since: when they started, in monotonic seconds."""

    stages: Stages
    run_ahead: RunAhead
    calls: list[Call] = field(default_factory=list)
    pending: list[Call] = field(default_factory=list)
    since: float = 0.0

    def start(self, version: int) -> None:
        """Start to send this version to the rollout devices."""
        assert not self.pending, "one version at a time"
        self.calls = []
        self._wait_for(self.stages.send(version))

    def poll(self) -> None:
        """Let the devices switch once all of them have the version, and check whether they did.

        Raises what a device raised, and DeadlineError at the deadline.
        """
        if not self.pending:
            return
        done, self.pending = ended_of(self.pending)
        results(done)  # raises as soon as one call has failed
        if self.pending:
            self._check_deadline()
        elif (version := self.run_ahead.sending) is not None:
            self.run_ahead.weights_sent()
            self._wait_for(self.stages.switch(version))
        elif (version := self.run_ahead.switching) is not None:
            self.stages.switched(version, results(self.calls))
            self.run_ahead.weights_switched()

    def finish(self) -> None:
        """Wait until no call of the delivery is pending."""
        while self.pending:
            ended_of(self.pending, seconds=0.1)
            self.poll()

    def _wait_for(self, calls: list[Call]) -> None:
        self.calls += calls
        self.pending, self.since = calls, monotonic()

    def _check_deadline(self) -> None:
        limit = self.stages.job.spec.flow.stage_timeout_seconds
        if monotonic() - self.since > limit:
            raise self.stages.timeout_error("sync", len(self.pending), len(self.calls))
