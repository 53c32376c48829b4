"""The CRD as a real API server takes it: kind, columns, examples, mistakes, what may change later."""

import re
from pathlib import Path

import pytest
import yaml

from rljob_api.spec.rljob import VERSION, VERSIONS

EXAMPLES = Path(__file__).parents[3] / "examples"
CRD = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/rljobs.rljob.io"
STRICT = "fieldValidation=Strict&dryRun=All"  # what kubectl asks for
APPLY, MERGE = "application/apply-patch+yaml", "application/merge-patch+json"
TABLE = "application/json;as=Table;v=v1;g=meta.k8s.io"


def kind_path(namespace, version=VERSION):
    return f"/apis/rljob.io/{version}/namespaces/{namespace}/rljobs"


def in_version(job, version):
    return job | {"apiVersion": f"rljob.io/{version}"}


def examples():
    files = sorted(EXAMPLES.glob("**/*.yaml"))
    assert len(files) >= 17
    return files


def test_the_kind_is_established_under_its_names(server):
    crd = server.request("GET", CRD).body

    conditions = {c["type"]: c["status"] for c in crd["status"]["conditions"]}
    assert conditions == {"Established": "True", "NamesAccepted": "True"}  # no NonStructuralSchema
    assert crd["status"]["acceptedNames"]["shortNames"] == ["rlj"]
    assert crd["status"]["storedVersions"] == ["v1alpha1"]


def test_a_list_shows_the_columns_that_users_look_for(server, namespace, make_job):
    job = server.request("POST", kind_path(namespace), make_job()).body
    healthy = {"type": "AcceleratorHealthy", "status": "False", "reason": "ChipBroken"}
    status = {
        "conditions": [healthy | {"lastTransitionTime": "2026-01-01T00:00:00Z"}],
        "phase": "Running",
        "devices": "1/1",
        "spareNodes": "0/1",
        "restarts": 2,
        "progress": {"step": 7, "totalSteps": 10, "reward": 0.25, "tokensPerSecond": 900},
    }
    path = f"{kind_path(namespace)}/{job['metadata']['name']}"
    server.request("PATCH", f"{path}/status", {"status": status}, content_type=MERGE)

    table = server.request("GET", kind_path(namespace), accept=TABLE).body

    names = [column["name"] for column in table["columnDefinitions"]]
    assert names == [
        "Name", "Phase", "Step", "Reward", "Tokens/s", "Devices", "Restarts", "Age", "Spares",
        "Chips healthy",
    ]  # fmt: skip
    (row,) = table["rows"]
    *cells, _, spares, chips = row["cells"]
    assert cells == ["spell-backward", "Running", 7, 0.25, 900, "1/1", 2]
    assert (spares, chips) == ("0/1", "False")
    assert [column["priority"] for column in table["columnDefinitions"]] == [0] * 8 + [1, 1]


@pytest.mark.parametrize("file", examples(), ids=lambda file: file.stem)
def test_every_example_is_accepted(server, namespace, file):
    job = yaml.safe_load(file.read_text())
    job["metadata"]["namespace"] = namespace
    version = job["apiVersion"].rpartition("/")[2]

    answer = server.request("POST", f"{kind_path(namespace, version)}?{STRICT}", job)

    assert answer.code == 201, answer.body["message"]


def test_parameters_of_a_package_are_kept_as_they_were_given(server, namespace, make_job):
    params = {"blocks": {"sizes": [1, 2.5, "x"], "deep": {"on": True}}}

    made = server.request(
        "POST",
        f"{kind_path(namespace)}?{STRICT}",
        make_job(rollout={"engine": "acme.engine", "params": params}),
    )

    assert made.code == 201, made.body["message"]
    assert made.body["spec"]["rollout"]["params"] == params


