"""Rules of the CRD for the API server: unions, divisibility, and fields that never change after creation.

Called by `crd`. It has the rules of `rules` and `layout_rules` that are short in CEL; the operator checks the
others. Lists and texts that rules read are bounded in the models, which bounds the rules' cost.
"""

from collections.abc import Iterable, Iterator

from rljob_api.spec.algorithms import PARAMS
from rljob_api.spec.products import ONE_NODE, SEVERAL_NODES
from rljob_api.spec.rljob import RLJobSpec
from rljob_api.spec.scheduling import QUEUE_NEEDED, QUEUED

MUTABLE = (
    "steps",
    "placement",
    "checkpoint",
    "evaluation",
    "guards",
    "stragglers",
    "elastic",
    "profile",
    "tracking",
    "dock",
    "suspend",
    "backoffLimit",
    "activeDeadlineSeconds",
    "startDeadlineSeconds",
    "progressDeadlineSeconds",
    "ttlSecondsAfterFinished",
    "cleanupPolicy",
    "failurePolicy",
)
"""Fields that a resumed run may have changed. Everything else is fixed when the job is created. Separate
rules fix some fields of placement and checkpoint."""

LAYOUT: dict[str, tuple[str, ...]] = {
    "batch": ("microBatchSize", "microBatchTokens"),
    "rollout": ("parallelism",),
    "update": ("parallelism", "recompute", "offload", "redundancy"),
    "critic": ("parallelism",),
    "teacher": ("parallelism",),
    "resharding": (),
    "placement": ("mode", "updateDevices", "rolloutDevices"),
    "accelerator": (),
    "podTemplates": (),
}
"""Devices, how they share the models, and their pods. These change only while a job is suspended and has no
RayCluster, and the next attempt starts with them. An empty tuple means all fields of a section."""

_ROLES = {"update": "self.placement.updateDevices", "rollout": "self.placement.rolloutDevices"}
_PER_NODE = "self.accelerator.devicesPerNode"
_NODES = (
    f"(has({_ROLES['update']}) && has({_ROLES['rollout']})"
    f" ? ({_ROLES['update']} + {_ROLES['rollout']} + {_PER_NODE} - 1) / {_PER_NODE}"
    " : has(self.accelerator.nodes) ? self.accelerator.nodes : 1)"
)


def _fills(role: str, degrees: tuple[str, ...]) -> str:
    """Return the rule that data × the other degrees is the number of devices, or, without data, that the
    others divide it."""
    path, role_devices = f"self.{role}.parallelism", _ROLES[role]
    product = " * ".join(f"{path}.{degree}" for degree in degrees)

    def product_fills(devices: str) -> str:
        """Return the expression for this number of devices."""
        return (
            f"(has({path}.data) ? {path}.data * {product} == {devices}"
            f" : {devices} % ({product}) == 0)"
        )

    return (
        f"self.placement.mode == 'colocated' ? {product_fills(f'{_NODES} * {_PER_NODE}')}"
        f" : !has({role_devices}) || {product_fills(role_devices)}"
    )


def _shares_prompts() -> str:
    """Return the rule that rollout replicas get the same number of prompts, if their devices are counted."""
    devices, path = _ROLES["rollout"], "self.rollout.parallelism"
    product = f"({path}.tensor * {path}.pipeline)"
    return (
        f"self.placement.mode == 'colocated' || !has({devices}) || {devices} < {product}"
        f" || {devices} % {product} != 0"
        f" || self.batch.globalBatchSize % ({devices} / {product}) == 0"
    )


def _least_samples() -> Iterator[tuple[str, str]]:
    """Yield the rule that a prompt has as many samples as each algorithm compares."""
    for least in (2,):
        names = [name for name, params in PARAMS.items() if params().least_samples == least]
        yield (
            f"self.batch.samplesPerPrompt >= {least} || !(self.algorithm.name in {names})",
            f"batch.samplesPerPrompt must be at least {least} for {', '.join(names)}",
        )


