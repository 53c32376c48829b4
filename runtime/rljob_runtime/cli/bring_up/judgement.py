"""Whether a job may run on its type of device: what a bring-up's record says beside this machine's versions.

Called by `run` and `validate`. Emulated devices need no record.
"""

from collections.abc import Mapping
from pathlib import Path

from rljob_api.spec.problems import Problem
from rljob_api.spec.rljob import RLJob, RLJobSpec
from rljob_api.topology.pod_names import BRING_UP_FILE
from rljob_api.topology.worker_pods import is_ascend
from rljob_runtime.cli.bring_up.record import Record, Result, read_record
from rljob_runtime.cli.bring_up.versions import found_versions

EXACT = ("torch", "torch-npu", "cann")
MINOR = ("rljob", "python")
"""Of these, patch releases may differ."""
OF_VLLM = ("vllm", "vllm-ascend")
OF_MINDSPEED = ("megatron-core", "mindspeed")


def untested(job: RLJob, folder: Path) -> list[Problem]:
    """Why the job does not run without `--accept-untested`; folder: of its file. Raises ConfigError for a
    record that cannot be read."""
    accelerator = job.spec.accelerator
    if not is_ascend(accelerator) or accelerator.accept_untested:
        return []
    file = folder / BRING_UP_FILE
    why = why_untested(read_record(file), found_versions(), job.spec, name=str(file))
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
    """What keeps a record from speaking for the job, "" where nothing does. versions: of here. name: of the
    record's file."""
    if record is None:
        return f"no bring-up of such devices is recorded ({name} does not exist)"
    if record.accelerator != spec.accelerator.type:
        return f"{name} is of {record.accelerator}"
    if not record.passed:
        failed = [one.check for one in record.checks if one.result is Result.FAILED]
        return f"{name} did not pass ({', '.join(failed) or 'not all checks ran'})"
    for check, field in _needed(spec).items():
        if record.result(check) is not Result.PASSED:
            return f"{name} has no passed check {check}, which {field} needs"
    for part in _parts(spec):
        there, here = _compared(part, record.versions), _compared(part, versions)
        if there != here:
            return f"{name} is of {part} {there or '(none)'}, and here is {here or 'none'}"
    return ""


def _needed(spec: RLJobSpec) -> dict[str, str]:
    """Checks that may be left out for others, with the field that needs them."""
    needed = {}
    if spec.update.engine in ("megatron", "mindspeed"):
        needed["step-megatron"] = f"update.engine: {spec.update.engine}"
    if spec.rollout.engine == "vllm":
        needed["generation"] = "rollout.engine: vllm"
    return needed


def _parts(spec: RLJobSpec) -> tuple[str, ...]:
    needed = _needed(spec)
    vllm = OF_VLLM if "generation" in needed else ()
    core = OF_MINDSPEED if "step-megatron" in needed else ()
    return (*MINOR, *EXACT, *vllm, *core)


def _compared(part: str, versions: Mapping[str, str]) -> str:
    found = versions.get(part, "")
    return ".".join(found.split(".")[:2]) if part in MINOR else found
