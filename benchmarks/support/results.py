"""Results of a benchmark: medians with their spread, a table, and the JSON that docs are made of."""

import json
import os
import platform
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any, Literal


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """One figure of ours and of the peers.

    value, peers: medians. spread: (least, greatest) by side. target: gain over every peer that we
    want: 1.5 is half as much more, or two thirds of the time. targets: over some peers, where each
    has its own. limit: what the value itself may be at most.
    """

    name: str
    value: float
    unit: str
    better: Literal["higher", "lower"]
    target: float | None
    peers: dict[str, float]
    spread: dict[str, tuple[float, float]]
    repetitions: int
    targets: dict[str, float] = field(default_factory=dict)
    limit: float | None = None

    def gain(self, peer: str) -> float:
        """How many times better than a peer."""
        ratio = self.value / self.peers[peer]
        return ratio if self.better == "higher" else 1 / ratio

    def wanted(self, peer: str) -> float | None:
        """The gain over a peer that we want."""
        return self.targets.get(peer, self.target)


def summarize(
    name: str,
    *,
    ours: Sequence[float],
    peers: Mapping[str, Sequence[float]],
    unit: str,
    better: Literal["higher", "lower"],
    target: float | None = None,
    targets: Mapping[str, float] | None = None,
    limit: float | None = None,
) -> Result:
    """The result of repeated measurements of each side."""
    sides = {"rljob": ours, **peers}
    return Result(
        name=name,
        value=statistics.median(ours),
        unit=unit,
        better=better,
        target=target,
        peers={peer: statistics.median(values) for peer, values in peers.items()},
        spread={side: (min(values), max(values)) for side, values in sides.items()},
        repetitions=len(ours),
        targets=dict(targets or {}),
        limit=limit,
    )


def quantile(values: Sequence[float], fraction: float) -> float:
    """The value below which that part of the values lies."""
    return sorted(values)[min(len(values) - 1, int(fraction * len(values)))]


def report(
    results: Sequence[Result], *, packages: Sequence[str], file: Path | None, **sections: Any
) -> None:
    """Print the table; write the JSON if a file is named. sections: further ones of it."""
    print(f"\n{'':44} {'rljob':>24} {'peer':>46} {'gain':>6} {'target':>6}")
    for result in results:
        for peer, value in result.peers.items():
            ours = figure(result.value, result.spread["rljob"])
            theirs = f"{peer} {figure(value, result.spread[peer])}"
            wanted = result.wanted(peer)
            target = "" if wanted is None else f"{wanted:g}x"
            print(
                f"{result.name:44} {ours:>24} {theirs:>46} {result.gain(peer):>5.2f}x {target:>6}"
            )
    if file is not None:
        document = {
            "machine": describe_machine(packages),
            "results": [asdict(result) for result in results],
            **sections,
        }
        file.write_text(json.dumps(document, indent=2) + "\n")


def describe_machine(packages: Sequence[str]) -> dict[str, str | int]:
    """What the figures depend on: processor, cores, Python, versions of `packages`."""
    model = platform.processor() or platform.machine()
    information = Path("/proc/cpuinfo")
    if information.is_file():
        lines = information.read_text().splitlines()
        names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
        model = names[0] if names else model
    return {
        "processor": model,
        "cores": len(os.sched_getaffinity(0)),
        "load": f"{os.getloadavg()[0]:.1f} at the end",
        "python": platform.python_version(),
        **{package: version(package) for package in packages},
    }


def figure(median: float, spread: Sequence[float]) -> str:
    """A median with its least and greatest value."""
    return f"{_short(median)} ({_short(spread[0])}–{_short(spread[1])})"


def _short(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"
