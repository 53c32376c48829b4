"""A model of dispatch: a step takes a fixed time, and its bytes over the busiest link. Pure.

Fitted to measured steps, it says what the paper's volumes would take (Table 1, Eq. 2 and 4).
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from rljob_api.model.volumes import GB, SampleFlow


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """fixed_seconds: a step without bytes. efficiency: share of a link's rate that the bytes get."""

    fixed_seconds: float
    efficiency: float

    def seconds(self, num_bytes: float, *, megabytes_per_second: float) -> float:
        """Of a step with so many bytes over its busiest link."""
        return self.fixed_seconds + num_bytes / (self.efficiency * 1e6 * megabytes_per_second)


def fit(points: Sequence[tuple[float, float]], *, megabytes_per_second: float) -> Model:
    """Least squares. points: (bytes over the busiest link, seconds); at least two sizes."""
    sizes, seconds = np.array(points).T
    slope, fixed = np.polyfit(sizes / 1e6, seconds, 1)
    return Model(fixed_seconds=float(fixed), efficiency=float(1 / (slope * megabytes_per_second)))


def busiest_bytes(flow: SampleFlow, *, warehouses: int, controllers: int) -> float:
    """What goes over a warehouse's link in a step: its rows put (Eq. 1), and its part of Eq. 4."""
    read = flow.per_warehouse_gb(warehouses=warehouses, controllers=controllers)
    return GB * (flow.stage_gb() / warehouses + read)
