"""What is said when a cluster cannot be asked: who is meant, what is wrong, what to do. Exit code 2."""

import sys

import pytest
from kube_manifests import JOB
from kube_server import JOBS, refusal

from rljob_runtime.cli.cluster.refusals import ApiRequest
from rljob_runtime.cli.cluster.refusals import refusal as error_of
from rljob_runtime.errors import ClusterError, NoAnswer


def said(result):
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.count("\n") == 1, "one line"
    return result.stderr.strip()


def test_no_kubeconfig(rljob, monkeypatch, tmp_path):
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "none"))
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)

    assert said(rljob("status")) == (
        f"no kubeconfig: {tmp_path}/none does not exist; set KUBECONFIG to the file that kubectl uses"
    )


def test_a_kubeconfig_that_is_none(rljob, monkeypatch, tmp_path):
    (tmp_path / "broken").write_text("clusters: [")
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "broken"))

    assert said(rljob("status")).startswith(f"kubeconfig {tmp_path}/broken cannot be used: ")


def test_an_unknown_context_with_those_that_are_near(rljob):
    message = said(rljob("status", "--context", "lab-defualt"))

    assert "has no context 'lab-defualt'; did you mean lab-default" in message


def test_an_api_server_that_is_not_there(rljob, server, kubeconfig, monkeypatch):
    monkeypatch.setenv("KUBECONFIG", str(kubeconfig("http://127.0.0.1:9")))

    message = said(rljob("status"))

    assert message.startswith("no answer from the API server (context lab, http://127.0.0.1:9): ")
    assert message.endswith("is the cluster running, and reachable from here?")


def test_a_cluster_without_the_operator(rljob, server):
    server.refusals[JOBS] = web_text("404 page not found")

    message = said(rljob("status"))

    assert message.startswith("the cluster knows no RLJobs (context lab, ")
    assert "its CustomResourceDefinition is not installed; install the operator's chart" in message


def web_text(text):
    from aiohttp import web

    return web.Response(status=404, text=text)


def test_a_job_that_does_not_exist_with_those_that_are_near(rljob, server):
    server.jobs = [JOB]

    for command in (["status", "wrods"], ["logs", "wrods"], ["report", "wrods"]):
        assert "namespace research has no RLJob 'wrods'; did you mean words? (context lab" in said(
            rljob(*command)
        )


def test_what_a_user_may_not_do_and_the_right_that_is_missing(rljob, server):
    why = 'rljobs.rljob.io is forbidden: User "me" cannot list resource "rljobs"'
    server.refusals[JOBS] = refusal(403, why)

    assert said(rljob("status")) == (
        f"{why}; ask for a role that may list rljobs.rljob.io in namespace research"
    )


def test_a_user_whom_the_server_does_not_know(rljob, server):
    server.refusals[JOBS] = refusal(401, "Unauthorized")

    assert said(rljob("status")).startswith("the API server does not know you (context lab, ")


def test_without_the_client_the_extra_is_named(rljob, monkeypatch):
    monkeypatch.setitem(sys.modules, "kubernetes", None)

    assert said(rljob("status")) == (
        "the Kubernetes client is not installed; pip install 'rljob[cluster]'"
    )


@pytest.mark.parametrize(("given", "asked"), [("other", "other"), (None, "research")])
def test_the_namespace_is_the_one_given_else_the_contexts(rljob, server, given, asked):
    rljob("status", *(["-n", given] if given else []))

    assert server.requests[0][0] == f"/apis/rljob.io/v1alpha1/namespaces/{asked}/rljobs"


def test_a_context_without_a_namespace_means_default(rljob, server):
    rljob("status", "--context", "lab-default")

    assert server.requests[0][0] == "/apis/rljob.io/v1alpha1/namespaces/default/rljobs"


def test_a_refused_shell_is_understood():
    asked = ApiRequest(verb="create", resource="pods/exec", name="h", namespace="ns", where="here")
    body = '{"kind":"Status","message":"pods \\"h\\" is forbidden: User me cannot create"}'
    handshake = f"Handshake status 403 Forbidden -+-+- {{'date': 'x'}} -+-+- {body}"

    error = error_of(asked, 0, handshake)

    assert type(error) is ClusterError
    assert str(error) == (
        'pods "h" is forbidden: User me cannot create; '
        "ask for a role that may create pods/exec in namespace ns"
    )


@pytest.mark.parametrize("code", [0, 410, 429, 500, 503])
def test_what_passes_may_be_asked_again(code):
    asked = ApiRequest(verb="get", resource="pods", name="h", namespace="ns", where="here")

    assert type(error_of(asked, code, "busy")) is NoAnswer
