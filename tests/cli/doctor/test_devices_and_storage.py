"""Whether a job has a place: devices beside what is asked for, labels and taints, claims."""

from typing import Any

import pytest
from clusters import NPU, claim, cluster, deployment, found, need, node, only, pod
from clusters import storage_class as kind

from rljob_runtime.cli.doctor.cluster_facts import UnreadableFact

TAINT = {"key": "npu", "value": "yes", "effect": "NoSchedule"}
EIGHT: dict[str, Any] = {
    "accelerator": {"nodes": 2, "devicesPerNode": 8},
    "batch": {"globalBatchSize": 16},
}


def test_devices_are_shown_beside_what_pods_have_asked_for():
    finding = only("devices", cluster(pods=(pod("node-a", 3), pod("node-a", 2))))

    assert finding.status == "ok"
    assert finding.text == (f"{NPU}: 16 on 2 nodes (node-a 8, 5 asked for; node-b 8, 0 asked for)")


def test_without_devices_a_cluster_is_good_for_emulated_jobs_alone():
    finding = only("devices", cluster(nodes=(node("node-a", 0),)))

    assert finding.status == "warn"
    assert "emulatedDevicePlugin.enabled" in finding.remedy


def test_a_resource_that_no_node_offers_names_those_that_are_there():
    asked = need(accelerator={"resourceName": "huawei.com/npu"})

    (wrong,) = [f for f in found("devices", cluster(), asked) if f.status == "fail"]

    assert wrong.text == "no node offers huawei.com/npu"
    assert wrong.remedy == f"set accelerator.resourceName to one of {NPU}"


def test_a_job_that_fits_has_a_place():
    finding = only("placement", cluster(), need(**EIGHT))

    assert finding.status == "ok"
    assert finding.text == f"2 nodes with 8 {NPU} each: 2 nodes can take a worker pod now"


def test_devices_in_use_make_a_job_wait_and_are_no_failure():
    finding = only("placement", cluster(pods=(pod("node-b", 4),)), need(**EIGHT))

    assert finding.status == "warn"
    assert "1 now, 2 once other pods have ended (node-b 8, 4 asked for)" in finding.text


def test_pods_of_the_job_itself_do_not_stand_in_its_way():
    own = pod("node-b", 8, job="spell-backward")

    assert only("placement", cluster(pods=(own,)), need(**EIGHT)).status == "ok"


def test_too_many_devices_a_node_name_the_largest_number_that_fits():
    asked = need(accelerator={"nodes": 2, "devicesPerNode": 16}, batch={"globalBatchSize": 32})

    finding = only("placement", cluster(), asked)

    assert finding.status == "fail"
    assert "node-a: has 8, 16 are asked for" in finding.text
    assert finding.remedy == "set accelerator.devicesPerNode to at most 8, or add nodes"


def test_too_many_nodes_name_how_many_there_are():
    asked = need(accelerator={"nodes": 3, "devicesPerNode": 2}, batch={"globalBatchSize": 18})

    finding = only("placement", cluster(), asked)

    assert finding.status == "fail"
    assert finding.remedy == "set accelerator.nodes to at most 2, or add nodes"


def test_spare_nodes_count_and_are_no_failure_where_they_lack():
    spared = need(accelerator={"nodes": 1, "spareNodes": 1, "devicesPerNode": 8})
    many = need(accelerator={"nodes": 1, "spareNodes": 5, "devicesPerNode": 8})

    fits, lacks = only("placement", cluster(), spared), only("placement", cluster(), many)

    assert fits.status == "ok"
    assert fits.text.startswith(f"2 nodes with 8 {NPU} each, 1 of them spare: 2 nodes can")
    assert lacks.status == "warn"
    assert lacks.remedy == "set accelerator.spareNodes to at most 1, or add nodes"


@pytest.mark.parametrize(
    ("there", "why"),
    [
        (node("node-b", ready=False), "node-b: is not ready"),
        (node("node-b", taints=[TAINT]), "node-b: has taint npu:NoSchedule"),
        (node("node-b") | {"spec": {"unschedulable": True}}, "node-b: is cordoned"),
    ],
)
def test_a_node_that_takes_no_worker_pod_is_named_with_the_reason(there, why):
    finding = only("placement", cluster(nodes=(node("node-a"), there)), need())

    assert finding.status == "fail"
    assert why in finding.text


