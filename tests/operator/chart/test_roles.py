"""The operator may do what its code does, and nothing else."""

from dataclasses import replace

import pytest
from chart_manifests import EVERYTHING, of_kind, only, pod_of
from cluster_jobs import JOB, SETTINGS, TOKEN, identity, merged

from rljob_api.check.load import read_job
from rljob_operator.build import children
from rljob_operator.kube.kube_resources import PLURALS
from rljob_operator.main import LEASE_NAME

# (group, resource): verbs. `informers` and `resync` watch and list; `apply`, `reconcile` and `events` do the
# rest, where a server-side apply of something new is patch and create. What is made or deleted is read first:
# it may be somebody else's.
NEEDED = {
    ("rljob.io", "rljobs"): {"list", "watch", "delete"},
    ("rljob.io", "rljobs/status"): {"patch"},
    ("rljob.io", "rljobs/finalizers"): {"update"},
    ("ray.io", "rayclusters"): {"get", "list", "watch", "create", "patch", "delete"},
    ("", "pods"): {"list", "watch", "delete"},
    ("", "secrets"): {"get", "create", "patch"},
    ("", "configmaps"): {"get", "create", "patch"},
    ("", "serviceaccounts"): {"get", "create", "patch"},
    ("networking.k8s.io", "networkpolicies"): {"get", "create", "patch"},
    ("resource.k8s.io", "resourceclaimtemplates"): {"get", "create", "patch"},
    ("", "events"): {"get", "create", "patch"},
}
KUEUES = {
    ("kueue.x-k8s.io", "workloads"): {"get", "list", "watch", "create", "patch", "delete"},
    ("kueue.x-k8s.io", "workloads/status"): {"patch"},
}
VOLCANOS = {("scheduling.volcano.sh", "podgroups"): {"get", "create", "patch", "delete"}}
READ = {"get", "list", "watch"}
CHANGE = {"create", "update", "patch", "delete", "deletecollection"}
USERS = ["rljob-editor", "rljob-viewer"]
AGGREGATE = "rbac.authorization.k8s.io/aggregate-to-"


