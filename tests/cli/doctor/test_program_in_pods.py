"""The program of a probe's pods, as its text, in processes of its own: what it sees and how it sums."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

from free_ports import free_port

from rljob_runtime.cli.doctor.probe import in_pod
from rljob_runtime.cli.doctor.probe.pods import PROGRAM, command

TEXT = Path(in_pod.__file__).read_text()


def start(work, **given):
    """A shell in a pod: the program comes by its variable, and knows no rljob."""
    words = command(work, json.dumps(given))
    shims = {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    bare = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    environment = bare | shims | {PROGRAM: TEXT, "HCCL_SOCKET_IFNAME": "eth0"}
    return subprocess.Popen(words, stdout=subprocess.PIPE, env=environment, text=True)


def result(process, seconds=300):
    output, _ = process.communicate(timeout=seconds)
    said = [json.loads(line) for line in output.splitlines() if line.startswith("{")]
    (found,) = [line["result"] for line in said if "result" in line]
    return found


def test_it_looks_around():
    before = time.time()

    seen = result(start("look", seconds=240, folders=["/tmp", "/nowhere"]))

    assert before <= seen["time"] <= time.time()
    stat = os.statvfs("/dev/shm")
    assert seen["shm_bytes"] == stat.f_frsize * stat.f_blocks
    assert seen["disk"]["/tmp"] > 0
    assert seen["disk"]["/nowhere"] is None
    assert seen["writable"] == {"/tmp": True, "/nowhere": False}
    names = {name for name in os.listdir("/sys/class/net") if name != "lo"}
    assert set(seen["interfaces"]) <= names
    assert seen["environment"]["HCCL_SOCKET_IFNAME"] == "eth0"
    assert seen["software"]["torch"]


def test_addresses_of_devices_are_read_from_ascends_file(tmp_path, monkeypatch):
    file = tmp_path / "hccn.conf"
    file.write_text("address_0=29.1.2.3\nnetmask_0=255.255.0.0\naddress_1=29.1.2.4\n")
    monkeypatch.setattr(in_pod, "HCCN", file)

    assert in_pod.device_addresses() == {"0": "29.1.2.3", "1": "29.1.2.4"}


def test_pods_that_come_sum():
    common = {"backend": "gloo", "size": 2, "address": "127.0.0.1", "port": free_port()}
    pods = [start("reduce", **common, rank=rank, arrival=200, seconds=240) for rank in (0, 1)]

    answers = [result(pod) for pod in pods]

    assert [answer["members"] for answer in answers] == [[0, 1], [0, 1]]
    assert all(answer["correct"] and answer["seconds"] > 0 for answer in answers)


def test_who_does_not_come_in_time_is_left_out():
    common = {"backend": "gloo", "size": 2, "address": "127.0.0.1", "port": free_port()}

    answer = result(start("reduce", **common, rank=0, arrival=1, seconds=240))

    assert answer == {"rank": 0, "members": [0]}


def test_what_hangs_is_ended_at_its_deadline_and_named():
    common = {"backend": "gloo", "size": 2, "address": "192.0.2.1", "port": 9}

    answer = result(start("reduce", **common, rank=1, arrival=1, seconds=8))

    assert "192.0.2.1:9" in answer["failure"] or "torch" in answer["failure"]