REGEX = {"name": "exact", "type": "regex"}
REFUSED = [
    # what is wrong, what the message says about it
    ({"steps": 0}, "spec.steps"),
    ({"steps": None}, "spec.steps: Required"),
    ({"steps": "ten"}, "spec.steps"),
    ({"stepz": 4}, "spec.stepz"),
    ({"update": {"optimiser": {}}}, "spec.update.optimiser"),
    ({"seed": -1}, "spec.seed"),
    ({"model": {"builtin": "tiny", "path": "/m"}}, "spec.model.*exactly one of path and builtin"),
    ({"model": {"builtin": "huge"}}, "spec.model.builtin"),
    ({"data": {"jsonl": {"path": "x"}}}, "spec.data.*exactly one of reasoningGym, drawn, jsonl"),
    ({"data": {"template": "no place"}}, "spec.data.*template must contain"),
    ({"rewards": []}, "spec.rewards"),
    ({"rewards": [REGEX]}, r"spec.rewards\[0\].*need pattern"),
    ({"rewards": [REGEX | {"type": "python"}]}, r"spec.rewards\[0\].*needs python"),
    ({"rewards": [REGEX | {"type": "guess"}]}, r"spec.rewards\[0\].type"),
    ({"rewards": [{"name": "e", "type": "exact"}] * 2}, r"spec.rewards\[1\]: Duplicate"),
    ({"rewards": [{"name": "e", "type": "exact", "weight": 0}]}, "spec.rewards.*weight is 0"),
    ({"algorithm": {"name": "magic"}}, "spec.algorithm.name"),
    ({"algorithm": {"params": {"clipHigh": "big"}}}, "spec.algorithm.params.clipHigh"),
    ({"algorithm": {"params": {"minGroupsWithSignal": 17}}}, "params.minGroupsWithSignal"),
    ({"batch": {"samplesPerPrompt": 1}}, "batch.samplesPerPrompt"),
    ({"batch": {"miniBatchSize": 5}}, "spec.batch.*miniBatchSize must divide"),
    ({"batch": {"maxPromptLength": 0}}, "spec.batch.maxPromptLength"),
    ({"rollout": {"engine": "slow"}}, "spec.rollout.engine"),
    ({"rollout": {"engine": "vllm", "params": {"a": 1}}}, "params are for the engine of a package"),
    ({"rewards": [{"name": "e", "type": "exact", "params": {}}]}, "params are for the type"),
    ({"rollout": {"parallelism": {"tensor": 3}}}, "rollout.parallelism"),
    ({"update": {"parallelism": {"data": 2}}}, "update.parallelism"),
    ({"update": {"parallelism": {"virtualPipeline": 2}}}, "virtualPipeline needs pipeline"),
    ({"update": {"optimizer": {"minLearningRate": 1e-6}}}, "spec.update.optimizer.*schedule"),
    ({"update": {"optimizer": {"warmupSteps": 4}}}, "update.optimizer.warmupSteps"),
    ({"placement": {"mode": "separated"}}, "spec.placement.*updateDevices"),
    ({"flow": {"mode": "async"}}, "flow.mode: async needs placement.mode: separated"),
    ({"flow": {"maxStaleness": 2}}, "spec.flow.*maxStaleness needs mode: async"),
    (
        {"flow": {"partialRollout": {"budgetTokens": 999}}},
        "budgetTokens must be less than batch.maxResponseLength",
    ),
    (
        {"flow": {"partialRollout": {"budgetTokens": 1, "extraPrompts": 999}}},
        "extraPrompts must be at most batch.globalBatchSize",
    ),
    ({"dock": {"capacity": "much"}}, "spec.dock.capacity"),
    ({"accelerator": {"type": "ascend910c", "devicesPerNode": 3}}, "devicesPerNode of ascend910c"),
    ({"accelerator": {"injection": "dra"}}, "spec.accelerator.*injection"),
    ({"accelerator": {"resourceName": "no slash"}}, "spec.accelerator.resourceName"),
    ({"scheduling": {"scheduler": "kueue"}}, "spec.scheduling.*queue"),
    ({"scheduling": {"queue": "q"}}, "spec.scheduling.*have queues"),
    ({"tracking": {}}, "spec.tracking.*give tensorboard, wandb or mlflow"),
    ({"tracking": {"mlflow": {"trackingUri": "http://a:b@c"}}}, "spec.tracking.mlflow.trackingUri"),
    ({"backoffLimit": 101}, "spec.backoffLimit"),
    ({"cleanupPolicy": "Burn"}, "spec.cleanupPolicy"),
    (
        {"activeDeadlineSeconds": 60, "startDeadlineSeconds": 60},
        "startDeadlineSeconds must be less than activeDeadlineSeconds",
    ),
    ({"failurePolicy": {"rules": [{"action": "Ignore"}]}}, r"spec.failurePolicy.rules\[0\]"),
    (
        {"podTemplates": {"worker": {"env": [{"name": "A", "value": "1", "valueFrom": {}}]}}},
        r"spec.podTemplates.worker.env\[0\]",
    ),
]


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize(("wrong", "said"), REFUSED, ids=lambda value: str(value)[:60])
def test_a_mistake_is_refused_with_the_name_of_the_field(
    server, namespace, make_job, wrong, said, version
):
    job = in_version(make_job(**wrong), version)
    if wrong.get("steps", 0) is None:
        del job["spec"]["steps"]

    answer = server.request("POST", f"{kind_path(namespace, version)}?{STRICT}", job)

    assert answer.code in (400, 422), answer.body
    assert re.search(said, answer.body["message"]), answer.body["message"]


