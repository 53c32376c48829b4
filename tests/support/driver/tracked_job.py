"""A small job with trackers, whose run several tests look at: changes of the small job, for `job_file`."""

from typing import Any

NOBODY = "http://127.0.0.1:9"
TRACKED: dict[str, Any] = {
    "steps": 2,
    "evaluation": {"prompts": 8},
    "update__parallelism": {"tensor": 2},
    "tracking": {
        "tensorboard": {},
        "mlflow": {"trackingUri": NOBODY},
        "timeoutSeconds": 30,
    },
}
"""Devices swap layouts; TensorBoard's files are written, and no MLflow server is there."""
