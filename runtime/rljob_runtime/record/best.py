"""The best evaluation of a run: which one it was, and whether better ones still come. Pure but for its file.

Asked by the driver after each evaluation. Kept as `checkpoints/best.json`, so that a resumed run goes on with
it, and `rljob export --best` finds the checkpoint.
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
"""Never NaN, of which no other value is better."""

log = logging.getLogger(__name__)


@dataclass(slots=True, kw_only=True)
class Best:
    """metric: that is compared. step, value: of the best evaluation, None before the first. waited:
    evaluations since the last one that was better by minDelta. mark: the value that they had to exceed by it.
    last: step of the last evaluation that was counted."""

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(strict=True, extra="forbid")

    metric: str
    step: Count | None = None
    value: Value = -math.inf
    mark: Value = -math.inf
    waited: Count = 0
    last: Annotated[int, Field(ge=-1, lt=2**63)] = -1

    def take(self, step: int, value: float, *, min_delta: float = 0.0) -> bool:
        """Count an evaluation; whether it is the best. One of a step that was counted changes nothing."""
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
        """Whether the run is to end."""
        return rule is not None and self.waited >= rule.patience

    def until(self, step: int) -> Self:
        """As it was after this step, as far as that is known: where the best one came later, nothing yet."""
        if self.last <= step:
            return self
        if self.step is None or self.step > step:
            return type(self)(metric=self.metric)
        return replace(self, waited=0, last=step)

    def write(self, folder: Path) -> None:
        """Into the folder of the checkpoints, whole or not at all."""
        folder.mkdir(parents=True, exist_ok=True)
        draft = folder / f".{BEST_FILE}"
        draft.write_text(json.dumps(asdict(self), indent=2) + "\n")
        os.replace(draft, folder / BEST_FILE)

    @classmethod
    def read(cls, folder: Path, metric: str) -> "Best":
        """What was written; nothing yet where there is no file, it is spoiled, or of another metric."""
        try:
            found = stored_best(folder)
        except CheckpointError as error:
            log.warning("%s", error)
            found = None
        return found if found and found.metric == metric else cls(metric=metric)


def stored_best(folder: Path) -> Best | None:
    """What lies in the folder of the checkpoints, None where nothing does. Raises CheckpointError."""
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
