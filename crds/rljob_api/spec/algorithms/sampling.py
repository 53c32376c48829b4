"""Select the groups, and the samples of a group, that are trained on."""

from typing import Literal

from pydantic import Field

from rljob_api.spec.section import Section


class DynamicSampling(Section):
    """DAPO (arXiv:2503.14476, §3.2): prompts are drawn in rounds until a step has its groups; surplus groups
    go into the next step."""

    signal: Literal["accuracy", "reward"] = "accuracy"
    """A group is kept if some of its samples pass the first reward and others do not (`accuracy`), or if its
    rewards differ (`reward`). Both are checked before overlong shaping."""

    max_rounds: int = Field(default=4, ge=1, le=1000)
    """Rounds of a step, each of at most globalBatchSize prompts."""

    when_short: Literal["fill", "go-on", "stop"] = "fill"
    """If groups are missing after the last round: `fill` takes groups without a signal, whose advantages are
    0; `go-on` draws more; `stop` fails the run."""


class SampleFilter(Section):
    """PF-PPO (arXiv:2409.06957): some of each prompt's samples are trained on, drawn by the rank of their
    rewards, since a reward model is most reliable at the extremes. Advantages are those of all samples."""

    strategy: Literal["best-of-n", "best-random", "best-worst"] = "best-worst"
    """`best-of-n`: the best; `best-random`: the best one half of the time, else any other; `best-worst`: the
    best or the worst. Samples of equal reward have equal chances."""

    keep: int = Field(default=2, ge=1, le=4096)
    """Samples of a prompt that are drawn, with replacement."""


class BatchReweighting(Section):
    """Draws the step's samples again after advantages are computed: as many, with replacement, by weights of
    their rewards over the full batch. This is verl's form of PF-PPO; the paper's is sampleFilter."""

    weights: Literal["power", "max-min", "max-random"] = "power"
    """`power`: |R| to `power`; `max-min`: only the highest and the lowest reward of the batch; `max-random`:
    0.4 for the highest, 0.1 for all others."""

    power: float = Field(default=2.0, ge=0, le=100)
    """Exponent of `power`."""
