"""Actions on the alarms of a run's guards: they are reported, and the run continues, ends, or goes back to a
checkpoint.

The driver calls `AlarmActions` after each step; `loop` carries a `RollBack` out. `alarm_watch` decides which
alarms there are.
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
"""Folder below the run's, with files of the rows of non-finite steps."""
MOST_ROWS, MOST_FILES = 256, 8
"""Limit of the rows in a file, and of the files in the folder, where the oldest are removed."""


class RollBack(Exception):
    """The run continues from the checkpoint of an earlier step."""

    def __init__(self, step: int, checkpoint: Path) -> None:
        super().__init__(f"back to step {step}")
        self.step, self.checkpoint = step, checkpoint


@dataclass(slots=True, kw_only=True)
class AlarmActions:
    """The guards of one run. rollbacks: number so far. skipped: number of training steps that rollbacks
    undid, whose prompts are not used again."""

    watch: AlarmWatch
    log: EventLog
    store: CheckpointStore
    rollbacks: int = 0
    skipped: int = 0

    def observe(
        self, step: int, metrics: Mapping[str, float], bad_rows: Sequence[Mapping[str, Any]] = ()
    ) -> None:
        """Report the alarms of a step. Raises GuardStop or RollBack; newer checkpoints than the target of a
        RollBack are removed before. bad_rows: those of a non-finite step; the alarm names the file that
        contains them."""
        raised, cleared = self.watch.observe(step, metrics)
        if bad_rows:
            raised = [self._with_rows(alarm, bad_rows) for alarm in raised]
        for alarm in cleared:
            self._report(alarm, "cleared", step)
        stops = [alarm for alarm in raised if alarm.policy == "stop"]
        rollbacks = [alarm for alarm in raised if alarm.policy == "rollback"]
        target = self._target(rollbacks) if rollbacks and not stops else None
        if target is not None:
            self.store.drop_after(target)  # before the report: a run that dies here resumes there
        for alarm in raised:
            self._report(alarm, "raised", step, target if alarm in rollbacks else None)
        if target is not None:
            self.rollbacks += 1
            self.skipped += step - target
            raise RollBack(target, self.store.path(target))
        if stops or rollbacks:
            raise GuardStop(self._why(stops or rollbacks))

    def _with_rows(self, alarm: Alarm, bad_rows: Sequence[Mapping[str, Any]]) -> Alarm:
        """Return the alarm with the file of the step's rows in its message, if it is that of `nonFinite`. A
        full disk does not stop the run."""
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
        """Return the step of the last checkpoint before the alarms began; None if there is none, or the run
        was rolled back often enough."""
        if self.rollbacks >= self.watch.guards.max_rollbacks:
            return None
        return self.store.last_step(before=min(alarm.since for alarm in alarms))

    def _why(self, alarms: Sequence[Alarm]) -> str:
        reasons = "; ".join(f"{alarm.name}: {alarm.message}" for alarm in alarms)
        summary = f"alarm at step {alarms[0].step}: {reasons}"
        if alarms[0].policy == "stop":
            return summary
        if self.rollbacks >= self.watch.guards.max_rollbacks:
            return (
                f"{summary}; the run was rolled back {self.rollbacks} times already, which is all that "
                "spec.guards.maxRollbacks allows"
            )
        first = min(alarm.since for alarm in alarms)
        return (
            f"{summary}; there is no checkpoint from before step {first} to roll back to: lower "
            "spec.checkpoint.every"
        )

    def _report(self, alarm: Alarm, state: str, step: int, target: int | None = None) -> None:
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