def _legal_devices(product: str) -> tuple[str, str]:
    one, several = list(ONE_NODE[product]), list(SEVERAL_NODES[product])
    return (
        f"self.accelerator.type != '{product}' || {_PER_NODE} in ({_NODES} > 1 ? {several} : {one})",
        f"devicesPerNode of {product} must be one of {one}, on several nodes of {several}",
    )


def _same(key: str) -> str:
    """Return the rule that an optional key is neither added, removed nor changed."""
    return f"has(self.{key}) == has(oldSelf.{key}) && (!has(self.{key}) || self.{key} == oldSelf.{key})"


_MAY_MOVE = "(oldSelf.spec.suspend && !(has(oldSelf.status) && has(oldSelf.status.rayCluster)))"
_TO_MOVE = (
    "while the job is suspended and its pods are gone (spec.suspend: true, then phase Suspended)"
)


def _moves(key: str, field: str = "") -> tuple[str, str]:
    """Return the rule that a field changes only while the job has no RayCluster. In an optional section it
    applies only if the section was and is present."""
    path = f"spec.{key}.{field}" if field else f"spec.{key}"
    fixed_fields_rule = f"({_same(path)})"
    if key in optional_immutable_fields():
        fixed_fields_rule = (
            f"!has(self.spec.{key}) || !has(oldSelf.spec.{key}) || {fixed_fields_rule}"
        )
    return f"{_MAY_MOVE} || {fixed_fields_rule}", f"{path} changes only {_TO_MOVE}"


def _exactly_one(*keys: str) -> tuple[str, str]:
    count = " + ".join(f"(has(self.{key}) ? 1 : 0)" for key in keys)
    return f"{count} == 1", f"give exactly one of {', '.join(keys)}"


def _extension_params(key: str) -> tuple[str, str]:
    """Return the rule that only extensions, whose names have a dot, take parameters."""
    return (
        f"!has(self.params) || self.{key}.contains('.')",
        f"params are for the {key} of a package, whose name has a dot",
    )


POD_TEMPLATE = {
    "env[]": [_exactly_one("value", "valueFrom")],
    "env[].valueFrom": [_exactly_one("secretKeyRef", "configMapKeyRef")],
    "volumes[]": [_exactly_one("configMap", "secret", "persistentVolumeClaim", "emptyDir")],
}