def test_the_jobs_labels_and_tolerations_count():
    labelled = {"accelerator-type": "module-910b-8"}
    facts = cluster(nodes=(node("node-a", labels=labelled), node("node-b", taints=[TAINT])))
    worker = {"tolerations": [{"key": "npu", "operator": "Exists"}]}

    tolerant = only("placement", facts, need(podTemplates={"worker": worker}))
    choosy = only("placement", facts, need(accelerator={"nodeSelector": labelled}))

    assert tolerant.status == "ok"
    assert choosy.status == "fail"
    assert "node-b: lacks label accelerator-type=module-910b-8" in choosy.text


def test_emulated_devices_without_a_plugin_only_need_nodes():
    facts = cluster(operators=(deployment(),), nodes=(node("a", 0), node("b", 0)))

    enough = only("placement", facts, need(facts))
    few = only("placement", facts, need(facts, accelerator={"nodes": 4}))

    assert enough.status == "ok"
    assert few.remedy == "set accelerator.nodes to at most 2, or add nodes"


def test_a_cluster_whose_pods_are_not_seen_counts_what_nodes_have():
    finding = only("placement", cluster(pods=UnreadableFact("pods is forbidden")), need(**EIGHT))

    assert finding.status == "ok"


def test_a_claim_for_all_pods_is_fine():
    assert only("storage", cluster(), need()).text == (
        "PersistentVolumeClaim runs: Bound, ReadWriteMany"
    )


def test_a_claim_for_one_node_is_too_little_for_several():
    alone = cluster(claims=(claim("runs", "ReadWriteOnce"),))

    several, one = need(), need(accelerator={"nodes": 1})

    assert only("storage", alone, several).status == "fail"
    assert "use a claim with ReadWriteMany" in only("storage", alone, several).remedy
    assert only("storage", alone, one).status == "warn"


def test_a_claim_for_one_pod_is_refused():
    one_pod = cluster(claims=(claim("runs", "ReadWriteOncePod"),))

    assert only("storage", one_pod, need(accelerator={"nodes": 1})).status == "fail"


def test_a_claim_that_is_missing_names_those_that_are_there():
    finding = only("storage", cluster(claims=(claim("runs-2", "ReadWriteMany"),)), need())

    assert finding.status == "fail"
    assert finding.text == "namespace research has no PersistentVolumeClaim runs; there are: runs-2"


@pytest.mark.parametrize(
    ("binding", "status"), [("Immediate", "fail"), ("WaitForFirstConsumer", "ok")]
)
def test_a_claim_that_is_not_bound_may_wait_for_its_first_pod(binding, status):
    pending = claim("runs", "ReadWriteMany", phase="Pending")
    facts = cluster(claims=(pending,), storage_classes=(kind("nfs", binding=binding),))

    assert only("storage", facts, need()).status == status


def test_without_a_job_there_should_be_a_default_class():
    none = only("storage", cluster(storage_classes=(kind("nfs"),)))

    assert only("storage", cluster()).text == "default StorageClass nfs, of nfs"
    assert none.status == "warn"
    assert "there are nfs" in none.text


def test_a_job_that_keeps_nothing_is_warned():
    asked = need(checkpoint={"storage": None})

    finding = only("storage", cluster(), asked)

    assert finding.status == "warn"
    assert "begins anew" in finding.text


OLD = "5.10.0-216.0.0.115.oe2203sp4.aarch64"


@pytest.mark.parametrize(
    ("spec", "what"),
    [
        ({"rewards": [{"name": "r", "type": "math-verify"}]}, "reward r:"),
        (
            {
                "rewards": [{"name": "r", "type": "exact"}],
                "rollout": {"tools": [{"name": "run", "type": "python", "maxAnswerTokens": 32}]},
            },
            "tool run:",
        ),
    ],
)
def test_nodes_whose_kernels_hide_no_files_are_named_to_jobs_that_run_what_a_policy_writes(
    spec, what
):
    other = node("node-c", 0, kernel=OLD)  # without devices
    nodes = (node("node-a", kernel=OLD), node("node-b"), node("node-d", kernel=""), other)

    finding = only("kernels", cluster(nodes=nodes), need(**spec))

    assert finding.status == "warn"
    assert finding.text.startswith(what)
    assert f"(node-a {OLD}; node-d of an unknown version)" in finding.text
    assert only("kernels", cluster(), need(**spec)).status == "ok"


def test_kernels_do_not_matter_to_jobs_that_run_nothing_that_a_policy_writes():
    nodes = (node("node-a", kernel=OLD), node("node-b", kernel=OLD))

    assert (
        found("kernels", cluster(nodes=nodes), need(rewards=[{"name": "r", "type": "exact"}])) == []
    )
