"""The process as the image starts it: signals, exit codes, logs, and what it imports."""

import asyncio
import json
import pkgutil
import signal
import socket
import subprocess
import sys
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest
from fake_kubelet import FakeKubelet

import rljob_device_plugin
from rljob_device_plugin.main import parse

START = [sys.executable, "-m", "rljob_device_plugin"]
MAY_LOAD = {"grpc", "google", "rljob_device_plugin", "rljob_operator", "typing_extensions"}
INSTALLED = {*packages_distributions(), "rljob_api", "rljob_runtime"} - MAY_LOAD


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_a_signal_ends_the_process_with_0_and_without_its_socket(folder, number):
    async with FakeKubelet(folder) as kubelet:
        process = await asyncio.create_subprocess_exec(
            *START, "--folder", folder, "--chips", "4", stdout=asyncio.subprocess.PIPE
        )
        assert list(await kubelet.devices()) == ["0", "1", "2", "3"]
        registered = await asyncio.wait_for(process.stdout.readline(), timeout=20)

        process.send_signal(number)
        output, _ = await asyncio.wait_for(process.communicate(), timeout=20)

    assert process.returncode == 0
    assert not list(folder.glob("rljob-*"))
    lines = [json.loads(line) for line in (registered, *output.splitlines())]
    assert [line["message"] for line in lines] == [
        "registered resource=huawei.com/Ascend910 chips=4 endpoint=rljob-huawei.com-Ascend910.sock",
        "stopped by a signal",
    ]


async def test_a_signal_ends_a_process_that_still_waits_for_the_kubelet(folder):
    process = await asyncio.create_subprocess_exec(
        *START, "--folder", folder, stdout=asyncio.subprocess.PIPE
    )
    waiting = json.loads(await asyncio.wait_for(process.stdout.readline(), timeout=20))
    assert waiting["message"].startswith(f"waiting for the kubelet: no kubelet's socket {folder}")

    process.terminate()
    await asyncio.wait_for(process.communicate(), timeout=20)

    assert process.returncode == 0


def test_a_missing_kubelet_ends_the_process_with_1_and_says_why(folder):
    done = subprocess.run(
        [*START, "--folder", folder, "--kubelet-deadline", "0"], capture_output=True, text=True
    )

    line = json.loads(done.stdout)
    assert done.returncode == 1
    assert line["level"] == "error"
    assert f"{folder}/kubelet.sock" in line["message"]
    assert "is the kubelet's folder mounted" in line["message"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--chips", "0"], "--chips: '0' is no number of chips: write 1 to 64"),
        (["--chips", "65"], "--chips: '65' is no number of chips: write 1 to 64"),
        (["--chips", "eight"], "--chips: 'eight' is no number of chips: write 1 to 64"),
        (["--resource", "Ascend910"], "--resource: 'Ascend910' is no extended resource"),
        (["--resource", "kubernetes.io/npu"], "is no extended resource"),
        (["--resource", "requests.huawei.com/npu"], "is no extended resource"),
        (["--resource", "huawei.com/" + "n" * 64], "a name of at most 63 characters"),
        (["--resource", "huawei.com/npu/1"], "is no extended resource"),
        (["--kubelet-deadline", "nan"], "--kubelet-deadline: 'nan' is no time"),
        (["--kubelet-deadline", "-1"], "is no time: write seconds, 0 or more"),
        (["--kubelet-deadline", "soon"], "is no time"),
        (["--faults", "/nowhere"], "--faults: /nowhere is no folder"),
        (["--folder", "/" + "f" * 80], "more than 107: take a shorter --folder or --resource"),
    ],
)
def test_a_wrong_argument_ends_the_process_with_2_and_says_what_to_write(arguments, said, capsys):
    with pytest.raises(SystemExit) as ended:
        parse(arguments)

    assert ended.value.code == 2
    assert said in capsys.readouterr().err


def test_without_arguments_a_node_has_8_chips_of_an_ascend_910():
    settings, _ = parse([])

    assert (settings.resource, settings.chips) == ("huawei.com/Ascend910", 8)
    assert str(settings.kubelet_socket) == "/var/lib/kubelet/device-plugins/kubelet.sock"
    assert (settings.node, settings.faults) == (socket.gethostname(), None)


def test_arguments_of_the_chart_arrive(tmp_path):
    given = [
        *("--resource", "huawei.com/npu", "--chips", "16", "--node", "node-1"),
        *("--faults", str(tmp_path), "--folder", "/sockets", "--kubelet-deadline", "5"),
    ]

    settings, _ = parse(given)

    assert (settings.resource, settings.chips, settings.node) == ("huawei.com/npu", 16, "node-1")
    assert (settings.faults, settings.deadline_seconds) == (tmp_path, 5.0)
    assert settings.own_socket == Path("/sockets/rljob-huawei.com-npu.sock")


def test_the_plugin_imports_grpc_and_protobuf_and_nothing_else_that_is_installed():
    names = [m.name for m in pkgutil.iter_modules(rljob_device_plugin.__path__)]
    modules = ", ".join(f"rljob_device_plugin.{name}" for name in names if name != "__main__")
    code = f"import sys; old = set(sys.modules); import {modules}; print(*set(sys.modules) - old)"

    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    loaded = done.stdout.split()
    assert [name for name in loaded if name.startswith("rljob_operator.")] == ["rljob_operator.log"]
    assert not {name.split(".")[0] for name in loaded} & INSTALLED
