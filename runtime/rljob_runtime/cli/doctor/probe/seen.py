"""What a probe saw of its pods. Plain data: `course` fills it, `judge` reads it."""

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Looked:
    """A pod's answer to `look`. sent, heard: this machine's clock around it, unix seconds."""

    sent: float
    heard: float
    answer: dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class PodSeen:
    """One pod. node, address: "" before it has them. problem: why it does not run, or did not answer; "" of a
    pod that did all. summed: its answer to `reduce`. nics: addresses of its devices' own NICs by device, as
    Ascend's device plugin says in its annotations; None where it says nothing."""

    name: str
    node: str = ""
    address: str = ""
    problem: str = ""
    looked: Looked | None = None
    summed: dict[str, Any] | None = None
    nics: dict[str, str] | None = None


Answers = list[tuple[PodSeen, Looked]]
"""Pods that answered."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """The whole probe. pods: those that are alike, by rank. images: those of the plan's other images. left:
    pods that could not be deleted, with what was said."""

    pods: tuple[PodSeen, ...]
    images: tuple[PodSeen, ...] = ()
    left: dict[str, str] = field(default_factory=dict)

    @property
    def answers(self) -> Answers:
        """Of the pods that answered."""
        return [(pod, pod.looked) for pod in self.pods if pod.looked is not None]
