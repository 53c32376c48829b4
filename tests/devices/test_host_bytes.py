"""Memory that the machine, or the container, still has."""

import psutil

from rljob_runtime.devices.host import host_bytes


def test_without_a_container_it_is_the_machines(tmp_path):
    found = host_bytes(tmp_path)

    assert 0 < found <= psutil.virtual_memory().total


def test_a_containers_limit_counts_pages_that_it_can_give_back(tmp_path):
    (tmp_path / "memory.max").write_text("1000\n")
    (tmp_path / "memory.current").write_text("700\n")
    (tmp_path / "memory.stat").write_text("anon 500\ninactive_file 200\nactive_file 0\n")

    assert host_bytes(tmp_path) == 1000 - 700 + 200


def test_a_container_without_a_limit_has_the_machines(tmp_path):
    (tmp_path / "memory.max").write_text("max\n")
    (tmp_path / "memory.current").write_text("700\n")
    (tmp_path / "memory.stat").write_text("inactive_file 200\n")

    assert host_bytes(tmp_path) > 10_000
