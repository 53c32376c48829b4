"""An environment: games that samples play turn by turn. Member of `workload.Data` and of suites."""

from typing import Annotated

from pydantic import Field

from rljob_api.spec.extensions import NameOf, Params
from rljob_api.spec.section import Section

OUTCOME_BYTES = 1024
"""Most bytes that are stored of the outcome of a sample's game."""


class Environment(Section):
    """Games: each prompt is the first observation of one, created from a seed, and each turn of the policy is
    a move. The next observation is appended to it, read and not trained on (docs/environments.md)."""

    name: Annotated[str, NameOf(("textarena",))]
    """`textarena`: a game for one player of that package, which `params.game` names (extra `textarena` of
    rljob); a name with a dot: an environment of an installed package."""

    params: Params = None
    """Parameters of the environment; for `textarena` the `game` and its own arguments."""

    timeout_seconds: float = Field(default=5.0, gt=0, le=3600)
    """Deadline of one move, and of the start of a game; its process is then killed and the sample ends with
    an error."""

    max_observation_tokens: int = Field(default=256, ge=8, le=1_000_000)
    """Most tokens of the text of an observation after a move; a longer one is cut. They count in
    maxResponseLength."""

    concurrency: int = Field(default=2, ge=1, le=256)
    """Processes that play on each device that generates; each has many games and makes one move at a time."""
