"""Recording of a device's states in the steps that a job names. Called by the device worker.

A profiler that fails never ends a run: the trace then says what went wrong.
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
"""Of a trace before it is packed; a larger one is not kept."""
TOP_OPERATORS = 10
PACKED = 6
"""gzip's level: about a tenth of the bytes."""
TOO_LARGE = (
    "is larger than {} MiB and was not kept; record a job of fewer samples or shorter responses"
)


@dataclass(slots=True)
class Recorder:
    """Of the device `rank`. opened: a profiler of the device, which has not started."""

    profile: Profile | None
    rank: int
    opened: Callable[[], Profiler]
    most_bytes: int = MOST_TRACE_BYTES
    _traces: list[Trace] = field(default_factory=list)

    def recording(self, state: str, step: int) -> AbstractContextManager[None]:
        """Records the body where the job asks for it, and otherwise does nothing."""
        profile = self.profile
        if profile is None or step not in profile.steps or self.rank not in profile.ranks:
            return nullcontext()
        return self._recording(state, step)

    def take(self) -> list[Trace]:
        """What was recorded since the last call."""
        taken, self._traces = self._traces, []
        return taken

    @contextmanager
    def _recording(self, state: str, step: int) -> Iterator[None]:
        before = sum((trace.state, trace.step) == (state, step) for trace in self._traces)
        trace = Trace(state=state, step=step, rank=self.rank, part=before + 1)
        profiler: Profiler | None = None
        try:
            profiler = self.opened()
            profiler.start()
        except Exception as error:
            profiler, trace = None, replace(trace, problem=_said("did not start", error))
        started = time.perf_counter()
        try:
            yield
        finally:
            trace = replace(trace, seconds=time.perf_counter() - started)
            self._traces.append(self._finished(profiler, trace) if profiler else trace)

    def _finished(self, profiler: Profiler, trace: Trace) -> Trace:
        try:
            profiler.stop()
            content = self._exported(profiler)
            if len(content) > self.most_bytes:
                return replace(trace, problem=TOO_LARGE.format(self.most_bytes // 2**20))
            top = top_operators(content, most=TOP_OPERATORS)
            return replace(trace, content=gzip.compress(content, PACKED), operators=top)
        except Exception as error:
            return replace(trace, problem=_said("could not be written", error))

    def _exported(self, profiler: Profiler) -> bytes:
        """The trace; a byte more than may be kept of one that is too large."""
        with OwnedFolder("profile") as folder:
            file = folder.path / "trace.json"
            profiler.export_chrome_trace(str(file))
            with file.open("rb") as trace:
                return trace.read(self.most_bytes + 1)


def _said(what: str, error: Exception) -> str:
    log.warning("the profiler %s", what, exc_info=error)
    return f"{what}: {type(error).__name__}: {error}"
