"""What a probe's answers mean: which numbers are too small, whose clock is wrong, who did not arrive."""

from dataclasses import replace

import pytest
from clusters import HEALTHY, OPERATOR, need
from probe_world import LOOK, NOON

from rljob_runtime.cli.doctor.probe.judge import judge, skew
from rljob_runtime.cli.doctor.probe.plan import Options, plan_of
from rljob_runtime.cli.doctor.probe.seen import LookResult, PodReport, ProbeReport

MIB, GIB = 2**20, 2**30
PLAN = plan_of(HEALTHY, need(), OPERATOR, Options(token="abc", seconds=60))
ASCEND = plan_of(
    HEALTHY,
    need(accelerator={"type": "ascend910b", "devicesPerNode": 8}, batch={"globalBatchSize": 16}),
    OPERATOR,
    Options(token="abc", seconds=60),
)
SUM = {"members": [0, 1], "correct": True, "bytes": 16 * MIB, "seconds": 0.016}


def looked(**answer):
    return LookResult(sent=NOON - 0.1, received=NOON + 0.1, answer={**LOOK, **answer})


def seen_pod(rank, *, all_reduce=None, **answer):
    return PodReport(
        name=f"probe-{rank}",
        node=f"node-{rank}",
        address="10.0.0.7",
        look_result=looked(**answer),
        all_reduce={"rank": rank, **SUM} if all_reduce is None else all_reduce,
    )


def of(check, *pods, plan=PLAN, left=None):
    findings = judge(plan, ProbeReport(pods=pods, undeleted=left or {}))
    return [finding for finding in findings if finding.check == check]


def test_pods_that_are_well_make_no_failure_and_tell_the_bandwidth():
    findings = judge(PLAN, ProbeReport(pods=(seen_pod(0), seen_pod(1))))

    assert {finding.status for finding in findings} == {"ok"}
    (told,) = [f.text for f in findings if f.check == "all-reduce"]
    assert (
        told == "gloo over 2 pods: 1.05 GB/s each way (16 MiB in 16 ms)"
    )  # 2 · ½ · 16 MiB / 16 ms


def test_the_slowest_pod_makes_the_bandwidth():
    slow = seen_pod(1, all_reduce={"rank": 1, **SUM, "seconds": 0.16})

    (told,) = of("all-reduce", seen_pod(0), slow)

    assert "0.10 GB/s" in told.text


def test_an_image_that_cannot_be_pulled_has_its_remedy():
    (finding,) = of("probe-pods", PodReport(name="probe-0", problem="ErrImagePull: not found"))

    assert finding.status == "fail"
    assert "imagePullSecrets" in finding.remedy


def test_another_image_is_named_with_the_role_that_uses_it():
    images = {"head": {"image": "a/head:1"}, "warehouse": {"image": "a/b:2"}}
    plan = plan_of(HEALTHY, need(podTemplates=images), OPERATOR, Options(token="abc", seconds=60))
    pulls = (
        PodReport(name="probe-head", node="node-1", problem="ImagePullBackOff: denied"),
        PodReport(name="probe-warehouse", node="node-2"),
    )

    lost, pulled = (
        finding
        for finding in judge(plan, ProbeReport(pods=(seen_pod(0),), images=pulls))
        if finding.check == "other-images"
    )

    assert (lost.status, pulled.status) == ("fail", "ok")
    assert lost.text == "a/head:1 of the head on node-1: ImagePullBackOff: denied"
    assert lost.remedy.startswith("check that a/head:1 exists")
    assert pulled.text == "a/b:2 of the warehouse was pulled on node-2"


def test_an_image_without_the_devices_software_fails_and_another_release_is_warned_of():
    other = {"rljob": "0.0.9", "ray": "2.60.0", "torch": "2.10"}

    (older,) = of("software", seen_pod(0, software=other))
    (lacking,) = of("software", seen_pod(0), plan=ASCEND)

    assert older.status == "warn"
    assert "rljob 0.0.9, ray 2.60.0, torch 2.10; this client is rljob" in older.text
    assert lacking.status == "fail"
    assert "lacks torch-npu; it has rljob" in lacking.text


def test_shared_memory_below_rays_object_store_fails():
    (small,) = of("shared-memory", seen_pod(0, shm_bytes=64 * MIB))

    assert small.status == "fail"
    assert small.text == "/dev/shm has 64 MiB; Ray's object store takes 128 MiB"
    assert "256 MiB or more" in small.remedy


