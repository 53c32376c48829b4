"""Every wrong job is refused with the path, the value, the limit and what to write instead."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rljob_api.check.load import read_job
from rljob_api.spec.problems import InvalidJob

DEVICES = "spec.accelerator.devicesPerNode"
JSONL = {"jsonl": {"path": "a.jsonl"}}
UPDATE, ROLLOUT = "spec.update.parallelism", "spec.rollout.parallelism"
SEPARATED = {DEVICES: 4, "spec.placement.mode": "separated"}

ONE_SECTION = [
    # changes, path, fragments of the message
    (
        {"apiVersion": "rljob.io/v1"},
        "apiVersion",
        "'rljob.io/v1'; did you mean 'rljob.io/v1beta1'? Legal values: rljob.io/v1beta1, rljob.io/v1alpha1",
    ),
    ({"kind": "RayJob"}, "kind", "'RayJob'; must be 'RLJob'"),
    ({"kind": ...}, "kind", "is missing"),
    ({"metadata.name": "Upper_case"}, "metadata.name", "'Upper_case'; use small letters, digits"),
    ({"metadata.name": "a" * 41}, "metadata.name", "has 41 characters; at most 40"),
    ({"metadata.nmae": "x"}, "metadata.nmae", "unknown key 'nmae'; did you mean 'name'?"),
    ({"metadata.labels": {"a": 1}}, "metadata.labels.a", "is 1; must be text"),
    ({"status": {}}, "status", "unknown key 'status'. Legal keys: apiVersion, kind"),
    ({"spec": None}, "spec", "is empty"),
    ({"spec": [1]}, "spec", "is a list; must be a mapping of keys"),
    ({"spec.steps": ...}, "spec.steps", "is missing; training steps"),
    ({"spec.steps": "10"}, "spec.steps", "'10'; must be a whole number; leave out the quotes"),
    ({"spec.steps": 1.5}, "spec.steps", "is 1.5; must be a whole number"),
    ({"spec.steps": True}, "spec.steps", "is true; must be a whole number"),
    ({"spec.steps": 0}, "spec.steps", "is 0; must be at least 1"),
    ({"spec.seed": 2**31}, "spec.seed", "is 2147483648; must be at most 2147483647"),
    (
        {"spec.btach": {}},
        "spec.btach",
        "unknown key 'btach'; did you mean 'batch'? Legal keys: ste",
    ),
    ({"spec.batch": None}, "spec.batch", "is empty; give it a value or leave the key out"),
    ({"spec.batch": 3}, "spec.batch", "is 3; must be a mapping of keys"),
    ({"spec.batch.global_batch_size": 3}, "spec.batch.global_batch_size", "mean 'globalBatchSize'"),
    ({"spec.rewards": []}, "spec.rewards", "has no reward, so nothing can be learned; give one"),
    ({"spec.rewards": {"a": 1}}, "spec.rewards", "is a mapping of keys; must be a list"),
    ({"spec.rewards.0.typ": 1}, "spec.rewards[0].typ", "did you mean 'type'?"),
    ({"spec.rewards.0.type": "regexp"}, "spec.rewards[0].type", "did you mean 'regex'? Legal val"),
    ({"spec.rewards.0.weight": float("inf")}, "spec.rewards[0].weight", "must be a finite number"),
    ({"spec.rewards.0.threshold": 0}, "spec.rewards[0].threshold", "is 0; must be greater than 0"),
    (
        {"spec.algorithm.name": "gropo"},
        "spec.algorithm.name",
        "did you mean 'grpo'? Legal values: gr",
    ),
    ({"spec.algorithm": 3}, "spec.algorithm", "is 3; must be a mapping of keys"),
    (
        {"spec.algorithm": {"name": "dr-grpo", "params": {"scaleAdvantages": True}}},
        "spec.algorithm.params.scaleAdvantages",
        "unknown key 'scaleAdvantages'",
    ),
    ({"spec.algorithm.params.cliplow": 1}, "spec.algorithm.params.cliplow", "mean 'clipLow'?"),
    ({"spec.algorithm.params.clipLow": 1}, "spec.algorithm.params.clipLow", "must be less than 1"),
    ({"spec.data.stop": [""]}, "spec.data.stop[0]", "is ''; needs at least 1 characters"),
    ({"spec.data.chat": "yes"}, "spec.data.chat", "is 'yes'; must be true or false"),
    ({"spec.rollout.engine": "vlm"}, "spec.rollout.engine", "did you mean 'vllm'? Legal values: t"),
    ({"spec.rollout.engine": "acme."}, "spec.rollout.engine", "names with a dot of installed ext"),
    ({"spec.update.engine": "mindspede"}, "spec.update.engine", "did you mean 'mindspeed'?"),
    (
        {"spec.data": {"source": {"name": "words"}}},
        "spec.data.source.name",
        "'words'; must be the name of an extension, such as acme.words",
    ),
    ({"spec.rollout.kvCacheMemory": "9 GB"}, "spec.rollout.kvCacheMemory", "must be bytes such as"),
    ({"spec.rollout.topP": 1.5}, "spec.rollout.topP", "is 1.5; must be at most 1"),
    ({f"{UPDATE}.zero": 4}, f"{UPDATE}.zero", "Legal values: 0, 1, 2, 3"),
    ({"spec.dock.capacity": "1 GB"}, "spec.dock.capacity", "'1 GB'; must be bytes such as 512Mi"),
    ({"spec.dock.capacity": 5}, "spec.dock.capacity", "is 5; must be text"),
    ({"spec.accelerator.resourceName": "NPU"}, "spec.accelerator.resourceName", "DOMAIN/NAME"),
    (
        {"spec.flow.mode": "stream"},
        "spec.flow.mode",
        "did you mean 'streaming'? Legal values: sync",
    ),
    ({"spec.flow.maxStaleness": 0}, "spec.flow.maxStaleness", "is 0; must be at least 1"),
    (
        {"spec.guards": {"nonFinite": {"policy": "halt"}}},
        "spec.guards.nonFinite.policy",
        "Legal values: ignore, warn, stop, rollback",
    ),
    ({"spec.profile": {"steps": []}}, "spec.profile.steps", "needs at least 1"),
    ({"spec.profile": {"steps": [0]}}, "spec.profile.steps[0]", "is 0; must be at least 1"),
    ({"spec.guards": {"entropy": {}}}, "spec.guards.entropy", "mean 'entropyCollapse'?"),
    (
        {"spec.guards": {"truncation": {"threshold": 1.5}}},
        "spec.guards.truncation.threshold",
        "is 1.5; must be at most 1",
    ),
]

WARMUP_TOO_LONG = {
    "spec.update.optimizer.warmupSteps": 40,
    "spec.batch.miniBatchSize": 8,
    "spec.batch.epochs": 2,
}
ACROSS = [
    ({"spec.model": {}}, "spec.model", "has neither; give exactly one of path and builtin"),
    ({"spec.model.path": "m"}, "spec.model", "has path and builtin"),
    ({"spec.model": {"path": "m", "warmup": {}}}, "spec.model.warmup", "only for builtin: tiny"),
    ({"spec.data.jsonl": {"path": "a"}}, "spec.data", "has reasoningGym and jsonl; give exactly"),
    (
        {"spec.data": {"source": {"name": "acme.words"}, "jsonl": {"path": "a"}}},
        "spec.data",
        "has jsonl and source; give exactly one of reasoningGym, drawn, jsonl, parquet, source, environment "
        "and preferences",
    ),
    ({"spec.rollout.params": {}}, "spec.rollout.params", "has no use with engine torch"),
    (
        {"spec.update": {"engine": "mindspeed", "params": {}}},
        "spec.update.params",
        "has no use with engine mindspeed, only with a package's; leave it out",
    ),
    ({"spec.rewards.0.params": {}}, "spec.rewards[0].params", "has no use with type dataset"),
    (
        {"spec.rewards": [{"name": "a", "type": "exact", "restricted": True}]},
        "spec.rewards[0].restricted",
        "has no use with type exact, which evaluates nothing of a response; leave it out",
    ),
    ({"spec.data.template": "Q:"}, "spec.data.template", "is 'Q:', the same for every prompt"),
    ({"spec.data.stop": ["a", "a"]}, "spec.data.stop", "has 'a' 2 times; keep one"),
    ({"spec.data.chat": True}, "spec.data.chat", "tiny has no chat template"),
    ({"spec.data": JSONL}, "spec.rewards[0].type", "dataset needs spec.data.reasoningGym"),
    ({"spec.rewards.0.type": "regex"}, "spec.rewards[0].pattern", "is missing; type regex needs"),
    (
        {"spec.rewards": [{"name": "a", "type": "exact", "pattern": {"pattern": "x"}}]},
        "spec.rewards[0].pattern",
        "has no use with type exact",
    ),
    (
        {"spec.rewards": [{"name": "a", "type": "boxes", "pattern": {"pattern": "x", "group": 1}}]},
        "spec.rewards[0].pattern.group",
        "is 1, but the pattern has 0 capture groups",
    ),
    ({"spec.rewards.0.type": "python"}, "spec.rewards[0].python", "is missing; type python needs"),
    (
        {"spec.rewards.0.python": {"path": "r.py"}},
        "spec.rewards[0].python",
        "has no use with type dataset; leave it out",
    ),
    (
        {"spec.rewards": [{"name": "a", "type": "exact"}, {"name": "a", "type": "dataset"}]},
        "spec.rewards[1].name",
        "'a' is taken by an earlier reward; rename it",
    ),
    ({"spec.rewards.0.weight": 0.0}, "spec.rewards", "every weight is 0"),
    (
        {"spec.rewards": [{"name": "a", "type": "format", "pattern": {"pattern": "(x"}}]},
        "spec.rewards[0].pattern.pattern",
        "is no regular expression: missing ), unterminated subpattern at character 1",
    ),
    (
        {"spec.rewards": [{"name": "a", "type": "regex", "pattern": {"pattern": "x", "group": 1}}]},
        "spec.rewards[0].pattern.group",
        "is 1, but the pattern has 0 capture groups; use at most 0",
    ),
    ({"spec.batch.samplesPerPrompt": 1}, "spec.batch.samplesPerPrompt", "is 1; grpo compares"),
    (
        {"spec.algorithm.params.minGroupsWithSignal": 17},
        "spec.algorithm.params.minGroupsWithSignal",
        "is 17, more than the 16 prompts of an optimizer step (spec.batch.globalBatchSize)",
    ),
    (
        {"spec.algorithm.params.minGroupsWithSignal": 5, "spec.batch.miniBatchSize": 4},
        "spec.algorithm.params.minGroupsWithSignal",
        "is 5, more than the 4 prompts of an optimizer step (spec.batch.miniBatchSize)",
    ),
    (
        {"spec.batch.miniBatchSize": 6},
        "spec.batch.miniBatchSize",
        "6 does not divide globalBatchSize 16; use 1, 2, 4, 8 or 16",
    ),
    (
        {"spec.update.optimizer.minLearningRate": 1e-7},
        "spec.update.optimizer.minLearningRate",
        "is 1e-07, but the schedule is constant",
    ),
    (
        {"spec.update.optimizer": {"schedule": "cosine", "minLearningRate": 0.1}},
        "spec.update.optimizer.minLearningRate",
        "is 0.1, above learningRate 1e-06",
    ),
    (
        {"spec.update.optimizer.warmupSteps": 10},
        "spec.update.optimizer.warmupSteps",
        "is 10; must be less than the 10 optimizer steps of the run (spec.steps 10 × 1 mini-batches",
    ),
    (
        WARMUP_TOO_LONG,
        "spec.update.optimizer.warmupSteps",
        "is 40; must be less than the 40 optimizer steps",
    ),
    (
        {"spec.rollout": {"engine": "vllm", "temperature": 3}},
        "spec.rollout.temperature",
        "is 3, outside of vLLM's 0.01 to 2",
    ),
    (
        {"spec.rollout": {"engine": "vllm", "temperature": 0.7, "topP": 0.9}},
        "spec.rollout.temperature",
        "is 0.7 with topP or topK",
    ),
    (
        {"spec.rollout": {"engine": "vllm"}, "spec.evaluation": {"temperature": 5}},
        "spec.evaluation.temperature",
        "is 5, outside of vLLM's",
    ),
    (
        {"spec.placement.updateDevices": 1},
        "spec.placement.updateDevices",
        "has no use with mode colocated",
    ),
    (SEPARATED, "spec.placement", "needs updateDevices or rolloutDevices"),
    (
        {**SEPARATED, "spec.placement.updateDevices": 1, "spec.placement.rolloutDevices": 3},
        "spec.batch.globalBatchSize",
        "use 15 or 18, or for placement.rolloutDevices use 1, 2, 4, 8 or 16",
    ),
    (
        {**SEPARATED, "spec.placement.rolloutDevices": 4},
        "spec.placement.rolloutDevices",
        "is 4, which leaves none of 4 devices",
    ),
    (
        {**SEPARATED, "spec.placement.updateDevices": 2, f"{UPDATE}.data": 4},
        UPDATE,
        "is 4, but there are 2 devices that train; use data: 2, or leave data out",
    ),
    (
        {DEVICES: 8, f"{UPDATE}.tensor": 3},
        UPDATE,
        "tensor 3 × pipeline 1 × context 1 is 3, which does not divide 8 devices",
    ),
    (
        {DEVICES: 8, f"{UPDATE}": {"data": 2, "tensor": 3}},
        UPDATE,
        "data 2 × tensor 3 × pipeline 1 × context 1 is 6, but there are 8 devices",
    ),
    ({f"{UPDATE}.virtualPipeline": 2}, f"{UPDATE}.virtualPipeline", "is 2, but pipeline is 1"),
    (
        {DEVICES: 8, f"{UPDATE}.expert": 3},
        f"{UPDATE}.expert",
        "3 does not divide data × context, 8 × 1; use 1, 2, 4 or 8",
    ),
    (
        {DEVICES: 8, f"{UPDATE}": {"pipeline": 2, "zero": 3}},
        f"{UPDATE}.zero",
        "does not go with pipeline 2; use 0, 1 or 2, or pipeline: 1",
    ),
    (
        {DEVICES: 8, f"{UPDATE}": {"expert": 2, "zero": 3}},
        f"{UPDATE}.zero",
        "does not go with expert 2; use 0, 1 or 2, or expert: 1",
    ),
    (
        {DEVICES: 4, "spec.update.redundancy": "peer"},
        "spec.update.redundancy",
        "is peer, but with data 4, context 1 and zero 0 no device holds anything alone: others give its "
        "state to whoever replaces it; use none, or zero: 1, 2 or 3",
    ),
    (
        {"spec.update.redundancy": "peer"},
        "spec.update.redundancy",
        "is peer, but one device trains, and no other has room for its copy; use host, or more devices",
    ),
    (
        {"spec.resharding.deltas": True, "spec.rollout.dtype": "bfloat16"},
        "spec.resharding.deltas",
        "is true with placement.mode colocated, whose devices have both versions",
    ),
    (
        {
            DEVICES: 2,
            "spec.resharding.deltas": True,
            "spec.placement.mode": "separated",
            "spec.update.dtype": "float32",
            "spec.rollout.dtype": "float32",
        },
        "spec.resharding.deltas",
        "in which nearly all items change in a step; set one of them to bfloat16",
    ),
    ({DEVICES: 4, f"{ROLLOUT}.data": 2}, ROLLOUT, "is 2, but there are 4 devices"),
    ({"spec.checkpoint.keepBest": True}, "spec.checkpoint.keepBest", "nothing is evaluated"),
    (
        {"spec.evaluation": {"earlyStop": {"patience": 2}}},
        "spec.evaluation.earlyStop",
        "needs evaluations during training; set spec.evaluation.every",
    ),
    (
        {"spec.evaluation": {"metric": "acuracy"}},
        "spec.evaluation.metric",
        "is 'acuracy'; did you mean 'accuracy'? this evaluation has accuracy, reward",
    ),
    (
        {"spec.profile": {"steps": [2, 200]}},
        "spec.profile.steps",
        "has 200, but the job makes 10 steps (spec.steps); use 1 to 10",
    ),
    (
        {"spec.profile": {"steps": [2], "ranks": [0, 4]}, DEVICES: 2},
        "spec.profile.ranks",
        "has 4, but the job has 2 devices; use 0 to 1",
    ),
    (
        {"spec.profile": {"steps": [2, 2]}},
        "spec.profile.steps",
        "has 2 2 times; name it once",
    ),
    (
        {"spec.guards": {"nonFinite": {"policy": "rollback"}}},
        "spec.guards.nonFinite.policy",
        "is rollback, but no checkpoint is saved before the last step; set spec.checkpoint.every",
    ),
    (
        {
            "spec.guards": {"truncation": {"policy": "rollback", "window": 6}},
            "spec.checkpoint.every": 2,
        },
        "spec.checkpoint.keep",
        "is 2, but spec.guards.truncation rolls back over 6 steps and checkpoints are 2 steps apart; use 4",
    ),
    (
        {"spec.stragglers": {"action": "replace"}, "spec.rollout.engine": "acme.words"},
        "spec.stragglers.action",
        "is replace, but colocated devices cannot make the engine acme.words a second time when they meet",
    ),
    (
        {DEVICES: 4, f"{ROLLOUT}": {"tensor": 2, "expert": 8}},
        f"{ROLLOUT}.expert",
        "8 does not divide data × tensor, 2 × 2; use 1, 2 or 4",
    ),
    (
        {DEVICES: 12, f"{UPDATE}.tensor": 3, f"{ROLLOUT}": {"tensor": 6, "expert": 4}},
        f"{ROLLOUT}.expert",
        "4 neither divides tensor 6 nor is a multiple of it; use 1, 2, 3, 6 or 12",
    ),
    (
        {DEVICES: 2, f"{UPDATE}.tensor": 3},
        UPDATE,
        "tensor 3 × pipeline 1 × context 1 is 3, which does not divide 2 devices (spec.accelerator: nodes 1 "
        "× devicesPerNode 2); use tensor 1 or 2",
    ),
    (
        {DEVICES: 6, f"{ROLLOUT}": {"tensor": 4, "pipeline": 3}},
        ROLLOUT,
        "use tensor 1 or 2",
    ),
    (
        {DEVICES: 2, f"{ROLLOUT}": {"tensor": 3, "pipeline": 3}},
        ROLLOUT,
        "use degrees whose product divides 2",
    ),
    (
        {DEVICES: 2, f"{ROLLOUT}": {"data": 2, "tensor": 3}},
        ROLLOUT,
        "data 2 × tensor 3 × pipeline 1 is 6, but there are 2 devices (spec.accelerator: nodes 1 × "
        "devicesPerNode 2); use degrees whose product is 2",
    ),
    (
        {
            DEVICES: 5,
            "spec.placement": {"mode": "separated", "updateDevices": 3},
            "spec.batch.globalBatchSize": 32,
        },
        "spec.batch.globalBatchSize",
        "32 prompts cannot be shared evenly by 3 update replicas (spec.update.parallelism.data on 3 "
        "devices); use 30 or 36",
    ),
    (
        {"spec.rewards.0.type": "http", "spec.rewards.0.http": {"url": "judge:8000"}},
        "spec.rewards[0].http.url",
        "is 'judge:8000'; begin with http:// or https://",
    ),
    (
        {
            "spec.rewards.0.type": "http",
            "spec.rewards.0.http": {"url": "https://me:secret@judge:8000/score"},
        },
        "spec.rewards[0].http.url",
        "is 'https://***@judge:8000/score'; begin with http:// or https://, without spaces, user and "
        "password; tokenVariable names the variable of a token",
    ),
    (
        {DEVICES: 3},
        "spec.batch.globalBatchSize",
        "16 prompts cannot be shared evenly by 3 ",
    ),
    (
        {DEVICES: 8, "spec.batch.miniBatchSize": 4},
        "spec.batch.miniBatchSize",
        "4 prompts cannot be shared evenly by 8 update replicas (spec.update.parallelism.data on 8 "
        "devices); use 8",
    ),
    (
        {DEVICES: 2, "spec.batch.microBatchSize": 3},
        "spec.batch.microBatchSize",
        "3 does not divide a rank's 8 prompts (globalBatchSize 16 / 2 update replicas)",
    ),
    (
        {"spec.batch.microBatchSize": 1, "spec.batch.microBatchTokens": 10_000},
        "spec.batch.microBatchTokens",
        "microBatchSize bounds a pass already; leave one of both out",
    ),
    (
        {"spec.batch.microBatchTokens": 16},
        "spec.batch.microBatchTokens",
        "is 16, less than the ",
    ),
    (
        {"spec.flow.mode": "async"},
        "spec.flow.mode",
        "is async, but with placement colocated a device either generates or trains; set placement.mode",
    ),
    (
        {"spec.flow.maxStaleness": 2},
        "spec.flow.maxStaleness",
        "is 2, but with mode streaming no sample is ever stale; leave it out, or set mode: async or "
        "partialRollout",
    ),
    (
        {"spec.flow.partialRollout": {"budgetTokens": 64}},
        "spec.flow.partialRollout.budgetTokens",
        "is 64, but no response is longer than 64 tokens (spec.batch.maxResponseLength); lower it, or ",
    ),
    (
        {"spec.flow.partialRollout": {"budgetTokens": 4, "extraPrompts": 17}},
        "spec.flow.partialRollout.extraPrompts",
        "is 17, more than the 16 prompts of a step (spec.batch.globalBatchSize), which must be able ",
    ),
    (
        {
            **SEPARATED,
            "spec.placement.updateDevices": 2,
            "spec.flow": {
                "mode": "async",
                "maxStaleness": 1,
                "partialRollout": {"budgetTokens": 4},
            },
        },
        "spec.flow.maxStaleness",
        "is 1, which mode async uses up by running ahead; with partialRollout use 2 or more, or mode",
    ),
    (
        {"spec.flow.partialRollout": {"budgetTokens": 4}, "spec.dock.capacity": "64Ki"},
        "spec.dock.capacity",
        "is 64Ki, but each of 1 warehouses keeps up to 48 prompts of a step and those that go on",
    ),
    (
        {
            **SEPARATED,
            "spec.placement.updateDevices": 2,
            "spec.flow": {"mode": "async", "maxStaleness": 2},
            "spec.dock.capacity": "64Ki",
        },
        "spec.dock.capacity",
        "is 64Ki, but each of 1 warehouses keeps up to 48 prompts of 3 steps",
    ),
    (
        {"spec.dock.capacity": "64Ki"},
        "spec.dock.capacity",
        "is 64Ki, but each of 1 warehouses keeps up to 16 prompts of a step, 1Mi",
    ),
    (  # a step's 72.5Ki fit into it, but not into three quarters of it
        {"spec.dock.capacity": "90Ki"},
        "spec.dock.capacity",
        "1Mi at the longest lengths, in three quarters of it; use at least 1Mi, or more warehouses",
    ),
    (
        {"spec.dock.replicas": 2},
        "spec.dock.replicas",
        "is 2, but there is 1 warehouse; use dock.warehouses: 2 or more, or replicas: 1",
    ),
    (
        {"spec.dock": {"replicas": 2, "warehouses": 3}, "spec.accelerator.nodes": 2},
        "spec.dock.replicas",
        "is 2, but 3 warehouses on 2 nodes leave room on some, where both of a row's could meet; use "
        "dock.warehouses: 2 or 4",
    ),
    (
        {"spec.dock": {"replicas": 2, "warehouses": 4}, "spec.accelerator.nodes": 3},
        "spec.dock.replicas",
        "use dock.warehouses: 3 or 6, or replicas: 1",
    ),
    (
        {"spec.dock": {"replicas": 2, "warehouses": 2}, "spec.accelerator.type": "ascend910b"},
        "spec.dock.replicas",
        "is 2, but all 2 warehouses are on one node and go with it; use 2 nodes or more",
    ),
    (
        {"metadata.annotations": {"rljob.io/plan-scalar": "3"}},
        "metadata.annotations[rljob.io/plan-scalar]",
        "did you mean 'rljob.io/plan-scalars'?",
    ),
    (
        {"metadata.annotations": {"rljob.io/plan-scalars": "0"}},
        "metadata.annotations[rljob.io/plan-scalars]",
        "is '0'; must be a whole number from 1",
    ),
]


@pytest.mark.parametrize(("changes", "path", "fragment"), ONE_SECTION)
def test_a_field_that_is_wrong_by_itself_is_the_only_problem(problems, changes, path, fragment):
    (problem,) = problems(changes)

    assert problem.path == path
    assert fragment in problem.message


@pytest.mark.parametrize(("changes", "path", "fragment"), ACROSS)
def test_fields_that_do_not_fit_together_are_refused_by_path(problems, changes, path, fragment):
    found = {problem.path: problem.message for problem in problems(changes)}

    assert fragment in found[path]


def test_all_problems_come_at_once_and_a_broken_section_hides_no_others(problems):
    found = problems(
        {
            "spec.steps": "ten",
            "spec.rollout.topK": -1,
            "spec.model.path": "m",
            "spec.batch.miniBatchSize": 5,
        }
    )

    paths = [problem.path for problem in found]
    assert paths == ["spec.steps", "spec.rollout.topK", "spec.model", "spec.batch.miniBatchSize"]


def test_a_rule_is_silent_about_a_section_that_did_not_parse(problems):
    (problem,) = problems({"spec.rewards.0.type": "dataset", "spec.data": {"reasoningGym": 3}})

    assert problem.path == "spec.data.reasoningGym"


@pytest.mark.parametrize("manifest", [None, [], "RLJob", 3])
def test_a_document_that_is_no_mapping_is_named(manifest):
    with pytest.raises(InvalidJob, match="write an RLJob: apiVersion, kind, metadata, spec"):
        read_job(manifest)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner),
    max_leaves=6,
)
SECTIONS = ["steps", "model", "data", "rewards", "algorithm", "batch", "rollout", "update", "dock"]


@given(values=st.dictionaries(st.sampled_from(SECTIONS), json_values, max_size=4))
def test_no_document_breaks_the_loader(values):
    manifest = {"apiVersion": 1, "kind": "RLJob", "metadata": {}, "spec": values}

    with pytest.raises(InvalidJob) as caught:
        read_job(manifest)

    assert all(problem.path and problem.message for problem in caught.value.problems)
