"""Jobs and settings for tests of the operator."""

import copy
from typing import Any

from rljob_api.check.load import read_job
from rljob_api.spec.rljob import RLJob
from rljob_operator.build.identity import JobIdentity
from rljob_operator.settings import Settings

SETTINGS = Settings(
    runtime_image="example.com/rljob-runtime:1", ascend_image="example.com/rljob-ascend:1"
)
TOKEN = "a-token-of-this-test"
JOB: dict[str, Any] = {
    "apiVersion": "rljob.io/v1alpha1",
    "kind": "RLJob",
    "metadata": {"name": "spell-backward"},
    "spec": {
        "steps": 10,
        "model": {"builtin": "tiny"},
        "data": {"reasoningGym": {"dataset": "spell_backward"}},
        "rewards": [{"name": "exact", "type": "dataset"}],
        "batch": {
            "globalBatchSize": 16,
            "samplesPerPrompt": 8,
            "maxPromptLength": 128,
            "maxResponseLength": 64,
        },
        "accelerator": {"nodes": 2, "devicesPerNode": 2},
    },
}


def merged(base: Any, changes: Any) -> Any:
    """`base` with `changes` on top; mappings are merged, everything else is replaced."""
    if not (isinstance(base, dict) and isinstance(changes, dict)):
        return copy.deepcopy(changes)
    return base | {key: merged(base.get(key), value) for key, value in changes.items()}


def make_job(*, nodes: int = 1, **spec: Any) -> RLJob:
    """The job with one device a node and four steps; spec: further fields."""
    small = {"steps": 4, "accelerator": {"nodes": nodes, "devicesPerNode": 1}}
    return read_job(merged(JOB, {"spec": small | spec}))


def identity(name: str = "spell-backward") -> JobIdentity:
    return JobIdentity(
        namespace="research", name=name, uid="0b9dd3a5-2d4c-4e6f-8a51-7c6f1d2e3f40", generation=1
    )
