"""Start Ray on one machine, without the processes that a run there does not need.

Called by `session`. By default Ray starts an autoscaler's monitor, a log monitor and a dashboard with an
agent, each of which imports Ray and more. Here there are no machines to add, workers' output stays in its
files, and the dashboard is off. Ray has no options for this, so names inside Ray, whose version is
pinned, are replaced while it starts.
"""

import contextlib
import functools
import os
import secrets
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import ray
from ray import _raylet
from ray._private import node, parameter, ray_constants, services

from rljob_runtime.errors import WorkerError

PYTHON = "_build_python_executable_command_memory_profileable"
QUIET_AGENT = Path(__file__).with_name("quiet_agent.py")
RAYLET: Any = _raylet  # its stub lacks the names
PORTS: tuple[str, ...] = (
    RAYLET.METRICS_AGENT_PORT_NAME,
    RAYLET.METRICS_EXPORT_PORT_NAME,
    RAYLET.DASHBOARD_AGENT_LISTEN_PORT_NAME,
)
START_SECONDS = 240.0
"""Deadline for the node to register with Ray. Ray's own limit is 30 s, which a busy machine exceeds."""


def start_ray(**options: Any) -> None:
    """Start a private Ray with `ray.init`. Raises WorkerError if it does not start in time."""
    _make_token()
    lean = functools.partial(parameter.RayParams, no_monitor=True, include_log_monitor=False)
    with (
        _replaced(parameter, "RayParams", lean),
        _replaced(node.Node, "start_api_server", lambda *_, **__: None),
        _replaced(services, PYTHON, functools.partial(_python_command, getattr(services, PYTHON))),
        _replaced(services, "get_node", functools.partial(wait_for_node_info, services.get_node)),
    ):
        ray.init(address="local", include_dashboard=False, **options)


def _make_token() -> None:
    """Create a token for this Ray alone. Ray would write one to ~/.ray/auth_token, which all runs of
    this user share."""
    configured = os.environ.keys() & {"RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"}
    if not configured and os.environ.get("RAY_AUTH_MODE") != "disabled":
        os.environ["RAY_AUTH_TOKEN"] = secrets.token_hex(32)
        RAYLET.AuthenticationTokenLoader.instance().reset_cache()


def wait_for_node_info(original_function: Callable[..., Any], *arguments: Any) -> Any:
    """Return Ray's information on a node, once the node has come up. original_function: Ray's function
    for it."""
    deadline = time.monotonic() + START_SECONDS
    while True:
        try:
            return original_function(*arguments)
        except RuntimeError as error:
            if time.monotonic() > deadline:
                raise WorkerError(
                    f"Ray's node on this machine did not come up within {START_SECONDS:.0f} s; "
                    "end other work on it, and look at raylet.out in /tmp/ray/session_latest/logs"
                ) from error
            time.sleep(0.1)


def _python_command(
    original_function: Callable[..., list[str]], component: str, *others: Any, **named: Any
) -> list[str]:
    """Return the first words of a component's command; its script and arguments follow."""
    if component != ray_constants.PROCESS_TYPE_DASHBOARD_AGENT:
        return original_function(component, *others, **named)
    return [sys.executable, "-IS", str(QUIET_AGENT), ",".join(PORTS)]


@contextlib.contextmanager
def _replaced(target: Any, name: str, replacement: Any) -> Iterator[None]:
    """Replace target.name within the context."""
    original = getattr(target, name)
    setattr(target, name, replacement)
    try:
        yield
    finally:
        setattr(target, name, original)
