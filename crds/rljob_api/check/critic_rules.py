"""Rules on models besides the policy: the critic, the reward model, the judge; also on DPO and its pairs.

Pure functions from a spec to problems, called by `load` after those of `layout_rules`.
"""

import re
from collections.abc import Iterator
from dataclasses import replace

from pydantic.alias_generators import to_camel

from rljob_api.check.layout_rules import update_degrees_rule, update_share_rule
from rljob_api.check.rules import Rule, schedule_rule
from rljob_api.spec.algorithms.dpo import UNUSED, DPOParams
from rljob_api.spec.engines import UpdateParallelism
from rljob_api.spec.problems import Problem
from rljob_api.spec.rljob import RLJobSpec
from rljob_api.topology.devices import roles, update_replicas


def critic_rule(spec: RLJobSpec) -> Iterator[Problem]:
    """Allow a critic only for an algorithm that has one, and apply the rules of training to it."""
    if not spec.has_critic:
        if spec.critic is not None:
            yield Problem(
                "spec.critic",
                f"has no use with algorithm {spec.algorithm.name}, which has no critic; leave it out, or use "
                "ppo",
            )
        return
    training = spec.of_critic()
    for rule in (update_degrees_rule, update_share_rule, schedule_rule):
        for problem in rule(training):
            yield _renamed(problem, "spec.critic", "critic")


def reward_model_rule(spec: RLJobSpec) -> Iterator[Problem]:
    """Allow one reward model, with a separate layout that shares out the prompts of each batch evenly."""
    models = [i for i, reward in enumerate(spec.rewards) if reward.model is not None]
    for index in models[1:]:
        yield Problem(
            f"spec.rewards[{index}].model",
            f"is a second reward model beside that of spec.rewards[{models[0]}]; keep one",
        )
    for index in models[:1]:
        model = spec.rewards[index].model
        assert model is not None, "it was looked for"
        path = f"spec.rewards[{index}].model"
        yield from _layout_problems(spec, model.parallelism, path, "reward model")


def teacher_rule(spec: RLJobSpec) -> Iterator[Problem]:
    """Allow a teacher for an algorithm that learns from one, with a layout that shares out prompts evenly."""
    path, params = "spec.teacher", spec.algorithm.params
    if spec.teacher is None:
        if spec.has_teacher:
            yield Problem(
                path,
                f"is missing; {spec.algorithm.name} learns from the log-probs of another model; name one",
            )
        return
    if not spec.has_teacher:
        yield Problem(
            path,
            f"has no use with algorithm {spec.algorithm.name}, which learns from rewards; leave it out, or "
            "use distillation",
        )
        return
    yield from _layout_problems(spec, spec.teacher.parallelism, path, "teacher", evaluates=False)
    if params.kl_coefficient > 0 and params.kl_in == "reward":
        yield Problem(
            "spec.algorithm.params.klIn",
            "is reward, but advantages are the teacher's, token by token; use klIn: loss",
        )
    for name in ("sample_filter", "batch_reweighting"):
        if getattr(params, name) is not None and getattr(params, "reward_coefficient", 1) == 0:
            yield Problem(
                f"spec.algorithm.params.{to_camel(name)}",
                "draws samples by their rewards, which teach nothing while rewardCoefficient is 0; leave it "
                "out, or raise rewardCoefficient",
            )


def judge_rule(spec: RLJobSpec) -> Iterator[Problem]:
    """Require a template that shows the response, and a pattern with the grade in a group."""
    for index, reward in enumerate(spec.rewards):
        if reward.judge is None:
            continue
        path = f"spec.rewards[{index}].judge"
        if "{response}" not in reward.judge.template:
            yield Problem(
                f"{path}.template", "does not show the response; write {response} into it"
            )
        try:
            groups = re.compile(reward.judge.pattern).groups
        except re.error as error:
            yield Problem(f"{path}.pattern", f"is no regular expression: {error.msg}; correct it")
            continue
        if not groups:
            yield Problem(
                f"{path}.pattern", "has no group for the grade; put the number in parentheses"
            )


