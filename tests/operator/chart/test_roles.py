"""The operator may do what its code does, and nothing else."""

import pytest
from chart_manifests import EVERYTHING, of_kind, only, pod_of
from cluster_jobs import JOB, SETTINGS, TOKEN, identity, merged

from rljob_api.check.load import read_job
from rljob_operator.build import children
from rljob_operator.kube.kube_resources import PLURALS
from rljob_operator.main import LEASE_NAME

# (group, resource): verbs. `informers` and `resync` watch and list; `apply`, `reconcile` and `events` do the
# rest, where a server-side apply of something new is patch and create.
NEEDED = {
    ("rljob.io", "rljobs"): {"list", "watch", "delete"},
    ("rljob.io", "rljobs/status"): {"patch"},
    ("rljob.io", "rljobs/finalizers"): {"update"},
    ("ray.io", "rayclusters"): {"list", "watch", "create", "patch", "delete"},
    ("", "pods"): {"list", "watch"},
    ("", "secrets"): {"get", "create", "patch"},
    ("", "configmaps"): {"create", "patch"},
    ("", "serviceaccounts"): {"create", "patch"},
    ("networking.k8s.io", "networkpolicies"): {"create", "patch"},
    ("resource.k8s.io", "resourceclaimtemplates"): {"create", "patch"},
    ("", "events"): {"get", "create", "patch"},
}
READ = {"get", "list", "watch"}
CHANGE = {"create", "update", "patch", "delete", "deletecollection"}
USERS = ["rljob-admin", "rljob-edit", "rljob-view"]


def allowed(role):
    """{(group, resource): verbs} of a role."""
    return {
        (group, resource): set(rule["verbs"])
        for rule in role["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
    }


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
    options = ("watchNamespaces={team-a}", "crds.install=false", "rbac.aggregate=false")

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


@pytest.mark.parametrize("values", [(), ("watchNamespaces={team-a,team-b}",), (EVERYTHING,)])
def test_every_binding_is_of_a_role_that_is_there_to_the_operators_account(render, values):
    manifests = render(*values)

    _, pod = pod_of(only(manifests, "Deployment"))
    account = only(manifests, "ServiceAccount")["metadata"]
    roles = {
        (r["kind"], r["metadata"]["name"], r["metadata"].get("namespace"))
        for r in of_kind(manifests, "Role") + of_kind(manifests, "ClusterRole")
    }
    bindings = of_kind(manifests, "RoleBinding") + of_kind(manifests, "ClusterRoleBinding")
    assert account["name"] == pod["serviceAccountName"]
    assert len(bindings) == 2 + (len(values) and "team-b" in values[0])
    for binding in bindings:
        ref = binding["roleRef"]
        assert (ref["kind"], ref["name"], binding["metadata"].get("namespace")) in roles
        (subject,) = binding["subjects"]
        assert (subject["name"], subject["namespace"]) == (account["name"], account["namespace"])


@pytest.mark.parametrize("injection", ["runtime", "dra"])
def test_every_child_of_a_job_can_be_applied(render, injection):
    accelerator = {"type": "ascend910b", "nodes": 1, "devicesPerNode": 8, "injection": injection}
    job = read_job(merged(JOB, {"spec": {"accelerator": accelerator}}))
    may = allowed(only(render(), "ClusterRole", "rljob-operator"))

    for child in children(job, identity(), SETTINGS, TOKEN, cluster="job-0"):
        group = child["apiVersion"].rpartition("/")[0]
        plural = PLURALS[child["apiVersion"], child["kind"]]
        assert {"create", "patch"} <= may[group, plural]


def test_no_role_has_wildcards(render):
    for role in of_kind(render(), "ClusterRole"):
        assert "*" not in str(role["rules"])


@pytest.mark.parametrize(
    ("role", "verbs", "of_status", "of_scale"),
    [
        ("view", READ, {"get"}, {"get"}),
        ("edit", READ | CHANGE, {"get"}, {"get", "update", "patch"}),
        ("admin", READ | CHANGE, {"get", "update", "patch"}, {"get", "update", "patch"}),
    ],
)
def test_users_get_rljobs_with_the_clusters_own_roles(render, role, verbs, of_status, of_scale):
    found = only(render(), "ClusterRole", f"rljob-{role}")

    assert found["metadata"]["labels"][f"rbac.authorization.k8s.io/aggregate-to-{role}"] == "true"
    assert allowed(found) == {
        ("rljob.io", "rljobs"): verbs,
        ("rljob.io", "rljobs/status"): of_status,
        ("rljob.io", "rljobs/scale"): of_scale,
    }
