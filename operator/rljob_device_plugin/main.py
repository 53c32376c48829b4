"""The device plugin's process: arguments, logs, signals.

`rljob-device-plugin --help` lists what can be set; the chart sets it. Ends with 0 on SIGTERM, with 1 when
the kubelet cannot be reached or refuses, with 2 when the command line is wrong.
"""

import argparse
import asyncio
import logging
import math
import re
import signal
import socket
import sys
from collections.abc import Sequence
from pathlib import Path

from rljob_device_plugin.errors import PluginError
from rljob_device_plugin.registration import Plugin
from rljob_device_plugin.reports import ApiServer, Reports
from rljob_device_plugin.settings import PluginSettings
from rljob_operator import log

logger = logging.getLogger(__name__)

MAX_CHIPS = 64
# Linux keeps a socket's path in 108 bytes, the last of them zero.
MAX_SOCKET_BYTES = 107
RESOURCE = re.compile(
    r"[a-z0-9]([-a-z0-9.]*[a-z0-9])?/[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?"
)


def parse(arguments: Sequence[str]) -> tuple[PluginSettings, int]:
    """Settings and log level. Ends the process with 2 and a line on stderr if an argument is wrong."""
    parser = argparse.ArgumentParser(
        prog="rljob-device-plugin",
        description="Offers emulated Ascend chips to the kubelet of this node.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    add = parser.add_argument
    add("--resource", type=_resource, default="huawei.com/Ascend910", help="what pods ask for")
    add("--chips", type=_chips, default=8, help=f"how many, 1 to {MAX_CHIPS}")
    add(
        "--folder",
        type=Path,
        default=Path("/var/lib/kubelet/device-plugins"),
        help="where kubelet.sock is",
    )
    add("--node", default=socket.gethostname(), help="this node's name")
    add("--faults", type=_folder, help="folder whose files `unhealthy` and NODE mark faulty chips")
    add("--reports", metavar="NAMESPACE", help="where a ConfigMap tells of them, as MindCluster's")
    add("--kubelet-deadline", type=_seconds, default=60.0, help="seconds to register at first")
    add("--log-level", default="INFO", choices=["DEBUG", "INFO", "WARNING"], help="least level")
    options = parser.parse_args(arguments)
    settings = PluginSettings(
        resource=options.resource,
        chips=options.chips,
        folder=options.folder,
        node=options.node,
        faults=options.faults,
        reports=options.reports,
        deadline_seconds=options.kubelet_deadline,
    )
    path = str(settings.own_socket)
    if (length := len(path.encode())) > MAX_SOCKET_BYTES:
        parser.error(
            f"the socket {path} has {length} bytes, more than {MAX_SOCKET_BYTES}: "
            "take a shorter --folder or --resource"
        )
    return settings, getattr(logging, options.log_level)


def main() -> None:
    """Entry point of `rljob-device-plugin`."""
    settings, level = parse(sys.argv[1:])
    log.set_up(sys.stdout, level=level)
    sys.exit(asyncio.run(run(settings)))


async def run(settings: PluginSettings) -> int:
    """Run the plugin until a signal, and return the exit code."""
    try:
        reports = _reports(settings)
    except PluginError as error:
        logger.error("%s", error)
        return 1
    working = asyncio.create_task(Plugin(settings, reports).run())
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, working.cancel)
    try:
        await working
    except asyncio.CancelledError:
        logger.info("stopped by a signal")
    except PluginError as error:
        logger.error("%s", error)
        return 1
    return 0


def _reports(settings: PluginSettings) -> Reports | None:
    """Return the writer of reports, or None without a namespace for them. Raises NotReported outside of a
    pod."""
    if settings.reports is None:
        return None
    return Reports(
        ApiServer.of_pod(),
        namespace=settings.reports,
        node=settings.node,
        resource=settings.resource,
        chips=settings.chips,
    )


def _resource(text: str) -> str:
    domain = text.partition("/")[0]
    reserved = domain == "kubernetes.io" or domain.endswith(".kubernetes.io")
    if not RESOURCE.fullmatch(text) or reserved or domain.startswith("requests."):
        raise argparse.ArgumentTypeError(
            f"{text!r} is no extended resource: write DOMAIN/NAME, such as huawei.com/Ascend910, "
            "with a domain outside kubernetes.io and a name of at most 63 characters"
        )
    return text


def _chips(text: str) -> int:
    if not (text.isdecimal() and 1 <= int(text) <= MAX_CHIPS):
        raise argparse.ArgumentTypeError(f"{text!r} is no number of chips: write 1 to {MAX_CHIPS}")
    return int(text)


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not 0 <= seconds < math.inf:
        raise argparse.ArgumentTypeError(f"{text!r} is no time: write seconds, 0 or more")
    return seconds


def _folder(text: str) -> Path:
    if not Path(text).is_dir():
        raise argparse.ArgumentTypeError(f"{text} is no folder: mount the marks there")
    return Path(text)
