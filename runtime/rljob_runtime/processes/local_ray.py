"""Ray on one machine, without the processes that a run there asks nothing.

Called by `session`. By itself Ray starts an autoscaler's monitor, a log monitor and a dashboard with an
agent, each of which imports Ray and more. There are no machines to add, workers' output stays in its files
and the dashboard is off, but Ray has no option for that: names within it, whose version is pinned, stand for
others while it is started.
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
"""Until the node has told Ray that it is there. Ray alone waits 30 s, which a busy machine exceeds."""


def start_ray(**options: Any) -> None:
    """`ray.init` of a Ray of its own. Raises WorkerError where it does not start in time."""
    _make_token()
    lean = functools.partial(parameter.RayParams, no_monitor=True, include_log_monitor=False)
    with (
        _instead(parameter, "RayParams", lean),
        _instead(node.Node, "start_api_server", lambda *_, **__: None),
        _instead(services, PYTHON, functools.partial(_python, getattr(services, PYTHON))),
        _instead(services, "get_node", functools.partial(node_info, services.get_node)),
    ):
        ray.init(address="local", include_dashboard=False, **options)


def _make_token() -> None:
    """A token for this Ray alone. Ray would write one to ~/.ray/auth_token, which all users of the machine
    read."""
    given = os.environ.keys() & {"RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"}
    if not given and os.environ.get("RAY_AUTH_MODE") != "disabled":
        os.environ["RAY_AUTH_TOKEN"] = secrets.token_hex(32)
        RAYLET.AuthenticationTokenLoader.instance().reset_cache()


def node_info(usual: Callable[..., Any], *of_node: Any) -> Any:
    """What Ray knows of a node, once that has come up. usual: Ray's function for it."""
    deadline = time.monotonic() + START_SECONDS
    while True:
        try:
            return usual(*of_node)
        except RuntimeError as error:
            if time.monotonic() > deadline:
                raise WorkerError(
                    f"Ray's node on this machine did not come up within {START_SECONDS:.0f} s; "
                    "end other work on it, and look at raylet.out in /tmp/ray/session_latest/logs"
                ) from error
            time.sleep(0.1)


def _python(
    usual: Callable[..., list[str]], component: str, *others: Any, **named: Any
) -> list[str]:
    """The first words of a component's command; its script and arguments follow."""
    if component != ray_constants.PROCESS_TYPE_DASHBOARD_AGENT:
        return usual(component, *others, **named)
    return [sys.executable, "-IS", str(QUIET_AGENT), ",".join(PORTS)]


@contextlib.contextmanager
def _instead(place: Any, name: str, other: Any) -> Iterator[None]:
    """place.name is the other one for the time being."""
    own = getattr(place, name)
    setattr(place, name, other)
    try:
        yield
    finally:
        setattr(place, name, own)
