"""Rules between fields of the workload: model, data, rewards, algorithm, batch, optimizer.

Pure functions from a spec to problems, called by `load`; `layout_rules` holds those on devices. A rule reads
only the sections that it needs, so a fault elsewhere does not hide its own.
"""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping

from rljob_api.spec.extensions import is_extension
from rljob_api.spec.problems import Problem
from rljob_api.spec.rljob import RLJobSpec
from rljob_api.spec.workload import RESTRICTED, Reward

Rule = Callable[[RLJobSpec], Iterable[Problem]]

VLLM_TEMPERATURES = (0.01, 2.0)
"""vLLM silently raises lower temperatures to 0.01 and refuses higher ones."""
VLLM_CPU_HEADS = (32, 64, 80, 96, 112, 128, 160, 192, 224, 256, 512)
"""Head sizes for which vLLM 0.32 has attention on CPU, as its error at the first computation lists them."""
WARMED_UP = ("tiny", "tiny-vl")
"""Built-in models over bytes, which a warm-up on the job's task trains."""
PATTERN_TYPES = ("regex", "format")
OPTIONAL = (("pattern", "boxes"), ("pattern", "count"))
"""Members that are optional for a type of reward."""
PLACEHOLDER = r"(?<!\{)\{[A-Za-z_]\w*\}"


def model_rule(spec: RLJobSpec) -> Iterator[Problem]:
    """Require exactly one of path and builtin, and allow a warm-up only for models that are trained by
    one."""
    model = spec.model
    yield from exactly_one("spec.model", {"path": model.path, "builtin": model.builtin})
    if model.warmup is not None and model.builtin not in WARMED_UP:
        yield Problem(
            "spec.model.warmup",
            f"is only for builtin: tiny and tiny-vl, not for {model.builtin or model.path!r}; leave it out",
        )


def data_rule(spec: RLJobSpec) -> Iterator[Problem]:
    """Require exactly one source, and a template with a placeholder for the question."""
    data = spec.data
    sources = {
        "reasoningGym": data.reasoning_gym,
        "drawn": data.drawn,
        "jsonl": data.jsonl,
        "parquet": data.parquet,
        "source": data.source,
        "environment": data.environment,
        "preferences": data.preferences,
    }
    yield from exactly_one("spec.data", sources)
    if not re.search(PLACEHOLDER, data.template):
        yield Problem(
            "spec.data.template",
            f"is {data.template!r}, the same for every prompt; write {{question}} where the "
            "question belongs",
        )
    for text, times in Counter(data.stop).items():
        if times > 1:
            yield Problem("spec.data.stop", f"has {text!r} {times} times; keep one")


def curriculum_rule(spec: RLJobSpec) -> Iterator[Problem]:
    """Allow one way to set the difficulty of prompts, and require steps for every level."""
    gym = spec.data.generator
    path = "spec.data.reasoningGym" if spec.data.reasoning_gym else "spec.data.drawn"
    if gym is None or gym.curriculum is None:
        return
    if gym.has_level:
        yield Problem(f"{path}.level", "curriculum says the levels already; leave one of both out")
    begun = gym.curriculum.steps_per_level * (len(gym.curriculum.levels) - 1)
    if begun >= spec.steps:
        yield Problem(
            f"{path}.curriculum.stepsPerLevel",
            f"is {gym.curriculum.steps_per_level}: the last of {len(gym.curriculum.levels)} levels begins "
            f"after step {begun}, but spec.steps is {spec.steps}; lower it, or raise spec.steps",
        )


def chat_rule(spec: RLJobSpec) -> Iterator[Problem]:
    """Refuse chat with the built-in byte tokenizer, which has no chat template."""
    if spec.data.chat and spec.model.builtin in WARMED_UP:
        yield Problem(
            "spec.data.chat",
            f"is true, but builtin {spec.model.builtin} has no chat template; set it to false or use another "
            "model",
        )


def reward_rule(spec: RLJobSpec) -> Iterator[Problem]:
    """Require unique names, the members that each type needs, and a weight above 0."""
    names: set[str] = set()
    for index, reward in enumerate(spec.rewards):
        path = f"spec.rewards[{index}]"
        if reward.name in names:
            yield Problem(
                f"{path}.name", f"{reward.name!r} is taken by an earlier reward; rename it"
            )
        names.add(reward.name)
        yield from _members(reward, path)
    if spec.rewards and all(reward.weight == 0 for reward in spec.rewards):
        yield Problem("spec.rewards", "every weight is 0, so nothing can be learned; raise one")


def rewards_or_pairs_rule(spec: RLJobSpec) -> Iterator[Problem]:
    """Require rewards for generated samples, and refuse them for pairs, which state what is better."""
    if spec.data.preferences is None and not spec.rewards:
        yield Problem("spec.rewards", "has no reward, so nothing can be learned; give one")
    elif spec.data.preferences is not None and spec.rewards:
        yield Problem(
            "spec.rewards",
            "has no use with spec.data.preferences, whose pairs say what is better; leave it out",
        )


