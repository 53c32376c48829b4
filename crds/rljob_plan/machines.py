"""What devices and their links do in a second, by the accelerator's type; and other rates that a user gives.

Called by `performance` and the search of layouts. Nothing is measured here: each number says where it is
from.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass, fields, replace

from rljob_api.model.volumes import GB, MB
from rljob_api.spec.problems import InvalidJob, Problem


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """What a device and its links do in a second. link_bytes: to devices of its node. network_bytes: to those
    of other nodes, where that is less. dispatch_bytes: of the link of a warehouse. latency_seconds: that a
    collective takes whatever its bytes. failures_per_day: of a device, with what it sits in.
    recovery_seconds: of a failure, beside the steps that are trained again."""

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
        """Bytes of the narrowest link between so many devices that follow each other."""
        return self.link_bytes if ranks <= per_node else min(self.link_bytes, self.network_bytes)


@dataclass(frozen=True, slots=True, kw_only=True)
class Shares:
    """What is reached of a machine's rates: products of flops, reads of memory, links of links.

    layer_seconds: of one decoding step and layer beside reading memory and products. pass_seconds: of one
    layer's forward and backward pass of a micro-batch beside its products. fixed_seconds: of each step of
    the training.
    """

    products: float
    reads: float
    links: float
    layer_seconds: float = 0.0
    pass_seconds: float = 0.0
    fixed_seconds: float = 0.0


ASCEND_910C = Machine(
    flops=376e12,  # bfloat16, one die of an Ascend 910C (arXiv:2506.12708)
    memory_bytes=1.6e12,  # likewise
    link_bytes=196e9,  # to other dies of the super pod, one way, likewise
    swap_bytes=50 * GB,  # to the host, MindSpeed RL's setup (arXiv:2507.19017)
    dispatch_bytes=300 * MB,  # between servers, likewise
)
ASCEND_910B = Machine(
    flops=354e12,  # bfloat16; verl's table of devices, verl/utils/flops_counter.py. A 910B3 has 313e12
    memory_bytes=1.6e12,
    link_bytes=196e9,  # to the seven others of its node together, one way: HCCS' 392 GB/s both ways
    network_bytes=25e9,  # one way: a port of 200GE RoCE a device
    swap_bytes=50 * GB,  # as Ascend 910C
    dispatch_bytes=300 * MB,  # likewise
)
ASCEND_950 = Machine(
    flops=432e12,  # bfloat16 of an Ascend 950DT; verl's table of devices
    memory_bytes=4e12,  # 950DT, as Huawei announced it; a 950PR has 1.6e12
    link_bytes=1e12,  # one way of 2 TB/s, to other devices of the super pod, likewise
    swap_bytes=50 * GB,  # as Ascend 910C
    dispatch_bytes=300 * MB,  # likewise
)
ASCEND_SHARES = Shares(products=0.45, reads=0.7, links=0.5)
"""Stated; `benchmarks/plan/performance.py` solves for layer_seconds and fixed_seconds with them."""
EMULATED = Machine(
    flops=9.0e10,  # float32 of one thread; this and what follows: benchmarks/plan/search.py, one machine
    memory_bytes=1.6e10,
    link_bytes=1.0e9,  # gloo over the loopback
    latency_seconds=3e-4,  # likewise
    swap_bytes=4e9,  # assumed, as the next
    dispatch_bytes=1e9,
)
RATES: dict[str, tuple[Machine, Shares]] = {
    "emulated": (
        EMULATED,
        Shares(products=0.5, reads=0.8, links=0.8, layer_seconds=2e-4, pass_seconds=2e-3),
    ),
    "ascend910b": (ASCEND_910B, ASCEND_SHARES),
    "ascend910c": (ASCEND_910C, ASCEND_SHARES),
    "ascend950": (ASCEND_950, ASCEND_SHARES),
}
"""By accelerator.type."""


RATE_NAMES = tuple(sorted(field.name for kind in (Machine, Shares) for field in fields(kind)))


def rates_of(accelerator: str, given: Iterable[str] = ()) -> tuple[Machine, Shares]:
    """Of a type of devices. given: `name=value` of a field of `Machine` or `Shares`, in place of the table's.
    Raises InvalidJob for a name that neither has, and for a value that is no number above 0."""
    machine, shares = RATES[accelerator]
    problems = []
    of_machine = {field.name for field in fields(Machine)}
    for text in given:
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
