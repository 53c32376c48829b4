"""95 % intervals of means over few seeds, by Student's t. Called by what writes tables and curves."""

import math
from collections.abc import Sequence
from statistics import mean, stdev

QUANTILES = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262)
"""Student's t below which 97.5 % lies, for 1 to 9 degrees of freedom."""


def half_width(values: Sequence[float]) -> float:
    """Half of the interval around the values' mean; not a number for a single value. Raises ValueError
    without values, and for more of them than the table of quantiles knows."""
    if not 1 <= len(values) <= len(QUANTILES) + 1:
        raise ValueError(
            f"{len(values)} values have no interval here; give 1 to {len(QUANTILES) + 1}"
        )
    if len(values) == 1:
        return math.nan
    return QUANTILES[len(values) - 2] * stdev(values) / math.sqrt(len(values))


def share_band(x: float, values: Sequence[float]) -> tuple[float, float, float]:
    """(x, lowest, highest) of a mean of shares, within 0 and 1; without width for a single value."""
    middle, width = mean(values), half_width(values)
    width = 0.0 if math.isnan(width) else width
    return x, max(0.0, middle - width), min(1.0, middle + width)


def said_seeds(number: int) -> str:
    """What a page's figures are over."""
    if number == 1:
        return "One seed, so that no figure has an interval."
    return (
        f"{number} seeds. Figures are means; behind ± and as bands stand 95 % intervals of the mean over "
        "seeds (Student's t)."
    )


def said_share(values: Sequence[float]) -> str:
    """A mean of shares with its interval: "81.2 ± 3.1 %"."""
    return f"{_said(values, '.1f')} %"


def said_points(values: Sequence[float]) -> str:
    """A mean of differences of shares, in points of percent: "-4.0 ± 2.1"."""
    return _said(values, "+.1f")


def _said(values: Sequence[float], form: str) -> str:
    middle, width = 100 * mean(values), 100 * half_width(values)
    return format(middle, form) + ("" if math.isnan(width) else f" ± {width:.1f}")