def own_reward(
    spec: RLJobSpec, kind: str, *, giver: str | None, else_use: str
) -> Iterator[Problem]:
    """Allow one reward of a type that another part of the job provides. giver: what is missing for it."""
    ours = [index for index, reward in enumerate(spec.rewards) if reward.type == kind]
    if ours and giver is not None:
        yield Problem(
            f"spec.rewards[{ours[0]}].type",
            f"{kind} needs {giver}; {else_use} use exact, math-verify, regex, format or python",
        )
    for index in ours[1:]:
        yield Problem(
            f"spec.rewards[{index}].type", f"{kind} is there already; keep one reward of it"
        )


def dataset_reward_rule(spec: RLJobSpec) -> Iterator[Problem]:
    """Allow rewards of type dataset only with reasoning-gym, whose datasets have a scorer."""
    if spec.data.reasoning_gym is not None:
        return
    for index, reward in enumerate(spec.rewards):
        if reward.type == "dataset":
            yield Problem(
                f"spec.rewards[{index}].type",
                "dataset needs spec.data.reasoningGym, whose scorer it calls; with other data use exact, "
                "math-verify, regex, format or python",
            )


def group_rule(spec: RLJobSpec) -> Iterator[Problem]:
    """Require as many samples per prompt as the algorithm compares, and a step that can train."""
    batch, params = spec.batch, spec.algorithm.params
    if batch.samples_per_prompt < params.least_samples:
        yield Problem(
            "spec.batch.samplesPerPrompt",
            f"is {batch.samples_per_prompt}; {spec.algorithm.name} compares the samples of a prompt "
            f"with each other and needs at least {params.least_samples}",
        )
    prompts, source = batch.global_batch_size, "globalBatchSize"
    if batch.mini_batch_size and batch.mini_batch_size < prompts:
        prompts, source = batch.mini_batch_size, "miniBatchSize"
    if params.min_groups_with_signal > prompts:
        yield Problem(
            "spec.algorithm.params.minGroupsWithSignal",
            f"is {params.min_groups_with_signal}, more than the {prompts} prompts of an optimizer "
            f"step (spec.batch.{source}), so no step would train; lower it",
        )


def mini_batch_rule(spec: RLJobSpec) -> Iterator[Problem]:
    """Require that mini-batches cut the step's prompts evenly."""
    batch = spec.batch
    if batch.mini_batch_size and batch.global_batch_size % batch.mini_batch_size:
        yield Problem(
            "spec.batch.miniBatchSize",
            f"{batch.mini_batch_size} does not divide globalBatchSize {batch.global_batch_size}; "
            f"{use_one_of(divisors(batch.global_batch_size), batch.mini_batch_size)}",
        )


def micro_batch_rule(spec: RLJobSpec) -> Iterator[Problem]:
    """Require that a pass is bounded either by prompts or by tokens, which must fit a longest sample."""
    batch, path = spec.batch, "spec.batch.microBatchTokens"
    if batch.micro_batch_tokens is None:
        return
    if batch.micro_batch_size is not None:
        yield Problem(path, "microBatchSize bounds a pass already; leave one of both out")
    longest = batch.max_prompt_length + batch.max_response_length
    if batch.micro_batch_tokens < longest:
        yield Problem(
            path,
            f"is {batch.micro_batch_tokens}, less than the {longest} tokens of a longest sample "
            f"(maxPromptLength {batch.max_prompt_length} + maxResponseLength "
            f"{batch.max_response_length}); use {longest} or more",
        )


def schedule_rule(spec: RLJobSpec) -> Iterator[Problem]:
    """Require that the learning rate's schedule fits the run."""
    optimizer, path = spec.update.optimizer, "spec.update.optimizer"
    lowest, peak = optimizer.min_learning_rate, optimizer.learning_rate
    if optimizer.schedule == "constant" and lowest:
        yield Problem(
            f"{path}.minLearningRate",
            f"is {lowest:g}, but the schedule is constant and never reaches it; set schedule: cosine "
            "or leave it out",
        )
    elif lowest > peak:
        yield Problem(
            f"{path}.minLearningRate",
            f"is {lowest:g}, above learningRate {peak:g}; lower it",
        )
    batch = spec.batch
    mini_batches = batch.global_batch_size // (batch.mini_batch_size or batch.global_batch_size)
    total = spec.steps * mini_batches * batch.epochs
    if optimizer.warmup_steps and optimizer.warmup_steps >= total:
        yield Problem(
            f"{path}.warmupSteps",
            f"is {optimizer.warmup_steps}; must be less than the {total} optimizer steps of the run "
            f"(spec.steps {spec.steps} × {mini_batches} mini-batches × {batch.epochs} epochs)",
        )


def rollout_params_rule(spec: RLJobSpec) -> Iterator[Problem]:
    """Refuse params for the built-in rollout engines, which have fields instead."""
    if spec.rollout.params is not None and not is_extension(spec.rollout.engine):
        yield _no_params("spec.rollout", f"engine {spec.rollout.engine}")


def update_params_rule(spec: RLJobSpec) -> Iterator[Problem]:
    """Refuse params for the built-in update engines, which have fields instead."""
    if spec.update.params is not None and not is_extension(spec.update.engine):
        yield _no_params("spec.update", f"engine {spec.update.engine}")


