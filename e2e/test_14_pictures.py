"""Rows with pictures from a mounted volume: two nodes train a model on what they show."""

import base64
import inspect
import io
import json
from pathlib import Path
from random import Random

import numpy as np
import pytest
from conftest import make_storage
from PIL import Image
from support.cluster import Cluster, Manifest
from support.jobs import STARTED_SECONDS, ended, events_of, holds, small
from support.tools import Tools

from rljob_runtime.task.pictures.drawing import DrawnPicture, draw

pytestmark = [pytest.mark.nightly]

JOB, FILES, MOUNT, SIDE, NUM_ROWS, STEPS = "pictures", "files", "/data", 56, 32, 3
WRITTEN_SECONDS = 120.0


def row_of(number: int) -> DrawnPicture:
    """What a row shows and asks."""
    return draw(Random(number), task="count", level=1, side=SIDE)


def write_rows(folder: Path) -> None:
    """A picture a row, in a folder beside the file."""
    (folder / "pictures").mkdir()
    with (folder / "rows.jsonl").open("w") as file:
        for number in range(NUM_ROWS):
            made, name = row_of(number), f"pictures/{number}.png"
            made.image.save(folder / name)
            prompt = f"{number}:<image>{made.question}"
            row = {"prompt": prompt, "answer": made.answer, "images": [name]}
            file.write(json.dumps(row) + "\n")


def mounted(*, read_only: bool) -> Manifest:
    """Volumes of a pod, and mounts of its container: the claim of the files, which is not the runs' one; a
    pod that names one claim twice is never started."""
    return {
        "volumes": [{"name": FILES, "persistentVolumeClaim": {"claimName": FILES}}],
        "volumeMounts": [{"name": FILES, "mountPath": MOUNT, "readOnly": read_only}],
    }


def pictured() -> Manifest:
    """A job on these rows, on a device of each node; its files are mounted for reading alone."""
    files = mounted(read_only=True)
    job = small(
        JOB,
        nodes=2,
        steps=STEPS,
        model={
            "builtin": "tiny-vl",
            "vision": "frozen",
            "warmup": {"targetAccuracy": 1e-6, "maxSteps": 10},
        },
        data={"jsonl": {"path": f"{MOUNT}/rows.jsonl"}},
        rewards=[{"name": "right", "type": "exact"}],
        evaluation={"prompts": 8},
        podTemplates={"head": files, "worker": files},
    )
    job["spec"]["batch"] |= {"maxPromptLength": 64, "maxResponseLength": 8}
    return job


def writer() -> Manifest:
    """A pod that writes the rows to the claim."""
    program = (
        "import json\nfrom pathlib import Path\nfrom random import Random\n"
        "from rljob_runtime.task.pictures.drawing import DrawnPicture, draw\n"
        f"SIDE, NUM_ROWS = {SIDE}, {NUM_ROWS}\n"
        f"{inspect.getsource(row_of)}\n{inspect.getsource(write_rows)}\nwrite_rows(Path({MOUNT!r}))\n"
    )
    files = mounted(read_only=False)
    container = {
        "name": "write",
        "image": Tools.from_environment().image("runtime"),
        "command": ["python", "-c", program],
        "volumeMounts": files["volumeMounts"],
    }
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "write-rows"},
        "spec": {"restartPolicy": "Never", "volumes": files["volumes"], "containers": [container]},
    }


@pytest.fixture(scope="module")
def rows(cluster: Cluster) -> None:
    """Written to a claim of their own."""
    make_storage(cluster, FILES)
    cluster.apply(writer())

    def written(pods: dict[str, Manifest]) -> bool:
        phase = pods["write-rows"]["status"].get("phase")
        assert phase != "Failed", cluster.log("write-rows")
        return bool(phase == "Succeeded")

    cluster.wait("v1", "Pod", "the rows are written", written, seconds=WRITTEN_SECONDS)


def test_two_nodes_train_on_pictures_of_a_volume_and_the_run_shows_them(
    cluster: Cluster, rows: None
) -> None:
    cluster.apply(pictured())

    done = cluster.wait_for_job(JOB, "it has ended", ended, seconds=STARTED_SECONDS + 300)

    assert holds(done, "Succeeded"), cluster.dump(JOB)
    assert done["status"].get("restarts", 0) == 0
    steps = [event for event in events_of(cluster, JOB) if event["kind"] == "step"]
    assert [event["step"] for event in steps] == list(range(1, STEPS + 1))
    for event in steps:
        assert event["metrics"]["mismatch/max"] < 2e-5
        assert event["metrics"]["pictures_per_second"] > 0
        assert event["samples"]
        for group in event["samples"]:
            made = row_of(int(group["prompt"].partition(":")[0]))
            [picture] = group["pictures"]
            shown = Image.open(io.BytesIO(base64.b64decode(picture["content"]))).convert("RGB")
            assert (np.array(shown) == np.array(made.image)).all()
            assert group["answer"] == made.answer
