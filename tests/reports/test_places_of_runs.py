"""What is around a run was named wrongly: a folder with one unrelated file, a Ray cluster that is gone, a
byte order mark."""

import socket
from pathlib import Path
from typing import Literal

import pytest
from free_ports import free_port

from rljob_api.check.load import load_job
from rljob_api.spec.json_text import read_json
from rljob_runtime.cli.ray_address import check_ray_answers
from rljob_runtime.errors import ConfigError, WorkerError
from rljob_runtime.run.run_place import prepare_run_directory
from rljob_runtime.run.run_request import RunRequest
from rljob_runtime.task.data.rows import read_lines

JOB = Path(__file__).parents[2] / "examples/quickstart.yaml"


@pytest.mark.parametrize(
    ("resume", "message"),
    [
        ("no", r"holds no run, and has notes\.txt; name a new or an empty folder"),
        ("yes", r"holds no run; leave --resume out"),
    ],
)
def test_a_folder_with_an_unrelated_file_is_no_run(
    tmp_path: Path, resume: Literal["no", "yes"], message: str
) -> None:
    (tmp_path / "notes.txt").touch()
    request = RunRequest(
        job=load_job(JOB),
        job_file=JOB,
        output=tmp_path,
        resume=resume,
        cache_dir=tmp_path,
        ray_address=None,
    )

    with pytest.raises(ConfigError, match=message):
        prepare_run_directory(request)


def test_a_ray_cluster_that_is_gone_is_named_with_its_variable() -> None:
    port = free_port()

    with pytest.raises(WorkerError, match=rf"RAY_ADDRESS is '127\.0\.0\.1:{port}', and no Ray"):
        check_ray_answers(f"127.0.0.1:{port}", seconds=1.5)


def test_a_ray_cluster_that_listens_is_taken() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        check_ray_answers(f"127.0.0.1:{port}", seconds=1)
        check_ray_answers(f"ray://127.0.0.1:{port}", seconds=1)
    for address in (None, "auto", "local"):
        check_ray_answers(address, seconds=0)


def test_files_may_begin_with_a_byte_order_mark(tmp_path: Path) -> None:
    lines, one = tmp_path / "rows.jsonl", tmp_path / "config.json"
    lines.write_text('{"prompt": "a"}\n', encoding="utf-8-sig")
    one.write_text('{"vocab_size": 3}', encoding="utf-8-sig")

    assert read_lines(lines, spec_path="spec.data.jsonl.path") == [(1, {"prompt": "a"})]
    assert read_json(one) == {"vocab_size": 3}
