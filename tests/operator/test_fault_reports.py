"""What MindCluster's ConfigMaps say of chips, in all their forms, and what is made of one that says none."""

import json
import logging

import pytest

from rljob_operator.errors import MalformedReport, Unavailable
from rljob_operator.metrics import Metrics
from rljob_operator.watch.cache import Cache, JobKey
from rljob_operator.watch.fault_reports import LEVELS, ChipFault, read_report
from rljob_operator.watch.fault_watch import READ_SECONDS, ChipFaults, keep_reading

NPU = "huawei.com/Ascend910"
NODE = "mindx-dl-deviceinfo-node-1"


def entry(chip="Ascend910-4", *, code="A8028801,80E18402", **fields):
    """A fault as all versions write it, with fields of one of them."""
    return {"fault_type": "CardUnhealthy", "npu_name": chip, "fault_code": code, **fields}


def chip_list(*entries, unhealthy="", network="", npu=NPU):
    lists = {npu: "Ascend910-0", f"{npu}-Unhealthy": unhealthy, f"{npu}-NetworkUnhealthy": network}
    return lists | ({f"{npu}-Fault": json.dumps(entries)} if entries else {})


def of_node(chips, **data):
    """Data of the ConfigMap that Ascend's device plugin writes."""
    info = {"DeviceInfo": {"DeviceList": chips, "UpdateTime": 1744182144}, "CheckCode": "a550"}
    return {"DeviceInfoCfg": json.dumps(info), **data}


def of_cluster(name, **nodes):
    """Data of the ConfigMap that ClusterD writes."""
    told = {
        f"mindx-dl-deviceinfo-{node.replace('_', '-')}": {"DeviceList": chips, "SuperPodID": 0}
        for node, chips in nodes.items()
    }
    return {name: json.dumps(told)}


OLDER = {"fault_level": "SeparateNPU", "large_model_fault_level": "SeparateNPU"}
NEWER = OLDER | {
    "fault_handling": "SeparateNPU",
    "fault_time_and_level_map": {
        "80E18402": {"fault_time": 1744167455784, "fault_level": "SeparateNPU"},
        "A8028801": {"fault_time": 1744167450000, "fault_level": "NotHandleFault"},
    },
}


@pytest.mark.parametrize(("fields", "since"), [(OLDER, None), (NEWER, 1744167455.784)])
def test_both_forms_of_an_entry_say_node_chip_code_and_level(fields, since):
    (fault,) = read_report(NODE, of_node(chip_list(entry(**fields), unhealthy="Ascend910-4")))

    assert fault == ChipFault(
        node="node-1",
        chip="Ascend910-4",
        level="SeparateNPU",
        code="A8028801,80E18402",
        since=since,
    )
    assert fault.severity == "stops"


def test_one_report_of_clusterd_tells_of_many_nodes():
    name = "cluster-info-device-0"
    bad = chip_list(entry(fault_handling="PreSeparateNPU"))

    found = read_report(name, of_cluster(name, node_1=chip_list(), node_2=bad, node_3=bad))

    assert [(fault.node, fault.severity) for fault in found] == [
        ("node-2", "warns"),
        ("node-3", "warns"),
    ]


def test_the_oldest_reports_have_lists_alone():
    chips = chip_list(unhealthy="Ascend910-1, Ascend910-2", network="Ascend910-3")

    found = {f.chip: (f.level, f.severity) for f in read_report(NODE, of_node(chips))}

    assert found == {
        "Ascend910-1": ("Unhealthy", "stops"),
        "Ascend910-2": ("Unhealthy", "stops"),
        "Ascend910-3": ("NetworkUnhealthy", "warns"),
    }


def test_an_entry_says_more_than_a_list_and_the_worst_entry_counts():
    chips = chip_list(
        entry("Ascend910-0", fault_handling="PreSeparateNPU"),
        entry("Ascend910-1", fault_handling="NotHandleFault"),
        entry("Ascend910-2", fault_handling="SubHealthFault"),
        entry("Ascend910-2", fault_handling="RestartNPU"),
        unhealthy="Ascend910-0,Ascend910-1",
    )

    found = {fault.chip: fault.level for fault in read_report(NODE, of_node(chips))}

    assert found == {"Ascend910-0": "PreSeparateNPU", "Ascend910-2": "RestartNPU"}


def test_a_chip_that_was_separated_by_hand_stops_whatever_its_entry_says():
    chips = chip_list(entry("Ascend910-0", fault_handling="NotHandleFault"))

    (fault,) = read_report(NODE, of_node(chips, ManuallySeparateNPU="Ascend910-0"))

    assert (fault.chip, fault.level, fault.severity) == (
        "Ascend910-0",
        "ManuallySeparateNPU",
        "stops",
    )


