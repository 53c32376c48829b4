"""Machines of a cluster as network namespaces on one bridge, their links as fast as asked for.

Needs root and iproute2. The bridge has a namespace of its own, so that the machine's own rules for
packets do not count.
"""

import json
import os
import shutil
import signal
import subprocess
from contextlib import suppress
from typing import Self

SWITCH = "rljob-switch"
SUBNET = "10.231"
BURST_BYTES = 512 << 10


class NoNetworks(Exception):
    """Why this machine cannot have them."""


class Network:
    """Namespaces `rljob-NAME`, each with one address; a context manager.

    names: of the machines. megabytes_per_second: of each link, each way; 0: not limited.
    Raises NoNetworks where they are not permitted.
    """

    def __init__(self, names: list[str], *, megabytes_per_second: float = 0.0) -> None:
        self._names, self._rate = names, megabytes_per_second

    def __enter__(self) -> Self:
        if shutil.which("ip") is None or shutil.which("tc") is None:
            raise NoNetworks("`ip` and `tc` are not installed (iproute2)")
        if os.geteuid() != 0:
            raise NoNetworks("namespaces need root")
        for name in self._names:
            if pids := _processes(f"rljob-{name}"):
                raise NoNetworks(
                    f"namespace rljob-{name} is in use by processes {pids}; end that benchmark first"
                )
        self._remove()
        try:
            self._make()
        except subprocess.CalledProcessError as error:
            self._remove()
            raise NoNetworks(f"{' '.join(error.cmd)}: {error.stderr.strip()}") from error
        return self

    def __exit__(self, *exc: object) -> None:
        self._remove()

    def address(self, name: str) -> str:
        """The machine's IPv4 address."""
        index = self._names.index(name)
        return f"{SUBNET}.{index // 200}.{index % 200 + 1}"

    def prefix(self, name: str) -> list[str]:
        """What a command begins with to run on the machine."""
        return ["ip", "netns", "exec", f"rljob-{name}"]

    def traffic(self, name: str) -> dict[str, int]:
        """Bytes that went over the machine's link so far, headers included: sent, received."""
        (link,) = json.loads(_run("ip", "-n", f"rljob-{name}", "-s", "-j", "link", "show", "eth0"))
        counts = link["stats64"]
        return {"sent": counts["tx"]["bytes"], "received": counts["rx"]["bytes"]}

    def _make(self) -> None:
        _run("ip", "netns", "add", SWITCH)
        _run("ip", "-n", SWITCH, "link", "add", "bridge", "type", "bridge")
        _run("ip", "-n", SWITCH, "link", "set", "bridge", "up")
        for index, name in enumerate(self._names):
            inside, port = f"rljob-{name}", f"port{index}"
            _run("ip", "netns", "add", inside)
            ends = ["eth0", "netns", inside, "type", "veth", "peer", "name", port, "netns", SWITCH]
            _run("ip", "link", "add", *ends)
            _run("ip", "-n", inside, "address", "add", f"{self.address(name)}/16", "dev", "eth0")
            for link in ("lo", "eth0"):
                _run("ip", "-n", inside, "link", "set", link, "up")
            _run("ip", "-n", SWITCH, "link", "set", port, "master", "bridge", "up")
            if self._rate:
                self._limit(inside, "eth0")
                self._limit(SWITCH, port)

    def _limit(self, namespace: str, link: str) -> None:
        rate = f"{round(8 * self._rate)}mbit"
        shape = ["tbf", "rate", rate, "burst", str(BURST_BYTES), "latency", "100ms"]
        _run("tc", "-n", namespace, "qdisc", "add", "dev", link, "root", *shape)

    def _remove(self) -> None:
        for namespace in (*(f"rljob-{name}" for name in self._names), SWITCH):
            for pid in _processes(namespace):
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)  # while one lives, so do the links
            subprocess.run(["ip", "netns", "delete", namespace], capture_output=True)


def _processes(namespace: str) -> list[int]:
    found = subprocess.run(["ip", "netns", "pids", namespace], capture_output=True, text=True)
    return [int(pid) for pid in found.stdout.split()]


def _run(*command: str) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout
