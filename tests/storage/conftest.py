"""Remote folders of each test's own: in a bucket of a real S3 server, and on a disk."""

import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
import s3fs
from moto.moto_server.threaded_moto_server import ThreadedMotoServer
from remote_runs import KEYS

from rljob_api.infrastructure import RemoteStorage
from rljob_runtime.checkpoint import CheckpointStore
from rljob_runtime.remote import RemoteRun, open_remote


@pytest.fixture(scope="session")
def server() -> Iterator[str]:
    """URL of the S3 server."""
    running = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    running.start()
    host, port = running.get_host_and_port()
    yield f"http://{host}:{port}"
    running.stop()


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
