"""Builders of manifests: a small valid job, changed at dotted paths."""

import copy
from collections.abc import Callable
from typing import Any

import pytest

from rljob_api.check.load import read_job
from rljob_api.spec.problems import InvalidJob, Problem
from rljob_api.spec.rljob import RLJob

Manifest = dict[str, Any]

VALID: Manifest = {
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
    },
}


def changed(manifest: Manifest, path: str, value: object) -> None:
    """Set `spec.rewards.0.type` and the like; a value of ... removes the key."""
    *parents, last = path.split(".")
    target: Any = manifest
    for parent in parents:
        target = target[int(parent)] if parent.isdigit() else target.setdefault(parent, {})
    if value is ...:
        del target[last]
    else:
        target[last] = copy.deepcopy(value)


@pytest.fixture
def manifest() -> Callable[..., Manifest]:
    """manifest({"spec.steps": 3}): the valid manifest with changes."""

    def build(changes: Manifest | None = None) -> Manifest:
        result = copy.deepcopy(VALID)
        for path, value in (changes or {}).items():
            changed(result, path, value)
        return result

    return build


@pytest.fixture
def job(manifest: Callable[..., Manifest]) -> Callable[..., RLJob]:
    """job({"spec.steps": 3}): the valid job with changes."""
    return lambda changes=None: read_job(manifest(changes))


@pytest.fixture
def problems(manifest: Callable[..., Manifest]) -> Callable[..., list[Problem]]:
    """problems({"spec.steps": 0}): what is wrong with the changed job."""

    def find(changes: Manifest) -> list[Problem]:
        with pytest.raises(InvalidJob) as caught:
            read_job(manifest(changes))
        return caught.value.problems

    return find
