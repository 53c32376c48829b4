"""The effect of a change on runs that differ in it: differences over the same prompts, with their interval.

Called by `run_diff`. Pairing removes the prompts' difficulty from the difference (Miller, Adding Error Bars
to Evals, arXiv:2411.00640, section 4.2); the interval is Student's. Pure functions.
"""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

FIRST_QUANTILES = (12.7062, 4.3027, 3.1824, 2.7764, 2.5706)
"""Quantiles of Student's distribution at 97.5 %, for 1 to 5 degrees of freedom."""
NORMAL_QUANTILE = 1.959963985


@dataclass(frozen=True, slots=True, kw_only=True)
class PairedMean:
    """Mean difference B − A with its 95 % interval.

    n: number of prompts, or of pairs of runs, in the mean. low, high: NaN if n is 1.
    """

    gain: float
    low: float
    high: float
    n: int
    of: str


def over_prompts(a: Sequence[float], b: Sequence[float]) -> PairedMean | None:
    """Compare values of the same prompts in two runs; None if no prompt can be compared.

    The interval is the certainty that these two models differ on such prompts. Another training run may end
    elsewhere.
    """
    if len(a) != len(b):
        return None
    differences = [
        y - x for x, y in zip(a, b, strict=True) if math.isfinite(x) and math.isfinite(y)
    ]
    return _mean(differences, of="prompts") if differences else None


def over_pairs(gains: Sequence[float]) -> PairedMean:
    """Average the mean differences of pairs of runs with different seeds.

    The interval includes the variance between training runs.
    """
    return _mean(gains, of="pairs of runs")


def student_quantile(degrees: int) -> float:
    """Return the quantile of Student's distribution at 97.5 %.

    From a table, then by the expansion of Abramowitz and Stegun 26.7.5, with an error below 1e-4.
    """
    if degrees <= len(FIRST_QUANTILES):
        return FIRST_QUANTILES[degrees - 1]
    z, n = NORMAL_QUANTILE, degrees
    return (
        z
        + (z**3 + z) / (4 * n)
        + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * n**2)
        + (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / (384 * n**3)
        + (79 * z**9 + 776 * z**7 + 1482 * z**5 - 1920 * z**3 - 945 * z) / (92160 * n**4)
    )


def _mean(differences: Sequence[float], *, of: str) -> PairedMean:
    gain, margin = statistics.fmean(differences), math.nan
    if (n := len(differences)) > 1:
        margin = student_quantile(n - 1) * statistics.stdev(differences) / math.sqrt(n)
    return PairedMean(gain=gain, low=gain - margin, high=gain + margin, n=n, of=of)
