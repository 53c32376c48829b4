"""The quickstart on two nodes, as the README says: it trains, is seen to train, and ends."""

import itertools
from collections.abc import Iterator

import pytest
import yaml
from page_data import page_data
from support.cluster import Cluster, Manifest
from support.jobs import (
    STARTED_SECONDS,
    actors_of,
    condition,
    ended,
    events_of,
    example,
    holds,
    step,
)
from support.shown import Shell, shown
from support.tools import run

JOB = "quickstart"
TRAINED_SECONDS = 900.0


@pytest.fixture(scope="module")
def shell(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Shell:
    """In a folder with the example, on as many devices as the cluster has."""
    folder = tmp_path_factory.mktemp("checkout")
    (folder / "examples").mkdir()
    job = example("quickstart.yaml", nodes=2, devicesPerNode=2)
    (folder / "examples/quickstart.yaml").write_text(yaml.safe_dump(job))
    return Shell.of(cluster, folder)


@pytest.fixture(scope="module")
def readme() -> Iterator[list[str]]:
    """What the README does on a cluster, command by command; the chart is installed already."""
    installed, *commands = shown("README.md", "kubectl apply -f examples/quickstart.yaml")
    assert installed[:3] == ["helm", "install", "rljob"]
    return iter(commands)


@pytest.fixture(scope="module")
def running(cluster: Cluster, shell: Shell, readme: Iterator[list[str]]) -> dict[str, list[str]]:
    """The job once it trains: its actors and the pods that they live in."""
    said = {words[1]: shell(words, seconds=300) for words in itertools.islice(readme, 3)}
    assert list(said) == ["doctor", "apply", "get"]
    assert JOB in said["get"]
    cluster.wait_for_job(
        JOB, "the first step is done", lambda job: step(job) >= 1, seconds=STARTED_SECONDS + 300
    )
    return actors_of(cluster, JOB)


@pytest.fixture(scope="module")
def finished(
    cluster: Cluster, shell: Shell, readme: Iterator[list[str]], running: dict[str, list[str]]
) -> Manifest:
    """The job once the README's last command has seen its end."""
    for words in readme:
        assert "Succeeded" in shell(words, seconds=TRAINED_SECONDS)
    return cluster.wait_for_job(JOB, "the job has ended", ended, seconds=30)


def test_each_node_has_a_worker_pod_and_a_warehouse_pod(
    cluster: Cluster, running: dict[str, list[str]]
) -> None:
    workers = {pod["spec"]["nodeName"] for pod in cluster.pods(JOB, "worker")}
    warehouses = {pod["spec"]["nodeName"] for pod in cluster.pods(JOB, "warehouse")}

    assert len(workers) == 2
    assert warehouses == workers


def test_every_actor_lives_in_the_pod_that_is_meant_for_it(
    cluster: Cluster, running: dict[str, list[str]]
) -> None:
    names = {
        role: sorted(pod["metadata"]["name"] for pod in cluster.pods(JOB, role))
        for role in ("worker", "warehouse")
    }

    assert sorted(running["WarehouseActor"]) == names["warehouse"]  # one each
    assert sorted(set(running["DeviceWorker"])) == names["worker"]
    assert [running["DeviceWorker"].count(name) for name in names["worker"]] == [2, 2]
    assert set(running["ControllerActor"]) <= set(names["worker"])


def test_worker_pods_hold_the_devices_and_ray_sees_npus_in_them(
    cluster: Cluster, running: dict[str, list[str]]
) -> None:
    worker = cluster.pods(JOB, "worker")[0]["metadata"]["name"]

    devices = cluster.run(worker, "sh", "-c", "ls /dev/davinci*; echo $ASCEND_VISIBLE_DEVICES")
    counted = cluster.run(
        worker,
        "python",
        "-c",
        "from ray._private.accelerators.npu import NPUAcceleratorManager as npu;"
        "print(npu.get_current_node_num_accelerators())",
    )

    assert devices.count("/dev/davinci") == 2
    assert counted.split()[-1] == "2"


def test_the_head_prints_what_the_driver_says(
    cluster: Cluster, running: dict[str, list[str]]
) -> None:
    log = cluster.log(cluster.head(JOB), 400)

    assert f"{JOB}: 140 steps" in log


def test_the_job_succeeds_and_its_reward_rises(cluster: Cluster, finished: Manifest) -> None:
    assert holds(finished, "Succeeded"), cluster.dump(JOB)
    assert step(finished) == 140
    accuracies = [e["accuracy"] for e in events_of(cluster, JOB) if e["kind"] == "evaluation"]
    assert accuracies[-1] > accuracies[0] + 0.1


def test_the_status_names_reasons_and_generations(finished: Manifest) -> None:
    status = finished["status"]

    assert status["observedGeneration"] == finished["metadata"]["generation"]
    assert status["restarts"] == 0
    assert status["progress"]["totalSteps"] == 140
    assert status["progress"]["reward"] > 0
    for kind in ("Validated", "ClusterReady", "Running", "Succeeded"):
        assert condition(finished, kind)["observedGeneration"] == 1
    assert condition(finished, "Succeeded")["reason"] == "StepsDone"


def test_kubectl_shows_the_columns_of_the_readme(cluster: Cluster, finished: Manifest) -> None:
    header, row = run(
        ["kubectl", "get", "rljobs", "-n", cluster.namespace], seconds=60
    ).splitlines()

    columns = ["NAME", "PHASE", "STEP", "REWARD", "TOKENS/S", "DEVICES", "RESTARTS", "AGE"]
    assert header.split() == columns
    assert row.split()[:3] == [JOB, "Succeeded", "140"]


def test_kubectl_waits_for_the_condition(cluster: Cluster, finished: Manifest) -> None:
    wait = ["kubectl", "wait", "--for=condition=Succeeded", f"rljob/{JOB}", "--timeout=5s"]

    said = run([*wait, "-n", cluster.namespace], seconds=30)

    assert "condition met" in said


def test_kubectl_explains_every_section_of_the_spec(release: Cluster) -> None:
    said = run(["kubectl", "explain", "rljob.spec", "--recursive"], seconds=60)

    for section in ("algorithm", "batch", "checkpoint", "dock", "flow", "podTemplates", "rollout"):
        assert section in said


def test_events_tell_each_transition_once(cluster: Cluster, finished: Manifest) -> None:
    reasons = [
        event["reason"]
        for event in cluster.objects("Event")
        if event["involvedObject"]["kind"] == "RLJob"
    ]

    for reason in ("PodsReady", "Running", "StepsDone"):
        assert reasons.count(reason) == 1, reasons


def test_the_devices_are_free_and_the_head_stays_for_its_logs(
    cluster: Cluster, finished: Manifest
) -> None:
    cluster.wait(
        "v1",
        "Pod",
        "workers and warehouses are gone",
        lambda pods: [p["metadata"]["labels"]["rljob.io/role"] for p in pods.values()] == ["head"],
        seconds=120,
    )


def test_the_commands_of_the_operators_page_show_the_job_its_log_and_its_report_in_their_order(
    finished: Manifest, shell: Shell
) -> None:
    said = {}
    for words in shown("docs/operator.md", "rljob report NAME"):
        own = [{"NAME": JOB, "DIR": "r"}.get(word, word) for word in words if word != "--web"]
        said[" ".join(own)] = shell(own, seconds=120)

    assert JOB in said["rljob status"] and "Succeeded" in said[f"rljob status {JOB}"]
    assert "the run ended with exit status 0" in said[f"rljob watch {JOB}"]
    logs = [said[words] for words in said if "logs" in words]
    assert all(logs) and any(f"{JOB}: 140 steps" in log for log in logs)
    charts = page_data(shell.folder / "r" / "report.html")["charts"]
    assert "accuracy" in [chart["key"] for chart in charts]