RULES: dict[str, list[tuple[str, str]]] = {
    "spec.model": [
        ("has(self.path) != has(self.builtin)", "give exactly one of path and builtin"),
        (
            "!has(self.warmup) || (has(self.builtin) && self.builtin in ['tiny', 'tiny-vl'])",
            "warmup is only for builtin: tiny and tiny-vl",
        ),
    ],
    "spec.data": [
        _exactly_one(
            "reasoningGym", "drawn", "jsonl", "parquet", "source", "environment", "preferences"
        ),
        (
            "self.template.matches('(^|[^{])[{][A-Za-z_][A-Za-z0-9_]*[}]')",
            "template must contain {question} or another key of an item",
        ),
    ],
    "spec.rewards": [
        ("self.size() == 0 || self.exists(r, r.weight != 0.0)", "every weight is 0; raise one")
    ],
    "spec.rewards[]": [
        (
            "(self.type in ['regex', 'format']) == has(self.pattern)",
            "types regex and format need pattern, other types have no use for it",
        ),
        (
            "(self.type == 'python') == has(self.python)",
            "type python needs python, other types have no use for it",
        ),
        _extension_params("type"),
    ],
    "spec.algorithm": [
        (
            "!has(self.packageParams) || self.name.contains('.')",
            "packageParams are for the algorithm of a package, whose name has a dot",
        ),
    ],
    "spec.rollout": [_extension_params("engine")],
    "spec.update": [_extension_params("engine")],
    "spec.batch": [
        (
            "!has(self.miniBatchSize) || self.globalBatchSize % self.miniBatchSize == 0",
            "miniBatchSize must divide globalBatchSize",
        ),
        (
            "!(has(self.microBatchSize) && has(self.microBatchTokens))",
            "microBatchSize and microBatchTokens both bound a pass: leave one of both out",
        ),
        (
            "!has(self.microBatchTokens)"
            " || self.microBatchTokens >= self.maxPromptLength + self.maxResponseLength",
            "microBatchTokens must be at least maxPromptLength + maxResponseLength",
        ),
    ],
    "spec.dock": [
        (
            "self.replicas == 1 || !has(self.warehouses) || self.warehouses > 1",
            "replicas: 2 needs 2 warehouses or more",
        ),
    ],
    "spec.update.optimizer": [
        (
            "self.minLearningRate == 0.0 || self.schedule == 'cosine'",
            "minLearningRate needs schedule: cosine",
        ),
        (
            "self.minLearningRate <= self.learningRate",
            "minLearningRate must be at most learningRate",
        ),
    ],
    "spec.update.parallelism": [
        ("self.virtualPipeline == 1 || self.pipeline > 1", "virtualPipeline needs pipeline > 1"),
    ],
    "spec.flow": [
        (
            "self.mode == 'async' || has(self.partialRollout) || !has(self.maxStaleness)",
            "maxStaleness needs mode: async or partialRollout; else no sample is ever stale",
        ),
        (
            "self.mode != 'async' || !has(self.partialRollout) || !has(self.maxStaleness)"
            " || self.maxStaleness > 1",
            "maxStaleness must be at least 2 for mode: async with partialRollout",
        ),
    ],
    "spec.placement": [
        (
            "(self.mode == 'separated') == (has(self.updateDevices) || has(self.rolloutDevices))",
            "separated needs updateDevices or rolloutDevices, colocated has no use for them",
        ),
    ],
    "spec.accelerator": [
        (
            "self.type != 'emulated' || self.injection == 'runtime'",
            "injection is for Ascend devices; emulated ones are not injected",
        ),
    ],
    "spec.checkpoint": [
        (
            _same("storage"),
            "storage never changes, since the checkpoints lie there; make a new job",
        ),
    ],
    "spec.checkpoint.storage": [_exactly_one("persistentVolumeClaim", "remote")],
    "spec.checkpoint.storage.remote": [
        (
            "!has(self.endpoint) || self.uri.startsWith('s3:')",
            "endpoint is only for s3://",
        ),
    ],
    "spec.tracking": [
        (
            "has(self.tensorboard) || has(self.wandb) || has(self.mlflow)",
            "give tensorboard, wandb or mlflow, or leave it out",
        ),
    ],
    "spec.scheduling": [
        (
            f"has(self.queue) || !(self.scheduler in {list(QUEUE_NEEDED)})",
            f"{' and '.join(QUEUE_NEEDED)} need a queue",
        ),
        (
            f"!has(self.queue) || self.scheduler in {list(QUEUED)}",
            f"only {', '.join(QUEUED)} have queues",
        ),
        (
            "!has(self.minRolloutDevices) || self.scheduler == 'kueue'",
            "only kueue admits a part of a job",
        ),
    ],
    "spec.failurePolicy.rules[]": [
        (
            "(has(self.onExitCodes) && size(self.onExitCodes) > 0)"
            " || (has(self.onReasons) && size(self.onReasons) > 0)",
            "give onExitCodes, onReasons or both",
        ),
    ],
    **{
        f"spec.podTemplates.{role}.{path}": rules
        for role in ("head", "worker", "warehouse")
        for path, rules in POD_TEMPLATE.items()
    },
    "spec": [
        *_least_samples(),
        (
            "has(self.data.preferences) == (self.rewards.size() == 0)",
            "spec.rewards needs at least one, or none with data.preferences",
        ),
        (
            "!has(self.data.preferences) || (has(self.algorithm.name) && self.algorithm.name == 'dpo'"
            " && self.batch.samplesPerPrompt == 2)",
            "data.preferences needs algorithm.name: dpo and batch.samplesPerPrompt: 2",
        ),
        (
            "has(self.data.reasoningGym) || self.rewards.all(r, r.type != 'dataset')",
            "a reward of type dataset needs data.reasoningGym",
        ),
        (
            "has(self.data.environment) || self.rewards.all(r, r.type != 'environment')",
            "a reward of type environment needs data.environment",
        ),
        (
            "has(self.rollout.agent) || self.rewards.all(r, r.type != 'agent')",
            "a reward of type agent needs rollout.agent",
        ),
        (
            "!has(self.algorithm.params) || !has(self.algorithm.params.minGroupsWithSignal)"
            " || self.algorithm.params.minGroupsWithSignal <= (has(self.batch.miniBatchSize)"
            " ? self.batch.miniBatchSize : self.batch.globalBatchSize)",
            "algorithm.params.minGroupsWithSignal must be at most the prompts of a mini-batch",
        ),
        (
            "self.update.optimizer.warmupSteps == 0"
            " || self.update.optimizer.warmupSteps < self.steps * self.batch.epochs"
            " * (has(self.batch.miniBatchSize)"
            " ? self.batch.globalBatchSize / self.batch.miniBatchSize : 1)",
            "update.optimizer.warmupSteps must be less than the run's optimizer steps",
        ),
        (
            _fills("update", ("tensor", "pipeline", "context")),
            "update.parallelism: data × tensor × pipeline × context must be nodes × devicesPerNode,"
            " with separated updateDevices",
        ),
        (
            _fills("rollout", ("tensor", "pipeline")),
            "rollout.parallelism: data × tensor × pipeline must be nodes × devicesPerNode,"
            " with separated rolloutDevices",
        ),
        (
            _shares_prompts(),
            "placement.rolloutDevices: globalBatchSize must be a multiple of the rollout replicas",
        ),
        (
            "self.flow.mode != 'async' || self.placement.mode == 'separated'",
            "flow.mode: async needs placement.mode: separated; or use streaming",
        ),
        (
            "!has(self.flow.partialRollout)"
            " || self.flow.partialRollout.budgetTokens < self.batch.maxResponseLength",
            "flow.partialRollout.budgetTokens must be less than batch.maxResponseLength",
        ),
        (
            "!has(self.flow.partialRollout) || !has(self.flow.partialRollout.extraPrompts)"
            " || self.flow.partialRollout.extraPrompts <= self.batch.globalBatchSize",
            "flow.partialRollout.extraPrompts must be at most batch.globalBatchSize",
        ),
        *(_legal_devices(product) for product in ONE_NODE),
        *(
            (
                f"!has(self.activeDeadlineSeconds) || !has(self.{name})"
                f" || self.{name} < self.activeDeadlineSeconds",
                f"{name} must be less than activeDeadlineSeconds",
            )
            for name in ("startDeadlineSeconds", "progressDeadlineSeconds")
        ),
    ],
}


