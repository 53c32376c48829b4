"""What holds for the children of every job, whatever it asks for."""

import dataclasses
import json
from base64 import b64encode

import pytest
import yaml
from cluster_jobs import JOB, SETTINGS, TOKEN, identity, merged

from rljob_api.check.load import read_job
from rljob_api.topology.resolved import resolve
from rljob_operator.build import names

ASCEND = {"type": "ascend910b", "nodes": 2, "devicesPerNode": 8}
REMOTE = {"uri": "s3://runs/a", "secretName": "keys"}
JOBS = {
    "emulated": {},
    "one-node": {"accelerator": {"nodes": 1}},
    "separated": {"placement": {"mode": "separated", "updateDevices": 2}},
    "ascend": {"accelerator": ASCEND},
    "host-path": {"accelerator": ASCEND | {"injection": "hostPath"}},
    "dra": {"accelerator": ASCEND | {"injection": "dra"}},
    "volcano": {"scheduling": {"scheduler": "volcano", "queue": "a", "priorityClass": "b"}},
    "remote": {"checkpoint": {"storage": {"remote": REMOTE}}},
    "stored": {"checkpoint": {"storage": {"persistentVolumeClaim": {"claimName": "runs"}}}},
}
every_job = pytest.mark.parametrize("spec", JOBS.values(), ids=JOBS)


def one(manifests, kind):
    """The only manifest of its kind."""
    (found,) = [manifest for manifest in manifests if manifest["kind"] == kind]
    return found


def groups(cluster):
    """Head and worker groups by name."""
    found = {group["groupName"]: group for group in cluster["spec"]["workerGroupSpecs"]}
    return {"head": cluster["spec"]["headGroupSpec"]} | found


def pods_of(cluster):
    return {name: group["template"]["spec"] for name, group in groups(cluster).items()}


@every_job
def test_two_builds_are_equal(built, spec):
    first, second = built(spec), built(spec)

    assert json.dumps(first) == json.dumps(second)


@every_job
def test_every_child_belongs_to_the_job_and_goes_with_it(built, spec):
    for child in built(spec):
        (owner,) = child["metadata"]["ownerReferences"]
        labels = child["metadata"]["labels"]

        assert (owner["kind"], owner["uid"]) == ("RLJob", identity().uid)
        assert owner["controller"] and owner["blockOwnerDeletion"]
        assert labels["app.kubernetes.io/managed-by"] == "rljob-operator"
        assert labels["rljob.io/job"] == "spell-backward"
        assert child["metadata"]["namespace"] == "research"


@every_job
def test_every_pod_is_restricted(cluster, spec):
    for pod in pods_of(cluster(spec)).values():
        (container,) = pod["containers"]

        assert pod["securityContext"]["runAsNonRoot"] is True
        assert pod["securityContext"]["runAsUser"] == 1000
        assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        assert container["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"]},
        }
        assert pod["automountServiceAccountToken"] is False
        assert not {"hostNetwork", "hostPID", "hostIPC"} & set(pod)


@every_job
def test_a_path_of_the_node_is_mounted_for_the_driver_alone_and_never_written(cluster, spec):
    wanted = spec.get("accelerator", {}).get("injection") == "hostPath"

    for role, pod in pods_of(cluster(spec)).items():
        own = {volume["name"] for volume in pod.get("volumes", []) if "hostPath" in volume}
        mounts = [m for m in pod["containers"][0].get("volumeMounts", []) if m["name"] in own]
        assert bool(own) == (wanted and role == "worker")
        assert all(mount["readOnly"] for mount in mounts)


@every_job
def test_no_token_is_outside_of_the_secret(built, spec):
    manifests = built(spec)
    secret = one(manifests, "Secret")
    others = [found for found in manifests if found is not secret]

    assert secret["data"] == {"auth_token": b64encode(TOKEN.encode()).decode()}
    assert TOKEN not in json.dumps(others)
    assert secret["data"]["auth_token"] not in json.dumps(others)


def test_names_of_the_longest_job_are_within_their_limits(built):
    children = built(name="a" * 40, group=99_999)
    cluster = children[-1]

    assert len(cluster["metadata"]["name"]) <= 53
    assert len(f"{cluster['metadata']['name']}-head-svc") <= 63
    for child in children:
        assert len(child["metadata"]["name"]) <= 63
        assert all(len(value) <= 63 for value in child["metadata"]["labels"].values())
    for group in groups(cluster).values():
        assert all(len(value) <= 63 for value in group["template"]["metadata"]["labels"].values())


def test_no_two_jobs_share_the_name_of_a_child(built):
    jobs = ("a", "a-0", "a-rljob", "a-rljob-rljob")

    found = [(c["kind"], c["metadata"]["name"]) for name in jobs for c in built(name=name)]

    assert len(set(found)) == len(found)


