"""The plugin finds the kubelet, says what it has, and finds it again."""

import asyncio
import socket

import pytest
from fake_kubelet import FakeKubelet

from rljob_device_plugin.errors import CannotServe, KubeletSilent, Refused
from rljob_device_plugin.registration import Plugin

ALL_HEALTHY = {str(chip): "Healthy" for chip in range(8)}


async def test_plugin_registers_its_socket_resource_and_options(folder, plugin_at_work):
    async with FakeKubelet(folder) as kubelet, plugin_at_work():
        devices = await kubelet.devices()

        (request,) = kubelet.registrations
        assert request.version == "v1beta1"
        assert request.endpoint == "rljob-huawei.com-Ascend910.sock"
        assert request.resource_name == "huawei.com/Ascend910"
        assert request.options.get_preferred_allocation_available
        assert devices == ALL_HEALTHY


async def test_another_resource_and_number_of_chips(folder, plugin_at_work):
    async with FakeKubelet(folder) as kubelet, plugin_at_work(resource="huawei.com/npu", chips=2):
        devices = await kubelet.devices()

        assert [r.resource_name for r in kubelet.registrations] == ["huawei.com/npu"]
        assert devices == {"0": "Healthy", "1": "Healthy"}


async def test_a_plugin_that_looks_many_times_registers_once(folder, plugin_at_work):
    async with FakeKubelet(folder) as kubelet, plugin_at_work(poll_seconds=0.001):
        await kubelet.devices()

        await asyncio.sleep(0.2)

        assert len(kubelet.registrations) == 1


async def test_plugin_registers_again_after_the_kubelet_restarted(folder, plugin_at_work):
    async with plugin_at_work():
        async with FakeKubelet(folder) as kubelet:
            await kubelet.devices()

        async with FakeKubelet(folder) as restarted:
            devices = await restarted.devices()

            assert len(restarted.registrations) == 1
            assert devices == ALL_HEALTHY


async def test_a_new_socket_of_the_kubelets_is_enough_to_register_again(folder, plugin_at_work):
    async with plugin_at_work():
        async with FakeKubelet(folder) as kubelet:
            await kubelet.devices()

        async with FakeKubelet(folder, empties=False) as restarted:
            assert await restarted.devices() == ALL_HEALTHY


async def test_plugin_that_lost_its_own_socket_makes_it_anew(folder, settings, plugin_at_work):
    own_socket = settings().own_socket
    async with FakeKubelet(folder) as kubelet, plugin_at_work():
        await kubelet.devices()

        own_socket.unlink()

        assert await kubelet.devices() == ALL_HEALTHY
        assert own_socket.is_socket()
        assert len(kubelet.registrations) == 2


async def test_a_socket_that_a_killed_plugin_left_is_no_obstacle(folder, settings, plugin_at_work):
    async with FakeKubelet(folder) as kubelet:
        with socket.socket(socket.AF_UNIX) as left:
            left.bind(str(settings().own_socket))

        async with plugin_at_work():
            assert await kubelet.devices() == ALL_HEALTHY


async def test_plugin_waits_for_a_kubelet_that_comes_later(folder, plugin_at_work):
    async with plugin_at_work():
        await asyncio.sleep(0.1)

        async with FakeKubelet(folder) as kubelet:
            assert await kubelet.devices() == ALL_HEALTHY


async def test_a_missing_kubelet_ends_the_plugin_at_the_deadline(folder, settings):
    with pytest.raises(KubeletSilent, match=rf"{folder}/kubelet.sock.*waited 0.1 s"):
        await Plugin(settings(deadline_seconds=0.1)).run()


async def test_a_socket_that_nobody_answers_at_counts_as_a_missing_kubelet(folder, settings):
    (folder / "kubelet.sock").touch()

    with pytest.raises(KubeletSilent, match="no answer at"):
        await Plugin(settings(deadline_seconds=0.1)).run()


async def test_a_refusal_ends_the_plugin_with_the_kubelets_words(folder, settings):
    async with FakeKubelet(folder, refusal="unsupported API version"):
        with pytest.raises(Refused, match=r"huawei\.com/Ascend910.*unsupported API version"):
            await Plugin(settings()).run()

    assert not settings().own_socket.exists()


async def test_an_own_socket_that_cannot_be_made_ends_the_plugin(folder, settings):
    async with FakeKubelet(folder):
        settings().own_socket.mkdir()

        with pytest.raises(CannotServe, match="cannot make the socket"):
            await Plugin(settings()).run()
