"""The job's settings of profiles: which of its steps are recorded, on which devices."""

from typing import Annotated

from pydantic import Field

from rljob_api.spec.section import Section

MOST_STEPS, MOST_RANKS = 16, 16


class Profile(Section):
    """Traces of a few steps by torch's profiler, of each state of some devices (docs/profiling.md)."""

    steps: list[Annotated[int, Field(ge=1, le=10_000_000)]] = Field(
        min_length=1, max_length=MOST_STEPS
    )
    """Training steps that are recorded, counted from 1; they take longer, all others do not."""

    ranks: list[Annotated[int, Field(ge=0, le=999_999)]] = Field(
        default=[0], min_length=1, max_length=MOST_RANKS
    )
    """Devices that are recorded, counted from 0; if separated, those that train come first."""
