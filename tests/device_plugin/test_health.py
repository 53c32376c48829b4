"""Chips that are marked as broken are Unhealthy at the kubelet, until the mark goes."""

import logging

import pytest
from fake_kubelet import FakeKubelet

from rljob_device_plugin.faults import Faults
from rljob_device_plugin.faults import unhealthy as unhealthy_chips


def unhealthy(devices):
    return [chip for chip, health in devices.items() if health == "Unhealthy"]


async def test_marked_chips_become_unhealthy_and_recover(folder, tmp_path, plugin_at_work):
    async with FakeKubelet(folder) as kubelet, plugin_at_work(faults=tmp_path):
        assert unhealthy(await kubelet.devices()) == []

        (tmp_path / "node-1").write_text("3 5\n")
        assert unhealthy(await kubelet.devices()) == ["3", "5"]

        (tmp_path / "node-1").unlink()
        assert unhealthy(await kubelet.devices()) == []


async def test_a_restarted_kubelet_learns_of_the_marks_at_once(folder, tmp_path, plugin_at_work):
    (tmp_path / "unhealthy").write_text("0")
    async with plugin_at_work(faults=tmp_path):
        async with FakeKubelet(folder) as kubelet:
            assert unhealthy(await kubelet.devices()) == ["0"]

        async with FakeKubelet(folder) as restarted:
            assert unhealthy(await restarted.devices()) == ["0"]


def test_marks_of_all_nodes_and_of_this_one_add_up(tmp_path):
    (tmp_path / "unhealthy").write_text("1, 2")
    (tmp_path / "node-1").write_text("2\n7")
    (tmp_path / "node-2").write_text("4")

    assert set(Faults(tmp_path, node="node-1", count=8).read()) == {1, 2, 7}
    assert set(Faults(tmp_path, node="node-3", count=8).read()) == {1, 2}


def test_without_a_folder_nothing_is_marked():
    assert Faults(None, node="node-1", count=8).read() == {}


def test_a_mark_may_have_a_level_and_only_some_levels_take_the_chip_away(tmp_path):
    (tmp_path / "unhealthy").write_text("1 2:SubHealthFault, 3:PreSeparateNPU")
    (tmp_path / "node-1").write_text("3:NotHandleFault")

    marks = Faults(tmp_path, node="node-2", count=8).read()
    own = Faults(tmp_path, node="node-1", count=8).read()

    assert marks == {1: "SeparateNPU", 2: "SubHealthFault", 3: "PreSeparateNPU"}
    assert unhealthy_chips(marks) == {1, 3}
    assert unhealthy_chips(own) == {1}


@pytest.mark.parametrize("wrong", [b"8", b"one", b"\xff", b"1:MeltNPU"])
def test_a_wrong_file_is_logged_once_and_changes_no_mark(tmp_path, caplog, wrong):
    file = tmp_path / "unhealthy"
    faults = Faults(tmp_path, node="node-1", count=8)
    file.write_text("1")
    assert set(faults.read()) == {1}

    file.write_bytes(wrong)
    assert [set(faults.read()), set(faults.read())] == [{1}, {1}]
    errors = [r.getMessage() for r in caplog.records if r.levelno == logging.ERROR]
    assert len(errors) == 1
    assert "unhealthy" in errors[0]

    file.write_text("2")
    assert set(faults.read()) == {2}
