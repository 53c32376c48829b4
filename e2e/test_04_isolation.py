"""What others cannot do: reach a job's dashboard, dock or driver, or get at a node through a template."""

from collections.abc import Iterator

import pytest
from kubernetes.dynamic.exceptions import DynamicApiError
from support.cluster import Cluster
from support.jobs import small, wait_until_it_trains
from support.tools import Tools

JOB = "first"
ASK = """
import sys, urllib.error, urllib.request
for token in (None, "wrong"):
    request = urllib.request.Request(sys.argv[1])
    if token:
        request.add_header("Authorization", "Bearer " + token)
    try:
        print("ANSWER", urllib.request.urlopen(request, timeout=10).status)
    except urllib.error.HTTPError as error:
        print("ANSWER", error.code)
    except OSError as error:
        print("ANSWER", "none")
"""
REFUSED = {"401", "403", "none"}  # none: the network policy is enforced


@pytest.fixture(scope="module")
def cluster(two_jobs: Cluster) -> Cluster:
    return two_jobs


@pytest.fixture(scope="module")
def job(cluster: Cluster) -> str:
    wait_until_it_trains(cluster, JOB)
    return JOB


@pytest.fixture(scope="module")
def stranger(release: Cluster, cluster: Cluster) -> Iterator[str]:
    """A pod of another namespace."""
    other = release.within("default")
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": f"stranger-{cluster.namespace}"},
        "spec": {
            "restartPolicy": "Never",
            "terminationGracePeriodSeconds": 0,
            "containers": [
                {
                    "name": "sleep",
                    "image": Tools.from_environment().image("operator"),
                    "command": ["sleep", "1200"],
                }
            ],
        },
    }
    name = other.apply(pod)["metadata"]["name"]
    other.wait(
        "v1",
        "Pod",
        "the stranger runs",
        lambda pods: pods[name]["status"].get("phase") == "Running",
        seconds=60,
    )
    yield name
    other.kill_pod(name)


@pytest.mark.parametrize("place", ["8265/api/jobs/", "8266/status"], ids=["dashboard", "driver"])
def test_a_pod_of_another_namespace_is_refused_by_head(
    cluster: Cluster, release: Cluster, job: str, stranger: str, place: str
) -> None:
    name = cluster.job(job)["status"]["rayCluster"]["name"]
    url = f"http://{name}-head-svc.{cluster.namespace}.svc:{place}"

    said = release.within("default").run(stranger, "python", "-c", ASK, url)

    answers = [line.split()[1] for line in said.splitlines() if line.startswith("ANSWER")]
    assert len(answers) == 2
    assert set(answers) <= REFUSED


def test_a_warehouse_answers_nothing_to_who_has_no_token(
    cluster: Cluster, release: Cluster, job: str, stranger: str
) -> None:
    (pod,) = cluster.pods(job, "warehouse")
    ports = cluster.run(
        pod["metadata"]["name"],
        "python",
        "-c",
        "import psutil; print('PORTS', *sorted({c.laddr.port for p in psutil.process_iter()"
        " if 'WarehouseActor' in ' '.join(p.cmdline()) for c in p.net_connections()"
        " if c.status == 'LISTEN' and c.laddr.ip in ('0.0.0.0', '::', '"
        + pod["status"]["podIP"]
        + "')}))",
    )
    numbers = next(line for line in ports.splitlines() if line.startswith("PORTS")).split()[1:]
    assert numbers, ports
    script = (
        "import socket, sys\n"
        "for port in sys.argv[2:]:\n"
        "    try:\n"
        "        link = socket.create_connection((sys.argv[1], int(port)), timeout=5)\n"
        "        link.settimeout(15); link.sendall(b'GET / HTTP/1.1\\r\\n\\r\\n' * 8)\n"
        "        print('GOT', len(link.recv(65536)))\n"
        "    except OSError as error:\n"
        "        print('GOT', 0)\n"
    )

    said = release.within("default").run(
        stranger, "python", "-c", script, pod["status"]["podIP"], *numbers
    )

    sizes = [int(line.split()[1]) for line in said.splitlines() if line.startswith("GOT")]
    assert len(sizes) == len(numbers)
    assert max(sizes) < 256, "a stranger gets a refusal at most, and no rows"


def test_the_network_policy_lets_only_the_job_and_the_operator_in(
    cluster: Cluster, job: str
) -> None:
    (policy,) = cluster.objects("NetworkPolicy", "networking.k8s.io/v1", f"rljob.io/job={job}")

    own, operator = policy["spec"]["ingress"][:2]
    uid = cluster.job(job)["metadata"]["uid"]
    assert own["from"] == [{"podSelector": {"matchLabels": {"rljob.io/job-uid": uid}}}]
    assert {port["port"] for port in operator["ports"]} == {8265, 8266}


def test_pods_of_a_job_have_no_privileges(cluster: Cluster, job: str) -> None:
    for pod in cluster.pods(job):
        container = pod["spec"]["containers"][0]["securityContext"]
        assert pod["spec"]["securityContext"]["runAsNonRoot"] is True
        assert pod["spec"].get("automountServiceAccountToken") is False
        assert container["allowPrivilegeEscalation"] is False
        assert container["capabilities"]["drop"] == ["ALL"]


@pytest.mark.parametrize(
    ("template", "named"),
    [
        ({"volumes": [{"name": "x", "hostPath": {"path": "/"}}]}, "hostPath"),
        ({"securityContext": {"privileged": True}}, "securityContext"),
        ({"hostNetwork": True}, "hostNetwork"),
        ({"containers": [{"name": "x", "image": "y"}]}, "containers"),
        ({"hostPID": True}, "hostPID"),
    ],
)
def test_templates_give_no_way_to_the_node(cluster: Cluster, template: dict, named: str) -> None:  # type: ignore[type-arg]
    wanted = small("tenant", podTemplates={"worker": template})

    with pytest.raises(DynamicApiError) as refused:
        cluster.apply(wanted)

    assert named in str(refused.value.body)
