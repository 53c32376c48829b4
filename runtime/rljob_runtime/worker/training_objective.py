"""The training objective of an engine: the algorithm's loss for the policy, and that for the critic.

The states update and critic create one for each batch, and `training` applies it.
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
    """Loss and settings of one model's training.

    prepare: adds the inputs of `loss` to full groups. whole_batch: advantages are whitened over the batch, so
    that no gradient can begin before it is complete. every_sample_teaches: samples without advantage also
    have a gradient. of_policy: ratios compare with log-probs from before the step.
    """

    prepare: Callable[[SampleBatch], None]
    loss: Callable[[Tensor, SampleBatch, Totals], LossOutput]
    min_groups_with_signal: int
    whole_batch: bool
    every_sample_teaches: bool
    of_policy: bool


MakeObjective = Callable[[ResolvedSpec, KlControl], TrainingObjective]
"""Creates the objective of a spec, with the current KL coefficient."""


def policy_objective(spec: ResolvedSpec, control: KlControl) -> TrainingObjective:
    """Create the algorithm's objective for the policy."""
    algorithm, params = algorithm_of(spec.algorithm.name), control.apply_to(spec.algorithm.params)
    return TrainingObjective(
        prepare=lambda samples: algorithm.prepare(samples, params),
        loss=lambda logprobs_T, micro_batch, totals: algorithm.loss(
            logprobs_T, micro_batch, params, totals
        ),
        min_groups_with_signal=params.min_groups_with_signal,
        whole_batch=params.whole_batch,
        every_sample_teaches=params.every_sample_teaches,
        of_policy=True,
    )


def critic_objective(spec: ResolvedSpec, control: KlControl) -> TrainingObjective:
    """Create the objective of the algorithm's critic, whose returns include the same terms as the
    policy's."""
    algorithm, params = critic_of(spec.algorithm.name), control.apply_to(spec.algorithm.params)
    return TrainingObjective(
        prepare=lambda samples: algorithm.prepare_critic(samples, params),
        loss=lambda values_T, micro_batch, totals: algorithm.critic_loss(
            values_T, micro_batch, params, totals
        ),
        min_groups_with_signal=0,
        whole_batch=False,
        every_sample_teaches=True,
        of_policy=False,
    )
