"""Results of a benchmark: medians with their spread, a table, and the JSON that docs are made of."""

import json
import os
import platform
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Literal


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """One figure of ours and of the peers.

    value, peers: medians. spread: (least, greatest) by side. target: ratio to the best peer that we
    want, as a gain: 1.5 is half as much more, or two thirds of the time.
    """

    name: str
    value: float
    unit: str
    better: Literal["higher", "lower"]
    target: float
    peers: dict[str, float]
    spread: dict[str, tuple[float, float]]
    repetitions: int

    @property
    def gain(self) -> float:
        """How many times better than the best peer."""
        if self.better == "higher":
            return self.value / max(self.peers.values())
        return min(self.peers.values()) / self.value


def summarize(
    name: str,
    *,
    ours: Sequence[float],
    peers: Mapping[str, Sequence[float]],
    unit: str,
    better: Literal["higher", "lower"],
    target: float,
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
    )


def report(results: Sequence[Result], *, packages: Sequence[str], file: Path | None) -> None:
    """Print the table; write the JSON if a file is named."""
    print(f"\n{'':44} {'rljob':>24} {'peer':>46} {'gain':>6} {'target':>6}")
    for result in results:
        for peer, value in result.peers.items():
            ours = figure(result.value, result.spread["rljob"])
            theirs = f"{peer} {figure(value, result.spread[peer])}"
            print(
                f"{result.name:44} {ours:>24} {theirs:>46} {result.gain:>5.2f}x {result.target:>5}x"
            )
    if file is not None:
        document = {
            "machine": describe_machine(packages),
            "results": [asdict(result) for result in results],
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
