"""A run of Weights & Biases, online or in files for `wandb sync`."""

from collections.abc import Mapping

import wandb

from rljob_api.spec.tracking import WeightsAndBiases
from rljob_runtime.report.tracking.tracker import TrackedRun

EXIT_CODES = {"succeeded": 0, "failed": 1, "interrupted": 255}
STEP = "step"
"""Metrics are drawn over this one; a step may be logged twice if a run is rolled back."""


class WandbRun:
    """The W&B run with the TrackedRun's id, so that a resumed run continues it."""

    def __init__(self, section: WeightsAndBiases, run: TrackedRun) -> None:
        settings = wandb.Settings(
            console="off",
            silent=True,
            disable_git=True,
            save_code=False,
            **({"base_url": section.base_url} if section.base_url else {}),
        )
        self._run = wandb.init(
            project=section.project,
            entity=section.entity,
            name=run.name,
            id=run.id,
            resume="allow" if section.mode == "online" else None,
            mode=section.mode,
            dir=run.folder,
            config=dict(run.facts),
            settings=settings,
        )
        self._run.define_metric("*", step_metric=STEP)

    def log(self, step: int, metrics: Mapping[str, float], time: float) -> None:
        """Add a row to the history of the run."""
        self._run.log({**metrics, STEP: step})

    def close(self, status: str) -> None:
        """Send everything, or write it to the files."""
        self._run.finish(exit_code=EXIT_CODES[status])
