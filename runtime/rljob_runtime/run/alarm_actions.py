"""What follows the alarms of a run's guards: told, and the run goes on, ends, or goes back to a checkpoint.

`AlarmActions` is asked by the driver after each step; `loop` carries a `RollBack` out. What is an alarm is
decided by `alarm_watch`.
"""

import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rljob_runtime.errors import GuardStop
from rljob_runtime.record.checkpoint import CheckpointStore
from rljob_runtime.record.event_types import AlarmEvent
from rljob_runtime.record.events import EventLog
from rljob_runtime.run.alarm_watch import Alarm, AlarmWatch

logger = logging.getLogger(__name__)

BAD_BATCHES = "bad-batches"
"""Folder in the run's, of files with the rows of steps that were not finite."""
MOST_ROWS, MOST_FILES = 256, 8
"""Of a file, and of the folder, the last ones."""


class RollBack(Exception):
    """The run goes on from the checkpoint of an earlier step."""

    def __init__(self, step: int, checkpoint: Path) -> None:
        super().__init__(f"back to step {step}")
        self.step, self.checkpoint = step, checkpoint


@dataclass(slots=True, kw_only=True)
class AlarmActions:
    """The guards of one run. rollbacks: so far; skipped: training steps that they left behind, whose prompts
    are not asked again."""

    watch: AlarmWatch
    log: EventLog
    store: CheckpointStore
    rollbacks: int = 0
    skipped: int = 0

    def look(
        self, step: int, metrics: Mapping[str, float], bad_rows: Sequence[Mapping[str, Any]] = ()
    ) -> None:
        """Tell of a step's alarms. Raises GuardStop, RollBack; checkpoints that are newer than where it goes
        are gone then. bad_rows: of a step that was not finite; the alarm names the file that has them."""
        raised, cleared = self.watch.look(step, metrics)
        if bad_rows:
            raised = [self._with_rows(alarm, bad_rows) for alarm in raised]
        for alarm in cleared:
            self._tell(alarm, "cleared", step)
        stops = [alarm for alarm in raised if alarm.policy == "stop"]
        back = [alarm for alarm in raised if alarm.policy == "rollback"]
        target = self._target(back) if back and not stops else None
        if target is not None:
            self.store.drop_after(target)  # before it is told: a run that dies here resumes there
        for alarm in raised:
            self._tell(alarm, "raised", step, target if alarm in back else None)
        if target is not None:
            self.rollbacks += 1
            self.skipped += step - target
            raise RollBack(target, self.store.path(target))
        if stops or back:
            raise GuardStop(self._why(stops or back))

    def _with_rows(self, alarm: Alarm, bad_rows: Sequence[Mapping[str, Any]]) -> Alarm:
        """The alarm, naming a file with the step's rows where it is that of `nonFinite`. A disk that is full
        does not stop the run."""
        if alarm.name != "nonFinite":
            return alarm
        skipped = f"+{self.skipped}" if self.skipped else ""
        file = self.log.path.parent / BAD_BATCHES / f"step-{alarm.step:06d}{skipped}.json"
        rows = sorted(bad_rows, key=lambda row: -len(row["not_finite"]))[:MOST_ROWS]
        content = {"step": alarm.step, "message": alarm.message, "rows": rows}
        try:
            file.parent.mkdir(exist_ok=True)
            file.write_text(json.dumps(content) + "\n")
            for old in sorted(file.parent.iterdir(), key=lambda f: f.stat().st_mtime)[:-MOST_FILES]:
                old.unlink()
        except OSError as error:
            logger.warning("step=%d the rows of its batch were not written: %s", alarm.step, error)
            return alarm
        return replace(alarm, message=f"{alarm.message}; its batch: {file}")

    def _target(self, alarms: Sequence[Alarm]) -> int | None:
        """The last checkpoint before what raised them; None where there is none, or it was often enough."""
        if self.rollbacks >= self.watch.guards.max_rollbacks:
            return None
        return self.store.last_step(before=min(alarm.since for alarm in alarms))

    def _why(self, alarms: Sequence[Alarm]) -> str:
        said = "; ".join(f"{alarm.name}: {alarm.message}" for alarm in alarms)
        where = f"alarm at step {alarms[0].step}: {said}"
        if alarms[0].policy == "stop":
            return where
        if self.rollbacks >= self.watch.guards.max_rollbacks:
            return (
                f"{where}; the run was rolled back {self.rollbacks} times already, which is all that "
                "spec.guards.maxRollbacks allows"
            )
        first = min(alarm.since for alarm in alarms)
        return (
            f"{where}; there is no checkpoint from before step {first} to roll back to: lower "
            "spec.checkpoint.every"
        )

    def _tell(self, alarm: Alarm, state: str, step: int, target: int | None = None) -> None:
        self.log.write(
            AlarmEvent(
                step=step,
                alarm=alarm.name,
                state=state,
                policy=alarm.policy,
                message=alarm.message,
                value=alarm.value,
                since=alarm.since,
                rolled_back_to=target,
            )
        )
