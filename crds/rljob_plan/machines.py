"""Rates of devices and their links by the accelerator's type, which a user may replace.

Called by `performance` and the search of layouts. Nothing is measured here: each number names its source.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass, fields, replace

from rljob_api.model.volumes import GB, MB
from rljob_api.spec.problems import InvalidJob, Problem


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineRates:
    """Rates of a device and its links, per second. link_bytes: to devices of its node. network_bytes: to
    those of other nodes, if that is less. dispatch_bytes: of the link of a warehouse. latency_seconds: of a
    collective, whatever its bytes. failures_per_day: of a device and its pod. recovery_seconds: of a failure,
    besides the steps that are trained again."""

    flops: float
    memory_bytes: float
    link_bytes: float
    swap_bytes: float
    dispatch_bytes: float
    network_bytes: float = math.inf
    latency_seconds: float = 0.0
    failures_per_day: float = 0.0
    recovery_seconds: float = 60.0  # stated

    def link(self, ranks: int, *, per_node: int) -> float:
        """Return the bytes per second of the narrowest link between this many consecutive devices."""
        return self.link_bytes if ranks <= per_node else min(self.link_bytes, self.network_bytes)


@dataclass(frozen=True, slots=True, kw_only=True)
class RateShares:
    """Fractions of a machine's rates that are reached: products of flops, reads of memory, links of links.

    layer_seconds: of one decoding step and layer besides reading memory and products. pass_seconds: of one
    layer's forward and backward pass of a micro-batch besides its products. fixed_seconds: of each step of
    the training.
    """

    products: float
    reads: float
    links: float
    layer_seconds: float = 0.0
    pass_seconds: float = 0.0
    fixed_seconds: float = 0.0


ASCEND_910C = MachineRates(
    flops=376e12,  # bfloat16, one die of an Ascend 910C (arXiv:2506.12708)
    memory_bytes=1.6e12,  # likewise
    link_bytes=196e9,  # to other dies of the super pod, one way, likewise
    swap_bytes=50 * GB,  # to the host, MindSpeed RL's setup (arXiv:2507.19017)
    dispatch_bytes=300 * MB,  # between servers, likewise
)
ASCEND_910B = MachineRates(
    flops=354e12,  # bfloat16; verl's table of devices, verl/utils/flops_counter.py. A 910B3 has 313e12
    memory_bytes=1.6e12,
    link_bytes=196e9,  # to the seven others of its node together, one way: HCCS' 392 GB/s both ways
    network_bytes=25e9,  # one way: a port of 200GE RoCE a device
    swap_bytes=50 * GB,  # as Ascend 910C
    dispatch_bytes=300 * MB,  # likewise
)
ASCEND_950 = MachineRates(
    flops=432e12,  # bfloat16 of an Ascend 950DT; verl's table of devices
    memory_bytes=4e12,  # 950DT, as Huawei announced it; a 950PR has 1.6e12
    link_bytes=1e12,  # one way of 2 TB/s, to other devices of the super pod, likewise
    swap_bytes=50 * GB,  # as Ascend 910C
    dispatch_bytes=300 * MB,  # likewise
)
ASCEND_SHARES = RateShares(products=0.45, reads=0.7, links=0.5)
"""Assumed; `benchmarks/plan/performance.py` solves for layer_seconds and fixed_seconds with them."""
EMULATED = MachineRates(
    flops=9.0e10,  # float32 of one thread; this and what follows: benchmarks/plan/search.py, one machine
    memory_bytes=1.6e10,
    link_bytes=1.0e9,  # gloo over the loopback
    latency_seconds=3e-4,  # likewise
    swap_bytes=4e9,  # assumed, as the next
    dispatch_bytes=1e9,
)
RATES: dict[str, tuple[MachineRates, RateShares]] = {
    "emulated": (
        EMULATED,
        RateShares(products=0.5, reads=0.8, links=0.8, layer_seconds=2e-4, pass_seconds=2e-3),
    ),
    "ascend910b": (ASCEND_910B, ASCEND_SHARES),
    "ascend910c": (ASCEND_910C, ASCEND_SHARES),
    "ascend950": (ASCEND_950, ASCEND_SHARES),
}
"""Rates, by accelerator.type."""


RATE_NAMES = tuple(
    sorted(field.name for kind in (MachineRates, RateShares) for field in fields(kind))
)


def rates_of(accelerator: str, overrides: Iterable[str] = ()) -> tuple[MachineRates, RateShares]:
    """Return the rates of a type of devices. overrides: `name=value` of a field of `MachineRates` or
    `RateShares`, instead of the table's. Raises InvalidJob for an unknown name, and for a value that is not a
    number above 0."""
    machine, shares = RATES[accelerator]
    problems = []
    of_machine = {field.name for field in fields(MachineRates)}
    for text in overrides:
        name, _, number = text.partition("=")
        value = _number(number)
        if name not in RATE_NAMES:
            message = f"{text!r} names no rate; use one of {', '.join(RATE_NAMES)}"
            problems.append(Problem("--rate", message))
        elif value is None or value < 0 or (value == 0 and not name.endswith("_seconds")):
            message = f"{text!r} has no positive number; write {name}=1e12 or the like"
            problems.append(Problem("--rate", message))
        elif name in of_machine:
            machine = replace(machine, **{name: value})
        else:
            shares = replace(shares, **{name: value})
    if problems:
        raise InvalidJob(problems)
    return machine, shares


def _number(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return value if value < math.inf else None
