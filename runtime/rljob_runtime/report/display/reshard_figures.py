"""A device's memory during a reshard, as in the paper's Fig. 10, and a reshard's share of its step. Pure."""

from collections.abc import Sequence
from typing import Any

from rljob_runtime.record.event_types import ReshardEvent
from rljob_runtime.report.display.figures import Figure, evenly_spaced
from rljob_runtime.report.display.history import RunHistory

PHASES = {
    "gather_seconds": ("gather", "@generate"),
    "select_seconds": ("select", "@update"),
    "swap_seconds": ("swap to the host", "@reference"),
    "back_seconds": ("back from the host", "@reward-phase"),
    "check_seconds": ("checks", "@muted"),
}
KINDS = {
    "update_bytes": ("update weights", "@update"),
    "rollout_bytes": ("rollout weights", "@generate"),
    "buffer_bytes": ("buffers", "@reward-phase"),
    "cache_bytes": ("KV cache", "@reference"),
    "other_bytes": ("other", "@muted"),
}
"""Kinds of a device's memory, from the bottom up."""
MAX_STEPS = 100


def standstill_share(reshard: ReshardEvent, step_seconds: float | None) -> float | None:
    """Return the share of a step in which devices only reshard.

    This includes the wait for the copy back from the host. None without the step, as before the first.
    """
    if not step_seconds:
        return None
    overlap = 1.0 if reshard.overlap is None else reshard.overlap
    waited = (1 - overlap) * (reshard.back_seconds or 0.0)
    return (reshard.seconds + waited) / step_seconds


def memory_figures(history: RunHistory) -> list[dict[str, Any]]:
    """Return a figure for each shown reshard whose memory was recorded."""
    steps = [step for step in sorted(history.reshards) if _course(history.reshards[step])]
    return [
        {"step": step, "figure": _memory_figure(history.reshards[step])}
        for step in evenly_spaced(steps, MAX_STEPS)
    ]


def _course(reshard: ReshardEvent) -> dict[str, Sequence[float]]:
    """Return the bytes by kind, if they were recorded at least twice."""
    memory = reshard.memory
    seconds = memory.seconds if memory else []
    recorded = {kind: getattr(memory, kind, None) or [] for kind in KINDS}
    kinds = {
        kind: sizes for kind, sizes in recorded.items() if sizes and len(sizes) == len(seconds)
    }
    return {"seconds": seconds, **kinds} if len(seconds) > 1 and kinds else {}


def _memory_figure(reshard: ReshardEvent) -> Figure:
    course = _course(reshard)
    seconds = course.pop("seconds")
    areas = [
        {
            "x": seconds,
            "y": course[kind],
            "name": name,
            "stackgroup": "bytes",
            "mode": "lines",
            "line": {"color": colour, "width": 1, "shape": "hv"},
            "hovertemplate": "%{y:.3~s}B",
        }
        for kind, (name, colour) in KINDS.items()
        if any(course.get(kind, ()))
    ]
    lines = [_level(seconds, reshard.bound_bytes, "bound of weights and buffers", "@bad")]
    both = max(course.get("update_bytes", [0])) + max(course.get("rollout_bytes", [0]))
    if not reshard.kept_bytes:
        lines.append(_level(seconds, both, "weights of both layouts, as without a swap", "@text"))
    axis = {"tickformat": ".3~s", "ticksuffix": "B", "rangemode": "tozero"}
    times = {
        "range": [seconds[0], seconds[-1]],
        "tickformat": ".3~g",
        "hoverformat": ".3~g",
        "ticksuffix": " s",
    }
    layout = {"showlegend": True, "xaxis": times, "yaxis": axis}
    return {"data": [*areas, *lines], "layout": layout}


def _level(seconds: Sequence[float], height: float, name: str, colour: str) -> Figure:
    return {
        "x": [seconds[0], seconds[-1]],
        "y": [height, height],
        "name": name,
        "mode": "lines",
        "line": {"color": colour, "width": 1.5, "dash": "dot"},
        "hovertemplate": "%{y:.3~s}B",
    }