def vllm_rule(spec: RLJobSpec) -> Iterator[Problem]:
    """Require settings with which vLLM samples correctly and reports correct log-probs."""
    rollout, evaluation = spec.rollout, spec.evaluation
    if rollout.engine != "vllm":
        return
    sampled = {"spec.rollout.temperature": rollout.temperature}
    if evaluation is not None and evaluation.temperature > 0:
        sampled["spec.evaluation.temperature"] = evaluation.temperature
    for index, suite in enumerate(evaluation.suites if evaluation else []):
        if suite.temperature:
            sampled[f"spec.evaluation.suites[{index}].temperature"] = suite.temperature
    low, high = VLLM_TEMPERATURES
    truncates = rollout.top_p < 1 or rollout.top_k > 0
    for path, temperature in sampled.items():
        if not low <= temperature <= high:
            yield Problem(
                path,
                f"is {temperature:g}, outside of vLLM's {low:g} to {high:g}; use one inside, or "
                "rollout.engine: torch",
            )
        elif truncates and temperature != 1:
            yield Problem(
                path,
                f"is {temperature:g} with topP or topK, of which vLLM reports no right log-probs; "
                "use 1, or leave topP and topK out, or use rollout.engine: torch",
            )


def storage_rule(spec: RLJobSpec) -> Iterator[Problem]:
    """Require one location for checkpoints, and allow an endpoint only for S3."""
    storage, path = spec.checkpoint.storage, "spec.checkpoint.storage"
    if storage is None:
        return
    claim, remote = storage.persistent_volume_claim, storage.remote
    yield from exactly_one(path, {"persistentVolumeClaim": claim, "remote": remote})
    if remote is not None and remote.endpoint and not remote.uri.startswith("s3:"):
        yield Problem(
            f"{path}.remote.endpoint", f"has no use with {remote.uri!r}; leave it out or use s3://"
        )


def exactly_one(path: str, members: Mapping[str, object]) -> Iterator[Problem]:
    """Yield a problem unless exactly one of the members is not None."""
    present = [name for name, value in members.items() if value is not None]
    if len(present) != 1:
        description = (
            _listed(present) if present else "neither" if len(members) == 2 else "none of them"
        )
        yield Problem(path, f"has {description}; give exactly one of {_listed(members)}")


def divisors(number: int) -> list[int]:
    """Return the divisors in ascending order. number ≥ 1."""
    small = [i for i in range(1, int(number**0.5) + 1) if number % i == 0]
    return sorted({*small, *(number // i for i in small)})


def use_one_of(legal: list[int], value: int) -> str:
    """Return `use 1, 2 or 4`: the legal numbers, or those nearest to `value` if there are many."""
    nearest = sorted(sorted(legal, key=lambda number: abs(number - value))[:6])
    *most, last = [str(number) for number in nearest]
    return f"use {', '.join(most)} or {last}" if most else f"use {last}"


def _members(reward: Reward, path: str) -> Iterator[Problem]:
    types_with_member = ("python", "model", "http", "judge")
    required = {
        "pattern": reward.type in PATTERN_TYPES,
        **{name: reward.type == name for name in types_with_member},
    }
    for member, needed in required.items():
        present = getattr(reward, member) is not None
        if needed and not present:
            yield Problem(f"{path}.{member}", f"is missing; type {reward.type} needs it")
        elif present and not needed and (member, reward.type) not in OPTIONAL:
            yield Problem(f"{path}.{member}", f"has no use with type {reward.type}; leave it out")
    if reward.params is not None and not is_extension(reward.type):
        yield _no_params(path, f"type {reward.type}")
    may = reward.type in (*RESTRICTED, "python") or is_extension(reward.type)
    if reward.restricted is not None and not may:
        yield Problem(
            f"{path}.restricted",
            f"has no use with type {reward.type}, which evaluates nothing of a response; leave it out",
        )
    if reward.pattern is None:
        return
    try:
        groups = re.compile(reward.pattern.pattern).groups
    except re.error as error:
        yield Problem(
            f"{path}.pattern.pattern",
            f"is no regular expression: {error.msg} at character {(error.pos or 0) + 1}; correct it",
        )
        return
    group = reward.pattern.group
    if group is not None and group > groups:
        yield Problem(
            f"{path}.pattern.group",
            f"is {group}, but the pattern has {groups} capture groups; use at most {groups}",
        )


def _no_params(path: str, owner: str) -> Problem:
    return Problem(
        f"{path}.params", f"has no use with {owner}, only with a package's; leave it out"
    )


def _listed(names: Iterable[str]) -> str:
    *most, last = names
    return f"{', '.join(most)} and {last}" if most else last


RULES: tuple[Rule, ...] = (
    model_rule,
    data_rule,
    curriculum_rule,
    chat_rule,
    reward_rule,
    rewards_or_pairs_rule,
    dataset_reward_rule,
    group_rule,
    mini_batch_rule,
    micro_batch_rule,
    schedule_rule,
    rollout_params_rule,
    update_params_rule,
    vllm_rule,
    storage_rule,
)
