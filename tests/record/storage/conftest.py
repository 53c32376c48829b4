"""Remote folders of each test's own: in a bucket of a real S3 server, and on a disk."""

import socket
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from contextlib import closing, suppress
from http.client import HTTPConnection, HTTPException
from pathlib import Path

import pytest
import s3fs
from remote_runs import KEYS

from rljob_api.spec.infrastructure import RemoteStorage
from rljob_runtime.record.checkpoint import CheckpointStore
from rljob_runtime.record.remote import RemoteRun, open_remote

START_SECONDS = 60.0


@pytest.fixture(scope="session")
def server() -> Iterator[str]:
    """URL of the S3 server: a process of its own, because other tests look into all modules of theirs."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + START_SECONDS
    while True:  # by a request: a connection to a port of nobody may meet itself
        with (
            suppress(OSError, HTTPException),
            closing(HTTPConnection("127.0.0.1", port, timeout=1)) as ask,
        ):
            ask.request("GET", "/")
            ask.getresponse()
            break
        assert process.poll() is None, "the S3 server ended"
        assert time.monotonic() < deadline, f"no S3 server within {START_SECONDS:.0f} s"
        time.sleep(0.1)
    yield f"http://127.0.0.1:{port}"
    process.terminate()
    process.wait()


@pytest.fixture
def s3(server: str, monkeypatch: pytest.MonkeyPatch) -> RemoteStorage:
    """A prefix of a new bucket; the environment has its keys."""
    for name, value in KEYS.items():
        monkeypatch.setenv(name, value)
    bucket = f"bucket-{uuid.uuid4().hex}"
    s3fs.S3FileSystem(endpoint_url=server, skip_instance_cache=True).mkdir(bucket)
    return RemoteStorage(uri=f"s3://{bucket}/runs", endpoint=server)


@pytest.fixture
def disk(tmp_path: Path) -> RemoteStorage:
    """A folder of a disk."""
    return RemoteStorage(uri=f"file://{tmp_path}/disk")


@pytest.fixture(params=["s3", "disk"])
def remote(request: pytest.FixtureRequest) -> RemoteRun:
    """A run's folder, once in a bucket and once on a disk."""
    return open_remote(request.getfixturevalue(request.param), "research/run")


@pytest.fixture
def store(tmp_path: Path) -> CheckpointStore:
    """Local checkpoints, of which two are kept."""
    return CheckpointStore(folder=tmp_path / "run" / "checkpoints", keep=2)
