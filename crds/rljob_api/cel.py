"""Rules of the CRD for the API server: unions, divisibility, and what never changes after creation.

Called by `crd`. The part of `rules` and `layout_rules` that is short in CEL; the operator checks the
rest. Lists and texts that rules read are bounded in the models, which bounds the rules' cost.
"""

from rljob_api.rljob import RLJobSpec

MUTABLE = ("steps", "checkpoint", "evaluation", "dock")
"""What a resumed run may have changed; everything else is fixed when the job is made."""

_DEVICES = "self.accelerator.nodes * self.accelerator.devicesPerNode"


def _fills(path: str, degrees: tuple[str, ...]) -> str:
    """data × the other degrees is the number of devices; without data, the others divide it."""
    product = " * ".join(f"{path}.{degree}" for degree in degrees)
    return (
        f"self.placement.mode != 'colocated' || (has({path}.data)"
        f" ? {path}.data * {product} == {_DEVICES} : {_DEVICES} % ({product}) == 0)"
    )


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
