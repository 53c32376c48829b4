"""The best evaluation of a run, and whether to stop early because no better one follows. Pure but for its
file.

The driver calls it after each evaluation. It is stored as `checkpoints/best.json`, so that a resumed run
continues with it and `rljob export --best` finds the checkpoint.
"""

import json
import logging
import math
import os
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Annotated, ClassVar, Self

from pydantic import ConfigDict, Field, TypeAdapter

from rljob_api.spec.evaluation import EarlyStop
from rljob_api.spec.json_text import Count, content_of
from rljob_api.spec.messages import fault_of
from rljob_runtime.errors import CheckpointError

BEST_FILE = "best.json"
Value = Annotated[float, Field(ge=-math.inf)]
"""Never NaN, because no value compares as better than NaN."""

log = logging.getLogger(__name__)


@dataclass(slots=True, kw_only=True)
class Best:
    """The best evaluation so far and the state of early stopping.

    metric: name of the compared metric. step, value: of the best evaluation, None before the first. waited:
    evaluations since the last improvement by more than minDelta. mark: value of that improvement. last: step
    of the last evaluation that was counted.
    """

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(strict=True, extra="forbid")

    metric: str
    step: Count | None = None
    value: Value = -math.inf
    mark: Value = -math.inf
    waited: Count = 0
    last: Annotated[int, Field(ge=-1, lt=2**63)] = -1

    def take(self, step: int, value: float, *, min_delta: float = 0.0) -> bool:
        """Count an evaluation and return whether it is the best. An evaluation of a step that was already
        counted changes nothing."""
        if step <= self.last:
            return False
        self.last = step
        if value > self.mark + min_delta:
            self.mark, self.waited = value, 0
        else:
            self.waited += 1
        if value <= self.value:
            return False
        self.step, self.value = step, value
        return True

    def ends(self, rule: EarlyStop | None) -> bool:
        """Return whether the early-stopping rule ends the run."""
        return rule is not None and self.waited >= rule.patience

    def until(self, step: int) -> Self:
        """Return the state after this step, as far as it is known. If the best evaluation was later, the
        state is empty."""
        if self.last <= step:
            return self
        if self.step is None or self.step > step:
            return type(self)(metric=self.metric)
        return replace(self, waited=0, last=step)

    def write(self, folder: Path) -> None:
        """Write the file into the checkpoint folder atomically."""
        folder.mkdir(parents=True, exist_ok=True)
        draft = folder / f".{BEST_FILE}"
        draft.write_text(json.dumps(asdict(self), indent=2) + "\n")
        os.replace(draft, folder / BEST_FILE)

    @classmethod
    def read(cls, folder: Path, metric: str) -> "Best":
        """Read the stored state. Return an empty one if the file is missing, damaged or of another metric."""
        try:
            stored = stored_best(folder)
        except CheckpointError as error:
            log.warning("%s", error)
            stored = None
        return stored if stored and stored.metric == metric else cls(metric=metric)


def stored_best(folder: Path) -> Best | None:
    """Read the file in the checkpoint folder, or return None if there is none. Raises CheckpointError."""
    file = folder / BEST_FILE
    try:
        return STORED.validate_json(content_of(file))
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise CheckpointError(
            f"{file} cannot be read: {fault_of(error)}; remove it: the best evaluation begins anew"
        ) from error


STORED = TypeAdapter(Best)
