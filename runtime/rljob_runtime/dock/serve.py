"""One dock server as a process: `python -m rljob_runtime.dock.serve warehouse|controller`.

It reads its configuration, token included, as JSON from standard input or `--config FILE`, never from the
command line. It prints one JSON line with host and port, then serves until SIGTERM (or, with `--with-parent`,
until the parent process ends).
"""

import argparse
import asyncio
import contextlib
import json
import logging
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rljob_runtime.dock.collector import collect_rarely
from rljob_runtime.dock.controller.controller_server import ControllerServer
from rljob_runtime.dock.graph import StateGraph
from rljob_runtime.dock.warehouse.warehouse_server import WarehouseServer
from rljob_runtime.dock.wire.busy import new_loop
from rljob_runtime.dock.wire.wire_server import DockServer

PARENT_CHECK_SECONDS = 1.0


def make_server(kind: str, config: Mapping[str, Any]) -> DockServer:
    """Build a server from its configuration; the keys are the constructor's, `graph` as JSON."""
    arguments = {**config, "graph": StateGraph.from_json(config["graph"])}
    arguments["warehouses"] = [(host, port) for host, port in config.get("warehouses", ())]
    if kind == "warehouse":
        return WarehouseServer(**arguments)
    return ControllerServer(**arguments)


async def serve(server: DockServer, *, with_parent: bool = False) -> None:
    """Print the address on standard output and serve until SIGTERM or SIGINT.

    with_parent: also stop when the parent process is gone.
    """
    parent = os.getppid()
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    host, port = await server.start()
    sys.stdout.write(json.dumps({"host": host, "port": port}) + "\n")
    sys.stdout.flush()
    while not stop.is_set() and (not with_parent or os.getppid() == parent):
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(stop.wait(), PARENT_CHECK_SECONDS if with_parent else None)
    await server.stop()


def main(arguments: Sequence[str] | None = None) -> None:
    """Parse the command line and serve."""
    parser = argparse.ArgumentParser(prog="rljob_runtime.dock.serve")
    parser.add_argument("kind", choices=["warehouse", "controller"])
    parser.add_argument("--config", type=Path, help="JSON file; default: standard input")
    parser.add_argument("--with-parent", action="store_true", help="end when the parent is gone")
    options = parser.parse_args(arguments)
    logging.basicConfig(level=logging.INFO)
    text = options.config.read_text() if options.config else sys.stdin.read()
    config = json.loads(text)
    collect_rarely()

    async def run() -> None:
        await serve(make_server(options.kind, config), with_parent=options.with_parent)

    with asyncio.Runner(loop_factory=new_loop) as runner:
        runner.run(run())


if __name__ == "__main__":
    main()
