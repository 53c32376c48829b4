"""Marks are reported as MindCluster reports faults: the operator's own reader says what they mean."""

import json
import logging
from typing import Any

import pytest

from rljob_device_plugin.errors import NotReported
from rljob_device_plugin.faults import LEVELS
from rljob_device_plugin.reports import ApiServer, Reports
from rljob_operator.watch.fault_reports import LEVELS as MEANINGS
from rljob_operator.watch.fault_reports import ChipFault, read_report


class Server:
    """Keeps what is written, by path; `down` for a while."""

    def __init__(self) -> None:
        self.objects: dict[str, Any] = {}
        self.writes, self.down = 0, False

    def call(self, method: str, path: str, body: Any = None) -> None:
        if self.down:
            raise NotReported(f"{method} {path}: refused")
        self.writes += 1
        self.objects[path.partition("?")[0]] = body


@pytest.fixture
def server():
    return Server()


@pytest.fixture
def clock():
    return [1000.25]


@pytest.fixture
def reports(server, clock):
    return Reports(
        server,
        namespace="faults",
        node="node-1",
        resource="huawei.com/Ascend910",
        chips=4,
        wall=lambda: clock[0],
    )


def told(server):
    (manifest,) = server.objects.values()
    return read_report(manifest["metadata"]["name"], manifest["data"])


def test_the_operator_reads_what_the_plugin_writes(server, reports):
    reports.write({1: "SeparateNPU", 2: "SubHealthFault", 3: "NotHandleFault"})

    usual: Any = {"node": "node-1", "code": "EMULATED", "since": 1000.25}
    assert told(server) == [
        ChipFault(chip="Ascend910-1", level="SeparateNPU", **usual),
        ChipFault(chip="Ascend910-2", level="SubHealthFault", **usual),
    ]
    assert list(server.objects) == [
        "/api/v1/namespaces/faults/configmaps/mindx-dl-deviceinfo-node-1"
    ]


def test_chips_that_pods_can_have_and_those_that_they_cannot_are_listed(server, reports):
    reports.write({1: "SeparateNPU", 2: "SubHealthFault"})

    (manifest,) = server.objects.values()
    chips = json.loads(manifest["data"]["DeviceInfoCfg"])["DeviceInfo"]["DeviceList"]
    assert chips["huawei.com/Ascend910"] == "Ascend910-0,Ascend910-2,Ascend910-3"
    assert chips["huawei.com/Ascend910-Unhealthy"] == "Ascend910-1"


def test_every_level_that_can_be_marked_means_something_to_the_operator():
    assert set(LEVELS) <= set(MEANINGS)


def test_a_report_is_written_where_it_is_news_and_a_fault_keeps_its_time(server, reports, clock):
    reports.write({})
    reports.write({1: "RestartNPU"})
    clock[0] = 2000.0
    reports.write({1: "RestartNPU"})
    assert server.writes == 2

    reports.write({0: "RestartNPU", 1: "RestartNPU"})

    assert [(fault.chip, fault.since) for fault in told(server)] == [
        ("Ascend910-0", 2000.0),
        ("Ascend910-1", 1000.25),
    ]


def test_a_server_that_refuses_is_asked_again_in_a_while_and_told_of_once(
    server, reports, clock, caplog
):
    server.down = True
    with caplog.at_level(logging.ERROR):
        for _ in range(20):
            reports.write({1: "RestartNPU"})
            clock[0] += 1
    server.down = False
    clock[0] += 5
    reports.write({1: "RestartNPU"})

    assert len(caplog.records) == 1
    assert len(told(server)) == 1


def test_outside_a_pod_it_is_said_what_is_missing(monkeypatch):
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)

    with pytest.raises(NotReported, match=r"--reports needs a pod.*KUBERNETES_SERVICE_HOST"):
        ApiServer.of_pod()
