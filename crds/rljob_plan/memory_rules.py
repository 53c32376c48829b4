"""Report what does not fit into the memory of a job's devices and hosts. Called by `plan`."""

from collections.abc import Mapping

from rljob_api.check.megatron_rules import megatron_settings
from rljob_api.model.volumes import GB, MB
from rljob_api.spec.problems import Problem
from rljob_api.topology.resolved import ResolvedSpec
from rljob_plan.host_memory import HostMemory, on_hosts
from rljob_plan.memory import SECOND_COPIES, KvCache, MemoryPlan, Phase, fullest_with_cache

WORKER_MEMORY = "spec.podTemplates.worker.resources.limits.memory"


def memory_problems(spec: ResolvedSpec, memory: MemoryPlan) -> list[Problem]:
    """Return the phases that do not fit on a device, and a KV cache without room for one sequence."""
    limit, path = memory.limit, "spec.accelerator.memory"
    problems = _cache_problems(spec, memory.kv_cache)
    if limit is None or problems:
        return problems
    problems = [
        Problem(
            path,
            f"is {spec.accelerator.memory}, but at the longest lengths {phase.name} needs "
            f"{_size(phase.device)} a device ({_parts(phase)}); raise "
            f"spec.{phase.role}.parallelism.tensor or pipeline, {_remedy(phase, spec)}"
            f"or raise {path}",
        )
        for phase in memory.phases
        if phase.device > limit
    ]
    if not problems and memory.kv_cache.room == 0:
        room = limit - fullest_with_cache(memory.phases)
        sequence = memory.kv_cache.sequence
        message = f"{spec.accelerator.memory} leaves {_size(room)} a device for the KV cache, but "
        message += f"one sequence of the longest lengths takes {_size(sequence)}; raise "
        message += f"spec.rollout.parallelism.tensor or {path}, or shorten spec.batch's lengths"
        problems.append(Problem(path, message))
    return problems


def host_problems(spec: ResolvedSpec, host: HostMemory) -> list[Problem]:
    """Return a problem if the host of a node holds more than its worker pod may use."""
    if host.limit is None or host.total <= host.limit:
        return []
    devices = f"{host.devices} device{'s' * (host.devices > 1)}"
    message = f"is {_size(host.limit)}, but what the {devices} of a node keep takes up to "
    message += f"{_size(host.total)} of its host's memory ({_sizes(host.parts)}); use more"
    return [Problem(WORKER_MEMORY, message + _host_remedy(spec, host.parts))]


def machine_problem(spec: ResolvedSpec, memory: MemoryPlan, available: int) -> list[Problem]:
    """Return a problem if the host needs more than this machine has left. Its processes are all of the job's
    devices."""
    parts = on_hosts(spec, memory)
    total = sum(parts.values())
    if total <= available:
        return []
    fields_by_part = {
        "update weights": ("spec.resharding.strategy", spec.resharding.strategy),
        "optimizer": ("spec.update.offload", spec.update.offload),
        "critic's optimizer": ("spec.critic.offload", "optimizer"),
        "arriving weights": ("spec.flow.mode", spec.flow.mode),
        SECOND_COPIES: ("spec.update.redundancy", spec.update.redundancy),
    }
    path, value = next(field for name, field in fields_by_part.items() if name in parts)
    message = (
        f"is {value}, which takes up to {_size(total)} of the host's memory ({_sizes(parts)}), "
    )
    message += f"but this machine has {_size(available)} left; free some"
    return [Problem(path, message + _host_remedy(spec, parts))]


def _host_remedy(spec: ResolvedSpec, parts: Mapping[str, int]) -> str:
    remedies = {
        "set spec.resharding.strategy: allgather": "update weights" in parts,
        "set spec.update.offload: none": spec.update.offload == "optimizer",
        "set spec.flow.mode: streaming": "arriving weights" in parts,
        "set spec.update.redundancy: none": SECOND_COPIES in parts,
        "use a smaller model": True,
    }
    return "".join(f", or {text}" for text, helps in remedies.items() if helps)


def _cache_problems(spec: ResolvedSpec, cache: KvCache) -> list[Problem]:
    """Return a problem if the KV cache is configured and has no room for one sequence."""
    if spec.rollout.kv_cache_memory is None or cache.room > 0:
        return []
    message = f"is {spec.rollout.kv_cache_memory}, but one sequence of the longest lengths, "
    message += f"{cache.longest} tokens, takes {_size(cache.sequence)} on a device; use at least "
    message += f"{-(-cache.sequence // MB)}Mi, raise spec.rollout.parallelism.tensor or shorten "
    message += "spec.batch's lengths"
    return [Problem("spec.rollout.kvCacheMemory", message)]


def _remedy(phase: Phase, spec: ResolvedSpec) -> str:
    options = {"update": _update_remedy(spec), "reshard": "", "step": ""}
    swaps = spec.resharding.strategy == "allgather-swap"
    swap = "" if swaps else "set resharding.strategy: allgather-swap, "
    if "KV cache" in phase.parts and spec.rollout.kv_cache_memory is not None:
        return f"lower spec.rollout.kvCacheMemory, {swap}"
    return options.get(phase.name, swap)


def _update_remedy(spec: ResolvedSpec) -> str:
    fixed = {path for path, _, _ in megatron_settings(spec.update)}
    remedies = {
        "lower spec.batch.microBatchSize, ": spec.batch.micro_batch_size != 1,
        "lower spec.batch.microBatchTokens, ": spec.batch.micro_batch_tokens is not None,
        "set spec.update.recompute: full, ": spec.update.recompute == "none",
        "set spec.update.offload: optimizer, ": spec.update.offload == "none"
        and "spec.update.offload" not in fixed,
    }
    usable = [text for text, helps in remedies.items() if helps]
    return "".join(["spec.update.parallelism.zero, ", *usable])


def _parts(phase: Phase) -> str:
    return _sizes(phase.parts)


def _sizes(parts: Mapping[str, int]) -> str:
    return ", ".join(f"{name} {_size(size)}" for name, size in parts.items() if size)


def _size(size: float) -> str:
    return f"{size / GB:.3g}Gi" if size >= GB / 10 else f"{size / MB:.3g}Mi"
