"""Place jobs in super-pods of Atlas A3, whose nodes' devices share one network, as Volcano's Ascend plugin
does.

The plugin recognises such a job by the policy of its pods, by `sp-block` or by the type of nodes, in this
order. It places each block of `sp-block` devices inside one super-pod. Its refusals are pinned in
tests/fixtures/ascend. Called by `cluster_rules` and the operator. Pure.
"""

from rljob_api.spec.pods import PodTemplate
from rljob_api.spec.rljob import RLJobSpec
from rljob_api.topology.devices import num_nodes
from rljob_api.topology.elastic import is_elastic

SP_BLOCK = "sp-block"
POLICY = "huawei.com/schedule_policy"
POLICIES = {"chip2-node16-sp": 16, "chip2-node8-sp": 8}
"""Devices of a node, by the policy that places pods in super-pods of such nodes."""
NODE_TYPE = "accelerator-type"
NODE_TYPES = {"module-a3-16-super-pod": 16, "module-a3-8-super-pod": 8}
"""Devices of a node, by the node label that selects nodes of a super-pod."""
MOST_NODES = 48
"""Nodes of a super-pod, unless Volcano is configured with another `super-pod-size`."""


def super_pod_node(spec: RLJobSpec) -> int | None:
    """Return the devices per node of the super-pods that the job is placed in, or None without super-pods."""
    if spec.scheduling.scheduler != "volcano" or spec.accelerator.type != "ascend910c":
        return None
    worker = spec.pod_templates.worker or PodTemplate()
    if (policy := worker.annotations.get(POLICY)) is not None:
        return POLICIES.get(policy)
    if SP_BLOCK in worker.annotations:
        return 16
    labels = worker.node_selector | spec.accelerator.node_selector
    return NODE_TYPES.get(labels.get(NODE_TYPE, ""))


def worker_pods(spec: RLJobSpec) -> int:
    """Return the number of pods with devices, including spare ones: the plugin counts them alike."""
    return num_nodes(spec.placement, spec.accelerator) + spec.accelerator.spare_nodes


def sp_block(spec: RLJobSpec) -> int | None:
    """Return how many devices share one super-pod if the job does not set it: the most that fit in a
    super-pod and divide the job's devices. For elastic jobs it is the devices of one node."""
    if super_pod_node(spec) is None:
        return None
    pods = worker_pods(spec)
    pods_per_block = next(n for n in range(min(pods, MOST_NODES), 0, -1) if pods % n == 0)
    return spec.accelerator.devices_per_node * (1 if is_elastic(spec) else pods_per_block)