def movement_rules() -> list[tuple[str, str]]:
    """Return the rules on the fields of LAYOUT, for the full resource. Only rolloutDevices may also change
    while the job runs."""
    rules = [
        _moves(key, field)
        for key, fields in LAYOUT.items()
        for field in (fields or ("",))
        if field != "rolloutDevices"
    ]
    rule, message = _moves("placement", "rolloutDevices")
    return [*rules, (f"has(self.spec.placement.updateDevices) || {rule}", message)]


def fixed_fields_rule(key: str, fields: Iterable[str]) -> tuple[str, str]:
    """Return the rule that all other fields of a section of LAYOUT never change. fields: all that the section
    has."""
    fixed = [field for field in fields if field not in LAYOUT[key]]
    return " && ".join(
        f"({_same(field)})" for field in fixed
    ), f"{key} never changes; make a new job"


def immutable_fields() -> list[str]:
    """Return the keys of the spec that never change, or only some of whose fields change while the job is
    suspended, in the order of the models."""
    aliases = [field.alias or name for name, field in RLJobSpec.model_fields.items()]
    return [alias for alias in aliases if alias not in MUTABLE]


def optional_immutable_fields() -> list[str]:
    """Return the immutable keys that are optional: the API server must also refuse that one is added or
    removed."""
    optional = {
        field.alias or name
        for name, field in RLJobSpec.model_fields.items()
        if not field.is_required() and field.default is None
    }
    return [key for key in immutable_fields() if key in optional]