def test_a_level_that_nobody_knows_counts_as_the_lists_say_and_nodes_are_left_to_kubernetes():
    chips = chip_list(
        entry("Ascend910-0", fault_handling="MeltNPU"),
        entry("Ascend910-1", fault_handling="MeltNPU"),
        entry("", fault_handling="", fault_type="NodeUnhealthy"),
        unhealthy="Ascend910-1",
    )

    (fault,) = read_report(NODE, of_node(chips))

    assert (fault.chip, fault.level) == ("Ascend910-1", "Unhealthy")


def test_resources_of_any_name_are_read():
    chips = chip_list(entry("npu-4", fault_handling="SeparateNPU"), npu="huawei.com/npu")

    (fault,) = read_report(NODE, of_node(chips))

    assert fault.chip == "npu-4"


def test_levels_are_those_of_mindcluster():
    assert {level for level, means in LEVELS.items() if means == "nothing"} == {
        "NotHandleFault",
        "NotHandle",
    }
    assert {level for level, means in LEVELS.items() if means == "warns"} == {
        "SubHealthFault",
        "PreSeparateNPU",
        "NetworkUnhealthy",
        "PreSeparateFault",
        "PreSeparate",
        "SubHealth",
    }


def part(level, *codes, kind="Memory"):
    return {"DeviceType": kind, "DeviceId": 0, "FaultCode": list(codes), "FaultLevel": level}


NODE_INFO = {
    "FaultDevList": [
        part("NotHandleFault", "00000005"),
        part("PreSeparateFault", "0100001D"),
        part("SeparateFault", "2C000009", "2C00000D", kind="CPU"),
    ],
    "NodeStatus": "UnHealthy",
}
SWITCH_INFO = {
    "FaultCode": ["[0x00f1ff09,155914,na,na]"],
    "FaultLevel": "SubHealthFault",
    "UpdateTime": 1763544679,
    "NodeStatus": "SubHealthy",
    "FaultTimeAndLevelMap": {},
}
LATER = SWITCH_INFO | {
    "FaultCode": [{"EventType": 9, "AssembledFaultCode": "[0x00f1ff09,155914,na,na]"}]
}
WELL = {"FaultCode": None, "FaultLevel": "", "NodeStatus": "Healthy"}
FAULT_OF_NODE = ChipFault(
    node="node-1", chip="node", level="SeparateFault", code="0100001D,2C000009,2C00000D"
)
FAULT_OF_SWITCH = ChipFault(
    node="node-1", chip="switch", level="SubHealthFault", code="[0x00f1ff09,155914,na,na]"
)


@pytest.mark.parametrize(
    ("name", "data", "fault"),
    [
        (
            "mindx-dl-nodeinfo-node-1",
            {"NodeInfo": json.dumps({"NodeInfo": NODE_INFO, "CheckCode": "a550"})},
            FAULT_OF_NODE,
        ),
        (
            "cluster-info-node-cm",
            {
                "cluster-info-node-cm": json.dumps(
                    {
                        "mindx-dl-nodeinfo-node-1": NODE_INFO,
                        "mindx-dl-nodeinfo-node-2": {"FaultDevList": None, "NodeStatus": "Healthy"},
                    }
                )
            },
            FAULT_OF_NODE,
        ),
        (NODE, of_node(chip_list(), SwitchInfoCfg=json.dumps(SWITCH_INFO)), FAULT_OF_SWITCH),
        (
            "cluster-info-switch-0",
            {
                "cluster-info-switch-0": json.dumps(
                    {"mindx-dl-switchinfo-node-1 ": LATER, "mindx-dl-switchinfo-node-2": WELL}
                )
            },
            FAULT_OF_SWITCH,
        ),
    ],
)
def test_a_node_and_its_switch_have_reports_of_their_own(name, data, fault):
    assert read_report(name, data) == [fault]


def test_a_node_that_two_reports_tell_of_has_one_fault_the_worse():
    faults = ChipFaults(wall=lambda: 7.0)
    older = {"FaultDevList": [part("PreSeparateFault", "0100001D")]}
    gathered = {"cluster-info-node-cm": json.dumps({"mindx-dl-nodeinfo-node-1": older})}
    own = {"NodeInfo": json.dumps({"NodeInfo": NODE_INFO})}

    faults.take(
        [report("cluster-info-node-cm", **gathered), report("mindx-dl-nodeinfo-node-1", **own)]
    )

    assert [fault.level for fault in faults.on(["node-1"])] == ["SeparateFault"]


