"""Decide whether a job may run on its type of device, from a bring-up's record and this machine's versions.

Called by `run` and `validate`. Emulated devices need no record.
"""

from collections.abc import Mapping
from pathlib import Path

from rljob_api.spec.problems import Problem
from rljob_api.spec.rljob import RLJob, RLJobSpec
from rljob_api.topology.pod_names import BRING_UP_FILE
from rljob_api.topology.worker_pods import is_ascend
from rljob_runtime.cli.bring_up.record import Record, Result, read_record
from rljob_runtime.cli.bring_up.versions import installed_versions

EXACT_PACKAGES = ("torch", "torch-npu", "cann")
MINOR_PACKAGES = ("rljob", "python")
"""Packages whose patch releases may differ."""
VLLM_PACKAGES = ("vllm", "vllm-ascend")
MINDSPEED_PACKAGES = ("megatron-core", "mindspeed")


def untested(job: RLJob, folder: Path) -> list[Problem]:
    """Return why the job does not run without `--accept-untested`. folder: that of its file. Raises
    ConfigError for an unreadable record."""
    accelerator = job.spec.accelerator
    if not is_ascend(accelerator) or accelerator.accept_untested:
        return []
    file = folder / BRING_UP_FILE
    why = why_untested(read_record(file), installed_versions(), job.spec, name=str(file))
    if not why:
        return []
    remedy = (
        f"run rljob doctor --bring-up on a node with such devices and keep its {BRING_UP_FILE} beside the "
        "job (on a cluster: spec.accelerator.bringUp), or take the risk: --accept-untested "
        "(spec.accelerator.acceptUntested: true)"
    )
    return [Problem("spec.accelerator.type", f"is {accelerator.type}, and {why}; {remedy}")]


def why_untested(
    record: Record | None, versions: Mapping[str, str], spec: RLJobSpec, *, name: str
) -> str:
    """Return why a record does not cover the job, "" where it does. versions: of this machine. name: of the
    record's file."""
    if record is None:
        return f"no bring-up of such devices is recorded ({name} does not exist)"
    if record.accelerator != spec.accelerator.type:
        return f"{name} is of {record.accelerator}"
    if not record.passed:
        failed = [outcome.check for outcome in record.checks if outcome.result is Result.FAILED]
        return f"{name} did not pass ({', '.join(failed) or 'not all checks ran'})"
    for check, field in _required_checks(spec).items():
        if record.result(check) is not Result.PASSED:
            return f"{name} has no passed check {check}, which {field} needs"
    for package in _packages(spec):
        recorded, present = (
            _comparable_version(package, record.versions),
            _comparable_version(package, versions),
        )
        if recorded != present:
            return f"{name} is of {package} {recorded or '(none)'}, and here is {present or 'none'}"
    return ""


def _required_checks(spec: RLJobSpec) -> dict[str, str]:
    """Return the checks that only some jobs require, with the field that requires them."""
    needed = {}
    if spec.update.engine in ("megatron", "mindspeed"):
        needed["step-megatron"] = f"update.engine: {spec.update.engine}"
    if spec.rollout.engine == "vllm":
        needed["generation"] = "rollout.engine: vllm"
    return needed


def _packages(spec: RLJobSpec) -> tuple[str, ...]:
    needed = _required_checks(spec)
    vllm = VLLM_PACKAGES if "generation" in needed else ()
    core = MINDSPEED_PACKAGES if "step-megatron" in needed else ()
    return (*MINOR_PACKAGES, *EXACT_PACKAGES, *vllm, *core)


def _comparable_version(package: str, versions: Mapping[str, str]) -> str:
    version = versions.get(package, "")
    return ".".join(version.split(".")[:2]) if package in MINOR_PACKAGES else version
