"""Suggest what would make a job fit if no layout does, with numbers. Called by `job_search`."""

from rljob_api.model.volumes import GB
from rljob_api.spec.rljob import RLJob
from rljob_api.topology.devices import rollout_mesh, update_mesh
from rljob_plan.memory import MemoryPlan
from rljob_plan.search.candidates import CandidateLayout, Placements, UpdateSetting
from rljob_plan.search.degrees import Degrees
from rljob_plan.search.estimates import Estimator
from rljob_plan.search.ranking import first_that_fits
from rljob_plan.search.reasons import gigabytes, tightest

MOST_TIMES = 64
"""Largest multiple of the job's nodes that is tried."""
MOST_LOOKED_AT = 40


def remedies(estimates: Estimator, placements: Placements) -> list[str]:
    """Return sentences, of which each names a change and its effect."""
    layout = leanest(estimates, placements)
    if layout is None:
        return ["No set of degrees is legal; `rljob validate` says why the job's own is not."]
    memory = estimates.memory(layout, with_reshard=True)
    limit = estimates.spec_of(layout).accelerator.memory
    phase = tightest(memory)
    needs = phase.device + max(0, memory.kv_cache.sequence * (memory.kv_cache.room == 0))
    sentences = [
        f"The layout that needs least ({layout_words(layout)}) takes {gigabytes(needs)} of {limit} a device "
        f"while it does {phase.name}: {_parts(phase.parts)}. Its micro-batches, recompute and offload "
        "are those that take least already."
    ]
    sentences += [f"On the host: {one}." for one in _on_host(estimates, layout, memory)]
    sentences.append(_more_devices(estimates, placements))
    sentences += _saved(estimates, memory)
    return sentences


def leanest(estimates: Estimator, placements: Placements) -> CandidateLayout | None:
    """Return the legal layout with the smallest peak, of those with the leanest settings."""
    best: tuple[float, CandidateLayout] | None = None
    for placement in estimates.space.placements(placements):
        degrees = Degrees(estimates, placement)
        for update in degrees.least_update():
            for rollout in degrees.least_rollout():
                for setting in estimates.space.leanest(update):
                    layout = CandidateLayout(
                        placement=placement, update=update, rollout=rollout, setting=setting
                    )
                    if estimates.space.problems(layout):
                        continue
                    peak = _peak(estimates.memory(layout))
                    if best is None or peak < best[0]:
                        best = (peak, layout)
    return best[1] if best else None


def layout_words(layout: CandidateLayout) -> str:
    """Describe a layout in words."""
    update, rollout, setting = layout.update, layout.rollout, layout.setting
    trains = update.named or f"data {update.data}"
    degrees = {name: getattr(rollout, name) for name in ("data", "tensor", "pipeline", "expert")}
    shown = " × ".join(f"{name} {n}" for name, n in degrees.items() if n > 1) or "data 1"
    mode = layout.placement.mode
    where = (
        ""
        if mode == "colocated"
        else f"; {mode} {update_devices(layout)} + {rollout_devices(layout)}"
    )
    return f"update {trains}; rollout {shown}; {setting_words(setting)}{where}"


def setting_words(setting: UpdateSetting) -> str:
    """Describe a setting in words."""
    if setting.micro_batch_tokens:
        micro = f"microBatchTokens {setting.micro_batch_tokens}"
    else:
        micro = f"microBatchSize {setting.micro_batch_size}"
    text = f"{micro}, recompute {setting.recompute}, offload {setting.offload}"
    return text if setting.redundancy == "none" else f"{text}, redundancy {setting.redundancy}"


def update_devices(layout: CandidateLayout) -> int:
    """Return the number of devices that train."""
    return update_mesh(layout.update).size


def rollout_devices(layout: CandidateLayout) -> int:
    """Return the number of devices that generate."""
    return rollout_mesh(layout.rollout).size


def _peak(memory: MemoryPlan) -> int:
    lacking = memory.kv_cache.sequence if memory.kv_cache.room == 0 else 0
    return max(phase.device for phase in memory.phases) + lacking


def _more_devices(estimates: Estimator, placements: Placements) -> str:
    """Name the least power of two times the job's nodes on which a layout fits."""
    job, times = estimates.job, 2
    accelerator = job.spec.accelerator
    if placements == "job" and job.spec.placement.mode == "separated":
        return "More devices: raise placement.updateDevices and rolloutDevices."
    while times <= MOST_TIMES:
        nodes = (accelerator.nodes or 1) * times
        larger = _on_nodes(job, nodes)
        tried = Estimator(larger, estimates.shape, estimates.others, estimates.rates)
        one = first_that_fits(tried, placements=placements, most=MOST_LOOKED_AT)
        if one is not None:
            return (
                f"More devices: on {nodes} nodes ({nodes * accelerator.devices_per_node} devices) a layout "
                f"fits ({layout_words(one.estimate.layout)}) that takes "
                f"{gigabytes(_peak(one.memory))} a device."
            )
        times *= 2
    return (
        f"More devices: up to {MOST_TIMES} times as many give no layout that fits; a model, or "
        "sequences, of this length need more memory a device."
    )


def _on_nodes(job: RLJob, nodes: int) -> RLJob:
    """Return the job on more nodes. Its own degrees become data parallel, as they have to fill the
    devices."""
    spec = job.spec
    plain = {"parallelism": type(spec.update.parallelism)()}
    generating = {"parallelism": type(spec.rollout.parallelism)()}
    changes = {
        "accelerator": spec.accelerator.model_copy(update={"nodes": nodes}),
        "update": spec.update.model_copy(update=plain),
        "rollout": spec.rollout.model_copy(update=generating),
    }
    return job.model_copy(update={"spec": spec.model_copy(update=changes)})


def _on_host(estimates: Estimator, layout: CandidateLayout, memory: MemoryPlan) -> list[str]:
    problems = estimates.memory_problems(layout, memory)
    return [one.message for one in problems if one.path.startswith("spec.podTemplates")]


def _saved(estimates: Estimator, least: MemoryPlan) -> list[str]:
    """Return what shorter sequences, or narrower types, would save."""
    spec, phase = estimates.job.spec, tightest(least)
    sentences = []
    sizes = {name: phase.parts.get(name, 0) for name in ("activations", "temporary", "KV cache")}
    if (largest := max(sizes, key=lambda name: sizes[name])) and sizes[largest] > phase.device / 4:
        sentences.append(
            f"Shorter sequences: {largest} is {gigabytes(sizes[largest])} of it and shrinks with "
            "batch.maxPromptLength and maxResponseLength."
        )
    if spec.update.dtype == "float32":
        saved = phase.parts.get("update weights", 0) // 2
        sentences.append(f"update.dtype: bfloat16 takes {gigabytes(saved)} less for weights.")
    if spec.update.optimizer.moments_dtype == "float32" and phase.parts.get("optimizer"):
        sentences.append(
            "update.optimizer.momentsDtype: float8 takes 2 bytes a weight in place of 8."
        )
    return sentences


def _parts(parts: dict[str, int]) -> str:
    return ", ".join(
        f"{name} {gigabytes(size)}" for name, size in parts.items() if size >= GB / 100
    )