MALFORMED = {
    "no key": {},
    "no JSON": {"DeviceInfoCfg": "{"},
    "nested deeply": {"DeviceInfoCfg": "[" * 20_000},
    "no list": {"DeviceInfoCfg": '{"DeviceInfo": {}}'},
    "numbers": {"DeviceInfoCfg": "7"},
    "a list for a map": {"DeviceInfoCfg": '{"DeviceInfo": {"DeviceList": ["a"]}}'},
    "no text": of_node({f"{NPU}-Fault": 3}),
    "entries that are none": of_node({f"{NPU}-Fault": '{"a": 1}'}),
    "an entry of another kind": of_node({f"{NPU}-Fault": '[{"npu_name": 4}]'}),
}


@pytest.mark.parametrize("data", MALFORMED.values(), ids=MALFORMED)
def test_a_malformed_report_is_an_error_of_its_own(data):
    with pytest.raises(MalformedReport):
        read_report(NODE, data)


def report(name=NODE, **data):
    return {"metadata": {"name": name, "namespace": "kube-system"}, "data": data}


def test_a_malformed_report_is_logged_once_by_name_and_leaves_what_was_known(caplog):
    faults = ChipFaults(wall=lambda: 7.0)
    good = report(**of_node(chip_list(unhealthy="Ascend910-1")))

    assert faults.take([good]) == {"node-1"}
    with caplog.at_level(logging.ERROR):
        news = [faults.take([report(DeviceInfoCfg="{")]) for _ in range(3)]

    assert news == [set(), set(), set()]
    (said,) = [record.getMessage() for record in caplog.records]
    assert f"kube-system/{NODE}" in said
    assert [fault.chip for fault in faults.on(["node-1"])] == ["Ascend910-1"]


def test_news_of_a_node_comes_once_and_a_fault_keeps_the_time_it_was_first_read():
    now = [7.0]
    faults = ChipFaults(wall=lambda: now[0])
    bad = report(**of_node(chip_list(unhealthy="Ascend910-1")))
    other = report("mindx-dl-deviceinfo-node-2", **of_node(chip_list()))
    strange = report("coredns", Corefile="ConfigMaps of others lie there too")

    first = faults.take([bad, other, strange])
    now[0] = 9.0
    again = faults.take([bad, other, strange])

    assert (first, again) == ({"node-1"}, set())
    assert [fault.since for fault in faults.on(["node-1", "node-2"])] == [7.0]
    assert faults.nodes() == ("node-1",)
    assert faults.levels() == {"Unhealthy": 1}
    assert faults.take([other]) == {"node-1"}
    assert faults.nodes() == ()


class Stopped(Exception):
    """The test has seen enough."""


async def test_jobs_on_a_node_with_news_are_looked_at_and_a_server_that_is_busy_is_asked_again():
    cache, metrics, looked_at, pauses = Cache(), Metrics(version="1"), [], []
    for name, node in (("one", "node-1"), ("two", "node-2")):
        pod = {
            "metadata": {"name": name, "namespace": "team", "labels": {"rljob.io/job": name}},
            "spec": {"nodeName": node},
        }
        cache.put("Pod", pod, observed_at=0.0)
    answers = [
        [report(**of_node(chip_list(unhealthy="Ascend910-1")))],
        Unavailable("list ConfigMap: 429", retry_after=30.0),
        [report(**of_node(chip_list(unhealthy="Ascend910-1")))],
    ]

    class Kube:
        async def list(self, api_version, kind, namespace=None, **_):
            assert (api_version, kind, namespace) == ("v1", "ConfigMap", "mindx-dl")
            answer = answers.pop(0)
            if isinstance(answer, Exception):
                raise answer
            return answer

    class Queue:
        def add(self, key, *, new=False):
            looked_at.append(key)

    async def sleep(seconds):
        pauses.append(seconds)
        if not answers:
            raise Stopped

    with pytest.raises(Stopped):
        await keep_reading(
            Kube(),
            namespace="mindx-dl",
            faults=ChipFaults(),
            cache=cache,
            queue=Queue(),
            metrics=metrics,
            sleep=sleep,
        )

    assert looked_at == [JobKey("team", "one")]
    assert pauses == [READ_SECONDS, 30.0, READ_SECONDS]
    assert metrics.registry.get_sample_value("rljob_faulty_chips", {"level": "Unhealthy"}) == 1
