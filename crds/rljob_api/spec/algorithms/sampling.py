"""Which groups, and which samples of a group, are trained on."""

from typing import Literal

from pydantic import Field

from rljob_api.spec.section import Section


class DynamicSampling(Section):
    """DAPO (arXiv:2503.14476, §3.2): prompts are drawn in rounds until a step has its groups; what is left
    over goes into the next step."""

    signal: Literal["accuracy", "reward"] = "accuracy"
    """A group is kept when some of its samples pass the first reward and others do not (`accuracy`), or
    when its rewards differ (`reward`). Both before overlong shaping."""

    max_rounds: int = Field(default=4, ge=1, le=1000)
    """Rounds of a step, each of at most globalBatchSize prompts."""

    when_short: Literal["fill", "go-on", "stop"] = "fill"
    """After the last round, when groups are missing: `fill` takes groups without a signal, whose advantages
    are 0; `go-on` draws more; `stop` fails the run."""


class SampleFilter(Section):
    """PF-PPO (arXiv:2409.06957): some of each prompt's samples are trained on, drawn by the rank of their
    rewards, where a reward model is trusted most at the ends. Advantages are those of all samples."""

    strategy: Literal["best-of-n", "best-random", "best-worst"] = "best-worst"
    """`best-of-n`: the best; `best-random`: the best one half of the time, else any other; `best-worst`: the
    best or the worst. Samples of equal reward have equal chances."""

    keep: int = Field(default=2, ge=1, le=4096)
    """Samples of a prompt that are drawn, with replacement."""


class BatchReweighting(Section):
    """The step's samples drawn anew after advantages were made: as many, with replacement, by weights of
    their rewards over the whole batch. verl's form of PF-PPO, where the paper's is sampleFilter."""

    weights: Literal["power", "max-min", "max-random"] = "power"
    """`power`: |R| to `power`; `max-min`: the highest and the lowest reward of the batch alone; `max-random`:
    0.4 for the highest, 0.1 for all others."""

    power: float = Field(default=2.0, ge=0, le=100)
    """Exponent of `power`."""
