"""Rules on settings that only a cluster reads: deadlines, failures, schedulers, the devices of a node.

Pure functions from a spec to problems, called by `load`; `pod_rules` holds those on pods.
"""

from collections.abc import Iterator

from rljob_api.check.pod_rules import key_problems
from rljob_api.check.rules import Rule, use_one_of
from rljob_api.spec.pods import PodTemplate
from rljob_api.spec.problems import Problem
from rljob_api.spec.products import legal_devices
from rljob_api.spec.rljob import RLJobSpec
from rljob_api.spec.scheduling import QUEUE_NEEDED, QUEUED
from rljob_api.topology.devices import num_nodes
from rljob_api.topology.elastic import is_elastic
from rljob_api.topology.super_pods import SP_BLOCK, super_pod_node, worker_pods


def deadline_rule(spec: RLJobSpec) -> Iterator[Problem]:
    """Require that deadlines of an attempt are shorter than the deadline of the job."""
    job_deadline = spec.active_deadline_seconds
    inner = {
        "startDeadlineSeconds": spec.start_deadline_seconds,
        "progressDeadlineSeconds": spec.progress_deadline_seconds,
    }
    for name, seconds in inner.items():
        if job_deadline is not None and seconds is not None and seconds >= job_deadline:
            yield Problem(
                f"spec.{name}",
                f"is {seconds}, not below activeDeadlineSeconds {job_deadline}, so it never acts; lower it "
                "or leave it out",
            )


def deadline_notes(spec: RLJobSpec) -> Iterator[str]:
    """Yield a note if a deadline passes earlier than a user may expect."""
    progress, stage = spec.progress_deadline_seconds, spec.flow.stage_timeout_seconds
    if progress is not None and progress <= stage:
        yield (
            f"spec.progressDeadlineSeconds {progress} passes before spec.flow.stageTimeoutSeconds "
            f"{stage:g}: a stage that hangs costs its pods; with a shorter stageTimeoutSeconds the run "
            "ends by itself and keeps them"
        )


def failure_rule(spec: RLJobSpec) -> Iterator[Problem]:
    """Require that every rule on failures names the failures that it applies to."""
    policy = spec.failure_policy
    for index, rule in enumerate(policy.rules if policy else ()):
        if not rule.on_exit_codes and not rule.on_reasons:
            yield Problem(
                f"spec.failurePolicy.rules[{index}]",
                f"{rule.action} is for no failure; give onExitCodes, onReasons or both",
            )


def scheduling_rule(spec: RLJobSpec) -> Iterator[Problem]:
    """Require a queue if the scheduler needs one, and refuse one if it has no queues."""
    scheduling, path = spec.scheduling, "spec.scheduling.queue"
    scheduler, queue = scheduling.scheduler, scheduling.queue
    if queue is None and scheduler in QUEUE_NEEDED:
        yield Problem(path, f"is missing; {scheduler} places nothing without a queue; name one")
    if queue is not None and scheduler not in QUEUED:
        yield Problem(
            path,
            f"is {queue!r}, but scheduler {scheduler} has no queues; leave it out or use one of "
            f"{', '.join(QUEUED)}",
        )
    yield from _partial_admission(spec)


def _partial_admission(spec: RLJobSpec) -> Iterator[Problem]:
    least, path = spec.scheduling.min_rollout_devices, "spec.scheduling.minRolloutDevices"
    if least is None:
        return
    if spec.scheduling.scheduler != "kueue":
        yield Problem(path, f"is {least}, but only kueue admits a part of a job; leave it out")
    elif not is_elastic(spec):
        yield Problem(
            path,
            f"is {least}, but the devices of this job cannot become fewer; give placement.mode: separated "
            "and placement.updateDevices, or leave it out",
        )


def accelerator_rule(spec: RLJobSpec) -> Iterator[Problem]:
    """Require a number of devices that the product gives to one pod, and valid node labels."""
    accelerator, path = spec.accelerator, "spec.accelerator"
    nodes = num_nodes(spec.placement, accelerator)
    devices, legal = accelerator.devices_per_node, legal_devices(accelerator, nodes=nodes)
    if legal is not None and devices not in legal:
        whose = "one node" if nodes == 1 else "several nodes"
        yield Problem(
            f"{path}.devicesPerNode",
            f"is {devices}, which {accelerator.type} does not give to a pod of a job on {whose}; "
            f"{use_one_of(list(legal), devices)}",
        )
    if accelerator.type == "emulated" and accelerator.injection != "runtime":
        yield Problem(
            f"{path}.injection",
            f"is {accelerator.injection}, but emulated devices are not injected; leave it out",
        )
    yield from key_problems(f"{path}.nodeSelector", accelerator.node_selector)


def super_pod_rule(spec: RLJobSpec) -> Iterator[Problem]:
    """Refuse what Volcano's Ascend plugin would refuse for a job in super-pods of Atlas A3: partial nodes in
    a job of several nodes, and an sp-block that does not cut the job into full nodes."""
    node, devices, pods = super_pod_node(spec), spec.accelerator.devices_per_node, worker_pods(spec)
    if node is None:
        return
    if devices > node or (pods > 1 and devices < node):
        yield Problem(
            "spec.accelerator.devicesPerNode",
            f"is {devices}, but Volcano gives a job on {'several nodes' if pods > 1 else 'one node'} of A3 "
            f"super-pods {'whole' if pods > 1 else 'no more than'} nodes of {node} devices; use {node}",
        )
        return
    annotations = (spec.pod_templates.worker or PodTemplate()).annotations
    blocks, legal = (
        annotations.get(SP_BLOCK),
        [devices * n for n in range(1, pods + 1) if pods % n == 0],
    )
    if blocks is not None and blocks not in map(str, legal):
        yield Problem(
            f"spec.podTemplates.worker.annotations[{SP_BLOCK}]",
            f"is {blocks!r}, which does not cut {pods * devices} devices into whole nodes of {devices}; use "
            f"one of {', '.join(map(str, legal))}, or leave it out",
        )


CLUSTER_RULES: tuple[Rule, ...] = (
    deadline_rule,
    failure_rule,
    scheduling_rule,
    accelerator_rule,
    super_pod_rule,
)
