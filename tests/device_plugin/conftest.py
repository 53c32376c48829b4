"""A folder for the sockets, and the plugin at work in it."""

import asyncio
import tempfile
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest

from rljob_device_plugin.registration import Plugin
from rljob_device_plugin.settings import PluginSettings


@pytest.fixture
def folder():
    """As the kubelet's; pytest's own folders may be longer than a socket's path can be."""
    with tempfile.TemporaryDirectory(prefix="kubelet-") as made:
        yield Path(made)


@pytest.fixture
def settings(folder):
    """Settings of a plugin that looks 50 times a second."""

    def make(**changes):
        usual = {
            "resource": "huawei.com/Ascend910",
            "chips": 8,
            "folder": folder,
            "node": "node-1",
            "faults": None,
            "deadline_seconds": 10.0,
            "poll_seconds": 0.02,
        }
        return PluginSettings(**usual | changes)

    return make


@pytest.fixture
def plugin_at_work(settings):
    """`async with plugin_at_work(**changes)`: a plugin runs meanwhile; its errors come out at the end."""

    @asynccontextmanager
    async def work(**changes):
        working = asyncio.create_task(Plugin(settings(**changes)).run())
        try:
            yield
        finally:
            working.cancel()
            with suppress(asyncio.CancelledError):
                await working

    return work
