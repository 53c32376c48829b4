"""What an engine is taught by: the algorithm's part for the policy, and that for the critic.

Made anew for each batch by the states update and critic; `training` carries it out.
"""

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

from rljob_api.topology.resolved import ResolvedSpec
from rljob_runtime.algorithms import LossOutput, Totals, algorithm_of, critic_of
from rljob_runtime.algorithms.kl_control import KlControl
from rljob_runtime.samples.sample import SampleBatch


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingObjective:
    """prepare: adds to whole groups what `loss` reads. whole_batch: advantages are whitened over the batch,
    so that no gradient begins before. every_sample_teaches: so does one without advantage. of_policy:
    log-probs of before the step are what ratios are taken against."""

    prepare: Callable[[SampleBatch], None]
    loss: Callable[[Tensor, SampleBatch, Totals], LossOutput]
    min_groups_with_signal: int
    whole_batch: bool
    every_sample_teaches: bool
    of_policy: bool


MakeObjective = Callable[[ResolvedSpec, KlControl], TrainingObjective]
"""Of a spec, with the present KL coefficient."""


def policy_objective(spec: ResolvedSpec, control: KlControl) -> TrainingObjective:
    """The algorithm's."""
    algorithm, params = algorithm_of(spec.algorithm.name), control.applied(spec.algorithm.params)
    return TrainingObjective(
        prepare=lambda samples: algorithm.prepare(samples, params),
        loss=lambda logprobs_T, part, totals: algorithm.loss(logprobs_T, part, params, totals),
        min_groups_with_signal=params.min_groups_with_signal,
        whole_batch=params.whole_batch,
        every_sample_teaches=params.every_sample_teaches,
        of_policy=True,
    )


def critic_objective(spec: ResolvedSpec, control: KlControl) -> TrainingObjective:
    """That of the algorithm's critic, whose returns count what the policy's do."""
    algorithm, params = critic_of(spec.algorithm.name), control.applied(spec.algorithm.params)
    return TrainingObjective(
        prepare=lambda samples: algorithm.prepare_critic(samples, params),
        loss=lambda values_T, part, totals: algorithm.critic_loss(values_T, part, params, totals),
        min_groups_with_signal=0,
        whole_batch=False,
        every_sample_teaches=True,
        of_policy=False,
    )
