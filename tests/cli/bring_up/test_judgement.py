"""A job runs on Ascend devices where a bring-up of their type and versions has passed, or on demand."""

from pathlib import Path
from typing import Any

import pytest
import yaml
from cluster_jobs import make_job
from msgspec.structs import replace
from typer.testing import CliRunner
from whole_runs import SMALL_JOB

from rljob_api.topology.pod_names import BRING_UP_FILE
from rljob_runtime.cli.bring_up.checks import NAMES
from rljob_runtime.cli.bring_up.judgement import untested, why_untested
from rljob_runtime.cli.bring_up.record import (
    FORMAT,
    CheckOutcome,
    Record,
    Result,
    read_record,
    write_record,
)
from rljob_runtime.cli.bring_up.versions import installed_versions
from rljob_runtime.cli.main import app
from rljob_runtime.errors import ConfigError

HERE = {
    "rljob": "0.1.4",
    "python": "3.12.1",
    "torch": "2.10.0",
    "torch-npu": "2.10.0.post4",
    "cann": "9.1.0",
}
ASCEND = {"type": "ascend910b", "devicesPerNode": 8}


def record(**changes: Any) -> Record:
    passed = [CheckOutcome(check=name, result=Result.PASSED) for name in NAMES]
    whole = Record(
        format=FORMAT,
        accelerator="ascend910b",
        passed=True,
        time="2026-11-28T03:47:18+00:00",
        seconds=500.0,
        versions=HERE,
        devices=["Ascend910B3"] * 8,
        checks=passed,
    )
    return replace(whole, **changes)


def without(check: str, result: Result) -> list[CheckOutcome]:
    return [replace(one, result=result) if one.check == check else one for one in record().checks]


def why(found: Record | None, here: dict[str, str] = HERE, **spec: Any) -> str:
    job = make_job(**{"accelerator": ASCEND, **spec})
    return why_untested(found, here, job.spec, name="bring-up.json")


def test_a_passed_record_of_these_versions_speaks_for_the_job() -> None:
    assert why(record()) == ""
    assert why(record(), HERE | {"rljob": "0.1.9", "python": "3.12.7", "driver": "26.1"}) == ""


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"accelerator": "ascend910c"}, "is of ascend910c"),
        (
            {"passed": False, "checks": without("kernels", Result.FAILED)},
            "did not pass (kernels)",
        ),
        ({"passed": False}, "did not pass (not all checks ran)"),
        (
            {"versions": HERE | {"torch-npu": "2.10.0.post7"}},
            "is of torch-npu 2.10.0.post7, and here is 2.10.0.post4",
        ),
        ({"versions": HERE | {"rljob": "0.2.0"}}, "is of rljob 0.2, and here is 0.1"),
        (
            {"versions": {k: v for k, v in HERE.items() if k != "cann"}},
            "is of cann (none), and here is 9.1.0",
        ),
    ],
)
def test_another_record_does_not(changes: dict[str, Any], told: str) -> None:
    assert why(record(**changes)) == f"bring-up.json {told}"


def test_engines_need_their_own_check_and_their_own_versions() -> None:
    no_core = record(checks=without("step-megatron", Result.NOT_APPLICABLE))
    vllm = HERE | {"vllm": "0.23.0", "vllm-ascend": "0.23.0"}

    assert why(no_core) == ""
    assert why(no_core, update={"engine": "mindspeed"}) == (
        "bring-up.json has no passed check step-megatron, which update.engine: mindspeed needs"
    )
    assert why(record(), vllm) == ""
    assert why(record(), vllm, rollout={"engine": "vllm"}) == (
        "bring-up.json is of vllm (none), and here is 0.23.0"
    )
    assert why(record(versions=vllm), vllm, rollout={"engine": "vllm"}) == ""


def test_a_record_comes_back_as_it_was_written_and_other_files_are_told(tmp_path: Path) -> None:
    file = tmp_path / BRING_UP_FILE

    write_record(record(), file)

    assert read_record(file) == record()
    assert read_record(tmp_path / "none") is None
    file.write_text('{"format": 1}')
    with pytest.raises(ConfigError, match=r"is no record of a bring-up.*write it again"):
        read_record(file)


def test_jobs_on_emulated_devices_need_none(tmp_path: Path) -> None:
    accepts = {**ASCEND, "acceptUntested": True}

    assert untested(make_job(), tmp_path) == []
    assert untested(make_job(accelerator=accepts), tmp_path) == []


def run(job: Path, *options: str) -> tuple[int, str]:
    """`rljob run --local`, which no job on NPUs gets through: nothing is started."""
    ended = CliRunner().invoke(app, ["run", str(job), "--local", *options])
    return ended.exit_code, " ".join(ended.output.split())


@pytest.fixture
def job(tmp_path: Path) -> Path:
    file = tmp_path / "job.yaml"
    spec = SMALL_JOB["spec"] | {"accelerator": {"type": "ascend910b", "devicesPerNode": 1}}
    file.write_text(yaml.safe_dump(SMALL_JOB | {"spec": spec}))
    return file


def test_rljob_run_refuses_such_a_job_without_a_record_and_names_the_command(job: Path) -> None:
    code, said = run(job)

    assert code == 2
    assert said.startswith("spec.accelerator.type: is ascend910b, and no bring-up of such devices")
    assert "run rljob doctor --bring-up on a node with such devices" in said
    assert "--accept-untested" in said


@pytest.mark.parametrize("way", ["option", "record"])
def test_rljob_run_takes_it_with_a_record_beside_it_or_when_told_so(job: Path, way: str) -> None:
    if way == "record":
        write_record(record(versions=installed_versions()), job.parent / BRING_UP_FILE)

    code, said = run(job, *(["--accept-untested"] if way == "option" else []))

    assert (code, said) == (
        2,
        "spec.accelerator.type: is ascend910b, and --local hands out no devices; leave --local out",
    )


def test_rljob_run_names_a_record_that_is_none(job: Path) -> None:
    (job.parent / BRING_UP_FILE).write_text("{")

    code, said = run(job)

    assert code == 2
    assert "is no record of a bring-up" in said


def test_rljob_validate_tells_it_as_a_note(job: Path) -> None:
    ended = CliRunner().invoke(app, ["validate", str(job)])

    assert ended.exit_code == 0
    assert "note: on this machine: spec.accelerator.type: is ascend910b, and no bring-up" in (
        ended.output
    )
