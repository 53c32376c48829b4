"""The best evaluation of a run: which one it was, and whether better ones still come. Pure but for its file.

Asked by the driver after each evaluation. Kept as `checkpoints/best.json`, so that a resumed run goes on with
it, and `rljob export --best` finds the checkpoint.
"""

import json
import math
import os
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Self

from rljob_api.spec.evaluation import EarlyStop

BEST_FILE = "best.json"


@dataclass(slots=True, kw_only=True)
class Best:
    """metric: that is compared. step, value: of the best evaluation, None before the first. waited:
    evaluations since the last one that was better by minDelta. mark: the value that they had to exceed by it.
    last: step of the last evaluation that was counted."""

    metric: str
    step: int | None = None
    value: float = -math.inf
    mark: float = -math.inf
    waited: int = 0
    last: int = -1

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
    def read(cls, folder: Path, metric: str) -> Self:
        """What was written; nothing yet where there is no file, or it is of another metric."""
        try:
            found = cls(**json.loads((folder / BEST_FILE).read_text()))
        except (OSError, ValueError, TypeError):
            return cls(metric=metric)
        return found if found.metric == metric else cls(metric=metric)
