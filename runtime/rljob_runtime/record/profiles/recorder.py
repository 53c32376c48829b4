"""Records a device's states in the steps that a job selects. Called by the device worker.

A failing profiler never ends a run; the trace then contains the error.
"""

import gzip
import logging
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field, replace

from rljob_api.spec.profile import Profile
from rljob_runtime.children.owned_folders import OwnedFolder
from rljob_runtime.devices.backend import Profiler
from rljob_runtime.record.profiles.traces import Trace, top_operators

log = logging.getLogger(__name__)

MOST_TRACE_BYTES = 256 * 2**20
"""Largest size of an uncompressed trace; larger ones are discarded."""
TOP_OPERATORS = 10
PACKED = 6
"""Compression level of gzip, which leaves about a tenth of the bytes."""
TOO_LARGE = (
    "is larger than {} MiB and was not kept; record a job of fewer samples or shorter responses"
)


@dataclass(slots=True)
class Recorder:
    """Records the states of the device `rank`. opened: creates a profiler that has not started."""

    profile: Profile | None
    rank: int
    opened: Callable[[], Profiler]
    most_bytes: int = MOST_TRACE_BYTES
    _traces: list[Trace] = field(default_factory=list)

    def recording(self, state: str, step: int) -> AbstractContextManager[None]:
        """Record the block if the job selects this state and step; otherwise do nothing."""
        profile = self.profile
        if profile is None or step not in profile.steps or self.rank not in profile.ranks:
            return nullcontext()
        return self._recording(state, step)

    def take(self) -> list[Trace]:
        """Return the traces recorded since the last call."""
        traces, self._traces = self._traces, []
        return traces

    @contextmanager
    def _recording(self, state: str, step: int) -> Iterator[None]:
        earlier_runs = sum((trace.state, trace.step) == (state, step) for trace in self._traces)
        trace = Trace(state=state, step=step, rank=self.rank, occurrence=earlier_runs + 1)
        profiler: Profiler | None = None
        try:
            profiler = self.opened()
            profiler.start()
        except Exception as error:
            profiler, trace = None, replace(trace, problem=_problem_text("did not start", error))
        started = time.perf_counter()
        try:
            yield
        finally:
            trace = replace(trace, seconds=time.perf_counter() - started)
            self._traces.append(self._finish(profiler, trace) if profiler else trace)

    def _finish(self, profiler: Profiler, trace: Trace) -> Trace:
        try:
            profiler.stop()
            content = self._export(profiler)
            if len(content) > self.most_bytes:
                return replace(trace, problem=TOO_LARGE.format(self.most_bytes // 2**20))
            top = top_operators(content, most=TOP_OPERATORS)
            return replace(trace, content=gzip.compress(content, PACKED), operators=top)
        except Exception as error:
            return replace(trace, problem=_problem_text("could not be written", error))

    def _export(self, profiler: Profiler) -> bytes:
        """Read the trace, up to one byte more than the limit."""
        with OwnedFolder("profile") as folder:
            file = folder.path / "trace.json"
            profiler.export_chrome_trace(str(file))
            with file.open("rb") as trace:
                return trace.read(self.most_bytes + 1)


def _problem_text(description: str, error: Exception) -> str:
    log.warning("the profiler %s", description, exc_info=error)
    return f"{description}: {type(error).__name__}: {error}"
