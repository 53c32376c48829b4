"""Rules on rows with pictures: models and engines that support them, and settings that do not yet.

Pure functions from a spec to problems, called by `load`. `shape_rules` checks whether the model has a vision
tower; the runtime checks the pictures and placeholders of rows.
"""

from collections.abc import Iterator

from rljob_api.check.rules import Rule
from rljob_api.spec.problems import Problem
from rljob_api.spec.rljob import RLJobSpec

SEEING_UPDATES = ("torch",)
SEEING_ROLLOUTS = ("torch", "vllm")
"""Engines that have models with a vision tower."""


def shown_rule(spec: RLJobSpec) -> Iterator[Problem]:
    """Allow picture limits only for models that are shown pictures, and require them in order."""
    images, path = spec.data.images, "spec.data.images"
    for path_, is_set in (
        ("spec.data.drawn", spec.data.drawn),
        ("spec.model.builtin", spec.model.builtin == "tiny-vl"),
    ):
        if is_set and spec.model.vision is None:
            yield Problem(path_, "is for pictures; set spec.model.vision: frozen, or use another")
    if images is None:
        return
    if spec.model.vision is None:
        yield Problem(
            path,
            "is for models that are shown pictures; set spec.model.vision: frozen, or leave it out",
        )
    if images.min_pixels and images.max_pixels and images.min_pixels > images.max_pixels:
        yield Problem(
            f"{path}.minPixels",
            f"is {images.min_pixels}, more than maxPixels {images.max_pixels}; lower it",
        )


def vision_rule(spec: RLJobSpec) -> Iterator[Problem]:
    """Refuse settings that do not support pictures."""
    if spec.model.vision is None:
        return
    if spec.model.vision == "trained":
        yield from _trained(spec)
    if spec.model.builtin not in (None, "tiny-vl"):
        yield Problem(
            "spec.model.vision",
            f"is {spec.model.vision}, but builtin {spec.model.builtin} has no vision tower; name a "
            "Qwen2.5-VL or Qwen3-VL in spec.model.path, use builtin: tiny-vl, or leave it out",
        )
    yield from _data(spec)
    yield from _engines(spec)
    yield from _models(spec)


def _trained(spec: RLJobSpec) -> Iterator[Problem]:
    """Refuse settings that do not support a trained vision tower."""
    if spec.update.lora is not None:
        yield Problem(
            "spec.update.lora",
            "trains adapters of the language part alone; use spec.model.vision: frozen, or leave it out",
        )
    if spec.update.parallelism.zero == 3:
        yield Problem(
            "spec.update.parallelism.zero",
            "is 3, and rows of a vision tower are not shared; use 2, or spec.model.vision: frozen",
        )
    if spec.resharding.strategy == "stream":
        yield Problem(
            "spec.resharding.strategy",
            "is stream, and a trained vision tower goes to the rollout by a plan; use allgather, or leave it "
            "out",
        )
    if spec.rollout.quantization != "none":
        yield Problem(
            "spec.rollout.quantization",
            f"is {spec.rollout.quantization}, and a trained vision tower goes to the rollout as it is; use "
            "none, or spec.model.vision: frozen",
        )


def _data(spec: RLJobSpec) -> Iterator[Problem]:
    data = spec.data
    for key, source in (
        ("reasoningGym", data.reasoning_gym),
        ("environment", data.environment),
        ("preferences", data.preferences),
    ):
        if source is not None:
            yield Problem(
                f"spec.data.{key}",
                "has no pictures; use drawn, jsonl, parquet or source, or leave spec.model.vision out",
            )


def _engines(spec: RLJobSpec) -> Iterator[Problem]:
    for path, engine, seeing in (
        ("spec.update.engine", spec.update.engine, SEEING_UPDATES),
        ("spec.rollout.engine", spec.rollout.engine, SEEING_ROLLOUTS),
    ):
        if engine not in seeing:
            remedy = " or ".join(seeing)
            yield Problem(path, f"is {engine}, which is shown no pictures yet; use {remedy}")


def _models(spec: RLJobSpec) -> Iterator[Problem]:
    for index, reward in enumerate(spec.rewards):
        if reward.model is not None:
            yield Problem(
                f"spec.rewards[{index}].model",
                "is shown no pictures yet; use a reward that goes by the response and the answer",
            )


VISION_RULES: tuple[Rule, ...] = (shown_rule, vision_rule)
