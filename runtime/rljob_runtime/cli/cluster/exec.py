"""Run a command in the container of a job's head and collect its output, such as a file's bytes."""

import copy
import functools
import json
import queue
import threading
import time
from collections.abc import Callable

import websocket
from kubernetes.client import CoreV1Api
from kubernetes.client.exceptions import ApiException
from kubernetes.stream import stream
from kubernetes.stream.ws_client import ERROR_CHANNEL, WSClient

from rljob_api.topology.pod_names import HEAD_CONTAINER
from rljob_runtime.cli.cluster.api_calls import CALL_SECONDS, Calls
from rljob_runtime.errors import ClusterError, NoAnswer, NotThere

WHOLE_SECONDS = 600.0
OUTPUT_BYTES = 4 << 20
"""Of a command that says something, and of its complaints. In a job's pod it is its author's program."""
MISSING_CODE = 44
"""Exit code of ours that no other program uses for anything else here."""
SCRIPT = f'test -f "$1" || exit {MISSING_CODE}; exec head -c "$2" "$1"'


def read_remote_file(calls: Calls, pod: str, path: str, *, limit_bytes: int) -> bytes:
    """The file's bytes. Raises NotThere without the file, ClusterError above the limit."""
    command = ["sh", "-c", SCRIPT, "sh", path, str(limit_bytes + 1)]
    code, content, complaint = run_remotely(
        calls, pod, command, what=path, limit_bytes=limit_bytes + 1
    )
    if code == MISSING_CODE:
        raise NotThere(f"{path} does not exist in pod {pod}")
    if code != 0:
        raise ClusterError(f"{path} of pod {pod} could not be read: {complaint}")
    if len(content) > limit_bytes:
        raise ClusterError(
            f"{path} of pod {pod} is larger than {limit_bytes} bytes; copy it by hand"
        )
    return content


def run_remotely(
    calls: Calls,
    pod: str,
    command: list[str],
    *,
    what: str,
    container: str = HEAD_CONTAINER,
    limit_bytes: int = OUTPUT_BYTES,
) -> tuple[int, bytes, str]:
    """(exit code, output, what it complained of). what: for errors. Raises ClusterError, also for more output
    than limit_bytes."""
    # `stream` puts its own transport into the client meanwhile: a copy keeps that from all other calls.
    core = CoreV1Api(copy.copy(calls.connection.client))
    open_shell = functools.partial(
        stream,
        core.connect_get_namespaced_pod_exec,
        pod,
        calls.namespace,
        container=container,
        command=command,
        stdin=False,
        stdout=True,
        stderr=True,
        tty=False,
        _preload_content=False,
        binary=True,
    )
    with calls.asking("get and create", "pods/exec", pod):
        shell = _opened(open_shell)
    try:
        content, complaint = _collect(shell, f"{pod}:{what}", limit_bytes)
        code, why = _exit(shell.read_channel(ERROR_CHANNEL))
    finally:
        shell.close()
    return code, content, complaint or why


def _opened(open_shell: Callable[[], WSClient]) -> WSClient:
    """The shell, within CALL_SECONDS: the client has no deadline for its handshake."""
    answers: queue.Queue[WSClient | ApiException] = queue.Queue()

    def ask() -> None:
        try:
            answers.put(open_shell())
        except ApiException as error:
            answers.put(error)

    threading.Thread(target=ask, name="exec", daemon=True).start()
    try:
        answer = answers.get(timeout=CALL_SECONDS)
    except queue.Empty:
        raise TimeoutError(f"no shell within {CALL_SECONDS:.0f} s") from None
    if isinstance(answer, ApiException):
        raise answer
    answer.sock.settimeout(CALL_SECONDS)
    return answer


def _collect(shell: WSClient, what: str, limit_bytes: int) -> tuple[bytes, str]:
    """(output, error output). Raises NoAnswer where the connection breaks or falls silent, ClusterError where
    more comes than limit_bytes."""
    output, complaint = bytearray(), bytearray()
    began = heard = time.monotonic()
    while shell.is_open():
        try:
            shell.update(timeout=1)
        except (OSError, websocket.WebSocketException) as error:
            raise NoAnswer(f"reading {what} broke off: {error}") from error
        news = shell.read_channel(1)
        output += news
        complaint += shell.read_channel(2)
        if len(output) > limit_bytes or len(complaint) > OUTPUT_BYTES:
            raise ClusterError(
                f"{what} says more than {limit_bytes} bytes, which no program of rljob does; "
                "see what runs in the pod"
            )
        now = time.monotonic()
        heard = now if news else heard
        if now - heard > CALL_SECONDS or now - began > WHOLE_SECONDS:
            raise NoAnswer(f"reading {what} took too long after {len(output)} bytes")
    return bytes(output), complaint.decode(errors="replace").strip()


def _exit(status: bytes) -> tuple[int, str]:
    """(exit code, why) of what the API server says at the end; -1 where there is no exit code."""
    try:
        said = json.loads(status)
    except ValueError:
        return -1, "the connection ended too early"
    if said.get("status") == "Success":
        return 0, ""
    causes = said.get("details", {}).get("causes", [])
    codes = [cause["message"] for cause in causes if cause.get("reason") == "ExitCode"]
    return int(codes[0]) if codes else -1, str(said.get("message", ""))