@pytest.mark.parametrize("name", ["x" * 41, "with.dot", "1-job"])
def test_a_name_that_no_raycluster_could_be_derived_from_is_refused(
    server, namespace, make_job, name
):
    answer = server.request("POST", f"{kind_path(namespace)}?{STRICT}", make_job(name))

    assert answer.code == 422
    assert "name" in answer.body["message"]


NOT_YET = "changes only while the job is suspended and its pods are gone"
NEVER_CHANGES = {
    "seed": 2,
    "model": {"builtin": "smollm2-135m-instruct"},
    "data": {"trainSize": 5},
    "rewards": [{"name": "other", "type": "exact"}],
    "algorithm": {"params": {"clipHigh": 0.3}},
    "batch": {"globalBatchSize": 32},
    "rollout": {"temperature": 0.5},
    "update": {"dtype": "bfloat16"},
    "placement": {"mode": "separated"},
    "accelerator": {"nodes": 2},
    "image": "example.com/other:1",
    "scheduling": {"priorityClass": "high"},
    "podTemplates": {"head": {"image": "example.com/other:1"}},
    "checkpoint": {"storage": {"persistentVolumeClaim": {"claimName": "c"}}},
}


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("field", NEVER_CHANGES)
def test_what_a_run_depends_on_never_changes_in_whatever_version(
    server, namespace, make_job, field, version
):
    path = f"{kind_path(namespace, version)}/spell-backward"
    assert server.request("POST", kind_path(namespace), make_job()).code == 201

    change = {"spec": {field: NEVER_CHANGES[field]}}
    answer = server.request("PATCH", path, change, content_type=MERGE)

    assert answer.code == 422, answer.body
    words = {"checkpoint": "storage never changes"}
    words |= {"placement": f"spec.placement.mode {NOT_YET}"}
    words |= {moves: f"spec.{moves} {NOT_YET}" for moves in ("accelerator", "podTemplates")}
    assert words.get(field, f"{field} never changes") in answer.body["message"]


OTHER_LAYOUT = {
    "accelerator": {"nodes": 2, "devicesPerNode": 2},
    "update": {"parallelism": {"tensor": 2, "zero": 1}, "recompute": "full"},
    "rollout": {"parallelism": {"tensor": 2}},
    "placement": {"mode": "separated", "updateDevices": 2, "rolloutDevices": 2},
    "resharding": {"strategy": "allgather"},
    "batch": {"microBatchSize": 1},
    "podTemplates": {"worker": {"resources": {"memory": "8Gi"}}},
}


def test_a_suspended_job_goes_on_in_another_layout_once_its_pods_are_gone(
    server, namespace, make_job
):
    path = f"{kind_path(namespace)}/spell-backward"
    server.request("POST", kind_path(namespace), make_job())

    def change(**spec):
        return server.request("PATCH", path, {"spec": spec}, content_type=MERGE)

    def cluster(named):
        status = {"rayCluster": {"name": named} if named else None, "phase": "Suspending"}
        server.request("PATCH", f"{path}/status", {"status": status}, content_type=MERGE)

    cluster("spell-backward-0")
    running = change(**OTHER_LAYOUT, suspend=True)
    change(suspend=True)
    stopping = change(**OTHER_LAYOUT)
    cluster(None)
    fixed = change(batch={"globalBatchSize": 32})
    moved = change(**OTHER_LAYOUT, suspend=False)

    for refused in (running, stopping):
        assert refused.code == 422
        for moves in ("accelerator", "update.parallelism", "update.recompute", "placement.mode"):
            assert f"spec.{moves} {NOT_YET}" in refused.body["message"]
    assert fixed.code == 422 and "batch never changes" in fixed.body["message"]
    assert moved.code == 200, moved.body
    spec = moved.body["spec"]
    assert (spec["accelerator"]["nodes"], spec["update"]["parallelism"]["tensor"]) == (2, 2)


MAY_CHANGE = {
    "tracking": {"tensorboard": {}},
    "steps": 8,
    "checkpoint": {"every": 2, "keep": 3},
    "evaluation": {"prompts": 16},
    "dock": {"capacity": "2Gi"},
    "suspend": True,
    "backoffLimit": 9,
    "activeDeadlineSeconds": 900,
    "startDeadlineSeconds": 90,
    "progressDeadlineSeconds": 90,
    "ttlSecondsAfterFinished": 60,
    "cleanupPolicy": "Retain",
    "failurePolicy": {"rules": [{"action": "Ignore", "onReasons": ["HeadLost"]}]},
}


