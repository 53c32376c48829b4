"""The real checks on emulated devices: through the command where processes meet, else in this process."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from forked_ranks import on_ranks
from typer.testing import CliRunner

from rljob_api.topology.pod_names import BRING_UP_FILE
from rljob_runtime.cli.bring_up import on_device, steps, whole_run
from rljob_runtime.cli.bring_up.kernel_cases import KERNELS
from rljob_runtime.cli.bring_up.place import CheckContext, NotApplicable, WrongResult
from rljob_runtime.cli.bring_up.record import Figures, Result, read_record
from rljob_runtime.cli.main import app


@pytest.fixture
def place(tmp_path: Path) -> CheckContext:
    return CheckContext(
        accelerator="emulated", rank=0, size=1, devices=2, folder=tmp_path, seconds=120
    )


def number(figures: Figures, name: str) -> float:
    found = figures[name]
    assert isinstance(found, int | float)
    return found


@pytest.mark.run
def test_the_command_runs_checks_in_their_processes_and_keeps_a_record(tmp_path: Path) -> None:
    file = tmp_path / BRING_UP_FILE
    asked = ("--check", "collectives", "--check", "reshard")

    ended = CliRunner().invoke(app, ["doctor", "--bring-up", *asked, "--json", "--out", str(file)])

    found = read_record(file)
    assert found is not None
    by_name = {one.check: one for one in found.checks}
    assert {name for name, one in by_name.items() if one.result is Result.PASSED} == {
        "device", "collectives", "reshard",
    }, [one.output for one in found.checks]  # fmt: skip
    assert (found.accelerator, found.devices) == ("emulated", ["CPU", "CPU"])
    moved = by_name["reshard"].figures
    assert moved["moved_bytes"] == moved["planned_bytes"]
    assert number(moved, "moved_bytes") > 0
    assert by_name["collectives"].figures["devices"] == 2
    assert {"rljob", "torch", "python", "kernel", "ray"} <= found.versions.keys()
    assert (ended.exit_code, found.passed) == (1, False)  # not all were asked for
    assert json.loads(ended.output)["checks"][0]["check"] == "device"


def test_memory_kernels_and_swaps_pass(place: CheckContext) -> None:
    memory = on_device.memory(place)
    kernels = on_device.kernels(place)
    swap = on_device.host_swap(place)

    assert memory["taken_gib"] == 1 / 16
    assert {f"{name}_of_tolerance" for name in KERNELS} < kernels.keys()
    assert number(swap, "to_host_gb_per_s") > 0
    assert number(swap, "to_device_gb_per_s") > 0


def test_a_kernel_that_is_wrong_is_named(
    place: CheckContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    norm = KERNELS["norm"]
    monkeypatch.setitem(KERNELS, "norm", replace(norm, kernel=lambda *x: norm.kernel(*x) * 1.1))

    with pytest.raises(
        WrongResult, match=r"of \d+ cases: norm odd width in torch.float32 is off by"
    ):
        on_device.kernels(place)


def test_steps_of_both_engines_are_the_hosts(place: CheckContext) -> None:
    def trained(_: int) -> tuple[Figures, Figures]:
        return steps.torch_step(place), steps.megatron_step(place)

    ((own, core),) = on_ranks(1, trained)

    assert (own["gap_logprobs"], own["gap_weights"]) == (0, 0)
    assert core["engine"] == "megatron"
    assert 0 < number(core, "gap_weights") < 1e-5


def test_a_step_that_is_another_is_named(
    place: CheckContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(steps.LIMITS, "weights", -1.0)

    with pytest.raises(
        WrongResult, match=r"2 steps of torch differ from the host's: weights by 0 "
    ):
        steps.torch_step(place)


def test_mindspeed_where_it_is_not_installed_does_not_apply(
    place: CheckContext, tmp_path: Path
) -> None:
    on_npus = CheckContext(
        accelerator="ascend910b", rank=0, size=1, devices=1, folder=tmp_path, seconds=60
    )

    with pytest.raises(NotApplicable, match="mindspeed is not installed"):
        steps.megatron_step(on_npus)


@pytest.mark.run
@pytest.mark.nightly
def test_the_small_job_runs(place: CheckContext) -> None:
    assert whole_run.quickstart(place)["steps"] == whole_run.STEPS


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (["--check", "memory"], "--check has no use without --bring-up"),
        (["--bring-up", "--check", "memmory"], "--check is 'memmory'; use one of device, memory"),
        (["--bring-up", "--accelerator", "a100"], "--accelerator is 'a100'; use one of emulated"),
    ],
)
def test_wrong_options_are_told(options: list[str], told: str) -> None:
    ended = CliRunner().invoke(app, ["doctor", *options])

    assert ended.exit_code == 2
    assert told in " ".join(ended.output.split())