def _layout_problems(
    spec: RLJobSpec, degrees: UpdateParallelism, path: str, model: str, *, evaluates: bool = True
) -> Iterator[Problem]:
    """Yield problems of the layout of a model that is never trained, on the devices that train. path: of its
    section."""
    update = spec.update.model_copy(update={"parallelism": degrees})
    for problem in update_degrees_rule(spec.model_copy(update={"update": update})):
        yield _renamed(problem, path, model)
    whose = f"the {model} ({path}.parallelism.data)"
    yield from _even_shares(spec, degrees, whose, evaluates=evaluates)


def _even_shares(
    spec: RLJobSpec, degrees: UpdateParallelism, whose: str, *, evaluates: bool = True
) -> Iterator[Problem]:
    replicas = update_replicas(degrees, roles(spec.placement, spec.accelerator).update) or 1
    sizes = {"spec.batch.globalBatchSize": spec.batch.global_batch_size}
    if spec.evaluation is not None and evaluates:
        sizes["spec.evaluation.prompts"] = spec.evaluation.prompts
        for index, suite in enumerate(spec.evaluation.suites):
            sizes[f"spec.evaluation.suites[{index}].prompts"] = suite.prompts
    for name, prompts in sizes.items():
        if prompts % replicas:
            yield Problem(
                name,
                f"{prompts} prompts cannot be shared evenly by {replicas} replicas of {whose}; use "
                f"a multiple of {replicas}",
            )


def _renamed(problem: Problem, path: str, model: str) -> Problem:
    new_path, message = (
        text.replace("spec.update", path).replace("update replicas", f"{model} replicas")
        for text in (problem.path, problem.message)
    )
    return replace(problem, path=new_path, message=message)


def dpo_rule(spec: RLJobSpec) -> Iterator[Problem]:
    """Require parameters of a loss of pairs, whose two responses are in one micro-batch."""
    params = spec.algorithm.params
    if not isinstance(params, DPOParams):
        return
    for name in UNUSED:
        if getattr(params, name) != DPOParams.model_fields[name].default:
            alias = DPOParams.model_fields[name].alias or name
            yield Problem(
                f"spec.algorithm.params.{alias}",
                "has no use with dpo, whose beta is the price of leaving the reference; leave it out",
            )
    if params.pair_loss == "ipo" and params.label_smoothing:
        yield Problem(
            "spec.algorithm.params.labelSmoothing",
            "is for pairLoss sigmoid; IPO's square has no labels to smooth; leave it out",
        )
    if spec.batch.micro_batch_tokens is not None:
        yield Problem(
            "spec.batch.microBatchTokens",
            "may put the two responses of a pair into different passes; use microBatchSize with dpo",
        )


def pairs_rule(spec: RLJobSpec) -> Iterator[Problem]:
    """Require DPO with two responses per prompt for pairs of the data. Nothing is generated for them."""
    if spec.data.preferences is None:
        return
    if spec.algorithm.name != "dpo":
        yield Problem(
            "spec.algorithm.name",
            f"is {spec.algorithm.name}, which learns from rewards of what it generates; with "
            "spec.data.preferences use dpo",
        )
    if spec.batch.samples_per_prompt != 2:
        yield Problem(
            "spec.batch.samplesPerPrompt",
            f"is {spec.batch.samples_per_prompt}; a pair of spec.data.preferences has 2 responses; use 2",
        )
    settings = (
        ("spec.flow.mode", spec.flow.mode == "async", "async; use streaming or sync"),
        ("spec.flow.partialRollout", spec.flow.partial_rollout is not None, "set; leave it out"),
        ("spec.placement.mode", spec.placement.mode != "colocated", "separated; use colocated"),
    )
    for path, wrong, remedy in settings:
        if wrong:
            yield Problem(path, f"is {remedy}: with spec.data.preferences nothing is generated")
    yield from _even_shares(
        spec, spec.update.parallelism, "the policy (spec.update.parallelism.data)"
    )


CRITIC_RULES: tuple[Rule, ...] = (
    critic_rule,
    dpo_rule,
    pairs_rule,
    reward_model_rule,
    teacher_rule,
    judge_rule,
)