def test_a_lost_cluster_has_a_successor_of_another_name(built):
    first, second = built(group=0), built(group=1)

    assert first[:-1] == second[:-1]
    assert [b[-1]["metadata"]["name"] for b in (first, second)] == [
        "spell-backward-0",
        "spell-backward-1",
    ]


def test_the_run_reads_the_job_that_the_user_wrote(built):
    (text,) = one(built(), "ConfigMap")["data"].values()

    assert resolve(read_job(yaml.safe_load(text))) == resolve(read_job(JOB))


def test_an_edit_that_only_the_operator_reads_changes_no_child(built):
    edits = {
        "suspend": True,
        "backoffLimit": 7,
        "activeDeadlineSeconds": 100,
        "startDeadlineSeconds": 10,
        "progressDeadlineSeconds": 10,
        "ttlSecondsAfterFinished": 5,
        "cleanupPolicy": "Retain",
        "failurePolicy": {"rules": [{"action": "FailJob", "onExitCodes": [2]}]},
    }

    assert built(edits) == built()


def test_emulated_devices_are_rays_resource_and_ask_for_little(cluster):
    found = groups(cluster())

    assert found["head"]["rayStartParams"]["num-cpus"] == "0"
    assert found["worker"]["resources"] == {"rljob_device": "2"}
    assert found["warehouse"]["resources"] == {"rljob_warehouse": "1"}
    for group in found.values():
        (container,) = group["template"]["spec"]["containers"]
        assert container["resources"] == {"requests": {"cpu": "100m", "memory": "512Mi"}}


def test_emulated_devices_are_scheduled_where_a_plugin_offers_them(cluster):
    settings = dataclasses.replace(SETTINGS, emulated_device_plugin=True)

    pods = pods_of(cluster(settings=settings))

    limits = {role: pod["containers"][0]["resources"].get("limits") for role, pod in pods.items()}
    expected = {"huawei.com/Ascend910": "2"}
    assert limits == {"head": None, "worker": expected, "warehouse": None}


def test_ascend_devices_are_the_limit_of_workers_alone(cluster):
    found = groups(cluster({"accelerator": ASCEND | {"resourceName": "huawei.com/npu"}}))

    for role, group in found.items():
        limits = group["template"]["spec"]["containers"][0]["resources"]["limits"]
        assert limits.get("huawei.com/npu") == ("8" if role == "worker" else None)
    assert found["worker"]["resources"] == {"NPU": "8"}


def test_no_group_states_resources_twice(cluster):
    for spec in JOBS.values():
        for group in groups(cluster(spec)).values():
            stated = {"num-cpus", "num-gpus", "memory", "resources"} & set(group["rayStartParams"])
            assert bool(stated) != bool(group.get("resources"))


def test_warehouses_lie_one_a_node_beside_the_workers(cluster):
    pods = pods_of(cluster())

    def same_node(role, kind):
        (term,) = pods[role]["affinity"][kind]["requiredDuringSchedulingIgnoredDuringExecution"]
        assert term["topologyKey"] == "kubernetes.io/hostname"
        return term["labelSelector"]["matchLabels"]

    workers = names.pod_selector(identity(), "worker")
    warehouses = names.pod_selector(identity(), "warehouse")
    assert same_node("worker", "podAntiAffinity") == workers
    assert same_node("warehouse", "podAntiAffinity") == warehouses
    assert same_node("warehouse", "podAffinity") == workers
    assert "podAffinity" not in pods["worker"]["affinity"]


@every_job
def test_selectors_find_the_pods_that_they_mean(built, spec):
    children = built(spec)
    policy = next(child for child in children if child["kind"] == "NetworkPolicy")

    for role, group in groups(children[-1]).items():
        labels = group["template"]["metadata"]["labels"]
        wanted = names.pod_selector(identity(), role) | policy["spec"]["podSelector"]["matchLabels"]
        assert wanted.items() <= labels.items()
        assert not {"app.kubernetes.io/name", "app.kubernetes.io/created-by"} & set(labels)


def test_warehouses_beyond_the_nodes_share_pods(cluster):
    group = groups(cluster({"dock": {"warehouses": 3}}))["warehouse"]

    assert (group["replicas"], group["resources"]) == (2, {"rljob_warehouse": "2"})


def test_a_warehouse_pod_has_memory_for_the_rows_of_another_one_too(cluster):
    def memory(**dock):
        pod = pods_of(cluster({"accelerator": ASCEND, "dock": dock}))["warehouse"]
        amounts = pod["containers"][0]["resources"]
        assert amounts["limits"]["memory"] == amounts["requests"]["memory"]
        return amounts["requests"]["memory"]

    assert memory(capacity="16Gi") == "18Gi"
    assert memory(capacity="16Gi", replicas=2) == "34Gi"
    assert memory(capacity="16Gi", replicas=2, warehouses=4) == "66Gi"


