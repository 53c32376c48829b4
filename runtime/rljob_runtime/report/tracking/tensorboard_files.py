"""TensorBoard's event files, written by its own writer. Needs neither TensorFlow nor torch."""

from collections.abc import Mapping

from tensorboard.compat.proto.event_pb2 import Event, SessionLog
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.summary.writer.event_file_writer import EventFileWriter

from rljob_api.spec.tracking import TensorBoard
from rljob_runtime.report.tracking.tracker import TrackedRun

FOLDER = "tensorboard"


class TensorBoardFiles:
    """Writes one file per process. Repeated steps replace the earlier ones."""

    def __init__(self, section: TensorBoard, run: TrackedRun) -> None:
        self._writer = EventFileWriter(str(run.folder / FOLDER), flush_secs=section.flush_seconds)
        self._last = run.step
        self._begin_at(run.step + 1)

    def log(self, step: int, metrics: Mapping[str, float], time: float) -> None:
        """Write a scalar for each metric."""
        if step < self._last:
            self._begin_at(step)
        self._last = step
        values = [Summary.Value(tag=name, simple_value=value) for name, value in metrics.items()]
        self._writer.add_event(Event(wall_time=time, step=step, summary=Summary(value=values)))

    def close(self, status: str) -> None:
        """Flush and close the file."""
        self._writer.close()

    def _begin_at(self, step: int) -> None:
        """Let TensorBoard discard what it has read of this step and later ones."""
        self._writer.add_event(
            Event(step=step, session_log=SessionLog(status=SessionLog.SessionStatus.START))
        )
