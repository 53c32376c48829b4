"""The trackers by their names in spec.tracking, and the packages that they need."""

from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from rljob_api.spec.problems import Problem
from rljob_api.spec.rljob import RLJobSpec
from rljob_api.spec.tracking import Tracking
from rljob_runtime.report.tracking.tracker import TrackedRun, Tracker

PACKAGES = {"tensorboard": "tensorboard", "wandb": "wandb"}
"""The package of a tracker; the extra of rljob has the same name. MLflow is accessed over HTTP."""


def open_tracker(name: str, spec: Tracking, run: TrackedRun) -> Tracker:
    """Create the tracker. Raises the errors of its library."""
    section: Any = spec.named()[name]
    match name:
        case "tensorboard":
            from rljob_runtime.report.tracking.tensorboard_files import TensorBoardFiles

            return TensorBoardFiles(section, run)
        case "wandb":
            from rljob_runtime.report.tracking.wandb_run import WandbRun

            return WandbRun(section, run)
        case "mlflow":
            from rljob_runtime.report.tracking.mlflow_run import MLflowRun

            return MLflowRun(section, run, seconds=spec.timeout_seconds)
    raise AssertionError(f"no tracker {name}")


def tracking_problems(spec: RLJobSpec) -> Iterator[Problem]:
    """Yield a problem for each tracker whose package is not installed here."""
    for name in spec.tracking.named() if spec.tracking else ():
        package = PACKAGES.get(name)
        if package is not None and not _installed(package):
            yield Problem(
                f"spec.tracking.{name}",
                f"needs the package {package}, which is not installed; install rljob[{name}] where "
                f"the job runs, or leave spec.tracking.{name} out",
            )


def _installed(package: str) -> bool:
    try:
        version(package)
    except PackageNotFoundError:
        return False
    return True