def test_what_a_run_can_take_up_may_change(server, namespace, make_job):
    path = f"{kind_path(namespace)}/spell-backward"
    server.request("POST", kind_path(namespace), make_job())

    answers = {
        field: server.request("PATCH", path, {"spec": {field: value}}, content_type=MERGE)
        for field, value in MAY_CHANGE.items()
    }

    assert {field: answer.code for field, answer in answers.items()} == dict.fromkeys(answers, 200)
    changed = server.request("GET", path).body
    assert changed["metadata"]["generation"] == 1 + len(MAY_CHANGE)
    assert changed["spec"]["steps"] == 8 and changed["spec"]["checkpoint"]["every"] == 2


def test_defaults_are_filled_in_by_the_server(server, namespace, make_job):
    spec = server.request("POST", kind_path(namespace), make_job()).body["spec"]

    assert spec["backoffLimit"] == 3 and spec["suspend"] is False
    assert spec["update"]["engine"] == "torch" and spec["placement"]["mode"] == "colocated"


def test_the_spec_and_the_status_are_written_apart(server, namespace, make_job):
    path = f"{kind_path(namespace)}/spell-backward"
    made = server.request("POST", kind_path(namespace), make_job() | {"status": {"phase": "Mine"}})

    by_status = {"spec": {"backoffLimit": 9}, "status": {"phase": "Running", "attempt": 0}}
    told = server.request("PATCH", f"{path}/status", by_status, content_type=MERGE)
    by_spec = {"spec": {"backoffLimit": 8}, "status": {"phase": "Mine"}}
    changed = server.request("PATCH", path, by_spec, content_type=MERGE)

    assert "status" not in made.body
    assert (told.body["spec"]["backoffLimit"], told.body["status"]["phase"]) == (3, "Running")
    assert told.body["metadata"]["generation"] == 1
    assert (changed.body["spec"]["backoffLimit"], changed.body["status"]["phase"]) == (8, "Running")
    assert changed.body["metadata"]["generation"] == 2


def test_a_status_that_is_none_is_refused(server, namespace, make_job):
    server.request("POST", kind_path(namespace), make_job())
    path = f"{kind_path(namespace)}/spell-backward/status"
    condition = {"type": "Running", "status": "Perhaps", "reason": "a reason"}

    answer = server.request(
        "PATCH", path, {"status": {"conditions": [condition]}}, content_type=MERGE
    )

    assert answer.code == 422
    for field in ("status", "reason", "lastTransitionTime"):
        assert f"conditions[0].{field}" in answer.body["message"]


def test_two_appliers_share_a_job_and_collide_on_one_field(server, namespace, make_job):
    path = f"{kind_path(namespace)}/spell-backward"
    about = {key: make_job()[key] for key in ("apiVersion", "kind", "metadata")}

    def apply(who, manifest, *, force=False):
        query = f"fieldManager={who}&force={str(force).lower()}"
        return server.request("PATCH", f"{path}?{query}", manifest, content_type=APPLY)

    made = apply("user", make_job())
    queue = apply("queue", about | {"spec": {"suspend": True}}, force=True)
    again = apply("user", make_job())
    collision = apply("other", about | {"spec": {"steps": 9}})

    assert (made.code, queue.code, again.code) == (201, 200, 200)
    assert again.body["spec"]["suspend"] is True  # nobody gave it up
    assert again.body["metadata"]["resourceVersion"] == queue.body["metadata"]["resourceVersion"]
    assert collision.code == 409 and ".spec.steps" in collision.body["message"]


def test_rewards_are_merged_by_name_and_conditions_by_type(server, namespace, make_job):
    path = f"{kind_path(namespace)}/spell-backward/status"
    about = {key: make_job()[key] for key in ("apiVersion", "kind", "metadata")}
    server.request("POST", kind_path(namespace), make_job())

    def tell(who, kind):
        condition = {
            "type": kind,
            "status": "True",
            "reason": "Yes",
            "lastTransitionTime": "2026-01-01T00:00:00Z",
        }
        status = {"status": {"conditions": [condition]}}
        return server.request(
            "PATCH", f"{path}?fieldManager={who}", about | status, content_type=APPLY
        )

    tell("one", "Running")
    both = tell("other", "Queued")

    assert {c["type"] for c in both.body["status"]["conditions"]} == {"Running", "Queued"}
