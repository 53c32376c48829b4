"""Rules on how stages follow each other: what makes samples stale, what bounds it, and how prompts are
chosen.

Pure functions from a spec to problems, called by `load`.
"""

from collections.abc import Iterator

from rljob_api.check.rules import Rule
from rljob_api.spec.problems import Problem
from rljob_api.spec.rljob import RLJobSpec
from rljob_api.topology.devices import open_prompts


def flow_rule(spec: RLJobSpec) -> Iterator[Problem]:
    """Allow generation ahead only on separate devices, and a bound on staleness only if samples can be
    stale."""
    flow = spec.flow
    if flow.mode == "async" and spec.placement.mode == "colocated":
        yield Problem(
            "spec.flow.mode",
            "is async, but with placement colocated a device either generates or trains; set "
            "placement.mode: separated, or use streaming",
        )
    if flow.max_staleness is not None and not flow.off_policy:
        yield Problem(
            "spec.flow.maxStaleness",
            f"is {flow.max_staleness}, but with mode {flow.mode} no sample is ever stale; leave it "
            "out, or set mode: async or partialRollout",
        )


def partial_rollout_rule(spec: RLJobSpec) -> Iterator[Problem]:
    """Require a budget that ends some samples, and no more open prompts than a step can train on."""
    flow, batch, path = spec.flow, spec.batch, "spec.flow.partialRollout"
    partial = flow.partial_rollout
    if partial is None:
        return
    if partial.budget_tokens >= batch.max_response_length:
        yield Problem(
            f"{path}.budgetTokens",
            f"is {partial.budget_tokens}, but no response is longer than "
            f"{batch.max_response_length} tokens (spec.batch.maxResponseLength); lower it, or leave "
            "partialRollout out",
        )
    if open_prompts(spec) > batch.global_batch_size:
        yield Problem(
            f"{path}.extraPrompts",
            f"is {partial.extra_prompts}, more than the {batch.global_batch_size} prompts of a step "
            "(spec.batch.globalBatchSize), which must be able to take all that get too old; lower it",
        )
    if flow.mode == "async" and flow.max_staleness == 1:
        yield Problem(
            "spec.flow.maxStaleness",
            "is 1, which mode async uses up by running ahead; with partialRollout use 2 or more, or "
            "mode: streaming",
        )


def difficulty_rule(spec: RLJobSpec) -> Iterator[Problem]:
    """Require that a step's prompts can be chosen by the results of earlier steps, and that groups can
    differ."""
    path, flow = "spec.data.difficultyFilter", spec.flow
    if spec.data.difficulty_filter is None:
        return
    if spec.has_pairs:
        yield Problem(path, "goes by rewards of samples, which pairs have none of; leave it out")
    elif spec.batch.samples_per_prompt < 2:
        yield Problem(
            path,
            "leaves prompts out whose samples are all alike, as the one sample of a prompt always is "
            "(spec.batch.samplesPerPrompt is 1); raise it, or leave the filter out",
        )
    if flow.mode == "async":
        yield Problem(
            path,
            "chooses a step's prompts by the rewards of the step before, which async draws ahead of; use "
            "flow.mode: streaming or sync",
        )
    if flow.partial_rollout is not None:
        yield Problem(
            path,
            "chooses a step's prompts anew, and partialRollout goes on with open ones; leave one of both out",
        )
    if spec.algorithm.params.refills:
        yield Problem(
            path,
            "and algorithm.params.dynamicSampling both choose a step's prompts; leave one of both out",
        )


FLOW_RULES: tuple[Rule, ...] = (flow_rule, partial_rollout_rule, difficulty_rule)