def allowed(role):
    """{(group, resource): verbs} of a role."""
    return {
        (group, resource): set(rule["verbs"])
        for rule in role["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
    }


def aggregated(role):
    """Its labels that make it part of other roles."""
    labels = role["metadata"]["labels"]
    return {key for key, value in labels.items() if key.startswith(AGGREGATE) and value == "true"}


def names(manifests):
    return sorted(m["metadata"]["name"] for m in manifests)


def test_cluster_wide_the_operator_may_do_exactly_what_its_code_does(render):
    role = only(render(), "ClusterRole", "rljob-operator")

    assert allowed(role) == NEEDED


def test_a_namespaced_operator_has_a_role_in_each_namespace_and_none_of_the_cluster(render):
    manifests = render("watchNamespaces={team-a,team-b}")

    roles = [r for r in of_kind(manifests, "Role") if r["metadata"]["name"] == "rljob-operator"]
    assert [r["metadata"]["namespace"] for r in roles] == ["team-a", "team-b"]
    assert all(allowed(role) == NEEDED for role in roles)
    assert names(of_kind(manifests, "ClusterRole")) == USERS
    assert of_kind(manifests, "ClusterRoleBinding") == []


def test_a_namespaced_release_can_do_without_anything_of_the_cluster(render):
    options = ("watchNamespaces={team-a}", "crds.install=false", "rbac.users=false")

    manifests = render(*options)

    of_the_cluster = [m for m in manifests if "namespace" not in m["metadata"]]
    assert of_the_cluster == []


def test_of_leases_only_the_operators_own_may_be_read_and_renewed(render):
    role = only(render(), "Role", "rljob-operator-lease")

    create, rest = role["rules"]
    assert role["metadata"]["namespace"] == "rljob-system"
    assert create["verbs"] == ["create"]
    assert (rest["verbs"], rest["resourceNames"]) == (["get", "update"], [LEASE_NAME])
    assert set(allowed(role)) == {("coordination.k8s.io", "leases")}


def test_with_reports_of_chips_the_operator_may_list_them_and_nothing_else(render):
    manifests = render("faults.enabled=true", "faults.namespace=mindx-dl")

    role = only(manifests, "Role", "rljob-operator-faults")
    assert role["metadata"]["namespace"] == "mindx-dl"
    assert allowed(role) == {("", "configmaps"): {"list"}}
    assert allowed(only(manifests, "ClusterRole", "rljob-operator")) == NEEDED


def test_with_kueue_the_operator_may_write_workloads_and_read_flavors_and_kueue_may_read_jobs(
    render,
):
    manifests = render("kueue.enabled=true", "watchNamespaces={team-a}")

    own = only(manifests, "Role", "rljob-operator")
    assert allowed(own) == NEEDED | KUEUES
    flavors = only(manifests, "ClusterRole", "rljob-operator-kueue-flavors")
    kinds = ("resourceflavors", "workloadpriorityclasses")
    assert allowed(flavors) == {("kueue.x-k8s.io", kind): {"get"} for kind in kinds}
    jobs = only(manifests, "ClusterRole", "rljob-operator-kueue-jobs")
    assert allowed(jobs) == {("rljob.io", "rljobs"): READ}
    bound = only(manifests, "ClusterRoleBinding", "rljob-operator-kueue-jobs")["subjects"]
    assert [(s["name"], s["namespace"]) for s in bound] == [
        ("kueue-controller-manager", "kueue-system")
    ]


def test_kueues_account_gets_no_right_where_it_is_not_named(render):
    manifests = render("kueue.enabled=true", "kueue.serviceAccount.name=")

    assert "rljob-operator-kueue-jobs" not in names(of_kind(manifests, "ClusterRole"))


def test_with_volcano_the_operator_may_write_pod_groups(render):
    own = only(render("volcano.enabled=true"), "ClusterRole", "rljob-operator")

    assert allowed(own) == NEEDED | VOLCANOS


def test_the_emulated_plugin_may_write_reports_by_an_account_of_its_own(render):
    manifests = render("faults.enabled=true", "emulatedDevicePlugin.enabled=true")

    role = only(manifests, "Role", "rljob-device-plugin")
    _, pod = pod_of(only(manifests, "DaemonSet"))
    assert role["metadata"]["namespace"] == "kube-system"
    assert allowed(role) == {("", "configmaps"): {"create", "patch"}}
    assert pod["serviceAccountName"] == "rljob-device-plugin"
    assert "--reports=kube-system" in pod["containers"][0]["args"]
    _, without = pod_of(only(render("emulatedDevicePlugin.enabled=true"), "DaemonSet"))
    assert without["serviceAccountName"] == "default"  # or an upgrade would keep the other


@pytest.mark.parametrize("values", [(), ("watchNamespaces={team-a,team-b}",), (EVERYTHING,)])
def test_every_binding_is_of_a_role_that_is_there_to_the_operators_account(render, values):
    manifests = render(*values)

    _, pod = pod_of(only(manifests, "Deployment"))
    accounts = {a["metadata"]["name"] for a in of_kind(manifests, "ServiceAccount")}
    everything = values == (EVERYTHING,)
    roles = {
        (r["kind"], r["metadata"]["name"], r["metadata"].get("namespace"))
        for r in of_kind(manifests, "Role") + of_kind(manifests, "ClusterRole")
    }
    bindings = of_kind(manifests, "RoleBinding") + of_kind(manifests, "ClusterRoleBinding")
    assert pod["serviceAccountName"] in accounts
    assert len(bindings) == 2 + (len(values) and "team-b" in values[0]) + 4 * everything
    for binding in bindings:
        ref = binding["roleRef"]
        assert (ref["kind"], ref["name"], binding["metadata"].get("namespace")) in roles
        (subject,) = binding["subjects"]
        if ref["name"].endswith("kueue-jobs"):
            assert (subject["name"], subject["namespace"]) == ("queues", "queueing")
            continue
        own = ref["name"] if ref["name"].endswith("device-plugin") else pod["serviceAccountName"]
        assert own in accounts
        assert (subject["name"], subject["namespace"]) == (own, "rljob-system")


@pytest.mark.parametrize("injection", ["runtime", "dra"])
def test_every_child_of_a_job_can_be_applied(render, injection):
    accelerator = {"type": "ascend910b", "nodes": 1, "devicesPerNode": 8, "injection": injection}
    spec = {"accelerator": accelerator, "scheduling": {"scheduler": "volcano"}}
    job = read_job(merged(JOB, {"spec": spec}))
    may = allowed(only(render("volcano.enabled=true"), "ClusterRole", "rljob-operator"))

    for child in children(job, identity(), replace(SETTINGS, volcano=True), TOKEN, cluster="job-0"):
        group = child["apiVersion"].rpartition("/")[0]
        plural = PLURALS[child["apiVersion"], child["kind"]]
        assert {"create", "patch"} <= may[group, plural]


def test_no_role_has_wildcards(render):
    for role in of_kind(render(), "ClusterRole"):
        assert "*" not in str(role["rules"])


@pytest.mark.parametrize(
    ("role", "verbs", "of_scale", "part_of"),
    [
        ("viewer", READ, {"get"}, {"view", "edit", "admin"}),
        ("editor", READ | CHANGE, {"get", "update", "patch"}, {"edit", "admin"}),
    ],
)
def test_users_get_rljobs_with_the_clusters_own_roles(render, role, verbs, of_scale, part_of):
    found = only(render(), "ClusterRole", f"rljob-{role}")

    assert allowed(found) == {
        ("rljob.io", "rljobs"): verbs,
        ("rljob.io", "rljobs/status"): {"get"},
        ("rljob.io", "rljobs/scale"): of_scale,
    }
    assert aggregated(found) == {AGGREGATE + name for name in part_of}


def test_roles_of_users_can_stay_apart_from_the_clusters_own(render):
    roles = of_kind(render("rbac.aggregate=false"), "ClusterRole")

    users = [role for role in roles if role["metadata"]["name"] in USERS]
    assert len(users) == 2
    assert all(aggregated(role) == set() for role in users)
