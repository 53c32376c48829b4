"""Rules of the CRD for the API server: unions, divisibility, and what never changes after creation.

Called by `crd`. The part of `rules` and `layout_rules` that is short in CEL; the operator checks the
rest. Lists and texts that rules read are bounded in the models, which bounds the rules' cost.
"""

from rljob_api.products import ONE_NODE, SEVERAL_NODES
from rljob_api.rljob import RLJobSpec
from rljob_api.scheduling import QUEUE_NEEDED, QUEUED

MUTABLE = (
    "steps",
    "checkpoint",
    "evaluation",
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
"""What a resumed run may have changed; everything else is fixed when the job is made."""

_DEVICES = "self.accelerator.nodes * self.accelerator.devicesPerNode"


def _fills(path: str, degrees: tuple[str, ...]) -> str:
    """data × the other degrees is the number of devices; without data, the others divide it."""
    product = " * ".join(f"{path}.{degree}" for degree in degrees)
    return (
        f"self.placement.mode != 'colocated' || (has({path}.data)"
        f" ? {path}.data * {product} == {_DEVICES} : {_DEVICES} % ({product}) == 0)"
    )


def _legal_devices(product: str) -> tuple[str, str]:
    one, several = list(ONE_NODE[product]), list(SEVERAL_NODES[product])
    return (
        f"self.type != '{product}' || self.devicesPerNode in (self.nodes > 1 ? {several} : {one})",
        f"devicesPerNode of {product} must be one of {one}, on several nodes of {several}",
    )


def _exactly_one(*keys: str) -> tuple[str, str]:
    given = " + ".join(f"(has(self.{key}) ? 1 : 0)" for key in keys)
    return f"{given} == 1", f"give exactly one of {', '.join(keys)}"


POD_TEMPLATE = {
    "env[]": [_exactly_one("value", "valueFrom")],
    "env[].valueFrom": [_exactly_one("secretKeyRef", "configMapKeyRef")],
    "volumes[]": [_exactly_one("configMap", "secret", "persistentVolumeClaim", "emptyDir")],
}

RULES: dict[str, list[tuple[str, str]]] = {
    "spec.model": [
        ("has(self.path) != has(self.builtin)", "give exactly one of path and builtin"),
        (
            "!has(self.warmup) || (has(self.builtin) && self.builtin == 'tiny')",
            "warmup is only for builtin: tiny",
        ),
    ],
    "spec.data": [
        (
            "has(self.reasoningGym) != has(self.jsonl)",
            "give exactly one of reasoningGym and jsonl",
        ),
        (
            "self.template.matches('(^|[^{])[{][A-Za-z_][A-Za-z0-9_]*[}]')",
            "template must contain {question} or another key of an item",
        ),
    ],
    "spec.rewards": [("self.exists(r, r.weight != 0.0)", "every weight is 0; raise one")],
    "spec.rewards[]": [
        (
            "(self.type in ['regex', 'format']) == has(self.pattern)",
            "types regex and format need pattern, other types have no use for it",
        ),
        (
            "(self.type == 'python') == has(self.python)",
            "type python needs python, other types have no use for it",
        ),
    ],
    "spec.batch": [
        (
            "!has(self.miniBatchSize) || self.globalBatchSize % self.miniBatchSize == 0",
            "miniBatchSize must divide globalBatchSize",
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
    "spec.placement": [
        (
            "(self.mode == 'separated') == (has(self.updateDevices) || has(self.rolloutDevices))",
            "separated needs updateDevices or rolloutDevices, colocated has no use for them",
        ),
    ],
    "spec.accelerator": [
        *(_legal_devices(product) for product in ONE_NODE),
        (
            "self.type != 'emulated' || self.injection == 'runtime'",
            "injection is for Ascend devices; emulated ones are not injected",
        ),
    ],
    "spec.checkpoint": [
        (
            "has(self.storage) == has(oldSelf.storage)"
            " && (!has(self.storage) || self.storage == oldSelf.storage)",
            "storage never changes, since the checkpoints lie there; make a new job",
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
        (
            "has(self.data.reasoningGym) || self.rewards.all(r, r.type != 'dataset')",
            "a reward of type dataset needs data.reasoningGym",
        ),
        ("self.batch.samplesPerPrompt >= 2", "batch.samplesPerPrompt: grpo needs at least 2"),
        (
            "self.algorithm.params.minGroupsWithSignal <= (has(self.batch.miniBatchSize)"
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
            _fills("self.update.parallelism", ("tensor", "pipeline", "context")),
            "update.parallelism: data × tensor × pipeline × context must be nodes × devicesPerNode",
        ),
        (
            _fills("self.rollout.parallelism", ("tensor", "pipeline")),
            "rollout.parallelism: data × tensor × pipeline must be nodes × devicesPerNode",
        ),
        *(
            (
                f"!has(self.activeDeadlineSeconds) || !has(self.{name})"
                f" || self.{name} < self.activeDeadlineSeconds",
                f"{name} must be less than activeDeadlineSeconds",
            )
            for name in ("startDeadlineSeconds", "progressDeadlineSeconds")
        ),
        (
            "!has(self.placement.updateDevices) || !has(self.placement.rolloutDevices)"
            f" || self.placement.updateDevices + self.placement.rolloutDevices == {_DEVICES}",
            "placement: updateDevices + rolloutDevices must be nodes × devicesPerNode",
        ),
    ],
}


def immutable_fields() -> list[str]:
    """Keys of the spec that never change, in the order of the models."""
    aliases = [field.alias or name for name, field in RLJobSpec.model_fields.items()]
    return [alias for alias in aliases if alias not in MUTABLE]


def optional_immutable_fields() -> list[str]:
    """Those of them that may be absent: the API server must also see that none comes or goes."""
    optional = {
        field.alias or name
        for name, field in RLJobSpec.model_fields.items()
        if not field.is_required() and field.default is None
    }
    return [key for key in immutable_fields() if key in optional]