@pytest.mark.parametrize(
    ("free", "status"), [(GIB // 2, "fail"), (5 * GIB, "warn"), (50 * GIB, "ok")]
)
def test_room_for_the_runs_folder(free, status):
    disk = {"/var/lib/rljob": free}

    (finding,) = of("disk", seen_pod(0), seen_pod(1, disk=disk))

    assert finding.status == status
    assert "node-1" in finding.text or status == "ok"


def test_a_volume_that_the_pods_user_may_not_write_fails():
    findings = of("disk", seen_pod(0, writable={"/var/lib/rljob": False}))

    assert findings[0].status == "fail"
    assert "uid 1000 may not write" in findings[0].text
    assert "node-0" in findings[0].text


@pytest.mark.parametrize(
    ("ahead", "status", "text"),
    [
        (0.05, "ok", "agree, within 0.2 s"),
        (-40.1, "warn", "node-1 is 40 s behind this machine"),
        (3600.1, "fail", "node-1 is 3600 s ahead of this machine"),
    ],
)
def test_clocks_are_compared_with_this_machines(ahead, status, text):
    (finding,) = of("clocks", seen_pod(0), seen_pod(1, time=NOON + ahead))

    assert finding.status == status
    assert text in finding.text


def test_a_clock_within_the_time_of_the_question_may_be_right():
    assert skew(looked(time=NOON - 0.09)) == 0.0
    assert skew(looked(time=NOON + 1.1)) == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("named", "fits"),
    [("eth", True), ("=eth0", True), ("=eth", False), ("^eth", False), ("^lo,docker", True),
     ("bond0,eth0", True), ("bond0", False)],
)  # fmt: skip
def test_a_socket_interface_must_be_one_that_is_up(named, fits):
    findings = of("networks", seen_pod(0, environment={"HCCL_SOCKET_IFNAME": named}))

    assert [f.status for f in findings] == (["ok"] if fits else ["fail", "ok"])


def test_interfaces_are_shown_and_those_with_several_packet_sizes_warned_of():
    jumbo = {"eth0": {"up": True, "mtu": 9000, "addresses": ["10.0.0.8"]}}

    (same,) = of("networks", seen_pod(0), seen_pod(1))
    (differing,) = of("networks", seen_pod(0), seen_pod(1, interfaces=jumbo))

    assert (same.status, same.text) == ("ok", "eth0 mtu 1500 (node-0)")
    assert differing.status == "warn"
    assert differing.text == "nodes differ: eth0 mtu 1500 (node-0), eth0 mtu 9000 (node-1)"


def test_a_pod_without_a_network_fails():
    (finding,) = of("networks", seen_pod(0, interfaces={}))

    assert finding.status == "fail"
    assert "node-0: no interface is up" in finding.text


@pytest.mark.parametrize(
    ("addresses", "status"),
    [(None, "skipped"), ({"0": "29.0.0.1"}, "warn"), ({"0": "29.0.0.1", "1": "29.0.0.2"}, "ok")],
)
def test_devices_on_ascend_have_addresses_of_their_own(addresses, status):
    (finding,) = of("device-networks", seen_pod(0, device_addresses=addresses), plan=ASCEND)
    pod = replace(seen_pod(0, device_addresses=None), nics=addresses)
    (told,) = of("device-networks", pod, plan=ASCEND)  # by the device plugin

    assert (finding.status, told.status) == (status, status)
    assert of("device-networks", seen_pod(0)) == []  # not of emulated devices


def test_who_did_not_arrive_is_named_with_what_it_said():
    lonely = {"failure": "no end of: connection to 10.0.0.7:29555"}
    pods = (
        seen_pod(0, all_reduce={"rank": 0, **SUM, "members": [0, 2]}),
        seen_pod(1, all_reduce=lonely),
        seen_pod(2, all_reduce={"rank": 2, **SUM, "members": [0, 2]}),
    )

    lost, told = of("all-reduce", *pods)

    assert lost.status == "fail"
    assert lost.text == f"probe-1 on node-1 did not arrive: {lonely['failure']}"
    assert "NetworkPolicies" in lost.remedy
    assert (told.status, told.text.partition(":")[0]) == ("ok", "gloo over 2 pods")


def test_a_collective_that_hangs_and_a_wrong_sum_fail():
    hung = {"members": [0, 1], "failure": "no end of: hccl all-reduce of 256 MiB"}
    wrong = {"rank": 1, **SUM, "correct": False}

    (stuck, *_) = of(
        "all-reduce", seen_pod(0, all_reduce=hung), seen_pod(1, all_reduce=hung), plan=ASCEND
    )
    (bad,) = of("all-reduce", seen_pod(0), seen_pod(1, all_reduce=wrong))

    assert (stuck.status, bad.status) == ("fail", "fail")
    assert stuck.text == "probe-0 on node-0: no end of: hccl all-reduce of 256 MiB"
    assert "node-1 got a wrong sum" in bad.text


def test_pods_that_are_left_come_with_the_command_that_deletes_them():
    (finding,) = of("probe-end", seen_pod(0), left={"probe-0": "it is still there after 30 s"})

    assert finding.status == "fail"
    assert finding.remedy == ("kubectl -n research delete pod -l rljob.io/probe=rljob-doctor-abc")
