"""What users may do with jobs by the chart's roles, as a real API server answers kubectl."""

import time

import pytest

APPLY = "application/apply-patch+yaml"
JOB = "examples/separated.yaml"
USERS = {"ann": "rljob-viewer", "eve": "rljob-editor"}


@pytest.fixture
def as_user(server, namespace, render, kubectl):
    """as_user("ann", "get", "rljobs"): kubectl as a user with a role in the test's namespace alone."""
    roles = "/apis/rbac.authorization.k8s.io/v1"
    for role in render():
        if (role["kind"], role["metadata"]["name"]) in {("ClusterRole", r) for r in USERS.values()}:
            path = f"{roles}/clusterroles/{role['metadata']['name']}?fieldManager=chart"
            assert server.request("PATCH", path, role, content_type=APPLY).code in (200, 201)
    for user, role in USERS.items():
        made = kubectl("create", "rolebinding", user, f"--clusterrole={role}", f"--user={user}")
        assert made.returncode == 0, made.stderr
    deadline = time.monotonic() + 30
    while kubectl("auth", "can-i", "create", "rljobs", "--as=eve").returncode:
        assert time.monotonic() < deadline, "the API server does not know eve's role after 30 s"
    return lambda user, *words: kubectl(f"--as={user}", *words)


@pytest.mark.parametrize("user", [*USERS, "nobody"])
def test_kubectl_tells_what_each_role_may(as_user, user):
    asked = {
        "list rljobs": {"ann", "eve"},
        "watch rljobs": {"ann", "eve"},
        "get rljobs --subresource=status": {"ann", "eve"},
        "create rljobs": {"eve"},
        "patch rljobs": {"eve"},
        "delete rljobs": {"eve"},
        "patch rljobs --subresource=scale": {"eve"},
        "patch rljobs --subresource=status": set(),
        "list rljobs --all-namespaces": set(),
        "create rljobs --namespace=default": set(),
        "create rayclusters.ray.io": set(),
        "get secrets": set(),
    }

    said = {ask: as_user(user, "auth", "can-i", *ask.split()).stdout.strip() for ask in asked}

    assert said == {ask: "yes" if user in those else "no" for ask, those in asked.items()}


def test_an_editor_makes_scales_and_deletes_jobs_and_a_viewer_sees_them(as_user):
    done = [
        as_user("eve", "create", "-f", JOB),
        as_user("ann", "get", "rljobs", "separated"),
        as_user("eve", "scale", "rljob", "separated", "--replicas=2"),
        as_user("eve", "delete", "rljob", "separated", "--wait=false"),
    ]

    assert [one.returncode for one in done] == [0] * 4, [one.stderr for one in done]
    assert "separated" in done[1].stdout


def test_nobody_sees_the_jobs_of_another_namespace_and_no_user_writes_a_status(as_user, kubectl):
    other = ["--namespace=default"]
    assert kubectl("create", "-f", JOB, *other).returncode == 0
    assert kubectl("create", "-f", JOB).returncode == 0
    status = '{"status":{"phase":"Succeeded"}}'
    told = ["patch", "rljob", "separated", "--subresource=status", "--type=merge", "-p", status]

    try:
        done = [
            as_user("eve", "get", "rljobs", *other),
            as_user("ann", "get", "rljobs", "--all-namespaces"),
            as_user("eve", "delete", "rljob", "separated", *other),
            as_user("ann", "delete", "rljob", "separated"),
            as_user("ann", "scale", "rljob", "separated", "--replicas=2"),
            as_user("eve", *told),
        ]
    finally:
        kubectl("delete", "rljob", "separated", *other, "--wait=false")

    assert all(one.returncode == 1 and "Forbidden" in one.stderr for one in done), done
    assert kubectl("get", "rljob", "separated", "-o", "jsonpath={.status}").stdout == ""