def test_warehouses_follow_their_workers_onto_tainted_nodes(cluster):
    taint = {"key": "npu", "operator": "Exists"}
    own = {"worker": {"tolerations": [taint]}, "warehouse": {"tolerations": [taint]}}

    pods = pods_of(cluster({"podTemplates": own}))

    assert [role for role, pod in pods.items() if taint in pod["tolerations"]] == [
        "worker",
        "warehouse",
    ]
    assert pods["warehouse"]["tolerations"].count(taint) == 1


def test_an_amount_of_the_user_replaces_ours_in_requests_and_limits(cluster):
    own = {"worker": {"resources": {"limits": {"memory": "8Gi"}}}}

    pod = pods_of(cluster({"accelerator": ASCEND, "podTemplates": own}))["worker"]

    assert pod["containers"][0]["resources"] == {
        "requests": {"cpu": "64"},
        "limits": {"memory": "8Gi", "huawei.com/Ascend910": "8"},
    }


def test_only_the_job_and_the_operator_reach_the_pods(built):
    settings = dataclasses.replace(SETTINGS, metrics_namespace="monitoring")

    policy = one(built(settings=settings), "NetworkPolicy")["spec"]

    within, operator, metrics = policy["ingress"]
    assert within == {"from": [{"podSelector": {"matchLabels": names.pod_selector(identity())}}]}
    assert [port["port"] for port in operator["ports"] + metrics["ports"]] == [
        8265,
        8266,
        8080,
        8266,
    ]
    assert all(rule["from"] for rule in policy["ingress"])


def test_jobs_reach_the_networks_that_the_operator_allows(built):
    settings = dataclasses.replace(SETTINGS, egress_cidrs=("10.0.0.0/8",))

    closed = one(built(), "NetworkPolicy")["spec"]["egress"]
    opened = one(built(settings=settings), "NetworkPolicy")["spec"]["egress"]

    assert opened == [*closed, {"to": [{"ipBlock": {"cidr": "10.0.0.0/8"}}]}]


def test_without_network_policies_there_is_none(built):
    settings = dataclasses.replace(SETTINGS, network_policy=False)

    kinds = [child["kind"] for child in built(settings=settings)]

    assert kinds == ["ServiceAccount", "Secret", "ConfigMap", "RayCluster"]


def test_a_run_lies_in_a_folder_of_its_own_unless_the_job_names_one():
    claim = {"persistentVolumeClaim": {"claimName": "runs"}}

    def folder(storage):
        spec = read_job(merged(JOB, {"spec": {"checkpoint": storage}})).spec
        return names.run_directory(spec, identity())

    assert folder({}) == "/var/lib/rljob/research/spell-backward-0b9dd3a5"
    assert folder({"storage": claim | {"path": "a/b"}}) == "/var/lib/rljob/a/b"
    assert folder({"storage": {"remote": REMOTE, "path": "a/b"}}) == "/var/lib/rljob/a/b"


def test_the_head_alone_holds_the_keys_of_remote_storage(built):
    pods = pods_of(one(built({"checkpoint": {"storage": {"remote": REMOTE}}}), "RayCluster"))
    keys = {role: pod["containers"][0].get("envFrom") for role, pod in pods.items()}

    assert keys == {
        "head": [{"secretRef": {"name": "keys"}}],
        "worker": None,
        "warehouse": None,
    }
    assert all(
        volume == {"name": "rljob-runs", "emptyDir": {}}
        for pod in pods.values()
        for volume in pod.get("volumes", [])
        if volume["name"] == "rljob-runs"
    )


def test_workers_and_warehouses_of_a_node_meet_in_a_folder_of_the_jobs_own(built):
    settings = dataclasses.replace(SETTINGS, shared_memory="host-path")

    shared = pods_of(one(built(settings=settings), "RayCluster"))
    alone = pods_of(one(built({"dock": {"sharedMemory": "none"}}, settings=settings), "RayCluster"))

    for role in ("worker", "warehouse"):
        (mount,) = [m for m in shared[role]["containers"][0]["volumeMounts"] if "subPath" in m]
        assert identity().uid in mount["subPath"]
        assert {"name": "RLJOB_DOCK_DIRECTORY", "value": mount["mountPath"]} in shared[role][
            "containers"
        ][0]["env"]
        assert "rljob-dock" in {volume["name"] for volume in shared[role]["volumes"]}
        assert "rljob-dock" not in {volume["name"] for volume in alone[role].get("volumes", [])}
