"""One version of the weights on its way to devices that go on generating: sent, then switched to.

Called by `loop` when `run_ahead` says so, and looked at whenever something ends. Never waits but in
`finish`.
"""

from dataclasses import dataclass, field

from rljob_runtime.processes.calls import ended_of, results
from rljob_runtime.processes.clock import monotonic
from rljob_runtime.processes.workers import Call
from rljob_runtime.run.run_ahead import RunAhead
from rljob_runtime.run.stages import Stages


@dataclass(slots=True, kw_only=True)
class Delivery:
    """calls: of this version so far. pending: those that have not ended. since: when they began."""

    stages: Stages
    run_ahead: RunAhead
    calls: list[Call] = field(default_factory=list)
    pending: list[Call] = field(default_factory=list)
    since: float = 0.0

    def begin(self, version: int) -> None:
        """Send it."""
        assert not self.pending, "one version at a time"
        self.calls = []
        self._wait_for(self.stages.send(version))

    def look(self) -> None:
        """Let the devices switch once all of them have the version, and see whether they did.

        Raises what a device raised, and WorkerError at the deadline.
        """
        if not self.pending:
            return
        done, self.pending = ended_of(self.pending)
        results(done)  # a failure of one shows at once
        if self.pending:
            self._look_at_deadline()
        elif (version := self.run_ahead.sending) is not None:
            self.run_ahead.sent()
            self._wait_for(self.stages.switch(version))
        elif (version := self.run_ahead.switching) is not None:
            self.stages.switched(version, results(self.calls))
            self.run_ahead.switched()

    def finish(self) -> None:
        """Wait until nothing is on its way."""
        while self.pending:
            ended_of(self.pending, seconds=0.1)
            self.look()

    def _wait_for(self, calls: list[Call]) -> None:
        self.calls += calls
        self.pending, self.since = calls, monotonic()

    def _look_at_deadline(self) -> None:
        limit = self.stages.job.spec.flow.stage_timeout_seconds
        if monotonic() - self.since > limit:
            raise self.stages.late("sync", len(self.pending), len(self.calls))
