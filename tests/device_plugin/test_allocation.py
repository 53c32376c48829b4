"""What a container gets, and which chips a plugin would give it."""

import grpc
import pytest
from fake_kubelet import FakeKubelet
from hypothesis import given
from hypothesis import strategies as st

from rljob_device_plugin import messages
from rljob_device_plugin.chips import preferred

# Each field is a byte of number * 8 + 2 for what has a length (+ 0 for numbers), length, content.
ON_THE_WIRE = [
    (
        messages.RegisterRequest(
            version="v1beta1",
            endpoint="a",
            resource_name="b/c",
            options={"get_preferred_allocation_available": True},
        ),
        b"\x0a\x07v1beta1\x12\x01a\x1a\x03b/c\x22\x02\x10\x01",
    ),
    (
        messages.ListAndWatchResponse(devices=[{"ID": "0", "health": "Healthy"}]),
        b"\x0a\x0c\x0a\x010\x12\x07Healthy",
    ),
    (
        messages.PreferredAllocationRequest(
            container_requests=[
                {
                    "available_deviceIDs": ["0", "1"],
                    "must_include_deviceIDs": ["1"],
                    "allocation_size": 2,
                }
            ]
        ),
        b"\x0a\x0b\x0a\x010\x0a\x011\x12\x011\x18\x02",
    ),
    (
        messages.PreferredAllocationResponse(container_responses=[{"deviceIDs": ["0"]}]),
        b"\x0a\x03\x0a\x010",
    ),
    (
        messages.AllocateRequest(container_requests=[{"devices_ids": ["0"]}]),
        b"\x0a\x03\x0a\x010",
    ),
    (
        messages.AllocateResponse(
            container_responses=[
                {
                    "envs": [{"key": "k", "value": "v"}],
                    "devices": [{"container_path": "c", "host_path": "h", "permissions": "rw"}],
                }
            ]
        ),
        b"\x0a\x14\x0a\x06\x0a\x01k\x12\x01v\x1a\x0a\x0a\x01c\x12\x01h\x1a\x02rw",
    ),
]


@pytest.mark.parametrize(("message", "wire"), ON_THE_WIRE, ids=lambda value: type(value).__name__)
def test_a_message_looks_on_the_wire_as_the_interface_has_it(message, wire):
    assert message.SerializeToString() == wire


async def test_a_container_gets_its_chips_as_files_and_in_one_variable(folder, plugin_at_work):
    request = messages.AllocateRequest()
    request.container_requests.add(devices_ids=["3", "1", "2"])
    request.container_requests.add(devices_ids=["5"])

    async with FakeKubelet(folder) as kubelet, plugin_at_work():
        await kubelet.devices()
        answer = await kubelet.call("Allocate", request, messages.AllocateResponse)

    first, second = answer.container_responses
    assert [(v.key, v.value) for v in first.envs] == [("ASCEND_VISIBLE_DEVICES", "1,2,3")]
    assert [(v.key, v.value) for v in second.envs] == [("ASCEND_VISIBLE_DEVICES", "5")]
    assert [(d.host_path, d.container_path, d.permissions) for d in first.devices] == [
        ("/dev/null", "/dev/davinci1", "rw"),
        ("/dev/null", "/dev/davinci2", "rw"),
        ("/dev/null", "/dev/davinci3", "rw"),
    ]
    assert [d.container_path for d in second.devices] == ["/dev/davinci5"]


@pytest.mark.parametrize("unknown", ["8", "-1", "01", "", "davinci0"])
async def test_a_chip_that_the_node_does_not_have_is_refused(folder, plugin_at_work, unknown):
    request = messages.AllocateRequest()
    request.container_requests.add(devices_ids=["0", unknown])

    async with FakeKubelet(folder) as kubelet, plugin_at_work():
        await kubelet.devices()
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await kubelet.call("Allocate", request, messages.AllocateResponse)

    assert refused.value.code() == grpc.StatusCode.INVALID_ARGUMENT
    assert refused.value.details() == f"no chip {unknown!r}: this node has 0 to 7"


async def test_the_kubelet_learns_which_chips_are_preferred(folder, plugin_at_work):
    request = messages.PreferredAllocationRequest()
    request.container_requests.add(
        available_deviceIDs=["7", "6", "5", "4", "3", "2"], allocation_size=4
    )
    request.container_requests.add(
        available_deviceIDs=["0", "1", "6"], must_include_deviceIDs=["6"], allocation_size=2
    )

    async with FakeKubelet(folder) as kubelet, plugin_at_work():
        await kubelet.devices()
        answer = await kubelet.call(
            "GetPreferredAllocation", request, messages.PreferredAllocationResponse
        )

    chosen = [list(response.deviceIDs) for response in answer.container_responses]
    assert chosen == [["4", "5", "6", "7"], ["0", "6"]]


async def test_the_kubelet_may_ask_for_the_options(folder, plugin_at_work):
    async with FakeKubelet(folder) as kubelet, plugin_at_work():
        await kubelet.devices()
        options = await kubelet.call(
            "GetDevicePluginOptions", messages.Empty(), messages.DevicePluginOptions
        )

    assert options.get_preferred_allocation_available


@st.composite
def requests(draw):
    """(available, required, size) as the kubelet asks: required is available, and size lies between."""
    available = draw(st.sets(st.integers(0, 15), min_size=1))
    required = draw(st.sets(st.sampled_from(sorted(available))))
    return available, required, draw(st.integers(len(required), len(available)))


@given(requests())
def test_the_preferred_chips_are_available_enough_and_hold_the_required(request_):
    available, required, size = request_

    chosen = preferred(available, required, size=size)

    assert required <= set(chosen) <= available
    assert len(chosen) == size
    assert chosen == sorted(set(chosen))


@given(requests())
def test_the_preferred_chips_are_of_one_ring_exactly_where_one_ring_suffices(request_):
    available, required, size = request_
    rings = [available & set(range(first, first + 4)) for first in range(0, 16, 4)]
    suffices = any(required <= ring and len(ring) >= size for ring in rings)

    chosen = preferred(available, required, size=size)

    assert any(set(chosen) <= ring for ring in rings) == suffices


@given(requests())
def test_no_lower_free_chip_of_the_same_ring_is_left_out(request_):
    available, required, size = request_

    chosen = set(preferred(available, required, size=size))

    taken = chosen - required
    same_rings = {chip for chip in available - chosen if chip // 4 in {c // 4 for c in taken}}
    assert all(left > max(taken) for left in same_rings if left // 4 == max(taken) // 4)
    assert all(left // 4 >= max(taken) // 4 for left in same_rings)
