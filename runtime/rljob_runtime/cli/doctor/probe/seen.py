"""Results of a probe, by pod. Plain data: `course` fills it, `judge` reads it."""

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class LookResult:
    """A pod's answer to `look`. sent, received: this machine's clock before and after it, unix seconds."""

    sent: float
    received: float
    answer: dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class PodReport:
    """Results of one pod. node, address: "" before they are assigned. problem: why it does not run or did not
    answer, "" without one. all_reduce: its answer to `reduce`. nics: addresses of the devices' NICs by
    device, from the annotation of Ascend's device plugin; None without one."""

    name: str
    node: str = ""
    address: str = ""
    problem: str = ""
    look_result: LookResult | None = None
    all_reduce: dict[str, Any] | None = None
    nics: dict[str, str] | None = None


Answers = list[tuple[PodReport, LookResult]]
"""Pods that answered `look`, each with its answer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeReport:
    """Results of a probe. pods: those of the plan's main image, by rank. images: those of its other images.
    undeleted: pods that could not be deleted, with the reason."""

    pods: tuple[PodReport, ...]
    images: tuple[PodReport, ...] = ()
    undeleted: dict[str, str] = field(default_factory=dict)

    @property
    def answers(self) -> Answers:
        """Return the pods that answered `look`, with their answers."""
        return [(pod, pod.look_result) for pod in self.pods if pod.look_result is not None]
