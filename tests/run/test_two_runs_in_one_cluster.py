"""Two runs of one name in one Ray cluster, at the same time, with one folder for their docks' sockets."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import ray
from ray.cluster_utils import Cluster
from ray.util import list_named_actors
from whole_runs import finish, start, wait_for_event

from rljob_api.topology.ray_resources import EMULATED

pytestmark = [pytest.mark.ray, pytest.mark.nightly]

STEPS, ROWS = 4, 32
GATE = '''
import os, time
scored = 0
def reward(prompt, response, answer):
    """The second step waits until both runs are under way."""
    global scored
    scored += 1
    while scored > {rows} and not os.path.exists({free!r}):
        time.sleep(0.05)
    return 0.0
'''


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    """A Ray cluster with devices for two runs."""
    head = {"num_cpus": 2, "resources": {EMULATED: 4}, "include_dashboard": False}
    made = Cluster(initialize_head=True, head_node_args={**head, "object_store_memory": 2**27})
    yield made
    ray.shutdown()
    made.shutdown()


def test_their_docks_do_not_meet(
    job_file: Callable[..., Path], tmp_path: Path, cluster: Cluster
) -> None:
    free, sockets = tmp_path / "free", tmp_path / "sockets"
    (tmp_path / "gate.py").write_text(GATE.format(free=str(free), rows=ROWS))
    python = {"type": "python", "python": {"path": "gate.py"}, "timeoutSeconds": 400}
    correct = {"name": "correct", "type": "dataset", "threshold": 1.0}
    gate = {"name": "gate", "weight": 0.0, **python}
    job = job_file(steps=STEPS, checkpoint={}, rewards=[correct, gate])
    environment = {"RAY_ADDRESS": cluster.address, "RLJOB_DOCK_DIRECTORY": str(sockets)}
    folders = [tmp_path / "one", tmp_path / "other"]

    processes = [start(job, folder, ray=True, environment=environment) for folder in folders]
    for folder, process in zip(folders, processes, strict=True):
        wait_for_event(folder, "step", 1, process)
    ray.init(address=cluster.address, log_to_driver=False)
    names = [actor["name"] for actor in list_named_actors(all_namespaces=True)]
    listening = [path.name.rpartition("-")[0] for path in sockets.iterdir()]
    free.touch()
    runs = [finish(process, folder) for folder, process in zip(folders, processes, strict=True)]

    assert [run.code for run in runs] == [0, 0], [run.output for run in runs]
    assert names.count("warehouse-0") == listening.count("warehouse-0") == 2
    one, other = ([event["metrics"] for event in run.of_kind("step")] for run in runs)
    assert [m["reward/mean"] for m in one] == [m["reward/mean"] for m in other]
    assert [m["loss"] for m in one] == [m["loss"] for m in other]
    for run in runs:
        for event in run.of_kind("dock"):
            assert {moved["rows"] for moved in event["states"].values()} == {ROWS}
