"""RLJobs for tests of the operator, as small as they can be."""

from typing import Any

from rljob_api.load import read_job
from rljob_api.rljob import RLJob


def make_manifest(*, nodes: int = 1, devices: int = 1, **spec: Any) -> dict[str, Any]:
    """A valid RLJob on emulated devices; spec: further fields of the spec."""
    return {
        "apiVersion": "rljob.io/v1alpha1",
        "kind": "RLJob",
        "metadata": {"name": "job", "namespace": "team"},
        "spec": {
            "steps": 4,
            "model": {"builtin": "tiny"},
            "data": {"reasoningGym": {"dataset": "spell_backward"}, "template": "{word}="},
            "rewards": [{"name": "correct", "type": "dataset"}],
            "batch": {
                "globalBatchSize": 16,
                "samplesPerPrompt": 4,
                "maxPromptLength": 16,
                "maxResponseLength": 8,
            },
            "accelerator": {"type": "emulated", "nodes": nodes, "devicesPerNode": devices},
            **spec,
        },
    }


def make_job(*, nodes: int = 1, devices: int = 1, **spec: Any) -> RLJob:
    """The same, as the contract reads it."""
    return read_job(make_manifest(nodes=nodes, devices=devices, **spec))
