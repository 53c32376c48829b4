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

TRANSFER_SECONDS = 600.0
OUTPUT_BYTES = 4 << 20
"""Limit of a command's stdout and of its stderr. In a job's pod the program is the job author's."""
MISSING_CODE = 44
"""Our exit code for a missing file; no other program here uses it."""
SCRIPT = f'test -f "$1" || exit {MISSING_CODE}; exec head -c "$2" "$1"'


def read_remote_file(calls: Calls, pod: str, path: str, *, limit_bytes: int) -> bytes:
    """Return the file's bytes. Raises NotThere without the file, ClusterError above the limit."""
    command = ["sh", "-c", SCRIPT, "sh", path, str(limit_bytes + 1)]
    code, content, stderr = run_remotely(
        calls, pod, command, label=path, limit_bytes=limit_bytes + 1
    )
    if code == MISSING_CODE:
        raise NotThere(f"{path} does not exist in pod {pod}")
    if code != 0:
        raise ClusterError(f"{path} of pod {pod} could not be read: {stderr}")
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
    label: str,
    container: str = HEAD_CONTAINER,
    limit_bytes: int = OUTPUT_BYTES,
) -> tuple[int, bytes, str]:
    """Run a command and return (exit code, stdout, stderr). label: for errors. Raises ClusterError, also for
    more output than limit_bytes."""
    # `stream` replaces the client's transport while it runs: a copy keeps other calls unaffected.
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
    with calls.translate_errors("get and create", "pods/exec", pod):
        shell = _open_with_deadline(open_shell)
    try:
        content, stderr = _read_output(shell, f"{pod}:{label}", limit_bytes)
        code, status_message = _exit_code(shell.read_channel(ERROR_CHANNEL))
    finally:
        shell.close()
    return code, content, stderr or status_message


def _open_with_deadline(open_shell: Callable[[], WSClient]) -> WSClient:
    """Open the shell within CALL_SECONDS: the client has no deadline for its handshake."""
    answers: queue.Queue[WSClient | ApiException] = queue.Queue()

    def open_in_thread() -> None:
        try:
            answers.put(open_shell())
        except ApiException as error:
            answers.put(error)

    threading.Thread(target=open_in_thread, name="exec", daemon=True).start()
    try:
        answer = answers.get(timeout=CALL_SECONDS)
    except queue.Empty:
        raise TimeoutError(f"no shell within {CALL_SECONDS:.0f} s") from None
    if isinstance(answer, ApiException):
        raise answer
    answer.sock.settimeout(CALL_SECONDS)
    return answer


def _read_output(shell: WSClient, label: str, limit_bytes: int) -> tuple[bytes, str]:
    """Return (stdout, stderr). Raises NoAnswer where the connection breaks or sends nothing for long,
    ClusterError where the output exceeds limit_bytes."""
    output, stderr = bytearray(), bytearray()
    started_s = last_data_s = time.monotonic()
    while shell.is_open():
        try:
            shell.update(timeout=1)
        except (OSError, websocket.WebSocketException) as error:
            raise NoAnswer(f"reading {label} broke off: {error}") from error
        data = shell.read_channel(1)
        output += data
        stderr += shell.read_channel(2)
        if len(output) > limit_bytes or len(stderr) > OUTPUT_BYTES:
            raise ClusterError(
                f"{label} says more than {limit_bytes} bytes, which no program of rljob does; "
                "see what runs in the pod"
            )
        time_s = time.monotonic()
        last_data_s = time_s if data else last_data_s
        if time_s - last_data_s > CALL_SECONDS or time_s - started_s > TRANSFER_SECONDS:
            raise NoAnswer(f"reading {label} took too long after {len(output)} bytes")
    return bytes(output), stderr.decode(errors="replace").strip()


def _exit_code(status: bytes) -> tuple[int, str]:
    """Return (exit code, message) of the API server's final status; -1 without an exit code."""
    try:
        final_status = json.loads(status)
    except ValueError:
        return -1, "the connection ended too early"
    if final_status.get("status") == "Success":
        return 0, ""
    causes = final_status.get("details", {}).get("causes", [])
    codes = [cause["message"] for cause in causes if cause.get("reason") == "ExitCode"]
    return int(codes[0]) if codes else -1, str(final_status.get("message", ""))
