"""Refuse combinations of an algorithm with the job that are wrong in theory, each with the reason.

Pure functions from a spec to problems, called by `load`. Settings that merely train badly are not refused.
"""

from collections.abc import Iterator

from rljob_api.check.rules import Rule
from rljob_api.spec.algorithms import PackageAlgorithm
from rljob_api.spec.algorithms.policy_params import PolicyParams
from rljob_api.spec.problems import Problem
from rljob_api.spec.rljob import RLJobSpec
from rljob_api.topology.devices import off_policy

PATH = "spec.algorithm.params"


def kl_rule(spec: RLJobSpec) -> Iterator[Problem]:
    """Require a KL term with the KL's gradient, and a coefficient that can be adapted."""
    params = spec.algorithm.params
    if params.kl_coefficient > 0 and params.kl_in == "loss" and params.kl_estimator == "k1":
        yield Problem(
            f"{PATH}.klEstimator",
            "is k1 in the loss, where its gradient is 0 on average, so that nothing holds the policy; use k2 "
            "or k3, or klIn: reward",
        )
    if params.kl_in == "reward" and params.kl_coefficient > 0 and params.kl_estimator != "k1":
        yield Problem(
            f"{PATH}.klEstimator",
            f"is {params.kl_estimator} in the reward, which is no longer the KL's own gradient then (k1's "
            "is); use k1, or klIn: loss",
        )
    if params.kl_target is not None and params.kl_coefficient == 0:
        yield Problem(
            f"{PATH}.klTarget",
            "adapts a klCoefficient that is 0, and 0 stays 0; give klCoefficient a value above 0",
        )


def sequence_rule(spec: RLJobSpec) -> Iterator[Problem]:
    """Require a mean over sequences for a loss of full sequences."""
    aggregation = spec.algorithm.params.loss_aggregation
    if spec.algorithm.name == "gspo" and aggregation != "sequence-mean":
        yield Problem(
            f"{PATH}.lossAggregation",
            f"is {aggregation}, which weights GSPO's one ratio a sequence by the sequence's length; use "
            "sequence-mean, or algorithm grpo",
        )


def truncated_sampling_rule(spec: RLJobSpec) -> Iterator[Problem]:
    """Refuse truncated sampling with importance weights, which need the probabilities that tokens were drawn
    with."""
    params, rollout = spec.algorithm.params, spec.rollout
    if rollout.top_p == 1 and rollout.top_k == 0:
        return
    where = "topP" if rollout.top_p < 1 else "topK"
    value = rollout.top_p if rollout.top_p < 1 else rollout.top_k
    if spec.has_teacher:
        yield Problem(
            f"spec.rollout.{where}",
            f"is {value:g}: tokens are drawn from a truncated distribution, of which the distance from the "
            "teacher is not that of the trained policy; use topP 1 and topK 0",
        )
    using = _uses_rollout_ratio(params, older=off_policy(spec))
    if using is None:
        return
    yield Problem(
        f"spec.rollout.{where}",
        f"is {value:g}: tokens are drawn from a truncated distribution that the trained policy is not, so "
        f"the ratio of {using} is biased; use topP 1 and topK 0, or leave the correction out "
        "(rolloutCorrection.weight: none)",
    )


def rollout_logprobs_rule(spec: RLJobSpec) -> Iterator[Problem]:
    """Require the rollout's log-probs as a column if a correction uses them."""
    params = spec.algorithm.params
    if not isinstance(spec.algorithm, PackageAlgorithm) or "rollout_logprobs" in params.fields:
        return
    using = _uses_rollout_ratio(params, older=off_policy(spec))
    if using is not None:
        yield Problem(
            using,
            f"needs the column 'rollout_logprobs', which is not among the fields of {spec.algorithm.name}, "
            "so that nothing corrects for the policy that drew the tokens; add it to them, or leave the "
            "correction out (rolloutCorrection.weight: none, mask: none, ratioAgainst: update)",
        )


def ratio_rule(spec: RLJobSpec) -> Iterator[Problem]:
    """Refuse a ratio that counts twice: in the surrogate and as a weight."""
    params = spec.algorithm.params
    chosen, path = params.rollout_correction, f"{PATH}.rolloutCorrection"
    explicit = chosen.weight in ("token", "sequence")
    weighs = explicit or (chosen.weight == "auto" and off_policy(spec))
    if params.ratio_against == "rollout" and weighs:
        yield Problem(
            f"{path}.weight",
            f"is {chosen.weight}, but with ratioAgainst: rollout the surrogate's ratio has the rollout's "
            "policy in it already, and it would count twice; use none, or ratioAgainst: update",
        )


def _uses_rollout_ratio(params: PolicyParams, *, older: bool) -> str | None:
    """Return the path of the setting that needs the rollout's probabilities, or None."""
    chosen = params.rollout_correction
    if chosen.weight in ("token", "sequence") or (chosen.weight == "auto" and older):
        return f"{PATH}.rolloutCorrection.weight"
    if chosen.mask != "none":
        return f"{PATH}.rolloutCorrection.mask"
    return f"{PATH}.ratioAgainst" if params.ratio_against == "rollout" else None


def overlong_rule(spec: RLJobSpec) -> Iterator[Problem]:
    """Require that an overlong buffer lies within the longest response."""
    overlong = getattr(spec.algorithm.params, "overlong", None)
    longest = spec.batch.max_response_length
    if overlong is None:
        return
    if overlong.max_length is not None and overlong.max_length > longest:
        yield Problem(
            f"{PATH}.overlong.maxLength",
            f"is {overlong.max_length}, but no response is longer than {longest} tokens "
            "(spec.batch.maxResponseLength); lower it or leave it out",
        )
    limit = overlong.max_length or longest
    if overlong.buffer_tokens > limit:
        yield Problem(
            f"{PATH}.overlong.bufferTokens",
            f"is {overlong.buffer_tokens}, longer than the longest response of {limit} tokens, so that every "
            "response costs something; lower it",
        )


def sample_filter_rule(spec: RLJobSpec) -> Iterator[Problem]:
    """Require several samples for a filter to choose from, and refuse drawing samples twice."""
    params = spec.algorithm.params
    if params.sample_filter is not None and params.batch_reweighting is not None:
        yield Problem(
            f"{PATH}.batchReweighting",
            "draws among samples that sampleFilter has drawn, so that neither has its weights; leave one of "
            "both out",
        )
    if params.sample_filter is not None and spec.batch.samples_per_prompt < 2:
        yield Problem(
            f"{PATH}.sampleFilter",
            "chooses among the samples of a prompt, of which there is 1 "
            "(spec.batch.samplesPerPrompt); raise it",
        )


def package_rule(spec: RLJobSpec) -> Iterator[Problem]:
    """Yield the problems that an installed package reports for its algorithm's parameters."""
    if isinstance(spec.algorithm, PackageAlgorithm):
        yield from spec.algorithm.problems()


ALGORITHM_RULES: tuple[Rule, ...] = (
    package_rule,
    kl_rule,
    sequence_rule,
    truncated_sampling_rule,
    rollout_logprobs_rule,
    ratio_rule,
    overlong_rule,
    sample_filter_rule,
)
